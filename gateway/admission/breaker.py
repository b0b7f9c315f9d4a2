"""What the end of a request says of its backend: to the limit, and to the breaker.

Backpressure (429, 503, 529) is congestion: it moves the limit and never opens the breaker. What clients do (leave,
send nonsense) says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from math import inf
from typing import Final

from gateway.admission.config import BreakerConfig
from gateway.model import Outcome


@unique
class Signal(Enum):
    """What the limit may learn from how a request ended."""

    SAMPLE = "sample"  # an answer: its timings count
    DROP = "drop"  # the backend could not: a sign of too much
    IGNORE = "ignore"  # says nothing about the backend's load


ENDS: Final[Mapping[Outcome, tuple[Signal, bool | None]]] = {  # and for the breaker: it lives, it failed, nothing
    Outcome.COMPLETED: (Signal.SAMPLE, True),
    Outcome.REFUSED: (Signal.IGNORE, None),
    Outcome.CLIENT_ERROR: (Signal.IGNORE, True),
    Outcome.CLIENT_GONE: (Signal.IGNORE, None),
    Outcome.BACKEND_BUSY: (Signal.DROP, True),
    Outcome.BACKEND_ERROR: (Signal.DROP, False),
    Outcome.CONNECT_FAILED: (Signal.DROP, False),
    Outcome.BACKEND_LOST: (Signal.DROP, False),
    Outcome.BACKEND_SILENT: (Signal.DROP, False),
    Outcome.INTERNAL_ERROR: (Signal.IGNORE, None),
}


class Breaker:
    """Closed, open for a cooldown that doubles, then half open: one trial decides."""

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._failures = 0
        self._cooldown = config.cooldown
        self.until = -inf  # while open: when it may be tried
        self.open = False
        self.trial: int | None = None  # permit id of the trial

    def ready(self, now: float) -> bool:
        """Whether a request may go to it: closed, or half open without a trial under way."""
        return not self.open or (now >= self.until and self.trial is None)

    def note(self, lives: bool | None, permit_id: int, now: float) -> bool:
        """Take how a request ended; True where that closed it."""
        tried = self.trial == permit_id
        if tried:
            self.trial = None
        if lives:
            return self._close()
        if lives is False:
            self._failures += 1
            if tried or (not self.open and self._failures >= self._config.failures):
                self.trip(now)
        return False

    def _close(self) -> bool:
        was_open, self.open = self.open, False
        self._failures = 0
        self._cooldown = self._config.cooldown
        self.trial = None
        return was_open

    def trip(self, now: float) -> None:
        """Open it for the next cooldown."""
        self.open = True
        self.until = now + self._cooldown
        self._cooldown = min(2 * self._cooldown, self._config.cooldown_max)

    def state(self, now: float) -> str | None:
        """``open`` or ``half_open``, None while closed."""
        if not self.open:
            return None
        return "half_open" if now >= self.until else "open"
