from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from tests.proxy.helpers import Script, ScriptedBackend, StartBackend


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs on both loops: they differ in clocks, timers, buffers and closing."""
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop

    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _nothing_blocks() -> Iterator[BlockBuster]:
    with blockbuster_ctx("gateway") as blockbuster:
        yield blockbuster


@pytest.fixture
async def backend() -> AsyncIterator[StartBackend]:
    """Starts scripted backends."""
    started: list[ScriptedBackend] = []

    async def start(script: Script) -> ScriptedBackend:
        scripted = ScriptedBackend(script)
        started.append(scripted)
        return await scripted.start()

    yield start
    for scripted in started:
        await scripted.stop()
