"""Faults that people met in production on gateways of this kind, each as a scenario with the right behaviour.

The reports: F01 BerriAI/litellm#27955, F03 BerriAI/litellm#1477, F15 ray-project/ray#60118, F18
Netflix/concurrency-limits#137, F22 envoyproxy/envoy#46532, F25 envoyproxy/envoy#10647, F27
platinummonkey/go-concurrency-limits#141, F28 Netflix/concurrency-limits#213, F29 Netflix/concurrency-limits#125, F33
sgl-project/sglang#10063, F35 BerriAI/litellm#6867, F36 BerriAI/litellm#20062, F37 BerriAI/litellm#21319, F41
kubernetes-sigs/gateway-api-inference-extension#2103, F42 BerriAI/litellm#41223, O17 ray-project/ray#21438, C17
BerriAI/litellm#3646, C23 tombii/better-ccflare#271, O21 NVIDIA-NeMo/DataDesigner#634, O23 NVIDIA-NeMo/RL#3590, F16
raullenchai/Rapid-MLX#1759. (O24 and O26 are in test_shedder.py, F32 and F34 in tests/sim.)
"""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.admission.config import BreakerConfig, LaneConfig, LimitConfig
from gateway.model import Health, Outcome, Permit, Reason, Rejection, Usage
from tests.admission.helpers import Driver, Plant, adaptive, config, fixed, ticket

PATIENT = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))


def test_F01_a_stream_cancelled_in_its_middle_gives_its_place_back() -> None:
    driver = Driver(fixed(1))
    for _ in range(100):
        permit = driver.permit(ticket())
        permit.progress.output(1, driver.now)
        driver.run(0.05)
        driver.settle(permit, Outcome.CLIENT_GONE)
        assert driver.backend().running == 0


def test_F03_a_malformed_request_gives_its_place_back() -> None:
    driver = Driver(fixed(1))
    driver.settle(driver.permit(ticket()), Outcome.CLIENT_ERROR)
    driver.permit(ticket())


def test_F15_waiters_that_are_cancelled_leave_nothing_behind() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    for _ in range(200):
        driver.withdraw(driver.queue(ticket()))
        assert driver.depth() == 0
    late = driver.queue(ticket())
    driver.settle(running)
    driver.settle(driver.permits[late.id], Outcome.CLIENT_GONE)  # it had left when its permit came
    driver.permit(ticket())


def test_F18_where_every_call_times_out_the_limit_falls_to_its_least() -> None:
    driver = Driver(adaptive())
    driver.admission._pool.by_name["a"].limit.value = 64.0
    driver.run(0.1)
    for _ in range(60):
        while driver.offer(ticket()) is not None and len(driver.permits) < 64:
            pass
        driver.run(5.0)
        for permit in list(driver.permits.values()):
            driver.settle(permit, Outcome.BACKEND_SILENT)
    assert driver.backend().limit == 1.0


def test_F22_the_floor_is_not_what_the_unloaded_pace_is_measured_at() -> None:
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(minimum=6, initial=4)))
    assert driver.backend().limit == 6.0
    slow = 1.0
    plant = Plant(driver, lambda n: slow * (0.02 + 0.002 * n), crowd=3)
    driver.admission._pool.by_name["a"].limit.value = 4.0  # a few calm seconds: the unloaded pace is seen
    plant.crowd = 0
    for _ in range(3):
        driver.offer(ticket(100, 40))
    plant.run(3.0)
    plant.crowd = 3
    plant.run(40.0)
    grown = driver.backend().limit
    assert grown > 15
    slow = 8.0
    plant.run(60.0)
    assert driver.backend().limit >= 6.0
    slow = 1.0
    plant.run(60.0)
    assert driver.backend().limit > 15


def test_F25_a_baseline_that_is_far_too_low_is_left_behind_within_seconds() -> None:
    driver = Driver(adaptive())
    tiny = driver.permit(ticket(1, 1))
    for _ in range(200):
        driver.run(0.001)
        tiny.progress.output(1, driver.now)
    driver.settle(tiny)
    assert driver.backend().pace_base == pytest.approx(0.001)
    plant = Plant(driver, lambda n: 0.04 + 0.001 * n)
    plant.run(20.0)
    stuck = driver.backend().limit
    assert stuck <= 2.0
    plant.run(30.0)
    base = driver.backend().pace_base
    assert base is not None
    assert 0.0399 < base < 0.0441  # that of up to four at once: 0.044 with all four
    assert driver.backend().limit > stuck + 3


def test_F27_when_every_request_fails_the_limit_falls_and_then_recovers() -> None:
    driver = Driver(adaptive())
    plant = Plant(driver, lambda n: 0.02 + 0.0005 * n)
    plant.run(20.0)
    before = driver.backend().limit
    for _ in range(40):
        plant.arrive()
        driver.run(0.5)
        for permit in list(driver.permits.values()):
            driver.settle(permit, Outcome.BACKEND_ERROR)
    assert driver.backend().limit < 0.3 * before
    plant.done.clear()
    plant.run(40.0)
    assert driver.backend().limit > 0.7 * before
    assert driver.backend().health == "unknown"


def test_F28_an_hour_with_one_in_flight_does_not_raise_the_limit() -> None:
    driver = Driver(adaptive())
    for _ in range(600):
        permit = driver.permit(ticket(100, 20))
        for _ in range(20):
            driver.run(0.02)
            permit.progress.output(1, driver.now)
        driver.settle(permit)
        driver.run(5.6)
    assert driver.backend().limit == 4.0


def test_F29_cheap_calls_do_not_become_the_baseline() -> None:
    driver = Driver(adaptive())
    for second in range(120):
        driver.settle(driver.permit(ticket(0, 256, stream=False)))  # an unknown route: answered at once
        driver.run(1.0)
        if second % 3 == 0:
            chat = driver.permit(ticket(100, 50, stream=False))
            driver.run(2.0)
            driver.settle(chat, usage=Usage(100, 50))
    assert driver.backend().pace_base == pytest.approx(0.04)
    assert driver.backend().limit >= 4.0


def test_F33_lanes_share_one_place_by_weight_and_it_never_stays_empty() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT))
    driver.permit(ticket(100, 100))
    for _ in range(400):
        driver.queue(ticket(100, 75))
        driver.queue(ticket(2_000, 500))
    served: Counter[str] = Counter()
    for _ in range(300):
        (permit,) = driver.permits.values()
        served[driver.admission.lane(permit.ticket)] += round(permit.ticket.work.cost)
        driver.settle(permit)
        assert len(driver.permits) == 1
    assert served["short"] / served["long"] == pytest.approx(2.0, rel=0.1)


def test_F35_under_saturation_the_short_lane_leaves_first() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    low = driver.queue(ticket(2_000, 100))
    high = driver.queue(ticket(100, 100))
    driver.settle(running)
    assert high.id in driver.permits
    assert low.id not in driver.permits


def test_F36_what_timed_out_in_the_queue_is_gone_and_blocks_nobody() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    for number in range(100):
        driver.queue(ticket(0, 1, client=str(number)))
    driver.run(1.02)
    assert Counter(r.reason for r in driver.rejections.values()) == {Reason.QUEUE_TIMEOUT: 100}
    live = driver.queue(ticket())
    backlog = driver.admission._backlog
    assert len(backlog) == len(backlog._deadlines._dates) == len(backlog._deadlines._heap) == 1
    driver.settle(running)
    assert live.id in driver.permits


def test_F37_one_place_wakes_one_of_fifty() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    waiting = [driver.queue(ticket(0, 1, client=str(number))) for number in range(50)]
    verdicts = driver.settle(running)
    assert [verdict.ticket.id for verdict in verdicts] == [waiting[0].id]
    assert driver.depth() == 49


def test_F41_the_queue_is_bounded_by_bytes_and_they_come_back() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT, max_bytes=10_000))
    running = driver.permit(ticket(body_bytes=9_000_000))
    waiting = [driver.queue(ticket(body_bytes=3_000)) for _ in range(3)]
    assert driver.refused(ticket(body_bytes=3_000)).reason is Reason.QUEUE_FULL
    driver.withdraw(waiting[1])
    driver.queue(ticket(body_bytes=3_000))
    driver.settle(running)
    for _ in range(3):
        driver.settle(next(iter(driver.permits.values())))
    assert driver.admission._backlog.size == 0
    driver.permit(ticket())
    driver.queue(ticket(body_bytes=50_000))  # larger than the bound, but alone


def test_F42_clients_with_tiny_timeouts_are_nobody_s_fault_but_their_own() -> None:
    driver = Driver(adaptive())
    for _ in range(6):
        permit = driver.permit(ticket(read_timeout=0.1))
        driver.run(0.1)
        driver.settle(permit, Outcome.CLIENT_GONE)
    driver.run(30.0)
    state = driver.backend()
    assert (state.health, state.limit, state.limit_changes, state.pace) == ("unknown", 4.0, {}, None)


def test_O17_nobody_works_for_clients_that_left_the_queue() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    queued = [driver.queue(ticket(0, 1, client=str(number % 7))) for number in range(100)]
    gone, live = queued[:90], queued[90:]
    for request in gone:
        driver.withdraw(request)
    assert driver.depth() == 10
    driver.settle(running)
    while driver.permits:
        driver.settle(next(iter(driver.permits.values())))
    assert sorted(driver.order[1:]) == [request.id for request in live]


@pytest.mark.parametrize("down", [False, True])
def test_C17_the_only_backend_goes_on_being_tried(down: bool) -> None:
    driver = Driver(adaptive(), admission=config(breaker=BreakerConfig(failures=2)))
    for _ in range(4):
        driver.settle(driver.permit(ticket()), Outcome.CONNECT_FAILED)
    if down:
        driver.admission.note_health("a", Health.DOWN, 0.0)
    assert driver.backend().health == "open"
    waiting: list[int] = []
    while isinstance(verdict := driver.offer(request := ticket()), Permit):
        last = verdict
    assert verdict is None  # the rest waits, as ever
    waiting.append(request.id)
    driver.settle(last)  # it lives again
    assert driver.backend().health == ("down" if down else "unknown")
    assert waiting[0] in driver.permits


@pytest.mark.parametrize("times", [1, 10])
def test_C23_overload_answers_of_all_backends_eject_none(times: int) -> None:
    driver = Driver(*(adaptive(name) for name in "abc"))
    for _ in range(times):
        for permit in [driver.permit(ticket()) for _ in range(3)]:
            driver.settle(permit, Outcome.BACKEND_BUSY)
    assert {state.health for state in driver.admission.state(0.0).backends} == {"unknown"}
    assert {state.limit for state in driver.admission.state(0.0).backends} == {1.0}
    assert {driver.permit(ticket()).backend for _ in range(3)} == {"a", "b", "c"}


def test_O21_an_engine_that_never_refuses_and_only_slows_down_is_held_back_all_the_same() -> None:
    driver = Driver(adaptive())
    slow = 1.0
    plant = Plant(driver, lambda n: slow * (0.02 + 0.0005 * n))
    plant.run(60.0)
    before = driver.backend().limit
    slow = 6.0  # no 429, no error: it just takes longer
    plant.run(60.0)
    assert driver.backend().limit < 0.7 * before
    assert {reason for (direction, reason) in driver.backend().limit_changes if direction == "down"} == {"pace"}
    refusals = [verdict for _ in range(2_000) if isinstance(verdict := driver.offer(ticket()), Rejection)]
    assert {rejection.reason for rejection in refusals} <= {Reason.QUEUE_FULL, Reason.DEADLINE}
    assert all(1.0 <= rejection.retry_after <= 60.0 for rejection in refusals), "the 429 that callers lack"
    assert refusals


def test_O23_an_engine_that_hangs_on_every_call_is_left_alone_after_a_few() -> None:
    driver = Driver(adaptive("a"), adaptive("b"), admission=config(breaker=BreakerConfig(failures=3)))
    hung = 0
    for _ in range(40):  # the client tries again and again
        permit = driver.permit(ticket())
        hung += permit.backend == "a"
        driver.run(0.2)
        driver.settle(permit, Outcome.BACKEND_SILENT if permit.backend == "a" else Outcome.COMPLETED)
    assert hung <= 5
    assert driver.backend("a").health in {"open", "half_open"}
    assert driver.backend("b").health == "unknown"


def test_F16_an_engine_that_leaks_its_slots_is_found_though_its_health_stays_green() -> None:
    driver = Driver(adaptive(), admission=config(breaker=BreakerConfig(silence=20.0)))
    plant = Plant(driver, lambda n: 0.02 + 0.0005 * n)
    plant.run(30.0)
    before, plant.done = driver.backend().limit, {}
    for permit in list(driver.permits.values()):
        driver.settle(permit, Outcome.CLIENT_GONE)  # and the engine keeps every one of those slots
    for _ in range(12):
        for _ in range(3):
            driver.offer(ticket(0, 1, read_timeout=3600.0))
        driver.admission.note_health("a", Health.UP, driver.now)
        driver.run(5.0)
    state = driver.backend()
    assert state.health in {"open", "half_open"}
    assert state.silence > 20.0, "what an alert looks at"
    assert state.limit < 0.5 * before


def test_a_permit_refused_by_a_full_engine_is_not_sent_again_at_once() -> None:
    """Its place is gone with it: otherwise the queue would be emptied into the engine's refusals."""
    driver = Driver(adaptive(), admission=config(lanes=PATIENT))
    running = [driver.permit(ticket()) for _ in range(4)]
    waiting = [driver.queue(ticket()) for _ in range(10)]
    driver.settle(running[3], Outcome.BACKEND_BUSY)
    assert not any(isinstance(v, Rejection) for v in driver.rejections.values())
    assert driver.backend().limit == 3.0
    assert all(request.id not in driver.permits for request in waiting)
