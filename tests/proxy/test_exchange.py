"""Requests that are served without a task of their own, and those that cannot be."""

from __future__ import annotations

import asyncio

import pytest

from gateway.model import Outcome
from gateway.proxy.listener import ClientConnection
from tests.proxy.helpers import CHAT, House, Message, Peer, StartBackend, open_house, reply, request, wait_until


def connection(house: House) -> ClientConnection:
    (found,) = house.front._clients.connections  # type: ignore[union-attr]
    assert isinstance(found, ClientConnection)
    return found


def trust(house: House) -> None:
    """Have idle connections to the engine reused at once."""
    (upstream,) = house.front._upstreams.values()
    upstream._keeps[False] = True


@pytest.mark.parametrize("apart", [False, True])
async def test_a_request_takes_no_task_even_if_its_body_comes_after_its_head(
    backend: StartBackend, apart: bool
) -> None:
    release = asyncio.Event()

    async def hold(peer: Peer, _message: Message) -> None:
        await release.wait()
        await peer.send(reply(b"{}"))

    engine = await backend(hold)
    async with open_house(engine) as house:
        client = await house.client()
        release.set()
        await client.ask(request(body=CHAT))
        release.clear()
        trust(house)
        tasks = asyncio.all_tasks()
        whole = request(body=CHAT)
        if apart:
            await client.send(whole[: -len(CHAT)])
            await asyncio.sleep(0.01)
            assert not house.gateway.in_flight
            await client.send(whole[-len(CHAT) :])
        else:
            await client.send(whole)
        await wait_until(lambda: len(engine.requests) == 2)
        exchange = connection(house).exchange
        assert exchange is not None
        assert exchange.task is None
        assert {task for task in asyncio.all_tasks() - tasks if "_serve" in repr(task)} == set()
        release.set()
        assert (await client.answer()).status == 200
        assert house.controller.outcomes == [Outcome.COMPLETED] * 2


async def test_a_client_that_leaves_gives_its_place_back_in_the_very_turn(backend: StartBackend) -> None:
    async def silent(peer: Peer, _message: Message) -> None:
        if len(engine.requests) == 1:
            await peer.send(reply(b"{}"))
        else:
            await asyncio.Event().wait()

    engine = await backend(silent)
    async with open_house(engine) as house:
        client = await house.client()
        await client.ask(request(body=CHAT))
        trust(house)
        await client.send(request(body=CHAT))
        await wait_until(lambda: len(engine.requests) == 2)
        connection(house).abort()
        await asyncio.sleep(0)
        await wait_until(lambda: not house.gateway.in_flight)
        assert house.controller.outcomes == [Outcome.COMPLETED, Outcome.CLIENT_GONE]
        assert house.controller.balanced


async def test_a_body_that_does_not_follow_its_head_is_waited_for_by_a_task(backend: StartBackend) -> None:
    engine = await backend(lambda peer, _message: peer.send(reply(b"{}")))
    async with open_house(engine) as house:
        client = await house.client()
        whole = request(body=CHAT)
        await client.send(whole[:-1])
        await wait_until(lambda: house.gateway.in_flight == 1)
        assert connection(house).exchange is None
        await client.send(whole[-1:])
        assert (await client.answer()).status == 200


async def test_while_the_gateway_leaves_no_head_waits_for_its_body(backend: StartBackend) -> None:
    engine = await backend(lambda peer, _message: peer.send(reply(b"{}")))
    async with open_house(engine) as house:
        client = await house.client()
        await client.ask(request(body=CHAT))
        house.front._admission.drain()
        await client.send(request(body=CHAT)[: -len(CHAT)])
        assert (await client.answer()).status == 503


async def test_requests_sent_all_at_once_are_answered_in_their_order(backend: StartBackend) -> None:
    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply(message.body))

    engine = await backend(echo)
    bodies = [CHAT[:-1] + b" " * number + b"}" for number in range(40)]
    async with open_house(engine) as house:
        client = await house.client()
        await client.ask(request(body=CHAT))
        trust(house)
        await client.send(b"".join(request(body=body) for body in bodies))
        for body in bodies:
            assert (await client.answer()).body == body
