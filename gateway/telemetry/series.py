"""Counters and histograms of one event loop: no lock, series found by one dict look-up, exposed by prometheus-client.

prometheus-client's own metrics take a lock and walk the buckets for each value, and know no way to add a batch; a
stream's gaps come as one (``Gaps``), never one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from gateway.model import Gaps
from gateway.telemetry.definitions import Definition

OTHER: Final = "other"
_LONGEST: Final = 100  # characters of a label's value
_TOGETHER: Final = 128  # values that are sorted into buckets at once


def clean(value: str) -> str:
    """A label value that is short and printable: what is not printable becomes ``_`` (a lone surrogate cannot be sent).

    Cut to 100 characters.
    """
    value = value[:_LONGEST]
    return value if value.isprintable() else "".join(char if char.isprintable() else "_" for char in value)


class Bounded:
    """The values of one label: ``known`` ones and at most ``limit`` others; whatever comes beyond is ``other``.

    A value that a caller chooses must first be earned, by a request that a backend completed: so mistyped or made-up
    names take no place.
    """

    def __init__(self, limit: int, known: tuple[str, ...] = ()) -> None:
        """``known`` values are not counted against ``limit``."""
        self._labels = {value[:_LONGEST]: clean(value) for value in known}
        self._room = limit

    def label(self, value: str, *, earned: bool = True) -> str:
        """The label for ``value``."""
        key = value[:_LONGEST]
        label = self._labels.get(key)
        if label is not None:
            return label
        if not earned or self._room <= 0:
            return OTHER
        self._room -= 1
        label = self._labels[key] = clean(key)
        return label

    def settled(self, value: str) -> bool:
        """Whether ``value`` keeps the label that it has now."""
        return self._room <= 0 or value[:_LONGEST] in self._labels


class Counter:
    """One series of a counter: whoever counts adds to ``value``, at least 0."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counters:
    """One counter metric: a ``Counter`` for each set of label values."""

    def __init__(self, definition: Definition) -> None:
        """Start without series, or with the one at 0 where there are no labels."""
        self._definition = definition
        self._series: dict[tuple[str, ...], Counter] = {}
        if not definition.labels:
            self.of()

    def of(self, *labels: str) -> Counter:
        """The series with these label values, which exists from its first use on."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = Counter()
        return series

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Add ``by``, at least 0, where looking the series up each time is no matter."""
        self.of(*labels).value += by

    def family(self) -> CounterMetricFamily:
        """All series, now."""
        definition = self._definition
        family = CounterMetricFamily(definition.name, definition.meaning, labels=definition.labels)
        for labels, series in self._series.items():
            family.add_metric(labels, series.value)
        return family


class Histogram:
    """One series of a histogram; a value on an edge belongs to the bucket under it, as ``le`` says.

    Values are sorted into buckets so many at once: it is a third of the work of doing so with each.
    """

    __slots__ = ("_counts", "_edges", "_fresh", "_places", "_total")

    def __init__(self, edges: tuple[float, ...], places: dict[int, int]) -> None:
        """``edges`` rise; the bucket above the last one is added. ``places`` remembers where buckets of Gaps belong."""
        self._edges = edges
        self._places = places
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0
        self._fresh: list[float] = []  # values that are in no bucket yet

    def add(self, value: float) -> None:
        """Count one value."""
        self._fresh.append(value)
        if len(self._fresh) >= _TOGETHER:
            self._sort()

    def _sort(self) -> None:
        self._total += sum(self._fresh)
        self._fresh.sort()
        start = 0
        for place, edge in enumerate(self._edges):
            end = bisect_right(self._fresh, edge, start)
            self._counts[place] += end - start
            start = end
        self._counts[-1] += len(self._fresh) - start
        self._fresh.clear()

    def add_gaps(self, gaps: Gaps) -> None:
        """Count all gaps of one stream; their sum is exact, their buckets to 0.5 %."""
        counts, places = self._counts, self._places
        for index, times in gaps.buckets.items():
            place = places.get(index)
            if place is None:
                place = places[index] = bisect_left(self._edges, Gaps.value(index))
            counts[place] += times
        self._total += gaps.total

    def so_far(self) -> tuple[list[int], float]:
        """How many values each bucket holds, and the sum of all."""
        self._sort()
        return self._counts, self._total


class Histograms:
    """One histogram metric: a ``Histogram`` for each set of label values."""

    def __init__(self, definition: Definition, edges: tuple[float, ...] | None = None) -> None:
        """``edges`` replaces those of the definition."""
        self._definition = definition
        self._edges = edges or definition.edges
        self._bounds = [*map(floatToGoString, self._edges), "+Inf"]
        self._places: dict[int, int] = {}
        self._series: dict[tuple[str, ...], Histogram] = {}
        if not definition.labels:
            self.of()

    def of(self, *labels: str) -> Histogram:
        """The series with these label values, made at its first use."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = Histogram(self._edges, self._places)
        return series

    def family(self) -> HistogramMetricFamily:
        """All series, now."""
        definition = self._definition
        family = HistogramMetricFamily(definition.name, definition.meaning, labels=definition.labels)
        for labels, series in self._series.items():
            counts, total = series.so_far()
            family.add_metric(labels, self._cumulative(counts), total)
        return family

    def _cumulative(self, counts: list[int]) -> list[tuple[str, float]]:
        count = 0
        buckets: list[tuple[str, float]] = []
        for bound, times in zip(self._bounds, counts, strict=True):
            count += times
            buckets.append((bound, float(count)))
        return buckets
