"""What the process asks of the operating system: its event loop, its signals, its files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main`` on the fastest loop there is."""
    try:
        import uvloop
    except ImportError:  # no wheels for Windows
        return asyncio.run(main)
    return uvloop.run(main)


class Signals:
    """SIGTERM and SIGINT as values to wait for, one after the other. Made on a running loop."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[int] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        for number in _STOP:
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
                self._loop.add_signal_handler(number, self._arrived.put_nowait, number)

    async def next(self) -> int:
        """Number of the next signal."""
        return await self._arrived.get()

    def on_hangup(self, action: Callable[[], None]) -> None:
        """Call ``action`` at each SIGHUP, where there is one."""
        if hasattr(signal, "SIGHUP"):
            self._loop.add_signal_handler(signal.SIGHUP, action)


def raise_file_limit() -> None:
    """Allow as many open files as the system permits: each stream takes two, and the usual default is 1024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS names a hard limit that it does not accept
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
