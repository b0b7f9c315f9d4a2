from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.config import EstimatorConfig, LaneConfig, LimitConfig
from gateway.admission.estimator import Estimator
from gateway.model import Health, Hints, Outcome, Permit, Reason, Rejection, Usage
from tests.admission.helpers import Driver, adaptive, config, fixed, ticket

# ------------------------------------------------------------------------------------------------------- dispatch


def test_a_permit_names_its_backend_and_when_it_was_given() -> None:
    driver = Driver(fixed(1))
    driver.now = 7.0
    request = ticket()
    permit = driver.permit(request)
    assert (permit.ticket, permit.backend, permit.granted_at) == (request, "a", 7.0)


def test_a_request_is_bound_to_a_backend_when_it_goes_and_not_when_it_comes() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    first, second = driver.permit(ticket()), driver.permit(ticket())
    waiting = driver.queue(ticket())
    assert {first.backend, second.backend} == {"a", "b"}
    driver.settle(second)
    assert driver.permits[waiting.id].backend == second.backend


def test_a_permit_comes_back_exactly_once() -> None:
    driver = Driver(fixed(1))
    permit = driver.permit(ticket())
    driver.settle(permit)
    with pytest.raises(KeyError):
        driver.admission.settle(permit, Outcome.COMPLETED, None, 1.0)
    assert driver.backend().running == 0


def test_full_backends_of_one_model_do_not_block_another_model() -> None:
    driver = Driver(fixed(1, "a", models=("m",)), fixed(1, "b", models=("n",)))
    driver.permit(ticket(model="m"))
    driver.queue(ticket(model="m"))
    assert driver.permit(ticket(model="n")).backend == "b"


def test_models_that_share_a_backend_take_turns_by_cost() -> None:
    driver = Driver(fixed(1, "a", models=("m", "n")), fixed(1, "b", models=("n",)), admission=config(lanes=PATIENT))
    driver.permit(ticket(model="m"))
    driver.permit(ticket(model="n"))
    for _ in range(12):
        driver.queue(ticket(0, 300, model="m"))
        driver.queue(ticket(0, 100, model="n"))
    order = []
    for _ in range(12):
        (permit,) = (permit for permit in driver.permits.values() if permit.backend == "a")
        driver.settle(permit)
        order += [permit.ticket.shape.model for permit in driver.permits.values() if permit.backend == "a"]
    assert order.count("n") == pytest.approx(9, abs=1)


def test_a_backend_that_was_found_unreachable_is_avoided_by_that_request_alone() -> None:
    driver = Driver(fixed(2, "a"), fixed(2, "b"))
    again = ticket(avoid=frozenset("a"))
    assert driver.permit(again).backend == "b"
    assert driver.permit(ticket()).backend == "a"


def test_one_that_avoids_a_backend_waits_apart_and_leaves_no_trace() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    first, second = driver.permit(ticket()), driver.permit(ticket())
    picky = driver.queue(ticket(avoid=frozenset("a")))
    other = driver.queue(ticket())
    assert len(driver.admission._backlog.groups) == 2
    driver.settle(first)
    assert driver.permits[other.id].backend == "a"
    driver.settle(second)
    assert driver.permits[picky.id].backend == "b"
    assert len(driver.admission._backlog.groups) == 1


def test_where_all_are_avoided_nobody_can_serve() -> None:
    driver = Driver(fixed(1, "a"))
    refused = driver.refused(ticket(avoid=frozenset("a")))
    assert (refused.reason, refused.should_retry) == (Reason.NO_BACKEND, None)


def test_without_any_backend_nobody_can_serve() -> None:
    assert Driver().refused(ticket()).reason is Reason.NO_BACKEND


def test_a_backend_that_comes_up_takes_the_waiting() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    driver.admission.note_health("b", Health.DOWN, 0.0)
    driver.permit(ticket())
    waiting = driver.queue(ticket())
    driver.take(driver.admission.note_health("b", Health.UP, 0.0))
    assert driver.permits[waiting.id].backend == "b"


def test_the_cancelled_waiter_gives_its_permit_to_the_next() -> None:
    """The verdict is set, the waiting task has not resumed, and now its client hangs up."""
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    cancelled, patient = driver.queue(ticket()), driver.queue(ticket())
    driver.settle(running)
    assert driver.withdraw(cancelled) == []  # it has its verdict already: nothing to withdraw
    assert patient.id not in driver.permits
    driver.settle(driver.permits[cancelled.id], Outcome.CLIENT_GONE)
    assert patient.id in driver.permits
    assert driver.backend().running == 1


# --------------------------------------------------------------------------------------------------- time and queue

PATIENT = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))


def test_with_nothing_to_do_nobody_is_woken() -> None:
    driver = Driver(fixed(1))
    assert driver.admission.next_wakeup() is None
    permit = driver.permit(ticket())
    assert driver.admission.next_wakeup() == pytest.approx(0.1)
    driver.run(0.25)
    driver.settle(permit)
    driver.run(0.1)
    assert driver.admission.next_wakeup() is None
    assert driver.admission.tick(9.0) == []


def test_the_wake_up_is_at_the_deadline_where_that_is_sooner() -> None:
    driver = Driver(fixed(1))
    driver.permit(ticket())
    driver.queue(ticket(read_timeout=0.031))
    assert driver.admission.next_wakeup() == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("request_", "bound"), [(ticket(), 1.0), (ticket(900, 200), 4.0), (ticket(read_timeout=0.3), 0.3)]
)
def test_whoever_waited_for_its_bound_is_thrown_out(request_: object, bound: float) -> None:
    driver = Driver(fixed(1))
    driver.permit(ticket())
    waiting = driver.queue(replace(ticket(), **{f: getattr(request_, f) for f in ("shape", "work", "read_timeout")}))
    driver.run(bound - 0.001)
    assert waiting.id not in driver.rejections
    driver.run(0.012)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT
    assert driver.depth() == 0


def test_whoever_expires_makes_room_for_a_head_that_was_held() -> None:
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(initial=4, token_limit=1000)))
    driver.permit(ticket(400, 100))
    large = driver.queue(ticket(700, 100))
    small = driver.queue(ticket(100, 100))
    assert small.id not in driver.permits  # nothing goes before a head that does not fit
    driver.run(1.02)
    assert large.id in driver.rejections
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(initial=4, token_limit=1000)))
    driver.permit(ticket(400, 100))
    large = driver.queue(ticket(700, 100))
    small = driver.queue(ticket(100, 100))
    driver.withdraw(large)
    assert small.id in driver.permits


def test_draining_refuses_the_new_and_serves_the_rest() -> None:
    driver = Driver(fixed(1))
    running = driver.permit(ticket())
    waiting = driver.queue(ticket())
    driver.take(driver.admission.drain(0.0))
    refused = driver.refused(ticket())
    assert (refused.reason, refused.retry_after, refused.should_retry) == (Reason.DRAINING, 1.0, None)
    driver.settle(running)
    assert waiting.id in driver.permits
    assert driver.admission.state(0.0).draining


# ---------------------------------------------------------------------------------------------------- long prompts


def test_a_long_prompt_waits_for_the_one_before_it_and_shorts_do_not() -> None:
    driver = Driver(fixed(9))
    driver.permit(ticket())
    first = driver.permit(ticket(120_000))
    second = driver.queue(ticket(120_000, read_timeout=600.0))
    for _ in range(6):
        driver.run(8.0)
        driver.settle(driver.permit(ticket()))
    assert second.id not in driver.rejections  # beyond its lane's bound: inside the engine it would wait as well
    first.progress.output(1, driver.now)
    driver.run(0.1)
    assert second.id not in driver.permits  # the next huge one waits for the end
    driver.settle(first)
    assert second.id in driver.permits


def test_a_long_prompt_does_not_wait_for_ever() -> None:
    driver = Driver(fixed(9))
    driver.permit(ticket())
    driver.permit(ticket(120_000))
    patience = {20_480: 10.0, 40_960: 40.0, 1_000_000: 120.0}
    waiting = {size: driver.queue(ticket(size, client=str(size))) for size in patience}
    for _ in range(1250):
        driver.offer(ticket())
        driver.run(0.1)
        for permit in [p for p in driver.permits.values() if p.ticket.work.prompt_tokens == 100]:
            driver.settle(permit)
        for size, seconds in patience.items():
            assert (waiting[size].id in driver.rejections) is (driver.now >= seconds), (size, driver.now)


def test_where_only_long_prompts_come_they_are_not_held() -> None:
    driver = Driver(fixed(4))
    for _ in range(4):
        driver.permit(ticket(120_000))


# --------------------------------------------------------------------------------------------------------- learning


def test_usage_teaches_the_estimator() -> None:
    estimator = Estimator(EstimatorConfig())
    driver = Driver(fixed(9), estimator=estimator)
    request = ticket(client="x")
    before = estimator.estimate(request.shape, "x")
    for outcome, usage in (
        (Outcome.COMPLETED, None),
        (Outcome.CLIENT_GONE, Usage(800, 5)),
        (Outcome.BACKEND_ERROR, Usage(800, 5)),
    ):
        driver.settle(driver.permit(replace(request, id=ticket().id)), outcome, usage)
    assert estimator.estimate(request.shape, "x") == before
    for _ in range(50):
        driver.settle(driver.permit(replace(request, id=ticket().id)), Outcome.COMPLETED, Usage(100, 7))
    assert estimator.estimate(request.shape, "x").output_tokens == pytest.approx(7, abs=1)


def test_hints_reach_the_backend_s_books() -> None:
    driver = Driver(adaptive())
    driver.take(driver.admission.note_hints("a", Hints(kv_capacity_tokens=10_000), 0.0))
    assert driver.backend().token_limit == 9_000


# ----------------------------------------------------------------------------------------------------- what is shown


def test_lanes_are_named_and_bounded_by_tokens() -> None:
    admission = Driver(fixed(1)).admission
    assert admission.lane(ticket(900, 100)) == "short"
    assert admission.lane(ticket(900, 101)) == "long"


def test_the_last_lane_takes_what_is_left_even_where_it_is_bounded() -> None:
    lanes = (LaneConfig("small", 100, 1.0), LaneConfig("middle", 1000, 1.0))
    assert Driver(fixed(1), admission=config(lanes=lanes)).admission.lane(ticket(9_000)) == "middle"


def test_the_state_shows_every_lane_over_all_queues() -> None:
    driver = Driver(fixed(1, "a", models=("m",)), fixed(1, "b"))
    driver.permit(ticket(model="m"))
    driver.permit(ticket(model="m"))
    driver.queue(ticket(model="m"))
    driver.run(0.25)
    driver.queue(ticket())
    driver.queue(ticket(2_000, model="m"))
    state = driver.admission.state(0.5)
    assert [(lane.name, lane.depth, lane.cost, lane.max_wait) for lane in state.lanes] == [
        ("short", 2, 250.0, 1.0),
        ("long", 1, 600.0, 4.0),
    ]
    assert [lane.oldest_wait for lane in state.lanes] == [0.5, 0.25]
    assert [backend.name for backend in state.backends] == ["a", "b"]
    assert not state.overloaded


def test_idle_lanes_show_no_wait() -> None:
    assert [lane.oldest_wait for lane in Driver(fixed(1)).admission.state(9.0).lanes] == [0.0, 0.0]


def test_the_state_says_who_came_back_in_time() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT, max_requests=1))
    driver.permit(ticket())
    driver.queue(ticket())
    for wait in (0.0, 0.5, 1.0):
        driver.now += wait
        driver.refused(ticket(fingerprint=5))
    assert driver.admission.state(driver.now).retries_seen == {True: 1, False: 1}


def test_sustained_overload_is_shown_and_retries_are_discouraged() -> None:
    driver = Driver(fixed(1))
    running: Permit | None = None
    refusals: list[Rejection] = []
    for step in range(400):
        verdict = driver.offer(ticket(0, 100))
        if isinstance(verdict, Permit):
            running = verdict
        elif isinstance(verdict, Rejection):
            refusals.append(verdict)
        driver.run(0.1)
        if running is not None and step % 5 == 0:
            driver.settle(running)
            running = next(iter(driver.permits.values()), None)
    assert driver.admission.state(driver.now).overloaded
    assert refusals[0].should_retry is None
    assert refusals[-1].should_retry is False


def test_a_request_that_waits_for_its_tokens_holds_its_own_queue_and_no_other_that_shares_the_backend() -> None:
    limit = LimitConfig(initial=10, token_limit=3_000)
    shared = adaptive("a", models=("m", "n"))
    only = adaptive("b", models=("n",))
    driver = Driver(shared, only, admission=config(limit=limit))
    driver.admission.note_health("b", Health.DOWN, 0.0)  # so that all of it is about a
    running = [driver.permit(ticket(900, 100, model="m")) for _ in range(2)]
    large = driver.queue(ticket(1_900, 100, model="m"))
    behind = driver.queue(ticket(10, 10, model="m"))
    for _ in range(2):
        assert driver.permit(ticket(100, 100, model="n")).backend == "a"
    for permit in running:
        driver.settle(permit)
    assert large.id in driver.permits
    assert behind.id in driver.permits
