"""Who asks, and how it goes for each: what tells one bad client from a bad engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.model import Outcome, Record

SLOT: Final = 10.0  # seconds
CLIENTS: Final = 500  # told apart in one slot
OTHERS: Final = "other"


@dataclass(slots=True)
class ClientCounts:
    """Requests of one client.

    ``held`` are the seconds that they ran on a backend, ``paused`` those in which the client took nothing of what was
    there for it.
    """

    name: str
    ended: int = 0
    completed: int = 0
    gone: int = 0
    errors: int = 0
    held: float = 0.0
    paused: float = 0.0

    def count(self, record: Record) -> None:
        """Take one of its requests."""
        self.ended += 1
        self.completed += record.outcome is Outcome.COMPLETED
        self.gone += record.outcome is Outcome.CLIENT_GONE
        self.errors += record.outcome is Outcome.CLIENT_ERROR
        timeline = record.timeline
        if timeline.admitted is not None and timeline.finished is not None:
            self.held += timeline.finished - timeline.admitted
            self.paused += timeline.paused

    def add(self, other: ClientCounts) -> None:
        """Take what was counted elsewhere."""
        self.ended += other.ended
        self.completed += other.completed
        self.gone += other.gone
        self.errors += other.errors
        self.held += other.held
        self.paused += other.paused


class Clients:
    """An observer; counts by client over the last ``seconds`` or a little more."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._slots: deque[tuple[float, dict[str, ClientCounts]]] = deque()

    def observe(self, record: Record) -> None:
        """Take a finished request that came to admission."""
        if record.ticket is None:
            return
        slot = self._slot()
        name = record.ticket.client
        counts = slot.get(name)
        if counts is None:
            if len(slot) >= CLIENTS:
                name = OTHERS
            counts = slot.setdefault(name, ClientCounts(name))
        counts.count(record)

    def _slot(self) -> dict[str, ClientCounts]:
        now = self._clock()
        if not self._slots or now - self._slots[-1][0] >= SLOT:
            self._slots.append((now, {}))
            self._expire(now)
        return self._slots[-1][1]

    def _expire(self, now: float) -> None:
        while self._slots and self._slots[0][0] < now - self._seconds - SLOT:
            self._slots.popleft()

    def counts(self) -> list[ClientCounts]:
        """Everybody who was there lately."""
        self._expire(self._clock())
        sums: dict[str, ClientCounts] = {}
        for _, slot in self._slots:
            for name, counts in slot.items():
                sums.setdefault(name, ClientCounts(name)).add(counts)
        return list(sums.values())
