"""What arrives at one queue and what leaves it: the drain that the door reckons with, and whether it is overload."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from math import floor, inf
from operator import attrgetter
from typing import Final

from gateway.admission.config import ShedConfig
from gateway.admission.queue import PriorityQueue
from gateway.model import Priority

SPAN_LEAST: Final = 10.0  # seconds of dispatches that an estimate looks back on, at least
SPAN_MOST: Final = 60.0
SPAN_DISPATCHES: Final = 20  # and so many dispatches: a slow engine starts five requests in ten seconds


@dataclass(frozen=True, slots=True)
class _Mark:
    """The sums as they stood when a second began in which something happened."""

    at: int
    arrived: tuple[float, ...]
    dispatched: tuple[float, ...]


class Flow:
    """Cost that arrived at one queue and cost that left it for a backend: a sum for each lane of each priority.

    ``share`` is what a priority that others go before gets at least, of all that is served.
    """

    def __init__(self, lanes: int, share: float) -> None:
        slots = lanes * len(Priority)
        self._lanes = lanes
        self._share = share
        self._arrived = [0.0] * slots  # since the beginning
        self._dispatched = [0.0] * slots
        self._marks: list[_Mark] = []
        self._second = -1
        self._recent: deque[float] = deque(maxlen=SPAN_DISPATCHES)
        self._born: float | None = None
        self._over_since: list[float | None] = [None] * slots
        self.drain = [0.0] * slots  # cost units a second, observed
        self.total = 0.0  # of all: the observed drain, or what the backends could do if that is more

    def _mark(self, second: int, now: float) -> None:
        if self._born is None:
            self._born = now
        self._second = second
        self._marks.append(_Mark(second, tuple(self._arrived), tuple(self._dispatched)))

    def arrive(self, priority: Priority, lane: int, cost: float, now: float) -> None:
        """A request came, whatever becomes of it."""
        if (second := int(now)) != self._second:
            self._mark(second, now)
        self._arrived[priority * self._lanes + lane] += cost

    def dispatch(self, priority: Priority, lane: int, cost: float, now: float) -> None:
        """A request went to a backend."""
        if (second := int(now)) != self._second:
            self._mark(second, now)
        self._dispatched[priority * self._lanes + lane] += cost
        self._recent.append(now)

    def refresh(self, capacity: float, overload: ShedConfig, now: float) -> None:
        """Make the estimates current; ``capacity`` is what the backends could serve, in cost units a second.

        Without it a burst after an idle minute would meet a door that has seen nothing drain. What was ``overload`` for
        so long is over when no more comes than leaves: retries that are let in before would only begin it anew.
        """
        if self._born is None:
            return
        past = self._since(now - SPAN_MOST - 1.0)
        del self._marks[:past]
        begin = max(self._born, now - self._span(now))
        index = self._since(floor(begin))
        mark = self._marks[index] if index < len(self._marks) else _Mark(0, (*self._arrived,), (*self._dispatched,))
        length = max(1.0, now - max(self._born, floor(begin)))
        for slot in range(len(self.drain)):
            arrived = self._arrived[slot] - mark.arrived[slot]
            dispatched = self._dispatched[slot] - mark.dispatched[slot]
            self.drain[slot] = dispatched / length
            since = self._over_since[slot]
            lasts = since is not None and now - since >= overload.overload_after
            if arrived <= (1.0 if lasts else overload.overload_ratio) * dispatched:
                self._over_since[slot] = None
            elif since is None:
                self._over_since[slot] = now
        self.total = max(sum(self.drain), capacity)

    def _since(self, instant: float) -> int:
        return bisect_left(self._marks, instant, key=attrgetter("at"))

    def _span(self, now: float) -> float:
        full = len(self._recent) == SPAN_DISPATCHES
        return min(SPAN_MOST, max(SPAN_LEAST, now - self._recent[0])) if full else SPAN_MOST

    def age(self, now: float) -> float:
        """Seconds since the first arrival."""
        return 0.0 if self._born is None else now - self._born

    def overloaded(self, priority: Priority, lane: int, after: float, now: float) -> bool:
        """Whether much more arrives in ``lane`` of ``priority`` than leaves it, and has for ``after`` seconds.

        Lane by lane: what is refused in a flood of short requests says nothing of the rare long one.
        """
        since = self._over_since[priority * self._lanes + lane]
        return since is not None and now - since >= after

    def wait(self, cost: float, queue: PriorityQueue, priority: Priority, lane: int) -> float:
        """Seconds until ``cost`` units of ``lane`` have left the queue; 0 where nothing is known yet."""
        lanes = queue.priorities[priority].lanes
        own = lanes[lane]
        busy = weight = own.config.weight
        for other in lanes:
            if other.depth and other is not own:
                busy += other.config.weight
        share = weight / busy
        seen = self.drain[priority * self._lanes + lane]
        if priority is Priority.CRITICAL:
            rate = max(seen, self.total * share)
            return cost / rate if rate > 0 else 0.0
        before = 0.0
        for higher in queue.priorities[:priority]:
            if higher.depth:
                before += sum(other.cost for other in higher.lanes)
        least = self.total * self._share
        if before and priority is Priority.SHEDDABLE and self.total:
            # Somebody waits whom it must let go before: there is only its floor, and that may be spent.
            return (cost + queue.debt(priority)) / (least * share) if least else inf
        rate = max(seen, share * max(self.total - sum(self.drain[: priority * self._lanes]), least))
        return cost / rate + before / self.total if rate > 0 else 0.0
