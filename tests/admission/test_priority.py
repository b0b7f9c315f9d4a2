"""Priorities: who goes first, what is kept for the critical, what is owed to the rest, and who is refused first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from gateway.admission.config import LaneConfig, LimitConfig, QueueConfig
from gateway.admission.queue import Entry, PriorityQueue
from gateway.admission.spot import Hold
from gateway.model import Hints, Outcome, Permit, Priority, Reason, Rejection, Ticket
from tests.admission.helpers import HERE, LONG, SHORT, Driver, adaptive, config, fixed, ticket

CRITICAL, STANDARD, SHEDDABLE = Priority
PATIENT = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))


def entry(priority: Priority, cost: int = 100, client: str = "") -> Entry:
    return Entry(ticket(0, cost, priority=priority, client=client), 0, 0, 0.0, 0.0, 0.0, first=None)


def serve(queue: PriorityQueue, arriving: Iterable[Entry], count: int) -> Counter[Priority]:
    """Cost by priority of ``count`` that go, each of them followed by one that comes."""
    cost: Counter[Priority] = Counter()
    for newcomer, _ in zip(arriving, range(count), strict=False):
        found = queue.next(lambda _entry, _keenly: HERE)
        assert not isinstance(found, Hold)
        cost[found[0].ticket.priority] += int(found[0].ticket.work.cost)
        queue.push(newcomer)
    return cost


def busy(driver: Driver, places: int, priority: Priority = STANDARD) -> list[Permit]:
    return [driver.permit(ticket(priority=priority)) for _ in range(places)]


# ------------------------------------------------------------------------------------------------------- the order


def test_the_higher_priority_goes_first_whoever_came_first() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT, floor=0.0))
    running = driver.permit(ticket())
    waiting = [driver.queue(ticket(priority=priority)) for priority in (SHEDDABLE, STANDARD, CRITICAL, STANDARD)]
    driver.settle(running)
    while driver.permits:
        driver.settle(next(iter(driver.permits.values())))
    assert [number - waiting[0].id for number in driver.order[1:]] == [2, 1, 3, 0]


def test_clients_take_turns_inside_each_priority() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT))
    running = driver.permit(ticket())
    for priority in Priority:
        for client in "aaab":
            driver.queue(ticket(0, 100, client=client, priority=priority))
    driver.settle(running)
    order: list[Ticket] = []
    while driver.permits:
        permit = next(iter(driver.permits.values()))
        order.append(permit.ticket)
        driver.settle(permit)
    by_priority = {p: "".join(t.client for t in order if t.priority is p) for p in Priority}
    assert by_priority == dict.fromkeys(Priority, "abaa")


def test_a_critical_request_goes_first_whatever_model_it_is_for() -> None:
    lists = (fixed(1, "a", models=("m", "n")),)
    driver = Driver(*lists, admission=config(lanes=PATIENT))
    running = driver.permit(ticket(model="m"))
    driver.queue(ticket(model="m"))
    critical = driver.queue(ticket(model="n", priority=CRITICAL))
    driver.settle(running)
    assert critical.id in driver.permits


def test_a_request_that_finds_no_room_for_its_tokens_holds_the_lower_ones_and_never_a_critical_one() -> None:
    limit = LimitConfig(initial=10, token_limit=3_000)
    driver = Driver(adaptive(), admission=config(lanes=PATIENT, limit=limit))
    running = [driver.permit(ticket(900, 100)) for _ in range(2)]
    large = driver.queue(ticket(1_900, 100))
    small = driver.queue(ticket(100, 100, priority=SHEDDABLE))
    driver.permit(ticket(100, 100, priority=CRITICAL))
    assert large.id not in driver.permits
    assert small.id not in driver.permits, "or large ones would starve"
    for permit in running:
        driver.settle(permit)
    assert large.id in driver.permits


# -------------------------------------------------------------------------------------------------------- the floor


@pytest.mark.parametrize("endless", [CRITICAL, STANDARD])
def test_while_others_never_end_each_lower_priority_gets_its_floor(endless: Priority) -> None:
    queue = PriorityQueue(QueueConfig(lanes=(SHORT, LONG), floor=0.05))
    lower = [priority for priority in (STANDARD, SHEDDABLE) if priority > endless]
    for number in range(400):
        for priority in (endless, *lower):
            queue.push(entry(priority, 90 + number % 20))
    cost = serve(queue, (entry(endless) for _ in range(2000)), 2000)
    for priority in lower:
        assert cost[priority] / cost.total() == pytest.approx(0.05, abs=0.005)


def test_what_the_others_left_is_not_held_against_a_lower_priority() -> None:
    queue = PriorityQueue(QueueConfig(lanes=(SHORT, LONG), floor=0.05))
    for _ in range(500):
        queue.push(entry(SHEDDABLE))
    serve(queue, (entry(SHEDDABLE) for _ in range(1000)), 1000)  # nobody else is there
    for _ in range(500):
        queue.push(entry(CRITICAL))
    cost = serve(queue, (entry(CRITICAL) for _ in range(200)), 200)
    assert cost[SHEDDABLE] == pytest.approx(1_000, abs=200)


def test_without_a_floor_there_is_none() -> None:
    queue = PriorityQueue(QueueConfig(lanes=(SHORT, LONG), floor=0.0))
    for priority in (SHEDDABLE, STANDARD, CRITICAL):
        for _ in range(10):
            queue.push(entry(priority))
    assert serve(queue, (entry(STANDARD) for _ in range(100)), 100) == {CRITICAL: 1_000, STANDARD: 9_000}


# ------------------------------------------------------------------------------------------------ what is kept


def test_some_places_are_kept_for_critical_requests_while_there_are_any() -> None:
    driver = Driver(fixed(40), admission=config(lanes=PATIENT, reserve_critical=0.05))
    running = busy(driver, 40)
    driver.settle(running.pop())
    first = driver.permit(ticket(priority=CRITICAL))  # from now on there are some
    for permit in running[:3]:
        driver.settle(permit)
    driver.permit(ticket())
    waits = driver.queue(ticket())
    driver.permit(ticket(priority=CRITICAL))
    driver.permit(ticket(priority=CRITICAL))
    last = driver.queue(ticket(priority=CRITICAL))
    driver.settle(first)
    assert last.id in driver.permits
    assert waits.id not in driver.permits
    driver.run(61.0)
    driver.settle(running[3])
    assert waits.id in driver.permits
    assert driver.backend().running == 40


def test_a_backend_of_few_places_keeps_none() -> None:
    driver = Driver(fixed(8), admission=config(lanes=PATIENT, reserve_critical=0.05))
    driver.permit(ticket(priority=CRITICAL))
    assert len(busy(driver, 7)) == 7


def test_places_are_kept_of_the_limit_and_not_of_what_the_engine_may_start_now() -> None:
    """A few may have no first token at once, which is less than is kept of a large limit: nobody else would ever go."""
    driver = Driver(adaptive(), admission=config(limit=LimitConfig(initial=200), reserve_critical=0.05))
    driver.permit(ticket(priority=CRITICAL))
    driver.permit(ticket())


def test_places_that_are_kept_make_the_limit_bind() -> None:
    """Or it would never be raised: arrivals that find no place of theirs say that it is too low."""
    driver = Driver(fixed(40), admission=config(lanes=PATIENT, reserve_critical=0.05))
    driver.permit(ticket(priority=CRITICAL))
    busy(driver, 37)
    driver.queue(ticket())
    assert driver.admission._pool.books[0].window.full == 1


# --------------------------------------------------------------------------------------------------- at the door


def test_sheddable_work_is_refused_first() -> None:
    """Twice as much comes as is served: the standard half is served, the sheddable one refused at the door."""
    driver = Driver(fixed(4))
    ended: Counter[tuple[Priority, str]] = Counter()
    for step in range(600):
        for priority in (STANDARD, SHEDDABLE):
            driver.offer(ticket(0, 100, priority=priority, client=str(step % 7)))
        driver.run(0.25)
        if driver.permits:
            driver.settle(next(iter(driver.permits.values())))
        for rejection in driver.rejections.values():
            ended[rejection.ticket.priority, rejection.reason.value] += 1
        driver.rejections.clear()
    assert sum(count for (priority, _), count in ended.items() if priority is STANDARD) <= 60
    refused = ended[SHEDDABLE, "deadline"]
    assert refused > 400
    assert ended[SHEDDABLE, "queue_timeout"] < 0.1 * refused


def test_the_queue_s_bounds_leave_room_for_who_goes_before() -> None:
    driver = Driver(fixed(1), admission=config(lanes=PATIENT, max_requests=20))
    driver.permit(ticket())
    waiting = [driver.queue(ticket(priority=SHEDDABLE)) for _ in range(10)]
    assert driver.refused(ticket(priority=SHEDDABLE)).reason is Reason.QUEUE_FULL
    waiting += [driver.queue(ticket()) for _ in range(10)]
    assert driver.refused(ticket()).reason is Reason.QUEUE_FULL
    waiting += [driver.queue(ticket(priority=CRITICAL)) for _ in range(2)]
    assert driver.refused(ticket(priority=CRITICAL)).reason is Reason.QUEUE_FULL
    state = driver.admission.state(0.0)
    assert [(p.name, p.depth) for p in state.priorities] == [("critical", 2), ("standard", 10), ("sheddable", 10)]


def test_overload_by_one_priority_discourages_no_other() -> None:
    driver = Driver(fixed(1))
    told: dict[Priority, list[bool | None]] = {priority: [] for priority in Priority}
    for step in range(400):
        for priority in (STANDARD, STANDARD, SHEDDABLE):
            verdict = driver.offer(ticket(0, 100, priority=priority))
            if isinstance(verdict, Rejection) and driver.now > 30.0:
                told[priority].append(verdict.should_retry)
        if step % 10 == 0:
            verdict = driver.offer(ticket(0, 100, priority=CRITICAL))
            assert not isinstance(verdict, Rejection)
        driver.run(0.1)
        if driver.permits and step % 4 == 0:
            driver.settle(next(iter(driver.permits.values())))
    assert set(told[STANDARD]) == {False}
    assert not [r for r in driver.rejections.values() if r.ticket.priority is CRITICAL]


def test_gauges_and_failures_know_no_priority() -> None:
    driver = Driver(adaptive())
    permit = driver.permit(ticket(priority=SHEDDABLE))
    driver.admission.note_hints("a", Hints(kv_usage=0.1), 0.0)
    driver.settle(permit, Outcome.BACKEND_BUSY)
    assert driver.backend().limit == 1.0
