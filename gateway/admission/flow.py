"""What arrives at one queue and what leaves it: the drain that the door reckons with, and whether it is overload."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import floor
from typing import Final

from gateway.admission.queue import Lane

SPAN_LEAST: Final = 10.0  # seconds of dispatches that an estimate looks back on, at least
SPAN_MOST: Final = 60.0
SPAN_DISPATCHES: Final = 20  # and so many dispatches: a slow engine starts five requests in ten seconds


class Flow:
    """Cost that arrived at one queue and cost that left it for a backend, second by second."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._seconds: deque[list[float]] = deque()  # [second, arrived, dispatched of lane 0, of lane 1, ...]
        self._recent: deque[float] = deque(maxlen=SPAN_DISPATCHES)
        self._born: float | None = None
        self.drain = [0.0] * lanes  # cost units a second, observed
        self.total = 0.0  # of all lanes: the observed drain, or what the backends could do if that is more
        self.over_since: float | None = None

    def _second(self, now: float) -> list[float]:
        second = floor(now)
        if self._born is None:
            self._born = now
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0.0] + [0.0] * self._lanes)
        return self._seconds[-1]

    def arrive(self, cost: float, now: float) -> None:
        """A request came, whatever becomes of it."""
        self._second(now)[1] += cost

    def dispatch(self, lane: int, cost: float, now: float) -> None:
        """A request went to a backend."""
        self._second(now)[2 + lane] += cost
        self._recent.append(now)

    def refresh(self, capacity: float, overload_ratio: float, now: float) -> None:
        """Make the estimates current; ``capacity`` is what the backends could serve, in cost units a second.

        Without it a burst after an idle minute would meet a door that has seen nothing drain.
        """
        while self._seconds and self._seconds[0][0] < now - SPAN_MOST - 1.0:
            self._seconds.popleft()
        if self._born is None or not self._seconds:
            return
        first = max(self._born, now - self._span(now))
        sums = [0.0] * (1 + self._lanes)
        for second, *amounts in self._seconds:
            if second >= floor(first):
                sums = [total + amount for total, amount in zip(sums, amounts, strict=True)]
        length = max(1.0, now - max(self._born, floor(first)))
        self.drain = [dispatched / length for dispatched in sums[1:]]
        observed = sum(sums[1:])
        self.total = max(observed / length, capacity)
        if sums[0] <= overload_ratio * observed:
            self.over_since = None
        elif self.over_since is None:
            self.over_since = now

    def _span(self, now: float) -> float:
        full = len(self._recent) == SPAN_DISPATCHES
        return min(SPAN_MOST, max(SPAN_LEAST, now - self._recent[0])) if full else SPAN_MOST

    def overloaded(self, after: float, now: float) -> bool:
        """Whether much more arrives than leaves, and has for ``after`` seconds."""
        return self.over_since is not None and now - self.over_since >= after

    def wait(self, cost: float, lanes: Sequence[Lane], lane: int) -> float:
        """Seconds until ``cost`` units of ``lane`` have left the queue; 0 where nothing is known yet."""
        busy = sum(other.config.weight for i, other in enumerate(lanes) if other.depth or i == lane)
        rate = max(self.drain[lane], self.total * lanes[lane].config.weight / busy)
        return cost / rate if rate > 0 else 0.0
