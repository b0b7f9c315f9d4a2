"""Who has waited for too long, told no objective: he stays while a backend is far from full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.admission.config import LaneConfig, LimitConfig
from gateway.admission.shedder import LINGER
from gateway.model import Reason, Ticket
from tests.admission.helpers import LONG, SHORT, Driver, adaptive, config, fixed, ticket


def burst(*lanes: LaneConfig, limit: float = 16.0, **queue: Any) -> tuple[Driver, Ticket]:
    """An engine that may run ``limit``, and as many streams as may be without a first token; one more waits."""
    admission = config(lanes=lanes or (SHORT, LONG), limit=LimitConfig(initial=limit), **queue)
    driver = Driver(adaptive(), admission=admission)
    driver.admission._pool.by_name["a"].limit.changes["down", "pace"] += 1  # it was found
    for _ in range(4):
        driver.permit(ticket())
    return driver, driver.queue(ticket())


def begin(driver: Driver) -> None:
    """All that run have their first token."""
    for permit in driver.permits.values():
        permit.progress.output(1, driver.now)


def test_a_burst_that_waits_for_prompts_to_be_read_is_not_refused() -> None:
    driver, waiting = burst()
    driver.run(5.0)
    assert driver.depth() == 1
    begin(driver)
    driver.run(0.2)
    assert waiting.id in driver.permits


def test_in_an_engine_that_is_nearly_full_it_is() -> None:
    driver, waiting = burst(limit=8.0)
    driver.run(1.1)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT


@pytest.mark.parametrize("lane", [replace(SHORT, ttft_objective=2.0), replace(SHORT, lingers=False)])
def test_where_an_objective_or_the_wait_itself_is_told_it_is(lane: LaneConfig) -> None:
    driver, waiting = burst(lane, LONG)
    driver.run(1.1)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT


def test_a_limit_that_still_doubles_does_not_tell_an_engine_that_idles() -> None:
    driver, waiting = burst()
    driver.admission._pool.by_name["a"].limit.changes.clear()
    driver.run(1.1)
    assert waiting.id in driver.rejections


def test_a_limit_set_by_hand_is_full_where_somebody_waits() -> None:
    driver = Driver(fixed(1))
    driver.permit(ticket())
    waiting = driver.queue(ticket())
    driver.run(1.1)
    assert waiting.id in driver.rejections


@pytest.mark.parametrize(("read_timeout", "longest"), [(None, LINGER), (20.0, 10.0)])
def test_nobody_waits_for_ever(read_timeout: float | None, longest: float) -> None:
    driver, _ = burst()
    waiting = driver.queue(ticket(read_timeout=read_timeout))
    driver.run(longest - 0.1)
    assert waiting.id not in driver.rejections
    driver.run(0.2)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT


def test_whoever_is_in_time_goes_first() -> None:
    driver, late = burst()
    driver.run(1.5)
    driver.settle(next(iter(driver.permits.values())))
    assert late.id in driver.permits
    late = driver.queue(ticket())
    driver.run(1.5)
    fresh = driver.queue(ticket())
    driver.settle(next(iter(driver.permits.values())))
    assert fresh.id in driver.permits
    assert late.id not in driver.permits
    assert late.id not in driver.rejections


def test_a_place_is_kept_for_nobody_who_is_overdue() -> None:
    driver, late = burst(limit=11.0)
    driver.run(1.5)
    driver.admission._pool.by_name["a"].limit.value = 8.0  # it is no longer far from full
    begin(driver)
    driver.run(0.2)
    assert late.id not in driver.permits
    driver.permit(ticket())


def test_one_that_is_overdue_can_leave() -> None:
    driver, late = burst()
    driver.run(1.5)
    driver.withdraw(late)
    assert driver.depth() == 0
    driver.run(60.0)
    assert late.id not in driver.rejections


def test_they_leave_room_for_those_who_come_in_time() -> None:
    driver, first = burst(max_requests=3)
    others = [driver.queue(ticket()) for _ in range(2)]
    driver.run(1.5)
    gone = [request.id in driver.rejections for request in (first, *others)]
    assert gone == [True, True, False]
