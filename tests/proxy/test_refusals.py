"""Refusals: in the shape that each client understands, before the status line, and cheap."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.model import Outcome, Priority, Reason
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
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


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM])
@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.DRAINING])
async def test_O04_P49_a_refusal_is_a_real_status_for_streams_too(
    backend: StartBackend, reason: Reason, body: bytes
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        house.controller.refuse, house.controller.retry_after = reason, 2.5
        client = await house.client()
        answer = await client.ask(request(body=body))
        assert answer.status == (503 if reason is Reason.NO_BACKEND else 429)
        assert answer.get("Content-Type") == "application/json"
        assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
        assert (answer.get("Retry-After"), answer.get("retry-after-ms")) == ("3", "2500")
        assert answer.get("x-gateway-shed-reason") == reason.value
        assert answer.get("X-Request-Id") is not None
        assert engine.requests == []
        record = (await house.records.count(1))[0]
        assert (record.outcome, record.reason, record.retry_after) == (Outcome.REFUSED, reason, 2.5)
        assert (record.lane, record.backend, record.attempts) == ("only", None, 0)
        house.controller.refuse = None
        assert (await client.ask(request(body=CHAT))).status == 200, "the connection stays open"


async def test_P49_a_stream_that_times_out_in_the_queue_gets_a_real_status(backend: StartBackend) -> None:
    async def long(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.ended()

    engine = await backend(long)
    async with open_house(engine, limit=1) as house:
        running, waiting = await house.client(), await house.client()
        await running.send(request(body=CHAT_STREAM))
        await running.head()
        await waiting.send(request(body=CHAT_STREAM))
        await wait_until(lambda: house.controller.queue)
        house.expire(Reason.QUEUE_TIMEOUT)
        answer = await waiting.answer()
        assert answer.status == 429
        assert answer.get("x-gateway-shed-reason") == "queue_timeout"


async def test_the_retry_hint_reaches_the_client(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        house.controller.refuse, house.controller.should_retry = Reason.RETRY_BUDGET, False
        assert (await house.ask(request(body=CHAT))).get("x-should-retry") == "false"


async def test_a_refusal_on_the_messages_route_has_anthropics_shape(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        answer = await house.ask(request(target="/v1/messages", body=CHAT))
        assert answer.status == 429
        assert json.loads(answer.body)["type"] == "error"


@pytest.mark.parametrize("target", ["/sleep", "/stopService", "/v1/../sleep", "/%73leep", "//sleep"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_S03_administration_of_the_engine_is_refused_and_the_setting_named(
    backend: StartBackend, method: str, target: str
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        answer = await house.ask(request(method, target))
        assert answer.status == 403
        assert "GATEWAY_ALLOW_ADMIN_ROUTES" in json.loads(answer.body)["error"]["message"]
        assert engine.requests == []


async def test_administration_passes_where_the_operator_allows_it(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, allow_admin_routes=True) as house:
        assert (await house.ask(request(target="/sleep"))).status == 200
        assert engine.requests[0].target == "/sleep"


async def test_S18_a_path_that_cannot_be_read_is_400(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        answer = await house.ask(request("GET", "/v1/%25252525252525252573leep"))
        assert answer.status == 400
        assert engine.requests == []


# --------------------------------------------------------------------------------------------------------------
# Expect: 100-continue
# --------------------------------------------------------------------------------------------------------------

EXPECT = [("Expect", "100-continue"), ("Content-Length", str(len(CHAT)))]


async def test_P35_the_body_is_asked_for_when_it_is_wanted(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(headers=EXPECT, length=False))
        assert (await client.head()).status == 100
        await client.send(CHAT)
        assert (await client.answer()).body == b'{"a":1}'
        assert engine.requests[0].body == CHAT
        assert engine.requests[0].get("Expect") is None


async def test_a_body_that_came_unasked_is_not_asked_for(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(headers=EXPECT, length=False) + CHAT)
        assert (await client.head()).status == 200


async def test_a_client_of_http_1_0_gets_no_interim_answer(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(headers=EXPECT, length=False, version="1.0"))
        await asyncio.sleep(0.01)
        await client.send(CHAT)
        assert (await client.head()).status == 200


@pytest.mark.parametrize(
    ("target", "length", "status"),
    [("/v1/chat/completions", 20 * 2**20, 413), ("/stopService", 10, 403)],
)
async def test_P35_a_refusal_comes_before_the_body_is_asked_for(
    backend: StartBackend, target: str, length: int, status: int
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, max_body=2**20) as house:
        client = await house.client()
        await client.send(
            request(target=target, headers=[("Expect", "100-continue"), ("Content-Length", str(length))], length=False)
        )
        answer = await client.answer()
        assert answer.status == status
        assert answer.get("Connection") == "close"
        async with asyncio.timeout(5):  # aiohttp would wait ten seconds for a body that never comes
            assert await client.rest() == b""


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.DRAINING, Reason.NO_BACKEND])
async def test_P35_saturated_it_refuses_before_the_body_is_asked_for(backend: StartBackend, reason: Reason) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        house.controller.refuse = reason
        client = await house.client()
        headers = [("Expect", "100-continue"), ("Content-Length", str(20 * 2**20))]
        await client.send(request(headers=headers, length=False))
        answer = await client.answer()
        assert answer.status == (429 if reason is Reason.QUEUE_FULL else 503)
        assert answer.get("x-gateway-shed-reason") == reason.value
        assert answer.get("Connection") == "close"
        record = (await house.records.count(1))[0]
        assert (record.outcome, record.reason) == (Outcome.REFUSED, reason)
        assert record.ticket is not None


# --------------------------------------------------------------------------------------------------------------
# Bursts
# --------------------------------------------------------------------------------------------------------------


async def test_O13_a_thousand_connects_at_once_end_in_an_answer_or_a_clean_refusal(backend: StartBackend) -> None:
    """4K-token prompts, a place for 50, a queue of 200: nobody is reset, nobody is forgotten."""
    engine = await backend(always(reply(b'{"a":1}')))
    prompt = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 4000}]}).encode()
    async with open_house(engine, limit=50) as house:
        house.controller.capacity = 200

        async def one() -> int:
            client = await house.client()
            answer = await client.ask(request(body=prompt))
            client.close()
            return answer.status

        statuses = await asyncio.gather(*(one() for _ in range(1000)))
        assert len(statuses) == 1000
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 250
        await house.records.count(1000)
        assert house.controller.balanced


@pytest.mark.parametrize("identity", ["中文".encode().decode("latin-1"), "\xff\xfe", "x" * 5000])
async def test_an_odd_id_or_path_comes_back_as_it_was_and_is_told_fit_for_a_log(
    backend: StartBackend, identity: str
) -> None:
    engine = await backend(always(reply()))
    target = "/odd/" + "x" * 2000
    async with open_house(engine, client_header="X-Tenant") as house:
        for reason in (None, Reason.QUEUE_FULL):
            house.controller.refuse = reason
            headers = [("X-Request-Id", identity), ("X-Tenant", identity)]
            answer = await house.ask(request(target=target, body=CHAT, headers=headers))
            assert answer.status == (200 if reason is None else 429)
            assert answer.get("X-Request-Id") == identity
        assert engine.requests[0].target == target
        for record in await house.records.count(2):
            assert record.ticket is not None
            for told in (record.request_id, record.path, record.ticket.client):
                json.dumps(told).encode()
                told.encode()
            assert len(record.request_id) <= 256
            assert len(record.path) <= 1024


@pytest.mark.parametrize(
    ("header", "said", "priority"),
    [
        ("X-Priority", "critical", Priority.CRITICAL),
        ("X-Priority", " Sheddable ", Priority.SHEDDABLE),
        ("X-Priority", "urgent", Priority.STANDARD),
        ("X-Priority", "", Priority.STANDARD),
        ("X-Other", "critical", Priority.STANDARD),
        (None, "critical", Priority.STANDARD),
    ],
)
async def test_only_the_header_that_the_operator_trusts_tells_a_priority(
    backend: StartBackend, header: str | None, said: str, priority: Priority
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, priority_header=header) as house:
        await house.ask(request(body=CHAT, headers=[("X-Priority", said)]))
        assert house.controller.offered[0].priority is priority
    assert engine.requests[0].get("X-Priority") == said.strip()


# --------------------------------------------------------------------------------------------------------------
# Who the client is
# --------------------------------------------------------------------------------------------------------------


async def test_a_client_is_known_by_its_key_its_address_or_the_header_that_the_operator_names(
    backend: StartBackend,
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        for headers in (
            [("Authorization", "Bearer secret-1")],
            [("Authorization", "Bearer secret-2")],
            [("x-api-key", "Bearer secret-1")],
            [],
        ):
            await house.ask(request(body=CHAT, headers=headers))
        one, two, same, address = [ticket.client for ticket in house.controller.offered]
        assert one == same != two
        assert "secret" not in one
        assert address == "127.0.0.1"
    async with open_house(engine, client_header="X-Tenant") as house:
        await house.ask(request(body=CHAT, headers=[("x-tenant", "blue"), ("Authorization", "Bearer s")]))
        await house.ask(request(body=CHAT, headers=[("Authorization", "Bearer secret-1")]))
        assert [ticket.client for ticket in house.controller.offered] == ["blue", one]


async def test_the_same_call_has_the_same_fingerprint_and_another_has_not(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    large = b"x" * 200_000
    calls = [
        request(body=CHAT),
        request(body=CHAT, headers=[("X-Other", "1")]),
        request(body=CHAT_STREAM),
        request(target="/v1/completions", body=CHAT),
        request(body=CHAT, headers=[("Authorization", "a")]),
        request(body=large),
        request(body=large),
        request(body=large[:-1] + b"y"),
        request(body=large + b"x"),
    ]
    async with open_house(engine) as house:
        for call in calls:
            await house.ask(call)
        prints = [ticket.fingerprint for ticket in house.controller.offered]
        assert prints[0] == prints[1]
        assert prints[5] == prints[6]
        assert len(set(prints)) == 7
        assert [ticket.body_bytes for ticket in house.controller.offered][-1] == 200_001


@pytest.mark.parametrize(
    ("headers", "attempt", "patience"),
    [
        ([], 0, None),
        ([("x-stainless-retry-count", "2"), ("x-stainless-read-timeout", "30")], 2, 30.0),
        ([("X-Stainless-Timeout", "600")], 0, 600.0),
        ([("X-Stainless-Timeout", "600"), ("x-stainless-read-timeout", "0.5")], 0, 0.5),
        ([("x-stainless-retry-count", "-1"), ("x-stainless-read-timeout", "nan")], 0, None),
        ([("x-stainless-retry-count", "many"), ("x-stainless-read-timeout", "soon")], 0, None),
        ([("x-stainless-retry-count", "99999999999999999999"), ("x-stainless-read-timeout", "inf")], 0, None),
        ([("x-stainless-read-timeout", "0")], 0, None),
    ],
)
async def test_what_sdks_say_of_their_patience_is_read(
    backend: StartBackend, headers: list[tuple[str, str]], attempt: int, patience: float | None
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        await house.ask(request(body=CHAT, headers=headers))
        ticket = house.controller.offered[0]
        assert (ticket.attempt, ticket.read_timeout) == (attempt, patience)
