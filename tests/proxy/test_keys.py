"""API keys: one door before every path, and what the holder of a key may do."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import tracemalloc

import pytest

from gateway.admission.quota import KeyTerms
from gateway.model import Backend, Outcome, Priority, Reason, WorkEstimate
from gateway.proxy.keys import Keys
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
    House,
    Message,
    Peer,
    Script,
    ScriptedBackend,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
    wait_until,
)

KEY = "sk-Good-0123456789abcdef0123456789"
OTHER = "sk-Other-0123456789abcdef012345678"
CANARY = "sk-ant-canary-5ecret-7f3a9c2e41d8b6"
USAGE = b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":30}}'


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def book(**terms: object) -> Keys:
    return {digest(KEY): KeyTerms("team-a", **terms)}  # type: ignore[arg-type]


def bearer(key: str = KEY) -> tuple[str, str]:
    return "Authorization", f"Bearer {key}"


def chat(*headers: tuple[str, str], body: bytes = CHAT, target: str = "/v1/chat/completions") -> bytes:
    return request(target=target, body=body, headers=headers)


# --------------------------------------------------------------------------------------------------------------
# The door
# --------------------------------------------------------------------------------------------------------------

SPELLINGS = (
    *("/v1/chat/completions", "//v1/chat/completions", "/V1/Chat/Completions", "/%2fv1/chat/completions"),
    *("/v1/../invocations", "/v1/%2e%2e/invocations", "/v1/%252e%252e/invocations", "/v1/./chat/completions"),
    *("/invocations", "/ping", "/health", "/metrics", "/version", "/v1/models", "/tokenize", "/docs", "/"),
    *("http://elsewhere/v1/chat/completions", "http://elsewhere", "/v1/chat/completions?key=x", "/v1/models#x"),
    *("/sleep", "/%", "/%00", "/livez", "/readyz", "/state", "/v1/chat/completions;a=b", "/\\v1\\models"),
)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
async def test_S01_without_a_key_every_path_in_every_spelling_is_401(backend: StartBackend, method: str) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        for target in SPELLINGS:
            answer = await house.ask(request(method, target))
            assert answer.status == 401, target
        assert (await house.ask(request("OPTIONS", "*"))).status == 401
        assert engine.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        [bearer()],
        [("authorization", f"bearer   {KEY} ")],
        [("x-api-key", KEY)],
        [("Api-Key", KEY)],
        [bearer(OTHER), ("x-api-key", KEY)],
        [("Authorization", "Basic dXNlcjpwdw=="), ("x-api-key", KEY)],
    ],
)
async def test_a_known_key_opens_as_any_sdk_sends_it(backend: StartBackend, headers: list[tuple[str, str]]) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        assert (await house.ask(chat(*headers))).status == 200
        assert house.controller.offered[0].client == "team-a"


@pytest.mark.parametrize(
    "headers",
    [
        [bearer(OTHER)],
        [bearer(KEY[:-1])],
        [bearer(KEY + "0")],
        [bearer(KEY.upper())],
        [bearer("")],
        [bearer(f"sha256:{digest(KEY).hex()}")],
        [bearer(digest(KEY).hex())],
        [("Authorization", KEY)],
        [("Authorization", f"Basic {KEY}")],
        [("x-api-key", f"Bearer {KEY}")],
        [("Proxy-Authorization", f"Bearer {KEY}")],
        [("Cookie", f"api-key={KEY}")],
        [("Origin", "https://page.test")],
        [("Authorization", "Bearer \xff\xfe")],
    ],
)
async def test_S08_anything_else_is_401_with_the_same_words(
    backend: StartBackend, headers: list[tuple[str, str]]
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        answer = await house.ask(chat(*headers))
        assert answer.status == 401
        assert answer.get("WWW-Authenticate") == "Bearer"
        assert json.loads(answer.body) == {
            "error": {
                "message": "No valid API key was given. Send yours as Authorization: Bearer or as x-api-key.",
                "type": "authentication_error",
                "param": None,
                "code": "invalid_api_key",
            }
        }
        assert engine.requests == []
        assert house.controller.offered == []


async def test_S01_a_connection_is_not_trusted_for_its_first_request(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        client = await house.client()
        assert (await client.ask(chat(bearer()))).status == 200
        assert (await client.ask(request("GET", "/v1/models"))).status == 401
        assert (await client.ask(chat(bearer()))).status == 200
        await client.send(
            chat(bearer()) + request("GET", "/v1/models") + request("GET", "/v1/models", headers=[bearer()])
        )
        assert [(await client.answer()).status for _ in range(3)] == [200, 401, 200]
        assert len(engine.requests) == 4


async def test_a_refusal_has_the_shape_of_its_route(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        answer = await house.ask(chat(target="/v1/messages"))
        assert answer.status == 401
        assert json.loads(answer.body)["type"] == "error"
        assert json.loads(answer.body)["error"]["type"] == "authentication_error"


async def test_a_body_without_a_key_is_not_read(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        client = await house.client()
        await client.send(request(headers=[("Content-Length", "1000000"), ("Expect", "100-continue")], length=False))
        answer = await client.answer()
        assert (answer.status, answer.get("Connection")) == (401, "close")


async def test_a_browsers_preflight_needs_no_key_and_opens_nothing_else(backend: StartBackend) -> None:
    engine = await backend(always(reply(b"")))
    asks = [("Origin", "https://page.test"), ("Access-Control-Request-Method", "POST")]
    async with open_house(engine, keys=book()) as house:
        assert (await house.ask(request("OPTIONS", headers=asks))).status == 200
        assert (await house.ask(request("OPTIONS", headers=asks[:1]))).status == 401
        assert (await house.ask(request("OPTIONS", headers=asks, body=b"x", length=True))).status == 401
        assert (await house.ask(chat(*asks))).status == 401
        assert (await house.ask(request("GET", headers=asks))).status == 401
        assert len(engine.requests) == 1


async def test_a_websocket_needs_a_key(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")]
    async with open_house(engine, keys=book(models=frozenset({"m"}))) as house:
        assert (await house.ask(request("GET", "/v1/realtime?model=m", headers=upgrade))).status == 401
        keyed = [*upgrade, bearer()]
        assert (await house.ask(request("GET", "/v1/realtime?model=n", headers=keyed))).status == 403
        assert (await house.ask(request("GET", "/v1/realtime?model=m", headers=keyed))).status == 200
        assert len(engine.requests) == 1


async def test_where_no_keys_are_configured_everybody_may_come_and_keys_go_on(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        assert (await house.ask(chat())).status == 200
        assert (await house.ask(chat(bearer(OTHER)))).status == 200
        assert engine.requests[1].get("Authorization") == f"Bearer {OTHER}"


async def test_a_book_without_keys_lets_nobody_in(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys={}) as house:
        assert (await house.ask(chat(bearer()))).status == 401


async def test_keys_are_replaced_while_it_runs(backend: StartBackend) -> None:
    async def script(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.until(b"go")
        await peer.send(b"0\r\n\r\n")

    engine = await backend(script)
    async with open_house(engine, keys=book(max_in_flight=1)) as house:
        running = await house.client()
        await running.send(chat(bearer(), body=CHAT_STREAM))
        await running.head()
        both = {digest(key): KeyTerms("team-a", max_in_flight=1) for key in (KEY, OTHER)}
        house.gateway.replace_keys(both)
        answer = await house.ask(chat(bearer(OTHER)))
        assert answer.get("x-gateway-shed-reason") == "key_in_flight", "the holder is the same, and so is the count"
        house.gateway.replace_keys({digest(OTHER): KeyTerms("team-a")})
        assert (await house.ask(chat(bearer()))).status == 401
        assert await running.chunk() == event("a"), "what runs is not touched"
        house.gateway.replace_keys(None)
        engine.script = always(reply())
        assert (await house.ask(chat())).status == 200


@pytest.mark.parametrize("inject_usage", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
async def test_a_body_that_was_sent_is_held_by_nobody(backend: StartBackend, keyed: bool, inject_usage: bool) -> None:
    """Its memory is given back in the books when the answer begins, so it must be."""

    async def script(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.until(b"go")
        await peer.send(b"0\r\n\r\n")

    size = 8 * 2**20
    engine = await backend(script)
    async with open_house(engine, keys=book() if keyed else None, inject_usage=inject_usage) as house:
        client = await house.client()
        tracemalloc.start()
        try:
            message = {"role": "user", "content": "a" * size}
            body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
            await client.send(chat(bearer(), body=body))
            assert (await client.head()).status == 200
            del body, message
            engine.requests.clear()
            house.controller.offered.clear()
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 1.5 * size, "the engine of this test has it once"


async def test_a_key_that_is_taken_away_while_the_body_comes_is_refused(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        slow = await house.client()
        whole = chat(bearer())
        await slow.send(whole[:-1])
        await wait_until(lambda: house.gateway.in_flight)
        house.gateway.replace_keys({digest(OTHER): KeyTerms("team-b")})
        await slow.send(whole[-1:])
        answer = await slow.answer()
        assert answer.status == 401
        assert b"invalid_api_key" in answer.body
        assert engine.requests == []


async def test_where_keys_are_no_longer_asked_for_a_request_goes_on(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        slow = await house.client()
        whole = chat(bearer())
        await slow.send(whole[:-1])
        await wait_until(lambda: house.gateway.in_flight)
        house.gateway.replace_keys(None)
        await slow.send(whole[-1:])
        assert (await slow.answer()).status == 200


# --------------------------------------------------------------------------------------------------------------
# What reaches the backend, and what is said
# --------------------------------------------------------------------------------------------------------------

GIVEN = (("Authorization", f"Bearer {KEY}"), ("X-Api-Key", "x1"), ("API-KEY", "x2"), ("X-Other", "stays"))


@pytest.mark.parametrize(
    ("own", "forward", "expected"),
    [
        (None, False, []),
        ("engine-key", False, ["Bearer engine-key"]),
        (None, True, [f"Bearer {KEY}"]),
        ("engine-key", True, ["Bearer engine-key"]),
    ],
)
async def test_clients_keys_stay_here_and_the_backends_own_is_added(
    backend: StartBackend, own: str | None, forward: bool, expected: list[str]
) -> None:
    engine = await backend(always(reply()))
    async with open_house(Backend("a", engine.url, api_key=own), keys=book(), forward_client_keys=forward) as house:
        for message in (chat(*GIVEN), request("GET", "/v1/models", headers=GIVEN)):
            assert (await house.ask(message)).status == 200
        for seen in engine.requests:
            assert seen.all("Authorization") == expected
            passes = forward and own is None
            assert (seen.get("X-Api-Key"), seen.get("api-key")) == (("x1", "x2") if passes else (None, None))
            assert seen.get("X-Other") == "stays"


async def test_the_union_of_models_is_asked_with_each_backends_own_key(backend: StartBackend) -> None:
    first, second = await backend(always(reply(b'{"data":[]}'))), await backend(always(reply(b'{"data":[]}')))
    engines = Backend("a", first.url, api_key="ka"), Backend("b", second.url)
    async with open_house(*engines, keys=book()) as house:
        assert (await house.ask(request("GET", "/v1/models", headers=GIVEN))).status == 200
        assert first.requests[0].all("Authorization") == ["Bearer ka"]
        assert second.requests[0].all("Authorization") == []


@pytest.mark.parametrize("keys", [None, book()])
async def test_S07_a_wrong_key_is_in_no_answer_no_log_and_no_record(
    backend: StartBackend, keys: Keys | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ends = {
        "200": reply(),
        "401": reply(b"{}", "401 Unauthorized"),
        "500": reply(b"{}", "500 Oops"),
        "none": b"garbage",
    }
    for end in ends.values():
        engine = await backend(always(end))
        async with open_house(engine, keys=keys) as house:
            for name, value in [("Authorization", f"Bearer {CANARY}"), ("x-api-key", CANARY), ("api-key", CANARY)]:
                for target in ("/v1/chat/completions", "/v1/messages", "/generate", "/sleep", "/%", "/v1/models"):
                    answer = await house.ask(chat((name, value), target=target))
                    assert CANARY not in repr(answer)
            assert CANARY not in repr(house.records.all)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("key", [f"{KEY}\r", f"{KEY}\n X: y", f"{KEY}\x00"])
async def test_S09_a_key_with_control_characters_is_refused_and_never_shown(
    backend: StartBackend, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book()) as house:
        answer = await house.ask(chat(("Authorization", f"Bearer {key}")))
        assert answer.status in {400, 401}
        assert KEY not in repr(answer)
        assert engine.requests == []
    assert KEY not in caplog.text


# --------------------------------------------------------------------------------------------------------------
# What a key is good for
# --------------------------------------------------------------------------------------------------------------


async def test_requests_per_minute_are_refused_beyond_with_the_exact_wait(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book(requests_per_minute=2)) as house:
        client = await house.client()
        first = await client.ask(chat(bearer()))
        assert ratelimits(first, "requests")[:2] == ("2", "1")
        assert (await client.ask(chat(bearer()))).status == 200
        refused = await client.ask(chat(bearer()))
        assert refused.status == 429
        error = json.loads(refused.body)["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        limit, remaining, reset = ratelimits(refused, "requests")
        assert (limit, remaining) == ("2", "0")
        assert reset is not None
        assert 58_000 < milliseconds(reset) <= 60_000
        wait = int(refused.get("retry-after-ms") or "")
        assert 28_000 < wait <= 30_000
        assert int(refused.get("Retry-After") or "") == -(-wait // 1000)
        assert refused.get("x-gateway-shed-reason") == "key_requests"
        record = house.records.all[-1]
        assert (record.outcome, record.reason) == (Outcome.REFUSED, Reason.KEY_REQUESTS)
        assert len(engine.requests) == len(house.controller.offered) == 2
        assert (await client.ask(request("GET", "/v1/models", headers=[bearer()]))).status == 200, (
            "no work: not counted"
        )


async def test_tokens_are_reserved_by_estimate_and_put_right_by_the_engines_count(backend: StartBackend) -> None:
    engine = await backend(always(reply(USAGE)))
    async with open_house(engine, keys=book(tokens_per_minute=600)) as house:
        house.estimator.work = WorkEstimate(100, 400, 425.0)
        client = await house.client()
        assert ratelimits(await client.ask(chat(bearer())), "tokens")[:2] == ("600", "100")
        second = await client.ask(chat(bearer()))
        remaining = ratelimits(second, "tokens")[1]
        assert second.status == 200
        assert remaining is not None
        assert 60 <= int(remaining) <= 80, "40 were used, not 500"
        house.estimator.work = WorkEstimate(100, 490, 515.0)
        refused = await client.ask(chat(bearer()))
        assert (refused.status, refused.get("x-gateway-shed-reason")) == (429, "key_tokens")


async def test_a_wait_beyond_a_minute_is_not_worth_a_retry(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"usage":{"prompt_tokens":5000,"completion_tokens":0}}')))
    async with open_house(engine, keys=book(tokens_per_minute=1000)) as house:
        assert (await house.ask(chat(bearer()))).status == 200
        refused = await house.ask(chat(bearer()))
        assert refused.get("x-should-retry") == "false"
        assert int(refused.get("Retry-After") or "") > 200


async def test_what_admission_refuses_costs_the_key_nothing(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book(requests_per_minute=1, max_in_flight=1)) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        for _ in range(3):
            assert (await house.ask(chat(bearer()))).get("x-gateway-shed-reason") == "queue_full"
        house.controller.refuse = None
        assert (await house.ask(chat(bearer()))).status == 200


async def test_F01_a_key_with_one_place_has_it_back_however_its_request_ends(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    keys = book(max_in_flight=1)
    async with open_house(engine, keys=keys) as house:
        for _ in range(20):
            await left_in_the_middle(house, engine)
    async with open_house(engine, keys=keys, first_byte_timeout=0.5, answer_timeout=0.5) as house:
        for end in (reply(b"{}", "500 Oops"), reply(b"{}", "429 Full"), b"garbage", b"", SSE_HEAD):
            engine.script = cut(end)
            client = await house.client()
            await client.send(chat(bearer(), ("Connection", "close")))
            await client.ended()
            engine.script = always(reply())
            assert (await house.ask(chat(bearer()))).status == 200, end


async def left_in_the_middle(house: House, engine: ScriptedBackend) -> None:
    async def endless(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.ended()

    engine.script = endless
    client = await house.client()
    await client.send(chat(bearer(), body=CHAT_STREAM))
    await client.head()
    second = await house.ask(chat(bearer()))
    assert second.get("x-gateway-shed-reason") == "key_in_flight"
    client.reset()
    await wait_until(lambda: not house.controller.running)


def cut(data: bytes) -> Script:
    async def script(peer: Peer, _message: Message) -> None:
        await peer.send(data)
        peer.close()

    return script


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        ("/v1/chat/completions", CHAT, 200),
        ("/v1/chat/completions", CHAT.replace(b'"m"', b'"n"'), 403),
        ("/v1/chat/completions", b'{"messages":[]}', 403),
        ("/v1/chat/completions", b"not json", 403),
        ("/v1/chat/completions", b'{"model":"m","model":"n"}', 403),
        ("/v1/messages", CHAT.replace(b'"m"', b'"n"'), 403),
        ("/generate", b'{"inputs":"x"}', 403),
        ("/unknown", b'{"model":"n"}', 403),
        ("/v2/models/n/infer", b'{"inputs":[]}', 403),
        ("/tokenize", b'{"model":"m","prompt":"x"}', 200),
    ],
)
async def test_a_key_is_for_its_models_only(backend: StartBackend, target: str, body: bytes, status: int) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book(models=frozenset({"m"}))) as house:
        answer = await house.ask(chat(bearer(), target=target, body=body))
        assert answer.status == status
        assert len(engine.requests) == (status == 200)
        assert (await house.ask(request("GET", "/v1/models", headers=[bearer()]))).status == 200
        assert (await house.ask(request("GET", "/v1/models/n", headers=[bearer()]))).status == 403


@pytest.mark.parametrize(
    ("own", "header", "said", "priority"),
    [
        (Priority.CRITICAL, None, "sheddable", Priority.CRITICAL),
        (Priority.SHEDDABLE, None, "critical", Priority.SHEDDABLE),
        (Priority.STANDARD, "x-priority", "critical", Priority.STANDARD),
        (Priority.STANDARD, "x-priority", "sheddable", Priority.SHEDDABLE),
        (Priority.CRITICAL, "x-priority", "Standard", Priority.STANDARD),
        (Priority.CRITICAL, "x-priority", "whatever", Priority.CRITICAL),
    ],
)
async def test_a_header_may_lower_the_priority_of_a_key_and_never_raise_it(
    backend: StartBackend, own: Priority, header: str | None, said: str, priority: Priority
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, keys=book(priority=own, weight=2.5), priority_header=header) as house:
        assert (await house.ask(chat(bearer(), ("X-Priority", said)))).status == 200
        (ticket,) = house.controller.offered
        assert (ticket.priority, ticket.weight) == (priority, 2.5)


def ratelimits(answer: Message, of: str) -> tuple[str | None, ...]:
    return tuple(answer.get(f"x-ratelimit-{what}-{of}") for what in ("limit", "remaining", "reset"))


def milliseconds(text: str) -> float:
    minutes, _, seconds = text.rpartition("m") if not text.endswith("ms") else ("", "", f"{int(text[:-2]) / 1000}s")
    return (int(minutes or 0) * 60 + float(seconds.removesuffix("s"))) * 1000


async def test_the_backends_own_rates_are_not_shown_beside_the_keys(backend: StartBackend) -> None:
    engine = await backend(always(reply(headers=[("X-RateLimit-Limit-Requests", "7")])))
    async with open_house(engine, keys=book(requests_per_minute=100)) as house:
        assert (await house.ask(chat(bearer()))).all("x-ratelimit-limit-requests") == ["100"]
    async with open_house(engine, keys=book()) as house:
        assert (await house.ask(chat(bearer()))).all("x-ratelimit-limit-requests") == ["7"]
