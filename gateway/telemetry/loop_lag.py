"""How late the event loop runs its callbacks: what every stream is delayed by while something holds the loop."""

from __future__ import annotations

import asyncio
from typing import Final

_PERIOD: Final = 0.25  # seconds between two looks
_SLOT: Final = 60  # looks in a slot: 15 s


class LoopLag:
    """Peak lateness of a periodic callback over the last 15 to 30 seconds, so that no scrape misses a stall."""

    def __init__(self) -> None:
        """Idle until started."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._looks = 0
        self._peak = 0.0
        self._peak_before = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __call__(self) -> float:
        """Seconds; 0 before the first look."""
        return max(self._peak, self._peak_before)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _PERIOD
        self._timer = loop.call_later(_PERIOD, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._peak = max(self._peak, loop.time() - self._due)
        self._looks += 1
        if self._looks % _SLOT == 0:
            self._peak_before, self._peak = self._peak, 0.0
        self._arm(loop)
