"""``knock`` answers as ``offer`` would, without a body; and where it lets pass, nothing has happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.config import AdmissionConfig, LimitConfig, QueueConfig, ShedConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Access, Backend, Outcome, Permit, Reason, Rejection, Route, Shape, Ticket, WorkEstimate

SHAPE = Shape(Route("chat", Access.ADMIT))


def ticket(number: int, **changes: object) -> Ticket:
    return replace(Ticket(number, SHAPE, WorkEstimate(100, 100, 125.0)), **changes)  # type: ignore[arg-type]


def controller(*, max_requests: int = 2, budget: float = 0.1) -> AdmissionController:
    config = AdmissionConfig(
        limit=LimitConfig(initial=1, maximum=1),
        queue=QueueConfig(max_requests=max_requests),
        shed=ShedConfig(retry_budget=budget),
    )
    return AdmissionController(config, [Backend("a", "http://a")], lambda low, _high: low)


def test_with_a_free_place_it_lets_pass_and_changes_nothing() -> None:
    admission = controller()
    before = admission.state(0.0)
    assert admission.knock(ticket(1), 0.0) is None
    assert admission.state(0.0) == before
    assert admission.next_wakeup() is None


def test_with_room_in_the_queue_it_lets_pass_and_queues_nobody() -> None:
    admission = controller()
    assert isinstance(admission.offer(ticket(1), 0.0)[0], Permit)
    assert admission.knock(ticket(2), 0.0) is None
    assert admission.state(0.0).lanes[0].depth == 0


def test_with_a_full_queue_it_refuses_as_offer_does() -> None:
    admission = controller()
    for number in (1, 2, 3):
        admission.offer(ticket(number), 0.0)
    refused = admission.knock(ticket(4), 0.0)
    (offered,) = admission.offer(ticket(5), 0.0)
    assert isinstance(refused, Rejection)
    assert isinstance(offered, Rejection)
    assert refused.reason is offered.reason is Reason.QUEUE_FULL
    assert admission.state(0.0).lanes[0].depth == 2


@pytest.mark.parametrize(
    ("drained", "avoid", "reason"), [(True, (), Reason.DRAINING), (False, ("a",), Reason.NO_BACKEND)]
)
def test_it_refuses_where_nobody_can_serve(drained: bool, avoid: tuple[str, ...], reason: Reason) -> None:
    admission = controller()
    if drained:
        admission.drain(0.0)
    refused = admission.knock(ticket(1, avoid=frozenset(avoid)), 0.0)
    assert refused is not None
    assert refused.reason is reason


def test_a_long_wait_ahead_is_refused_at_the_door_with_both() -> None:
    admission = controller(max_requests=10_000)
    (permit,) = admission.offer(ticket(1), 0.0)
    assert isinstance(permit, Permit)
    assert admission.offer(ticket(2), 0.0) == []
    now = 0.0
    for number in range(3, 100):  # somebody always waits, and every half second one is answered
        now += 0.5
        admission.tick(now)
        (permit,) = admission.settle(permit, Outcome.COMPLETED, None, now)
        assert isinstance(permit, Permit)
        assert admission.offer(ticket(number), now) == []
    for number in range(100, 1000):
        refused = admission.knock(ticket(number), now)
        verdicts = admission.offer(ticket(number), now)
        assert [refused is not None] == [bool(verdicts)]
        if refused is not None:
            break
    assert refused is not None
    assert refused.reason is Reason.DEADLINE
    assert [verdict.reason for verdict in verdicts if isinstance(verdict, Rejection)] == [Reason.DEADLINE]
