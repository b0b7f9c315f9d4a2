from __future__ import annotations

import pytest

from gateway.telemetry.ladder import bounds, gaps, rung


@pytest.mark.parametrize("steps", [4, 16])
def test_every_level_is_on_the_rung_that_spans_it_and_rungs_follow_each_other(steps: int) -> None:
    last = -1
    for level in range(1, 5000):
        index = rung(level, steps)
        low, high = bounds(index, steps)
        assert low <= level <= high
        assert high - low + 1 <= max(1.0, low / steps)
        assert index - last in {0, 1}
        last = index


def test_low_levels_stand_alone() -> None:
    assert [bounds(rung(level, 16), 16) for level in (1, 31, 32, 64)] == [(1, 1), (31, 31), (32, 33), (64, 67)]
    assert [bounds(rung(level, 4), 4) for level in (7, 8, 100)] == [(7, 7), (8, 9), (96, 111)]


def test_a_fine_rung_lies_in_one_coarse_rung() -> None:
    for index in range(130):
        low, high = bounds(index, 16)
        assert rung(low, 4) == rung(high, 4)


def test_gaps_are_what_was_not_held_below_the_highest() -> None:
    assert gaps([]) == []
    assert gaps([(1, 1), (2, 2)]) == []
    assert gaps([(3, 3), (4, 4), (8, 9)]) == [(1, 2), (5, 7)]
