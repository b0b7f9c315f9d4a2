"""Much that comes at once is done in portions, and others get their turn in between."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.model import Outcome, Reason
from gateway.proxy import handler
from gateway.proxy.turns import Turns
from tests.proxy.helpers import CHAT, GUARD, StartBackend, always, open_house, reply, request, wait_until


async def test_so_many_pass_in_a_turn_in_the_order_in_which_they_came() -> None:
    turns, passed, turn = Turns(3), [], 0

    async def one(number: int) -> None:
        if not turns.taken():
            await turns.wait()
        passed.append((number, turn))

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    for turn in range(1, 40):  # noqa: B007 - the tasks look at it
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert [number for number, _ in passed] == list(range(20))
    assert max(Counter(when for _, when in passed).values()) == 3
    assert turns.taken(), "who comes alone does not wait"


async def test_who_leaves_while_it_waits_takes_nobodys_place() -> None:
    turns = Turns(1)
    assert turns.taken()
    leaving = [asyncio.create_task(turns.wait()) for _ in range(5)]
    await asyncio.sleep(0)
    last = asyncio.create_task(turns.wait())
    for each in leaving:
        each.cancel()
    await asyncio.wait_for(last, GUARD)


async def test_requests_that_come_at_once_begin_one_after_the_other(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "_AT_ONCE", 2)
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        clients = [await house.client() for _ in range(30)]
        for client in clients:
            client.writer.write(request(body=CHAT))
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert [answer.status for answer in answers] == [200] * 30
        assert house.controller.balanced


async def test_who_leaves_before_its_turn_is_told_of_and_held_by_nobody(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "taken", lambda _self: False)
    monkeypatch.setattr(Turns, "_next", lambda _self: None)
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT))
        await wait_until(lambda: house.gateway.in_flight)
        client.reset()
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.CLIENT_GONE
        assert house.gateway.in_flight == 0
        assert engine.requests == []


async def test_a_queue_that_is_refused_at_once_is_told_in_portions(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "_AT_ONCE", 2)
    engine = await backend(always(reply()))
    async with open_house(engine, limit=0) as house:
        clients = [await house.client() for _ in range(20)]
        for client in clients:
            client.writer.write(request(body=CHAT))
        await wait_until(lambda: len(house.controller.queue) == 20)
        house.expire(Reason.QUEUE_TIMEOUT)
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert {answer.get("x-gateway-shed-reason") for answer in answers} == {"queue_timeout"}
        assert house.gateway.in_flight == 0
