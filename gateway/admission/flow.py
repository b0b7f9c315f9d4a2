"""What arrives at one queue and what leaves it: the drain that the door reckons with, and whether it is overload."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from gateway.admission.queue import Lane

SPAN_LEAST: Final = 10.0  # seconds of dispatches that an estimate looks back on, at least
SPAN_MOST: Final = 60.0
SPAN_DISPATCHES: Final = 20  # and so many dispatches: a slow engine starts five requests in ten seconds


@dataclass(frozen=True, slots=True)
class _Second:
    """What happened in one second: cost by lane."""

    at: int
    arrived: list[float]
    dispatched: list[float]


class Flow:
    """Cost that arrived at one queue and cost that left it for a backend, lane by lane, second by second."""

    def __init__(self, lanes: int) -> None:
        self._lanes = range(lanes)
        self._seconds: deque[_Second] = deque()
        self._recent: deque[float] = deque(maxlen=SPAN_DISPATCHES)
        self._born: float | None = None
        self._over_since: list[float | None] = [None] * lanes
        self.drain = [0.0] * lanes  # cost units a second, observed
        self.total = 0.0  # of all lanes: the observed drain, or what the backends could do if that is more

    def _second(self, now: float) -> _Second:
        second = floor(now)
        if self._born is None:
            self._born = now
        if not self._seconds or self._seconds[-1].at != second:
            self._seconds.append(_Second(second, [0.0] * len(self._lanes), [0.0] * len(self._lanes)))
        return self._seconds[-1]

    def arrive(self, lane: int, cost: float, now: float) -> None:
        """A request came, whatever becomes of it."""
        self._second(now).arrived[lane] += cost

    def dispatch(self, lane: int, cost: float, now: float) -> None:
        """A request went to a backend."""
        self._second(now).dispatched[lane] += cost
        self._recent.append(now)

    def refresh(self, capacity: float, overload_ratio: float, now: float) -> None:
        """Make the estimates current; ``capacity`` is what the backends could serve, in cost units a second.

        Without it a burst after an idle minute would meet a door that has seen nothing drain.
        """
        while self._seconds and self._seconds[0].at < now - SPAN_MOST - 1.0:
            self._seconds.popleft()
        if self._born is None:
            return
        first = floor(max(self._born, now - self._span(now)))
        span = [second for second in self._seconds if second.at >= first]
        length = max(1.0, now - max(self._born, first))
        for lane in self._lanes:
            arrived = sum(second.arrived[lane] for second in span)
            dispatched = sum(second.dispatched[lane] for second in span)
            self.drain[lane] = dispatched / length
            if arrived <= overload_ratio * dispatched:
                self._over_since[lane] = None
            elif self._over_since[lane] is None:
                self._over_since[lane] = now
        self.total = max(sum(self.drain), capacity)

    def _span(self, now: float) -> float:
        full = len(self._recent) == SPAN_DISPATCHES
        return min(SPAN_MOST, max(SPAN_LEAST, now - self._recent[0])) if full else SPAN_MOST

    def overloaded(self, lane: int, after: float, now: float) -> bool:
        """Whether much more arrives in ``lane`` than leaves it, and has for ``after`` seconds.

        Lane by lane: what is refused in a flood of short requests says nothing of the rare long one.
        """
        since = self._over_since[lane]
        return since is not None and now - since >= after

    def wait(self, cost: float, lanes: Sequence[Lane], lane: int) -> float:
        """Seconds until ``cost`` units of ``lane`` have left the queue; 0 where nothing is known yet."""
        busy = sum(other.config.weight for i, other in enumerate(lanes) if other.depth or i == lane)
        rate = max(self.drain[lane], self.total * lanes[lane].config.weight / busy)
        return cost / rate if rate > 0 else 0.0
