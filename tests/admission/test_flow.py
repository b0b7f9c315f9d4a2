from __future__ import annotations

import pytest

from gateway.admission.config import QueueConfig, ShedConfig
from gateway.admission.flow import Flow
from gateway.admission.queue import Entry, PriorityQueue
from gateway.model import Priority
from tests.admission.helpers import LONG, SHORT, ticket

CRITICAL, STANDARD, SHEDDABLE = Priority
OVERLOAD = ShedConfig(overload_ratio=1.5, overload_after=15.0)


def lanes(*busy: bool, priority: Priority = STANDARD) -> PriorityQueue:
    queue = PriorityQueue(QueueConfig(lanes=(SHORT, LONG)))
    for lane, waits in enumerate(busy):
        if waits:
            queue.push(Entry(ticket(0, 100, priority=priority), lane, 0, 0.0, 0.0, 0.0, first=None))
    return queue


def steady(
    flow: Flow,
    seconds: int,
    arriving: float,
    leaving: float,
    *,
    start: int = 0,
    lane: int = 0,
    priority: Priority = STANDARD,
) -> None:
    """Ten arrivals and ten dispatches a second."""
    for tenth in range(start * 10, (start + seconds) * 10):
        flow.arrive(priority, lane, arriving / 10, tenth / 10)
        flow.dispatch(priority, lane, leaving / 10, tenth / 10)
        flow.refresh(0.0, OVERLOAD, tenth / 10)


def test_before_anything_is_known_nobody_waits() -> None:
    flow = Flow(2, 0.05)
    flow.refresh(0.0, OVERLOAD, 5.0)
    assert flow.wait(1000.0, lanes(True, False), STANDARD, 0) == 0.0


def test_the_wait_is_the_cost_ahead_over_the_drain() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 30, 100.0, 100.0)
    assert flow.drain[2] == pytest.approx(100.0, rel=0.1)
    assert flow.wait(250.0, lanes(True, False), STANDARD, 0) == pytest.approx(2.5, rel=0.1)


def test_a_lane_that_was_refused_keeps_its_entitled_share() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 30, 100.0, 90.0)
    assert flow.drain[3] == 0.0
    assert flow.wait(90.0, lanes(True, True), STANDARD, 1) == pytest.approx(3.0, rel=0.1)
    assert flow.wait(90.0, lanes(False, True), STANDARD, 1) == pytest.approx(1.0, rel=0.1)


def test_after_an_idle_time_the_capacity_stands_for_the_drain() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 20, 100.0, 100.0)
    flow.arrive(STANDARD, 0, 100.0, 500.0)
    flow.refresh(80.0, OVERLOAD, 500.0)
    assert flow.drain[2] == 0.0
    assert flow.wait(160.0, lanes(True, False), STANDARD, 0) == pytest.approx(2.0)


def test_a_slow_engine_is_judged_over_twenty_dispatches() -> None:
    flow = Flow(2, 0.05)
    for number in range(200):
        flow.dispatch(STANDARD, 0, 50.0, 2.0 * number)  # one in two seconds
    flow.refresh(0.0, OVERLOAD, 400.0)
    assert flow.drain[2] == pytest.approx(25.0, rel=0.05)
    flow = Flow(2, 0.05)
    for number in range(20):
        flow.dispatch(STANDARD, 0, 50.0, 10.0 * number)  # one in ten: twenty are too long ago
    flow.refresh(0.0, OVERLOAD, 190.0)
    assert flow.drain[2] == pytest.approx(50.0 * 7 / 60, rel=0.05)


def test_overload_is_much_more_arriving_than_leaving_for_long() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 14, 160.0, 100.0)
    assert not flow.overloaded(STANDARD, 0, 15.0, 14.0)
    steady(flow, 6, 160.0, 100.0, start=14)
    assert flow.overloaded(STANDARD, 0, 15.0, 20.0)
    steady(flow, 30, 100.0, 100.0, start=20)
    assert not flow.overloaded(STANDARD, 0, 15.0, 50.0)


def test_an_overload_that_lasted_is_over_when_no_more_comes_than_leaves() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 30, 160.0, 100.0)
    steady(flow, 30, 120.0, 100.0, start=30)  # less than what would begin one
    assert flow.overloaded(STANDARD, 0, 15.0, 60.0)
    steady(flow, 30, 100.0, 100.0, start=60)
    assert not flow.overloaded(STANDARD, 0, 15.0, 90.0)
    steady(flow, 30, 120.0, 100.0, start=90)
    assert not flow.overloaded(STANDARD, 0, 15.0, 120.0)


def test_one_that_did_not_last_is_over_with_less_than_would_begin_it() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 12, 160.0, 100.0)
    steady(flow, 30, 120.0, 100.0, start=12)
    assert not flow.overloaded(STANDARD, 0, 15.0, 42.0)


def test_a_burst_of_five_seconds_is_no_sustained_overload() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 20, 60.0, 60.0)
    steady(flow, 5, 500.0, 100.0, start=20)
    over = []
    for second in range(25, 50):
        steady(flow, 1, 60.0, 60.0, start=second)
        over.append(flow.overloaded(STANDARD, 0, 15.0, second + 1.0))
    assert not any(over)


def test_overload_of_one_lane_says_nothing_of_the_other() -> None:
    flow = Flow(2, 0.05)
    for second in range(40):
        steady(flow, 1, 500.0, 100.0, start=second)
        flow.arrive(STANDARD, 1, 50.0, second + 0.95)
        flow.dispatch(STANDARD, 1, 50.0, second + 0.95)
    assert flow.overloaded(STANDARD, 0, 15.0, 40.0)
    assert not flow.overloaded(STANDARD, 1, 15.0, 40.0)


def test_what_is_older_than_a_minute_is_dropped() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 300, 10.0, 10.0)
    assert len(flow._marks) <= 62


def test_a_lower_priority_counts_on_what_the_higher_ones_leave() -> None:
    flow = Flow(2, 0.05)
    for second in range(30):
        steady(flow, 1, 60.0, 60.0, start=second, priority=CRITICAL)
        flow.dispatch(STANDARD, 0, 30.0, second + 0.99)
        flow.dispatch(SHEDDABLE, 0, 10.0, second + 0.99)
    flow.refresh(0.0, OVERLOAD, 30.0)
    idle = lanes(False, False)
    assert flow.wait(100.0, idle, CRITICAL, 0) == pytest.approx(1.0, rel=0.1)
    assert flow.wait(100.0, idle, STANDARD, 0) == pytest.approx(2.5, rel=0.1)
    assert flow.wait(100.0, idle, SHEDDABLE, 0) == pytest.approx(10.0, rel=0.1)


def test_while_a_higher_priority_waits_sheddable_ones_count_on_their_floor_and_standard_ones_let_it_go_before() -> None:
    flow = Flow(2, 0.05)
    steady(flow, 30, 50.0, 50.0, priority=CRITICAL)
    steady(flow, 30, 50.0, 50.0, start=30, priority=SHEDDABLE)
    flow.refresh(100.0, OVERLOAD, 60.0)
    busy = lanes(True, False, priority=CRITICAL)
    assert flow.wait(100.0, lanes(False, False), SHEDDABLE, 0) == pytest.approx(1.0, rel=0.1)
    assert flow.wait(100.0, busy, SHEDDABLE, 0) == pytest.approx(21.0, rel=0.1)
    assert flow.wait(100.0, busy, STANDARD, 0) == pytest.approx(2.0, rel=0.1)
    assert flow.wait(100.0, busy, CRITICAL, 0) == pytest.approx(1.0, rel=0.1)
