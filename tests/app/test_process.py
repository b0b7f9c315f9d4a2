"""A signal may come at any moment, the start included."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from gateway.app.process import Signals


async def test_a_start_that_nothing_disturbs() -> None:
    signals = Signals()
    assert await signals.unless_told(asyncio.sleep(0))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await signals.next() == signal.SIGTERM


async def test_a_signal_ends_a_start_that_waits() -> None:
    signals = Signals()
    ended = asyncio.Event()

    async def start() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert not await signals.unless_told(start())
    assert ended.is_set()


async def test_a_start_that_fails_says_why() -> None:
    async def start() -> None:
        await asyncio.sleep(0)
        raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        await Signals().unless_told(start())


async def test_a_signal_that_comes_with_the_end_of_the_start_is_kept() -> None:
    signals = Signals()

    async def start() -> None:
        signals._arrived.put_nowait(signal.SIGINT)
        await asyncio.sleep(0)

    assert await signals.unless_told(start())
    assert await asyncio.wait_for(signals.next(), 5) == signal.SIGINT


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(Ours, the parent's)."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


async def test_the_end_of_the_parent_is_a_sigterm(pipe: tuple[int, int]) -> None:
    signals = Signals(parent=pipe[0])
    await asyncio.sleep(0)
    os.close(pipe[1])
    assert await asyncio.wait_for(signals.next(), 5) == signal.SIGTERM


async def test_a_signal_that_was_sent_to_everybody_is_no_second_one(pipe: tuple[int, int]) -> None:
    signals = Signals(parent=pipe[0])
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(signals.next(), 5) == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGTERM)
    again = asyncio.create_task(signals.next())
    await asyncio.wait({again}, timeout=0.05)
    assert not again.done()
    os.write(pipe[1], bytes((signal.SIGINT,)))
    assert await asyncio.wait_for(again, 5) == signal.SIGINT
