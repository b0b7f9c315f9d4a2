"""The busiest second, and the most requests at once, by the rules of ``vllm bench serve``.

Its seconds are counted from the first request on. Its rule for concurrency (0.32.0 and 0.33.0) counts a request in each
second that it touches, so one that ends and one that begins within a second count together; the exact figure does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

_SECOND: Final = 1_000_000


class Peaks:
    """Takes requests in the order in which they came; all instants are whole microseconds of one clock."""

    def __init__(self) -> None:
        """Start empty."""
        self._first: int | None = None
        self._chunks: defaultdict[int, int] = defaultdict(int)  # by second
        self._changes: defaultdict[int, int] = defaultdict(int)  # of the concurrency, by second
        self._ends: list[int] = []  # of the requests that run, as a heap
        self.concurrency_exact = 0

    def add(self, received: int, ended: int, stamps: Sequence[int] = ()) -> None:
        """Take a request: its first and last instant, and its chunks' distances from the first."""
        if self._first is None:
            self._first = received
        start, end = received - self._first, ended - self._first
        self._changes[start // _SECOND] += 1
        self._changes[end // _SECOND + 1] -= 1
        while self._ends and self._ends[0] <= start:
            heappop(self._ends)
        heappush(self._ends, end)
        self.concurrency_exact = max(self.concurrency_exact, len(self._ends))
        self._add_chunks(start, stamps)

    def _add_chunks(self, start: int, stamps: Sequence[int]) -> None:
        place = 0
        while place < len(stamps):
            second = (start + stamps[place]) // _SECOND
            beyond = bisect_left(stamps, (second + 1) * _SECOND - start, place)
            self._chunks[second] += beyond - place
            place = beyond

    @property
    def output(self) -> int:
        """Chunks in the busiest second."""
        return max(self._chunks.values(), default=0)

    @property
    def concurrency(self) -> int:
        """Requests that touch the second that the most of them touch."""
        return max(accumulate(self._changes[second] for second in sorted(self._changes)), default=0)
