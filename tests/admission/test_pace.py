from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.pace import LowBase, Ratio


def base(*samples: float) -> LowBase:
    learned = LowBase()
    for sample in samples:
        learned.add(sample)
    return learned


def test_fewer_than_five_samples_tell_nothing() -> None:
    assert base(1.0, 1.0, 1.0, 1.0).value is None
    assert base(1.0, 1.0, 1.0, 1.0, 1.0).value == 1.0


def test_a_part_of_a_batch_gives_its_low_percentile() -> None:
    assert base(*range(10, 30)).value == 12.0


def test_one_freak_sample_does_not_stand_for_the_engine() -> None:
    assert base(0.001, *[1.0] * 29).value == 1.0


def test_the_value_falls_at_once_and_rises_by_a_tenth_a_batch() -> None:
    learned = base(*[1.0] * 30)
    for _ in range(30):
        learned.add(5.0)
    assert learned.value == pytest.approx(1.1)
    for _ in range(30):
        learned.add(0.2)
    assert learned.value == 0.2


def test_a_batch_under_way_does_not_move_a_learned_value() -> None:
    learned = base(*[1.0] * 30, *[0.1] * 29)
    assert learned.value == 1.0
    learned.add(0.1)
    assert learned.value == 0.1


def test_a_stretched_window_with_few_tokens_weighs_little() -> None:
    pace = Ratio(0.25)
    assert pace.value is None
    for _ in range(20):
        pace.add(50.0, 1000)
    pace.add(10.0, 20)  # 500 ms a token, but few of them
    assert pace.value == pytest.approx(0.05, rel=0.1)


@given(st.lists(st.tuples(st.floats(0.001, 1e6), st.integers(1, 10**9)), min_size=1))
def test_the_ratio_stays_between_the_least_and_the_most_of_its_windows(windows: list[tuple[float, int]]) -> None:
    pace = Ratio(0.25)
    for seconds, tokens in windows:
        pace.add(seconds, tokens)
    ratios = [seconds / tokens for seconds, tokens in windows]
    assert pace.value is not None
    assert min(ratios) * 0.999 <= pace.value <= max(ratios) * 1.001
