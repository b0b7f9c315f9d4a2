"""Mean, median, standard deviation and percentiles, as numpy computes them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final

_MOST_GAPS: Final = 65_536  # different gaps kept to the microsecond
_KEPT_BITS: Final = 9  # of a gap, once there are more: it is within 0.1 % then


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of one sample, in its own unit; all 0 where it is empty, as vLLM prints them."""

    count: int
    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]  # by percent


def spread(values: list[float], percents: Sequence[float]) -> Spread:
    """Figures of raw values, which are sorted in place."""
    values.sort()
    count = len(values)
    mean = math.fsum(values) / count if count else 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / count if count else 0.0
    return Spread(
        count=count,
        mean=mean,
        median=percentile(values, 50.0),
        std=math.sqrt(variance),
        percentiles={percent: percentile(values, percent) for percent in percents},
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """As numpy by default: between the two nearest ranks of ``ordered``, in proportion. 0 where it is empty."""
    if not ordered:
        return 0.0
    rank = (len(ordered) - 1) * percent / 100.0
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return _between(ordered[below], ordered[above], rank - below)


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


class GapPool:
    """The gaps of many streams: each to the microsecond, or to 0.1 % once more than 65,536 differ.

    Count and sum are exact in either case.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._times: Counter[int] = Counter()  # by microseconds
        self._count = 0
        self._total = 0

    def add(self, stamps: Sequence[int]) -> None:
        """Take the gaps between instants in microseconds that never fall."""
        self._times.update(map(sub, stamps[1:], stamps))
        self._count += max(len(stamps) - 1, 0)
        self._total += stamps[-1] - stamps[0] if stamps else 0
        if len(self._times) > _MOST_GAPS:
            self._coarsen()

    def _coarsen(self) -> None:
        """Merge gaps that are alike in their first nine bits into the middle of theirs."""
        fine, self._times = self._times, Counter()
        for gap, times in fine.items():
            dropped = max(gap.bit_length() - _KEPT_BITS, 0)
            self._times[(gap >> dropped << dropped) + ((1 << dropped) >> 1)] += times

    def spread(self, percents: Sequence[float]) -> Spread:
        """Figures in seconds."""
        gaps = sorted(self._times)
        ranks = list(accumulate(self._times[gap] for gap in gaps))
        mean = self._total / self._count if self._count else 0.0
        variance = sum(times * (gap - mean) ** 2 for gap, times in self._times.items()) / max(self._count, 1)
        return Spread(
            count=self._count,
            mean=mean / 1e6,
            median=self._percentile(gaps, ranks, 50.0) / 1e6,
            std=math.sqrt(variance) / 1e6,
            percentiles={percent: self._percentile(gaps, ranks, percent) / 1e6 for percent in percents},
        )

    def _percentile(self, gaps: Sequence[int], ranks: Sequence[int], percent: float) -> float:
        if not gaps:
            return 0.0
        rank = (self._count - 1) * percent / 100.0
        below = int(rank)
        low = gaps[bisect_right(ranks, below)]
        high = gaps[bisect_right(ranks, min(below + 1, self._count - 1))]
        return _between(low, high, rank - below)
