"""Several backends: what the gateway reads of a request to choose among them, what it tells of the choice, failover."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.model import Backend, Choice, Outcome, Reason, Ticket, Usage, Verdict
from gateway.proxy.handler import CHOICE_HEADER
from gateway.proxy.tls import TurnedAway
from gateway.proxy.upstream import Connection, Upstream
from tests.proxy.helpers import CHAT, House, Message, Peer, StartBackend, always, open_house, reply, request
from tests.real.process import free_port

LONG = "All that is said before the question. " * 60
NAMES = ("header:x-session-id", "conversation", "user", "key")


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": LONG}], **fields}).encode()


async def hang_up(peer: Peer, _message: Message) -> None:
    peer.close()


async def test_prompts_are_hashed_where_there_is_a_choice(backend: StartBackend) -> None:
    engines = [await backend(always(reply())) for _ in range(2)]
    async with open_house(*engines, hash_prompts=True) as house:
        await house.ask(request(body=chat()))
        assert len(house.controller.offered[0].shape.blocks) == len(LONG) // 512
    async with open_house(engines[0], hash_prompts=True) as house:
        await house.ask(request(body=chat()))
        assert house.controller.offered[0].shape.blocks == ()
    async with open_house(*engines, hash_prompts=False) as house:
        await house.ask(request(body=chat()))
        assert house.controller.offered[0].shape.blocks == ()


@pytest.mark.parametrize(
    ("headers", "fields", "named"),
    [
        ([("X-Session-Id", "s1")], {"conversation": "c1", "user": "u1"}, "s1"),
        ([], {"conversation": {"id": "c1"}, "user": "u1"}, "c1"),
        ([], {"user": "u1"}, "u1"),
        ([], {}, "127.0.0.1"),  # without a key it is who it is for fairness
    ],
)
async def test_a_session_is_named_by_the_first_that_is_there(
    backend: StartBackend, headers: list[tuple[str, str]], fields: dict[str, Any], named: str
) -> None:
    async with open_house(await backend(always(reply())), session_by=NAMES) as house:
        await house.ask(request(body=chat(**fields), headers=headers))
        assert house.controller.offered[0].session == named


async def test_a_session_has_no_name_where_none_is_asked_for(backend: StartBackend) -> None:
    async with open_house(await backend(always(reply())), session_by=("user",)) as house:
        await house.ask(request(body=chat(conversation="c1")))
        await house.ask(request(body=chat(user="u" * 1000)))
        assert [len(ticket.session) for ticket in house.controller.offered] == [0, 256]


async def test_the_choice_is_told_where_that_is_wanted(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(f"http://127.0.0.1:{free_port()}", engine, choice_header=True) as house:
        assert (await house.ask(request(body=CHAT))).get(CHOICE_HEADER) == "b; headroom"  # as the controller has it
        (record,) = await house.records.count(1)
        assert (record.backend, record.choice) == ("b", Choice.HEADROOM)
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT))).get(CHOICE_HEADER) is None


@pytest.mark.parametrize(
    ("status", "said", "rests"),
    [
        ("429 Too Many Requests", "7", [("a", 7.0)]),
        ("503 Service Unavailable", "2", [("a", 2.0)]),
        ("429 Too Many Requests", "Wed, 21 Oct 2026 07:28:00 GMT", []),
        ("429 Too Many Requests", "9" * 30, []),
        ("500 Internal Server Error", "7", []),
        ("200 OK", "7", []),
    ],
)
async def test_an_engine_s_retry_after_is_heeded(
    backend: StartBackend, status: str, said: str, rests: list[tuple[str, float]]
) -> None:
    engine = await backend(always(reply(b"{}", status, [("Content-Type", "application/json"), ("Retry-After", said)])))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert (answer.status, answer.get("Retry-After")) == (int(status[:3]), said)  # and the client gets it as it is
        assert house.controller.rests == rests


# --------------------------------------------------------------------------------------------------------------
# Failover
# --------------------------------------------------------------------------------------------------------------


async def test_what_was_tried_is_told_to_admission(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(f"http://127.0.0.1:{free_port()}", engine) as house:
        assert (await house.ask(request(body=CHAT))).status == 200
        assert [(ticket.tried, ticket.refused) for ticket in house.controller.offered] == [(0, False), (1, False)]


async def test_beyond_the_budget_the_failure_is_told_and_not_the_budget(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await backend(always(reply()))
    async with open_house(f"http://127.0.0.1:{free_port()}", engine) as house:
        offer = house.controller.offer

        def exhausted(ticket: Ticket, now: float) -> list[Verdict]:
            house.controller.refuse = Reason.RETRY_BUDGET if ticket.tried else None
            return offer(ticket, now)

        monkeypatch.setattr(house.controller, "offer", exhausted)
        answer = await house.ask(request(body=CHAT))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "bad_gateway")
        (record,) = await house.records.count(1)
        assert (record.outcome, record.attempts) == (Outcome.CONNECT_FAILED, 1)
        assert engine.requests == []


async def test_a_request_that_a_full_engine_left_unread_goes_to_another(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "unreached", lambda _self: True)  # as the kernel says where the close came first
    full, other = await backend(hang_up), await backend(always(reply(b'{"b":1}')))
    async with open_house(Backend("a", full.url, kind="mindie"), Backend("b", other.url)) as house:
        assert (await house.ask(request(body=CHAT))).body == b'{"b":1}'
        assert house.controller.outcomes == [Outcome.BACKEND_BUSY, Outcome.COMPLETED]
        assert [(ticket.tried, ticket.refused) for ticket in house.controller.offered] == [(0, False), (1, True)]


async def test_one_that_it_may_have_read_does_not(backend: StartBackend) -> None:
    full, other = await backend(hang_up), await backend(always(reply(b'{"b":1}')))
    async with open_house(Backend("a", full.url, kind="mindie"), Backend("b", other.url)) as house:
        assert (await house.ask(request(body=CHAT))).status == 429
        assert other.requests == []


async def test_one_that_was_closed_before_tls_was_up_surely_did_not(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Upstream.connect

    async def turned_away(self: Upstream) -> Connection:
        if self.backend.name == "a":
            raise TurnedAway("closed before TLS was up")
        return await connect(self)

    monkeypatch.setattr(Upstream, "connect", turned_away)
    engines = [await backend(always(reply(b"{}"))) for _ in range(2)]
    async with open_house(*engines) as house:
        assert (await house.ask(request(body=CHAT))).status == 200
        assert [permit.backend for permit in house.controller.granted] == ["a", "b"]


async def test_an_engine_s_own_429_is_passed_on(backend: StartBackend) -> None:
    busy, other = await backend(always(reply(b'{"busy":1}', "429 Too Many Requests"))), await backend(always(reply()))
    async with open_house(busy, other) as house:
        answer = await house.ask(request(body=CHAT))
        assert (answer.status, answer.body) == (429, b'{"busy":1}')
        assert other.requests == []


def told(house: House) -> list[tuple[str, Usage | None]]:
    return [(permit.backend, usage) for permit, _, usage in house.controller.settled]


async def test_cached_tokens_are_told_to_admission(backend: StartBackend) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 768}}
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage}).encode()
    async with open_house(await backend(always(reply(body)))) as house:
        await house.ask(request(body=CHAT))
        await asyncio.sleep(0)
        assert told(house) == [("a", Usage(900, 1, 768))]
