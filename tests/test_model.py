"""The instants of a stream, and the gaps between them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import STAMPS_MAX, Gaps, Timeline

RISING = st.lists(st.integers(0, 5_000_000), max_size=60).map(
    lambda gaps: [sum(gaps[: at + 1]) for at in range(len(gaps))]
)


def test_output_is_stamped_in_microseconds_since_the_request_came() -> None:
    line = Timeline(received=100.0)
    line.output(1, 100.25)
    line.output(3, 100.5)
    assert (line.first_output, line.last_output, line.output_events) == (100.25, 100.5, 4)
    assert line.stamps.tolist() == [250_000, 500_000, 500_000, 500_000]


def test_asides_have_stamps_of_their_own() -> None:
    line = Timeline(received=100.0)
    line.aside(1, 0, 100.125)
    line.output(2, 100.25)
    line.aside(0, 2, 100.25)
    line.aside(2, 1, 100.5)
    assert line.blanks is not None
    assert line.unheard is not None
    assert line.blanks.tolist() == [125_000, 500_000, 500_000]
    assert line.unheard.tolist() == [250_000, 250_000, 500_000]
    assert line.stamps.tolist() == [250_000, 250_000]


def test_a_stream_without_end_keeps_a_bounded_number_of_stamps() -> None:
    line = Timeline(received=0.0)
    for _ in range(3):
        line.output(STAMPS_MAX // 2, 1.0)
        line.aside(STAMPS_MAX // 2, STAMPS_MAX // 2, 1.0)
    assert line.blanks is not None
    assert line.unheard is not None
    assert len(line.stamps) == len(line.blanks) == len(line.unheard) == STAMPS_MAX
    assert line.output_events == STAMPS_MAX // 2 * 3


def test_what_comes_after_71_minutes_is_counted_without_a_stamp() -> None:
    line = Timeline(received=0.0)
    late = 2.0**32 / 1e6
    for now in (1.0, late - 0.5, late + 0.5):
        line.output(1, now)
        line.aside(1, 1, now)
    assert line.stamps.tolist() == (line.blanks or array("I")).tolist() == (line.unheard or array("I")).tolist()
    assert len(line.stamps) == 2
    assert (line.output_events, line.last_output) == (3, late + 0.5)


def test_gaps_grow_with_the_stream() -> None:
    line = Timeline(received=0.0)
    assert line.gaps.count == 0
    line.output(1, 1.0)
    assert line.gaps.count == 0
    line.output(1, 1.5)
    assert (line.gaps.count, line.gaps.total) == (1, 0.5)
    assert line.gaps is line.gaps
    line.output(2, 1.75)
    assert (line.gaps.count, line.gaps.total) == (3, 0.75)


@given(RISING)
def test_gaps_of_a_stream_are_those_added_one_by_one(stamps: list[int]) -> None:
    one_by_one = Gaps()
    for before, after in pairwise(stamps):
        one_by_one.add((after - before) / 1e6)
    found = Gaps.between(array("I", stamps))
    assert (found.count, found.buckets) == (one_by_one.count, one_by_one.buckets)
    assert found.total == pytest.approx(one_by_one.total)


@given(st.floats(1e-6, 4_000.0))
def test_a_bucket_tells_its_gaps_to_half_a_percent(gap: float) -> None:
    gaps = Gaps()
    gaps.add(gap, 2)
    ((index, times),) = gaps.buckets.items()
    assert times == 2
    assert Gaps.value(index) == pytest.approx(gap, rel=0.00501)


def test_the_shortest_and_the_longest_gaps_share_a_bucket() -> None:
    gaps = Gaps()
    for gap in (0.0, 1e-7, 1e-6, 5_000.0, 50_000.0):
        gaps.add(gap)
    assert sorted(gaps.buckets.values()) == [2, 3]
    assert gaps.total == pytest.approx(55_000.0)
    assert Gaps.between([0, 4_294_967_295]).buckets.keys() <= {max(gaps.buckets), max(gaps.buckets) - 1}


def test_there_is_a_bound_on_buckets() -> None:
    assert bisect_left(Gaps._EDGES, 1e18) == len(Gaps._EDGES) == 2229
