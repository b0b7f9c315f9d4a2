"""Ways in which admission laws were seen to fail, each as a small closed loop with an engine whose pace is known.

(With engines that batch, prefill and preempt, and with clients that retry, they are repeated in tests/sim.)
"""

from __future__ import annotations

import pytest

from gateway.admission.config import LaneConfig, LimitConfig
from gateway.model import Hints, Outcome, Permit, Reason, Rejection
from tests.admission.helpers import Driver, Plant, adaptive, config, fixed, ticket


def affine(a: float, b: float) -> Plant:
    """An engine whose step lasts a + b*n; a + b alone is its unloaded pace."""
    return Plant(Driver(adaptive()), lambda n: a + b * n)


def test_a_cold_start_under_overload_learns_the_unloaded_pace_first() -> None:
    plant = affine(0.02, 0.001)
    plant.crowd = 50
    plant.run(0.9)
    assert plant.driver.backend().running <= 4
    assert plant.driver.backend().pace_base == pytest.approx(0.024)
    plant.run(60.0)
    assert plant.driver.backend().pace_base == pytest.approx(0.024)
    # Five times 0.024 are reached at a hundred in flight.
    assert 75 <= plant.driver.backend().limit <= 120


def test_a_degraded_engine_is_followed_down_and_up() -> None:
    factor = 1.0
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(tpot_objective=0.12)))
    plant = Plant(driver, lambda n: factor * (0.02 + 0.001 * n))
    plant.run(60.0)
    before = driver.backend().limit  # its answers are even: the mean may come to 0.97 of the objective, at 96
    assert before == pytest.approx(96, rel=0.15)
    factor = 2.0  # now at 38
    plant.run(40.0)
    assert driver.backend().limit == pytest.approx(38, rel=0.2)
    factor = 1.0
    plant.run(45.0)
    assert driver.backend().limit == pytest.approx(before, rel=0.2)


def test_without_streams_and_objective_the_baseline_is_still_the_unloaded_one() -> None:
    driver = Driver(adaptive())
    plant = Plant(driver, lambda n: 0.02 + 0.001 * n, stream=False, length=25)
    plant.crowd = 50
    plant.run(120.0)
    assert driver.backend().pace_base == pytest.approx(0.024, rel=0.05)
    assert driver.backend().limit == pytest.approx(82, rel=0.25)  # 4.25 times the unloaded pace


def test_a_kv_bound_engine_without_gauges_is_bounded_by_its_stalls() -> None:
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(initial=60)))
    running = []
    while isinstance(verdict := driver.offer(ticket(100, 900)), Permit):
        running.append(verdict)
        verdict.progress.output(1, driver.now)
        driver.run(0.1)
    for step in range(200):  # two in three go on, the others are preempted
        driver.run(0.05)
        for number, permit in enumerate(running):
            if number % 3 or step > 150:
                permit.progress.output(1, driver.now)
    bound = driver.backend().token_limit
    assert bound is not None
    assert bound <= 0.75 * len(running) * 1000
    assert driver.backend().limit_changes["down", "kv"] >= 1


def test_gauges_that_lie_or_stop_never_halt_the_traffic() -> None:
    plant = affine(0.02, 0.001)
    plant.run(20.0)
    before = plant.finished
    for _ in range(60):
        lie = Hints(kv_usage=1.0, waiting=500, running=500, kv_capacity_tokens=1_000_000)
        plant.driver.take(plant.driver.admission.note_hints("a", lie, plant.driver.now))
        plant.run(1.0)
    assert plant.finished - before > 500
    assert plant.driver.backend().limit > 30
    plant.run(60.0)  # and then nothing is heard any more
    assert plant.driver.backend().limit > 60


def test_a_lane_that_was_shed_is_let_in_again_by_its_share() -> None:
    """By its observed drain alone it would look slow because it is refused, and be refused because it looks slow."""
    driver = Driver(fixed(4))
    rejected = long_served = 0
    for step in range(1200):
        for _ in range(3):
            driver.offer(ticket(0, 100, client=str(step % 5)))
        if step % 20 == 0:
            request = ticket(1_600, 600)
            driver.offer(request)
        driver.run(0.1)
        for permit in list(driver.permits.values())[:1]:
            long_served += permit.ticket.work.prompt_tokens == 1_600
            driver.settle(permit)
        rejected = len(driver.rejections)
    assert rejected > 1000
    assert long_served >= 10


def test_a_hog_is_stopped_at_the_door_and_in_the_queue() -> None:
    driver = Driver(fixed(2))
    refused = {"hog": 0, "other": 0}
    for step in range(600):
        for client, count in (("hog", 6), ("other", 1)):
            for _ in range(count):
                verdict = driver.offer(ticket(0, 100, client=client, fingerprint=0))
                refused[client] += isinstance(verdict, Rejection)
        driver.run(0.25)
        for permit in list(driver.permits.values())[:2]:
            driver.settle(permit)
        for rejection in driver.rejections.values():
            refused[rejection.ticket.client] += rejection.reason is Reason.QUEUE_TIMEOUT
        driver.rejections.clear()
        if step == 100:
            refused = {"hog": 0, "other": 0}
    assert refused["other"] <= 5  # of 500
    assert refused["hog"] > 2000  # of 3000


def test_in_a_burst_retries_are_welcome_and_in_sustained_overload_they_are_not() -> None:
    driver = Driver(fixed(1))
    told: list[tuple[float, bool | None]] = []
    for _ in range(400):
        offered = [driver.offer(ticket(0, 100)) for _ in range(2)]
        told += [(driver.now, verdict.should_retry) for verdict in offered if isinstance(verdict, Rejection)]
        driver.run(0.1)
        if driver.permits and round(driver.now * 10) % 3 == 0:
            driver.settle(next(iter(driver.permits.values())))
    assert all(should is None for now, should in told if now < 7.0)  # a burst
    assert all(should is False for now, should in told if now > 10.0)
    assert all(1.0 <= r.retry_after <= 3.0 for r in driver.rejections.values())  # never tens of seconds


def test_clients_that_leave_free_their_places_at_once() -> None:
    driver = Driver(fixed(3))
    running = [driver.permit(ticket()) for _ in range(3)]
    waiting = [driver.queue(ticket()) for _ in range(3)]
    for permit in running:
        driver.settle(permit, Outcome.CLIENT_GONE)
    assert all(request.id in driver.permits for request in waiting)
    assert driver.backend().limit_changes == {}


def test_a_long_request_does_not_starve_behind_small_holes() -> None:
    lanes = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))
    limit = LimitConfig(initial=50, token_limit=4_000)
    driver = Driver(adaptive(), admission=config(lanes=lanes, limit=limit))
    for _ in range(20):
        driver.permit(ticket(100, 100)).progress.output(1, driver.now)
        driver.run(0.1)
    large = driver.queue(ticket(2_000, 500))
    waited = 0
    while large.id not in driver.permits:
        driver.offer(ticket(100, 100))
        oldest = min(driver.permits.values(), key=lambda permit: permit.id)
        driver.settle(oldest)
        waited += 1
        assert waited < 40


def test_an_engine_that_collapses_is_held_below_its_knee() -> None:
    plant = Plant(Driver(adaptive()), lambda n: 0.02 + 0.001 * n + 2e-5 * max(0, n - 40) ** 2)
    plant.run(90.0)
    assert 30 <= plant.driver.backend().limit <= 95
    rate = plant.finished
    plant.run(60.0)
    best = 60 / (0.08 + 2e-5 * 400) / plant.length * 60  # at sixty in flight
    assert plant.finished - rate > 0.85 * best


def test_a_backend_with_a_queue_limit_of_its_own_is_kept_below_it() -> None:
    driver = Driver(adaptive())
    plant = Plant(driver, lambda n: 0.02 + 0.0002 * n)
    refused = 0
    for _ in range(1500):
        plant.run(0.05)
        for permit in list(driver.permits.values())[30:]:
            plant.done.pop(permit.ticket.id, None)
            if permit.ticket.id in driver.permits and not permit.progress.started:  # type: ignore[attr-defined]
                refused += 1
                driver.settle(permit, Outcome.BACKEND_BUSY)
    assert 25 <= driver.backend().limit <= 31
    assert refused < 40
