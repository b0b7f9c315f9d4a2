from __future__ import annotations

import pytest

from gateway.telemetry.wear import PaceLog, Slowdown


def filled(*stretches: tuple[float, float, int, float], length: float = 300.0, whole: bool = False) -> PaceLog:
    """Each stretch: from and to which second, at which level, seconds a token; an answer a second."""
    log = PaceLog()
    for began, ended, level, pace in stretches:
        at = began
        while at < ended:
            log.note(level, at, pace, length, whole=whole)
            at += 1.0
    return log


def ratio(log: PaceLog, now: float = 600.0, base: float | None = None) -> float | None:
    slower = log.slowdown(now, base)
    return None if slower is None else round(slower.ratio, 3)


def test_the_same_level_before_and_now() -> None:
    log = filled((0, 400, 20, 0.05), (400, 600, 20, 0.1))
    assert log.slowdown(600.0, None) == Slowdown(2.0, 0.05, 0.1)


def test_an_engine_that_is_as_it_was() -> None:
    assert ratio(filled((0, 600, 20, 0.05))) == 1.0


def test_fewer_in_flight_and_slower_all_the_same() -> None:
    """The limit was cut: at the level of now the engine was never seen before, but at the next higher one."""
    assert ratio(filled((0, 400, 40, 0.1), (400, 600, 30, 0.2))) == 2.0


def test_what_the_engine_could_do_is_the_better_quarter_of_before() -> None:
    """One that wears off slowly is not excused by what it was just before."""
    assert ratio(filled((0, 130, 30, 0.1), (130, 400, 30, 0.15), (400, 600, 30, 0.2))) == 2.0
    assert ratio(filled((0, 65, 30, 0.1), (65, 400, 30, 0.15), (400, 600, 30, 0.2))) == 1.333


def test_more_in_flight_are_expected_to_be_slower_in_a_straight_line() -> None:
    """Alone 0.05, at 21 it was 0.1: at 41 that makes 0.15."""
    log = filled((0, 400, 21, 0.1), (400, 600, 41, 0.3))
    assert ratio(log, base=0.05) == 2.0
    assert ratio(filled((0, 400, 21, 0.1), (400, 600, 41, 0.15)), base=0.05) == 1.0


def test_a_base_above_the_pace_of_before_is_no_slope_downwards() -> None:
    assert ratio(filled((0, 400, 21, 0.04), (400, 600, 41, 0.1)), base=0.05) == 2.0


def test_without_a_base_a_step_may_cost_nothing_by_itself() -> None:
    log = filled((0, 400, 20, 0.1), (400, 600, 40, 0.3))
    assert ratio(log) == 1.5
    assert ratio(filled((0, 400, 1, 0.1), (400, 600, 2, 0.3)), base=0.1) == 1.5  # one is the base itself


def test_far_above_what_was_seen_nothing_is_expected() -> None:
    assert ratio(filled((0, 400, 20, 0.1), (400, 600, 61, 0.9)), base=0.05) is None


def test_longer_requests_excuse_as_much_more() -> None:
    log = filled((0, 400, 20, 0.05))
    for at in range(400, 600):
        log.note(20, float(at), 0.1, 600.0, whole=False)
    assert ratio(log) == 1.0
    assert ratio(filled((0, 400, 20, 0.05), (400, 600, 20, 0.1), length=0.0)) == 2.0  # nothing is known of lengths


def test_what_is_half_an_hour_ago_is_forgotten() -> None:
    assert ratio(filled((0, 400, 20, 0.05), (2300, 2500, 20, 0.1)), now=2500.0) is None


def test_streams_and_whole_answers_are_held_apart() -> None:
    log = filled((0, 400, 20, 0.05), whole=True)
    for at in range(400, 600):
        log.note(20, float(at), 0.1, 300.0, whole=False)
    assert ratio(log) is None
    assert ratio(filled((0, 400, 20, 0.05), (400, 600, 40, 0.2), whole=True), base=0.01) == 2.0  # no straight line


@pytest.mark.parametrize(
    "log",
    [
        PaceLog(),
        filled((0, 35, 20, 0.05), (400, 600, 20, 0.1)),  # one block before
        filled((0, 400, 20, 0.05), (540, 575, 20, 0.1)),  # one of now
    ],
)
def test_one_block_is_no_evidence(log: PaceLog) -> None:
    assert ratio(log) is None


def test_a_block_is_of_when_its_answers_came() -> None:
    """It is only closed by the next answer, which may come hours later."""
    log = filled((0, 70, 20, 0.05), (10_000, 10_070, 20, 0.1))
    assert [block.at for block in log._blocks] == [29.0, 59.0, 69.0, 10_029.0, 10_059.0]


def test_rare_answers_make_no_block() -> None:
    log = PaceLog()
    for at in range(0, 600, 5):  # six in half a minute
        log.note(20, float(at), 0.05 if at < 400 else 0.1, 300.0, whole=False)
    assert ratio(log) is None


def test_a_block_keeps_a_bounded_number_of_answers() -> None:
    log = PaceLog()
    for number in range(10_000):
        log.note(20, number * 0.002, 0.05, 300.0, whole=False)
    (block,) = log._open.values()
    assert len(block.answers) == 256
