"""The event heap: simulated time, and what happens next."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

Action = Callable[[], object]


class World:
    """Runs actions in the order of their times; equal times in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Action) -> None:
        """Run ``action`` at ``when`` seconds, or now where that is past; never, where it is infinite."""
        if when < math.inf:
            heapq.heappush(self._heap, (max(when, self.now), next(self._order), action))

    def after(self, delay: float, action: Action) -> None:
        """Run ``action`` in ``delay`` seconds."""
        self.at(self.now + delay, action)

    def run(self, until: float) -> None:
        """Let everything happen that is due by ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heapq.heappop(heap)
            action()
        self.now = until


class Alarm:
    """One timer that can be moved: only the last time it was set to counts."""

    def __init__(self, world: World, action: Action) -> None:
        self._world = world
        self._action = action
        self._due = math.inf

    def set(self, when: float | None) -> None:
        """Ring at ``when``; None: not at all."""
        due = math.inf if when is None else max(when, self._world.now)
        if due != self._due:
            self._due = due
            self._world.at(due, self._ring)

    def _ring(self) -> None:
        if self._world.now == self._due:
            self._due = math.inf
            self._action()
