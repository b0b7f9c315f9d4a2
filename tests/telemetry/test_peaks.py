"""The busiest second and the most requests at once, against counting them one by one."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.peaks import Peaks

SECOND = 1_000_000
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 9_000_000), st.lists(st.integers(0, 900_000), max_size=20).map(lambda g: [*accumulate(g)])
    ),
    max_size=12,
).map(sorted)


def peaks(*requests: tuple[int, int], stamps: tuple[int, ...] = ()) -> Peaks:
    found = Peaks()
    for start, end in requests:
        found.add(start, end, stamps)
    return found


@given(REQUESTS)
def test_chunks_are_counted_by_the_second_from_the_first_request_on(requests: list[tuple[int, list[int]]]) -> None:
    found, seconds = Peaks(), Counter[int]()
    for start, stamps in requests:
        found.add(start, start + (stamps[-1] if stamps else 0), stamps)
        seconds.update((start + stamp - requests[0][0]) // SECOND for stamp in stamps)
    assert found.output == max(seconds.values(), default=0)


@given(REQUESTS)
def test_concurrency_by_either_rule_is_what_counting_finds(requests: list[tuple[int, list[int]]]) -> None:
    found = Peaks()
    spans = [(start, start + 1 + sum(stamps) // 7) for start, stamps in requests]
    touched: Counter[int] = Counter()
    for start, end in spans:
        found.add(start, end)
        touched.update(range((start - spans[0][0]) // SECOND, (end - spans[0][0]) // SECOND + 1))
    assert found.concurrency == max(touched.values(), default=0)
    at_once = [sum(begun <= start < end for begun, end in spans) for start, _ in spans]
    assert found.concurrency_exact == max(at_once, default=0)


def test_requests_one_after_another_are_two_at_once_for_vllm_alone() -> None:
    found = peaks((0, 400_000), (400_000, 800_000))
    assert (found.concurrency, found.concurrency_exact) == (2, 1)


def test_overlap_is_counted_by_both() -> None:
    found = peaks((0, 2_500_000), (100, 200), (300, 400), (2_400_000, 9_000_000))
    assert (found.concurrency, found.concurrency_exact) == (3, 2)


def test_a_chunk_on_the_edge_belongs_to_the_later_second() -> None:
    assert peaks((7, 3_000_007), stamps=(0, 999_999, 1_000_000, 1_000_001, 1_999_999)).output == 3


def test_nothing_has_no_peak() -> None:
    found = Peaks()
    assert (found.output, found.concurrency, found.concurrency_exact) == (0, 0, 0)
