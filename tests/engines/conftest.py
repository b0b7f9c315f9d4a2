from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs on both loops: they differ in how a connection ends, with TLS most of all."""
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop

    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
