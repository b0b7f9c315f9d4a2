"""Verdicts meet tasks: nobody waits for ever, and every permit comes back once."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.tuning import changed
from gateway.model import (
    Access,
    Backend,
    Health,
    Hints,
    Outcome,
    Permit,
    Reason,
    Rejection,
    Route,
    Shape,
    Ticket,
    WorkEstimate,
)
from gateway.proxy.gate import Gate
from tests.proxy.helpers import CountingController

SHAPE = Shape(Route("chat", Access.ADMIT))


def ticket(number: int) -> Ticket:
    return Ticket(number, SHAPE, WorkEstimate(1, 1, 1.25))


def gate_of(limit: int) -> tuple[Gate, CountingController]:
    controller = CountingController(["a"], limit)
    return Gate(controller), controller


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_free_place_is_given_without_giving_up_the_turn() -> None:
    gate, controller = gate_of(1)
    coroutine = gate.enter(ticket(1))
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert isinstance(stopped.value.value, Permit)
    gate.leave(stopped.value.value, Outcome.COMPLETED, None)
    assert controller.balanced


async def test_a_refusal_is_returned() -> None:
    gate, controller = gate_of(1)
    controller.refuse = Reason.QUEUE_FULL
    verdict = await gate.enter(ticket(1))
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.QUEUE_FULL


async def test_F37_one_place_wakes_one_waiter() -> None:
    gate, controller = gate_of(1)
    first = await gate.enter(ticket(1))
    assert isinstance(first, Permit)
    waiters = [asyncio.create_task(gate.enter(ticket(number))) for number in range(2, 52)]
    await turns()
    gate.leave(first, Outcome.COMPLETED, None)
    await turns()
    assert sum(waiter.done() for waiter in waiters) == 1
    for waiter in waiters:
        permit = await waiter
        assert isinstance(permit, Permit)
        gate.leave(permit, Outcome.COMPLETED, None)
    assert controller.balanced


async def test_a_waiter_that_is_cancelled_is_withdrawn() -> None:
    gate, controller = gate_of(0)
    waiter = asyncio.create_task(gate.enter(ticket(1)))
    await turns()
    assert controller.queue
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert controller.queue == {}
    assert controller.granted == []


async def test_F15_a_permit_for_a_waiter_cancelled_before_it_resumed_comes_back() -> None:
    """THE race: the verdict is set, the task has not resumed, the client hangs up."""
    gate, controller = gate_of(1)
    first = await gate.enter(ticket(1))
    assert isinstance(first, Permit)
    waiter = asyncio.create_task(gate.enter(ticket(2)))
    await turns()
    gate.leave(first, Outcome.COMPLETED, None)  # sets the waiter's verdict
    assert len(controller.granted) == 2
    waiter.cancel()  # before it could take it
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert controller.outcomes == [Outcome.COMPLETED, Outcome.CLIENT_GONE]
    assert controller.balanced


async def test_F15_a_permit_for_a_waiter_whose_cancellation_is_on_its_way_comes_back() -> None:
    """The mirror of the race: the task is cancelled, has not run to withdraw, and now its verdict comes."""
    gate, controller = gate_of(1)
    first = await gate.enter(ticket(1))
    assert isinstance(first, Permit)
    waiter = asyncio.create_task(gate.enter(ticket(2)))
    third = asyncio.create_task(gate.enter(ticket(3)))
    await turns()
    waiter.cancel()
    gate.leave(first, Outcome.COMPLETED, None)  # the controller knows nothing of the cancellation
    with pytest.raises(asyncio.CancelledError):
        await waiter
    permit = await third  # the place went on to the next one, at once
    assert isinstance(permit, Permit)
    gate.leave(permit, Outcome.COMPLETED, None)
    assert [p.ticket.id for p, _, _ in controller.settled] == [1, 2, 3]
    assert controller.balanced


async def test_a_controller_that_raises_leaves_nobody_behind() -> None:
    gate, controller = gate_of(1)

    def broken(_ticket: Ticket, _now: float) -> list[object]:
        raise ZeroDivisionError

    controller.offer = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        await gate.enter(ticket(1))
    assert gate._waiting == {}


async def test_a_permit_given_back_twice_is_a_fault() -> None:
    gate, _ = gate_of(1)
    permit = await gate.enter(ticket(1))
    assert isinstance(permit, Permit)
    gate.leave(permit, Outcome.COMPLETED, None)
    with pytest.raises(KeyError):
        gate.leave(permit, Outcome.COMPLETED, None)


@pytest.mark.parametrize("seed", range(5))
async def test_F15_a_storm_of_waiters_loses_no_permit(seed: int) -> None:
    gate, controller = gate_of(3)
    chance = random.Random(seed)

    async def one(number: int) -> None:
        verdict = await gate.enter(ticket(number))
        assert isinstance(verdict, Permit)
        try:
            await turns(chance.randrange(5))
        finally:
            gate.leave(verdict, Outcome.COMPLETED, None)

    tasks: list[asyncio.Task[None]] = []
    for number in range(2000):
        tasks.append(asyncio.create_task(one(number)))
        if chance.random() < 0.5:
            chance.choice(tasks[-20:]).cancel()
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(controller.granted) > 500
    assert controller.balanced
    assert gate._waiting == {}


async def test_the_timer_ticks_when_the_controller_asks_for_it() -> None:
    gate, controller = gate_of(0)
    controller.wakeup = asyncio.get_running_loop().time() + 0.02
    due = controller.wakeup
    waiter = asyncio.create_task(gate.enter(ticket(1)))
    await turns()
    controller.limit = 1
    permit = await asyncio.wait_for(waiter, 10)
    assert isinstance(permit, Permit)
    assert len(controller.ticks) == 1
    assert controller.ticks[0] >= due
    gate.leave(permit, Outcome.COMPLETED, None)


async def test_an_earlier_wakeup_moves_the_timer_and_a_later_one_does_not() -> None:
    gate, controller = gate_of(0)
    now = gate._clock()
    controller.wakeup = now + 1000
    gate.note_health("a", Health.UP)
    timer = gate._timer
    assert timer is not None
    controller.wakeup = now + 2000
    gate.note_health("a", Health.UP)
    assert gate._timer is timer
    controller.wakeup = now + 500
    gate.note_health("a", Health.UP)
    assert gate._timer is not timer
    assert timer.cancelled()
    gate.close()
    assert gate._timer is None


async def test_a_timer_that_fires_early_waits_for_the_rest() -> None:
    gate, controller = gate_of(0)
    controller.wakeup = gate._clock() + 1000
    gate._tick()
    assert controller.ticks == []
    assert gate._timer is not None
    gate.close()
    gate.close()


async def test_findings_pass_and_a_backend_that_is_down_is_known() -> None:
    gate, controller = gate_of(0)
    gate.note_health("a", Health.DOWN)
    assert gate.is_down("a")
    gate.note_health("a", Health.UP)
    assert not gate.is_down("a")
    gate.note_hints("a", Hints(running=1))
    assert controller.health["a"] == [Health.DOWN, Health.UP]
    assert controller.hints["a"] == [Hints(running=1)]
    assert gate.lane(ticket(1)) == "only"
    assert gate.state().lanes[0].depth == 0


async def test_a_drained_backend_is_known_and_who_waits_is_woken_by_a_change() -> None:
    backends = (Backend("a", "http://a", limit=1), Backend("b", "http://b", limit=1))
    gate = Gate(AdmissionController(AdmissionConfig(), backends, lambda low, _high: low))
    permits = [await gate.enter(ticket(number)) for number in (1, 2)]
    waiting = asyncio.create_task(gate.enter(ticket(3)))
    await turns()
    assert not waiting.done()
    gate.retune(changed(gate.tuning, {"backends": {"a": {"limit": 2}, "b": {"drained": True}}}))
    third = await waiting
    assert isinstance(third, Permit)
    assert third.backend == "a"
    assert (gate.is_down("a"), gate.is_down("b")) == (False, True)
    gate.retune(changed(gate.tuning, {"backends": {"b": {"drained": False}}}))
    assert not gate.is_down("b")
    for permit in (*permits, third):
        assert isinstance(permit, Permit)
        gate.leave(permit, Outcome.COMPLETED, None)
    gate.close()


async def test_drain_refuses_whoever_comes_later() -> None:
    gate, _ = gate_of(1)
    gate.drain()
    assert gate.draining
    verdict = await gate.enter(ticket(1))
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.DRAINING
