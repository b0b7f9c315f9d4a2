"""Requests that are served without a task of their own, and those that cannot be."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from gateway.admission.quota import Account, KeyTerms
from gateway.model import Outcome, WorkEstimate
from gateway.proxy.client import ClientConnection
from gateway.proxy.gate import Charged, Gate
from gateway.proxy.keys import Keys
from gateway.proxy.relay import Relay
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
    House,
    Message,
    Peer,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
    wait_until,
)

KEY = "Authorization", "Bearer sk-one"


def connection(house: House) -> ClientConnection:
    (found,) = house.front._clients.connections  # type: ignore[union-attr]
    assert isinstance(found, ClientConnection)
    return found


def keys(**terms: Any) -> Keys:
    return {hashlib.sha256(b"sk-one").digest(): KeyTerms("team", **terms)}


def account(house: House) -> Account:
    found = house.front.keys.account("team")
    assert found is not None
    return found


def serving(since: set[asyncio.Task[Any]]) -> set[str]:
    """The tasks that serve a request."""
    return {repr(task) for task in asyncio.all_tasks() - since if "Handler._" in repr(task)}


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


async def test_what_waited_for_a_connection_or_a_place_takes_no_task_while_its_answer_comes(
    backend: StartBackend,
) -> None:
    releases = [asyncio.Event(), asyncio.Event()]

    async def hold(peer: Peer, _message: Message) -> None:
        release = releases[len(engine.requests) - 1]
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(hold)
    async with open_house(engine, limit=1) as house:
        tasks = asyncio.all_tasks()
        first, second = await house.client(), await house.client()
        await first.send(request(body=CHAT_STREAM))
        await first.head()
        await second.send(request(body=CHAT_STREAM))
        await wait_until(lambda: len(house.controller.queue) == 1)
        assert len(serving(tasks)) == 1, "the second waits"
        releases[0].set()
        await first.until(b"\r\n0\r\n\r\n")
        await second.head()
        assert serving(tasks) == set()
        releases[1].set()
        await second.until(b"\r\n0\r\n\r\n")
        assert house.controller.outcomes == [Outcome.COMPLETED] * 2
        assert house.controller.balanced


async def test_who_leaves_in_the_very_turn_in_which_the_backend_is_reached_holds_nothing(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = Relay.reach

    async def silent(peer: Peer, _message: Message) -> None:
        await peer.ended()
        peer.close()

    engine = await backend(silent)
    async with open_house(engine) as house:

        async def gone(self: Relay, *upstream: Any) -> Any:
            reached = await reach(self, *upstream)
            leaving = connection(house)
            leaving.abort()
            while leaving.exchange is not None:  # noqa: ASYNC110 - the turn counts in which it is gone
                await asyncio.sleep(0)
            return reached  # before the task is cancelled

        monkeypatch.setattr(Relay, "reach", gone)
        client = await house.client()
        await client.send(request(body=CHAT))
        await wait_until(lambda: house.controller.settled)
        await wait_until(lambda: not house.gateway.in_flight)
        assert house.controller.outcomes == [Outcome.CLIENT_GONE]
        assert house.controller.balanced
        await engine.deserted()
        client.close()


@pytest.mark.parametrize("reused", [False, True])
async def test_a_fault_before_the_request_is_sent_gives_all_back(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, reused: bool
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=keys(max_in_flight=1)) as house:
        client = await house.client()
        if reused:
            assert (await client.ask(request(body=CHAT, headers=[KEY]))).status == 200
            trust(house)
        with monkeypatch.context() as patch:
            patch.setattr("gateway.proxy.handler.request_head", lambda *_, **__: 1 / 0)
            assert (await client.ask(request(body=CHAT, headers=[KEY]))).status == 500
        assert house.controller.outcomes[-1] is Outcome.INTERNAL_ERROR
        assert house.controller.balanced
        assert account(house).in_flight == 0
        assert (await house.ask(request(body=CHAT, headers=[KEY]))).status == 200


@pytest.mark.parametrize("later", [False, True])
async def test_a_request_with_a_key_takes_a_task_only_where_its_count_has_to_be_waited_for(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    release, counted = asyncio.Event(), asyncio.Event()

    async def hold(peer: Peer, _message: Message) -> None:
        await release.wait()
        await peer.send(reply(b'{"usage":{"prompt_tokens":10,"completion_tokens":30}}'))

    async def charge_later(gate: Gate, account: Account, tokens: int) -> Charged:
        await counted.wait()
        now = gate._clock()
        return account.enter(tokens, now), tuple(account.standings(now))

    if later:
        monkeypatch.setattr(Gate, "charge_now", lambda *_: None)
        monkeypatch.setattr(Gate, "charge_later", charge_later)
    engine = await backend(hold)
    async with open_house(engine, keys=keys(tokens_per_minute=600, max_in_flight=1)) as house:
        client = await house.client()
        release.set()
        counted.set()
        assert (await client.ask(request(body=CHAT, headers=[KEY]))).status == 200
        release.clear()
        counted.clear()
        trust(house)
        tasks = asyncio.all_tasks()
        await client.send(request(body=CHAT, headers=[KEY]))
        if later:
            await wait_until(lambda: house.gateway.in_flight)
            assert len(serving(tasks)) == 1
            assert account(house).in_flight == 0
            counted.set()
        await wait_until(lambda: len(engine.requests) == 2)
        assert serving(tasks) == set()
        assert account(house).in_flight == 1
        release.set()
        answer = await client.answer()
        assert answer.status == 200
        assert answer.get("x-ratelimit-limit-tokens") == "600"
        assert account(house).in_flight == 0
        await house.records.count(2)
        (left,) = [each.remaining for each in account(house).standings(house.gateway.brain.gate._clock())]
        assert 520 <= left <= 525, "twice 40 were used, whatever was reserved"


@pytest.mark.parametrize("stage", ["counted", "queued", "reached", "answered"])
async def test_a_key_has_its_place_back_from_a_client_that_leaves(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    async def begun(peer: Peer, _message: Message) -> None:
        if stage == "answered":
            await peer.send(SSE_HEAD + chunked(event("a")))
        await asyncio.Event().wait()

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    engine = await backend(begun)
    terms = keys(max_in_flight=2, requests_per_minute=2, tokens_per_minute=600)
    async with open_house(engine, keys=terms, limit=0 if stage == "queued" else 9) as house:
        house.estimator.work = WorkEstimate(100, 400, 425.0)
        if stage == "counted":
            monkeypatch.setattr(Gate, "charge_now", lambda *_: None)
            monkeypatch.setattr(Gate, "charge_later", never)
        client = await house.client()
        await client.send(request(body=CHAT_STREAM, headers=[KEY]))
        if stage == "answered":
            await client.head()
        elif stage == "reached":
            await engine.received(1)
        elif stage == "queued":
            await wait_until(lambda: house.controller.queue)
        else:
            await wait_until(lambda: house.gateway.in_flight)
        assert account(house).in_flight == (0 if stage == "counted" else 1)
        client.reset()
        await wait_until(lambda: not house.gateway.in_flight)
        assert account(house).in_flight == 0
        requests, tokens = (
            each.limit - each.remaining for each in account(house).standings(house.gateway.brain.gate._clock())
        )
        served = stage in {"reached", "answered"}
        assert requests == served, "what was never sent costs nothing"
        assert (tokens > 490) == served
        assert house.controller.balanced


# --------------------------------------------------------------------------------------------------------------
# What a stream holds while it lives
# --------------------------------------------------------------------------------------------------------------

NEXT = request(body=CHAT)
IN_CHUNKS = request(headers=[("Transfer-Encoding", "chunked")], length=False)


@pytest.mark.parametrize(
    ("pieces", "freed"),
    [
        ((request(body=CHAT_STREAM),), True),
        ((request(body=CHAT_STREAM)[:-7], CHAT_STREAM[-7:]), True),
        ((request(body=CHAT_STREAM)[:30], request(body=CHAT_STREAM)[30:]), False),
        ((b"\r\n" + request(body=CHAT_STREAM),), True),
        ((IN_CHUNKS + chunked(CHAT_STREAM) + b"0\r\n\r\n",), False),
        *(((request(body=CHAT_STREAM) + NEXT[:cut],), False) for cut in (1, 20, len(NEXT) - len(CHAT) - 1)),
        ((request(body=CHAT_STREAM)[:-7], CHAT_STREAM[-7:] + NEXT[:9]), False),
    ],
)  # fmt: skip
async def test_a_stream_lets_go_of_its_request_and_the_next_one_is_read_all_the_same(
    backend: StartBackend, pieces: tuple[bytes, ...], freed: bool
) -> None:
    release = asyncio.Event()

    async def answer(peer: Peer, message: Message) -> None:
        if message.body != CHAT_STREAM:
            await peer.send(reply(message.body))
            return
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(answer)
    begun = pieces[-1].rpartition(CHAT_STREAM[-7:])[2]  # a part of the next request, if it is one
    begun = begun if NEXT.startswith(begun) else b""
    async with open_house(engine) as house:
        client = await house.client()
        for round_ in range(2):
            release.clear()
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0.01)
            await client.head()
            await client.chunk()
            served = connection(house)
            assert served.exchange is not None
            assert (served._parser is None) == freed, round_
            assert served.exchange.call.headers == ()
            release.set()
            assert await client.chunk() == b""
            await client.until(b"\r\n")
            await client.send(NEXT[len(begun) :])
            answered = await client.answer()
            assert (answered.status, answered.body) == (200, CHAT)
        assert house.controller.outcomes == [Outcome.COMPLETED] * 4


async def test_a_part_of_a_head_behind_a_body_is_not_forgotten_with_the_parser(backend: StartBackend) -> None:
    """The empty line of its head is torn, so that the first one in what comes then is in the body."""
    inside = b"\r\n\r\n"
    body = b'{"model":"m","stream":true,' + inside + b'"messages":[]}'
    head = request(body=body)[: -len(body)]
    torn = NEXT[: body.index(inside) + len(inside)]  # what a count from the line in the body would miss
    release = asyncio.Event()

    async def answer(peer: Peer, message: Message) -> None:
        if message.body == CHAT:
            await peer.send(reply(message.body))
            return
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(answer)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(NEXT + head[:-1])
        assert (await client.answer()).body == CHAT
        await client.send(head[-1:] + body + torn)
        await client.head()
        await client.chunk()
        release.set()
        assert await client.chunk() == b""
        await client.until(b"\r\n")
        await client.send(NEXT[len(torn) :])
        assert (await client.answer()).body == CHAT


async def test_a_connection_has_no_task_before_a_request_needs_one(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        tasks = asyncio.all_tasks()
        client = await house.client()
        await client.ask(request(body=CHAT))
        assert {repr(task) for task in asyncio.all_tasks() - tasks if "RequestHandler" in repr(task)} == set()
        await client.send(request(body=CHAT)[:-1])
        await wait_until(lambda: house.gateway.in_flight == 1)
        assert len({task for task in asyncio.all_tasks() - tasks if "RequestHandler.start" in repr(task)}) == 1
        await client.send(CHAT[-1:])
        assert (await client.answer()).status == 200
        assert (await client.ask(request(body=CHAT))).status == 200


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_an_idle_connection_is_closed_whoever_served_it(backend: StartBackend, taken: int) -> None:
    """0: nothing was asked; 1: the last request took no task of aiohttp's; 2: it did."""
    engine = await backend(always(reply()))
    async with open_house(engine, client_keepalive=0.2) as house:
        client = await house.client()
        if taken == 2:
            await client.send(request(body=CHAT)[:-1])
            await wait_until(lambda: house.gateway.in_flight == 1)
            await client.send(CHAT[-1:])
            assert (await client.answer()).status == 200
        elif taken:
            assert (await client.ask(request(body=CHAT))).status == 200
        assert not await client.ended()


async def test_the_end_of_a_body_counts_for_no_head(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    body = CHAT + b" " * 60_000
    async with open_house(engine, max_header=256) as house:
        client = await house.client()
        whole = request(body=body)
        await client.send(whole[: -len(body)])
        await asyncio.sleep(0.01)
        await client.send(body)
        assert (await client.answer()).status == 200


async def test_a_known_head_behind_a_part_of_another_is_no_request(backend: StartBackend) -> None:
    """What was begun in the segment that ended the last body belongs to the next request, known or not."""
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(2):
            assert (await client.ask(NEXT)).status == 200
        await client.send(NEXT + b"G")
        assert (await client.answer()).status == 200
        await client.send(NEXT)
        assert (await client.answer()).status == 400, "GPOST"
        assert len(engine.requests) == 3
