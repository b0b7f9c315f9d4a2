from __future__ import annotations

import pytest

from gateway.admission.config import QueueConfig
from gateway.admission.flow import Flow
from gateway.admission.queue import Entry, Lane
from tests.admission.helpers import LONG, SHORT, ticket


def lanes(*busy: bool) -> list[Lane]:
    both = [Lane(config, QueueConfig()) for config in (SHORT, LONG)]
    for lane, waits in zip(both, busy, strict=True):
        if waits:
            lane.push(Entry(ticket(), 0, 0, 0.0, 0.0, 0.0, retry=False))
    return both


def steady(flow: Flow, seconds: int, arriving: float, leaving: float, *, start: int = 0, lane: int = 0) -> None:
    """Ten arrivals and ten dispatches a second."""
    for tenth in range(start * 10, (start + seconds) * 10):
        flow.arrive(lane, arriving / 10, tenth / 10)
        flow.dispatch(lane, leaving / 10, tenth / 10)
        flow.refresh(0.0, 1.5, tenth / 10)


def test_before_anything_is_known_nobody_waits() -> None:
    flow = Flow(2)
    flow.refresh(0.0, 1.5, 5.0)
    assert flow.wait(1000.0, lanes(True, False), 0) == 0.0


def test_the_wait_is_the_cost_ahead_over_the_drain() -> None:
    flow = Flow(2)
    steady(flow, 30, 100.0, 100.0)
    assert flow.drain[0] == pytest.approx(100.0, rel=0.1)
    assert flow.wait(250.0, lanes(True, False), 0) == pytest.approx(2.5, rel=0.1)


def test_a_lane_that_was_refused_keeps_its_entitled_share() -> None:
    flow = Flow(2)
    steady(flow, 30, 100.0, 90.0)
    assert flow.drain[1] == 0.0
    assert flow.wait(90.0, lanes(True, True), 1) == pytest.approx(3.0, rel=0.1)
    assert flow.wait(90.0, lanes(False, True), 1) == pytest.approx(1.0, rel=0.1)


def test_after_an_idle_time_the_capacity_stands_for_the_drain() -> None:
    flow = Flow(2)
    steady(flow, 20, 100.0, 100.0)
    flow.arrive(0, 100.0, 500.0)
    flow.refresh(80.0, 1.5, 500.0)
    assert flow.drain[0] == 0.0
    assert flow.wait(160.0, lanes(True, False), 0) == pytest.approx(2.0)


def test_a_slow_engine_is_judged_over_twenty_dispatches() -> None:
    flow = Flow(2)
    for number in range(200):
        flow.dispatch(0, 50.0, 2.0 * number)  # one in two seconds
    flow.refresh(0.0, 1.5, 400.0)
    assert flow.drain[0] == pytest.approx(25.0, rel=0.05)
    flow = Flow(2)
    for number in range(20):
        flow.dispatch(0, 50.0, 10.0 * number)  # one in ten: twenty are too long ago
    flow.refresh(0.0, 1.5, 190.0)
    assert flow.drain[0] == pytest.approx(50.0 * 7 / 60, rel=0.05)


def test_overload_is_much_more_arriving_than_leaving_for_long() -> None:
    flow = Flow(2)
    steady(flow, 14, 160.0, 100.0)
    assert not flow.overloaded(0, 15.0, 14.0)
    steady(flow, 6, 160.0, 100.0, start=14)
    assert flow.overloaded(0, 15.0, 20.0)
    steady(flow, 30, 100.0, 100.0, start=20)
    assert not flow.overloaded(0, 15.0, 50.0)


def test_a_burst_of_five_seconds_is_no_sustained_overload() -> None:
    flow = Flow(2)
    steady(flow, 20, 60.0, 60.0)
    steady(flow, 5, 500.0, 100.0, start=20)
    over = []
    for second in range(25, 50):
        steady(flow, 1, 60.0, 60.0, start=second)
        over.append(flow.overloaded(0, 15.0, second + 1.0))
    assert not any(over)


def test_overload_of_one_lane_says_nothing_of_the_other() -> None:
    flow = Flow(2)
    for second in range(40):
        steady(flow, 1, 500.0, 100.0, start=second)
        flow.arrive(1, 50.0, second + 0.95)
        flow.dispatch(1, 50.0, second + 0.95)
    assert flow.overloaded(0, 15.0, 40.0)
    assert not flow.overloaded(1, 15.0, 40.0)


def test_what_is_older_than_a_minute_is_dropped() -> None:
    flow = Flow(2)
    steady(flow, 300, 10.0, 10.0)
    assert len(flow._seconds) <= 62
