"""What the process asks of the operating system: its event loop and its signals."""

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
