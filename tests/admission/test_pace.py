from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.pace import Line, LowBase, Ratio, Slope


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


# ------------------------------------------------------------------------------------------------ slope and line


def test_the_slope_holds_at_every_count_in_flight() -> None:
    slope = Slope(0.15)
    for n in (5, 80, 20, 300):
        slope.add((0.05 + 0.001 * n) * 1000, 1000, n)
        assert slope.beyond(0.05) == pytest.approx(0.001)


def test_the_slope_is_a_mean_by_tokens_and_forgets_slowly() -> None:
    slope = Slope(0.2)
    slope.add(100.0, 1000, 50)
    slope.add(9.0, 10, 50)  # a stretched window that held little
    assert slope.beyond(0.05) < 0.0012
    for _ in range(30):
        slope.add(200.0, 1000, 50)
    assert slope.beyond(0.05) == pytest.approx(0.003, rel=0.01)


def test_a_flat_pace_has_a_slope_still() -> None:
    slope = Slope(0.15)
    slope.add(50.0, 1000, 10)
    assert slope.beyond(0.05) == pytest.approx(0.01 * 0.05 / 10)


def test_a_line_shows_the_time_to_the_first_token_and_the_pace() -> None:
    line = Line(0.75)
    for tokens in (10, 200, 45, 90):
        line.add(tokens, 1.5 + 0.05 * tokens)
    assert line.value == pytest.approx((1.5, 0.05, 0.0, 0.05), abs=1e-6)


def test_scatter_and_answers_of_about_one_length_make_it_doubtful_where_their_line_begins() -> None:
    doubts = []
    for lengths, scatter in (((10, 100, 190), 0.1), ((10, 100, 190), 0.5), ((80, 100, 120), 0.1)):
        line = Line(0.75)
        for tokens in lengths:
            for late in (-scatter, scatter):
                line.add(tokens, 1.5 + 0.05 * tokens + late)
        assert line.value is not None
        assert line.value.start == pytest.approx(1.5)
        doubts.append(line.value.doubt)
    # By hand: scatter / sqrt(n) * sqrt(1 + mean^2 / variance).
    assert doubts == pytest.approx([0.0690, 0.3451, 0.2532], rel=0.01)


def test_a_line_is_as_steep_as_its_doubt_allows_and_no_steeper_than_from_nothing() -> None:
    steepest = []
    for scatter in (0.1, 0.5, 5.0):
        line = Line(0.75)
        for tokens in (10, 100, 190):
            for late in (-scatter, scatter):
                line.add(tokens, 1.5 + 0.05 * tokens + late)
        assert line.value is not None
        steepest.append(line.value.steepest)
    # By hand: (6.5 - what it begins at least) / 100, with the doubts of above.
    assert steepest == pytest.approx([0.0514, 0.0569, 0.065], rel=0.01)


def test_old_answers_count_less() -> None:
    line = Line(0.5)
    for wait in (9.0, 1.0):
        line.fade()
        for tokens in (10, 200, 45, 90):
            line.add(tokens, wait + 0.05 * tokens)
    value = line.value
    assert value is not None
    assert value.start == pytest.approx(1.0 + 8.0 / 3.0)


@pytest.mark.parametrize(
    "answers",
    [
        [(10, 1.0), (200, 11.0), (45, 3.0)],  # few
        [(50, 3.0), (50, 4.0), (50, 3.5), (51, 3.0)],  # of one length
        [(10, 9.0), (200, 1.0), (45, 3.0), (90, 2.0)],  # the longer, the sooner: no engine does that
    ],
)
def test_there_is_no_line_through(answers: list[tuple[int, float]]) -> None:
    line = Line(0.75)
    for tokens, seconds in answers:
        line.add(tokens, seconds)
    assert line.value is None
