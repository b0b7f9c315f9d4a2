"""What the process asks of the operating system: its event loop and its signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from gateway.app.exits import EXIT_SIGNAL

COLLECT: Final = 10_000, 10, 10
"""Thresholds of the garbage collector. A request leaves it nothing and a client that leaves a dozen objects, while one
look at all that a thousand streams hold takes 40 ms, in which no chunk moves."""

_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def settle() -> None:
    """Tell the garbage collector that what stands now, once everything is started, stays: it need not look again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main`` on the fastest loop there is."""
    try:
        import uvloop
    except ImportError:  # no wheels for Windows
        return asyncio.run(main)
    return uvloop.run(main)


class Signals:
    """SIGTERM and SIGINT as values to wait for, one after the other. Made on a running loop."""

    def __init__(self, parent: int | None = None) -> None:
        """``parent``: a pipe of which another process holds the other end, and writes the number of a signal to it.

        Then only the first signal of the system's counts, and the end of the pipe is one too. A service manager may
        send the same one to every process of a service (systemd does), of which the parent is one that passes it on:
        that is no second one, which would cut what the first lets finish. The parent's word always counts.
        """
        self._arrived: asyncio.Queue[int] = asyncio.Queue()
        self._parent = parent
        self._told = False
        self._loop = asyncio.get_running_loop()
        self._acting: set[asyncio.Task[None]] = set()
        for number in _STOP:
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
                self._loop.add_signal_handler(number, self._hear, number)
        if parent is not None:
            self._loop.add_reader(parent, self._hear_parent, parent)

    def _hear(self, number: int) -> None:
        if self._parent is None or not self._told:
            self._told = True
            self._arrived.put_nowait(number)

    def _hear_parent(self, pipe: int) -> None:
        said = os.read(pipe, 16)
        for number in said:
            self._arrived.put_nowait(number)
        if not said:
            self._loop.remove_reader(pipe)
            self._hear(signal.SIGTERM)

    async def next(self) -> int:
        """Number of the next signal."""
        return await self._arrived.get()

    async def unless_told(self, start: Coroutine[Any, Any, None]) -> bool:
        """Await ``start``; False where a signal comes first, which ends it. The signal is used up.

        Raises:
            Exception: what ``start`` raises.
        """
        starting, told = asyncio.create_task(start), asyncio.create_task(self.next())
        await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            if told.done():  # both at once
                self._arrived.put_nowait(told.result())
            told.cancel()
            await starting
            return True
        starting.cancel()
        await asyncio.wait({starting})
        return False

    def on_hangup(self, action: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Call ``action`` at each SIGHUP, where there is one, and run what it returns."""

        def act() -> None:
            doing = action()
            if doing is not None:
                task = self._loop.create_task(doing)
                self._acting.add(task)
                task.add_done_callback(self._acting.discard)

        if hasattr(signal, "SIGHUP"):
            self._loop.add_signal_handler(signal.SIGHUP, act)


class Leaving(Protocol):
    """What serves until it is told to leave."""

    async def drain(self) -> None:
        """Refuse new work, let the rest finish within the grace time, then stop."""

    async def stop(self) -> None:
        """Cut everything that is left and close."""


async def leave(service: Leaving, signals: Signals) -> int:
    """Let what runs finish, within the grace time or until another signal; the exit code."""
    drained = asyncio.create_task(service.drain())
    again = asyncio.create_task(signals.next())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        number = again.result()
        await service.stop()
        await drained
        return EXIT_SIGNAL + number
    again.cancel()
    return 0
