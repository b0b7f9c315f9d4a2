"""Pages of other origins: preflights pass, and the gateway's own answers can be read."""

from __future__ import annotations

import json

import pytest

from gateway.model import Reason
from tests.proxy.helpers import CHAT, Message, Peer, StartBackend, always, open_house, reply, request

ORIGIN = ("Origin", "https://app.example")
PREFLIGHT = [ORIGIN, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
ALLOWED = [("Access-Control-Allow-Origin", "https://app.example"), ("Access-Control-Allow-Methods", "POST")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "*"])
async def test_P36_a_preflight_passes_without_a_place_and_without_a_key(backend: StartBackend, path: str) -> None:
    engine = await backend(always(reply(b"", "200 OK", ALLOWED)))
    async with open_house(engine) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        answer = await house.ask(request("OPTIONS", path, headers=PREFLIGHT, length=False))
        assert answer.status == 200
        assert answer.all("Access-Control-Allow-Origin") == ["https://app.example"]
        assert engine.requests[0].get("Access-Control-Request-Headers") == "authorization"
        assert house.controller.offered == []


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (request(body=CHAT, headers=[ORIGIN]), 429, "slow_down"),
        (request("GET", "/stopService", headers=[ORIGIN]), 403, "admin_route_denied"),
        (request(body=b"x" * 1001, headers=[ORIGIN]), 413, "request_too_large"),
    ],
)
async def test_P37_a_page_can_read_why_it_was_refused(
    backend: StartBackend, asked: bytes, status: int, code: str
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, max_body=1000) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        answer = await house.ask(asked)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert answer.all("Access-Control-Allow-Origin") == ["*"]
        exposed = (answer.get("Access-Control-Expose-Headers") or "").split(", ")
        assert {"Retry-After", "retry-after-ms", "x-should-retry"} <= set(exposed)


async def test_without_an_origin_nothing_is_added(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        assert (await house.ask(request(body=CHAT))).get("Access-Control-Allow-Origin") is None


async def test_it_can_be_switched_off(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, cors=False) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        answer = await house.ask(request(body=CHAT, headers=[ORIGIN]))
        assert (answer.status, answer.get("Access-Control-Allow-Origin")) == (429, None)


async def test_an_engine_s_answer_passes_as_it_is(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT, headers=[ORIGIN]))
        assert answer.get("Access-Control-Allow-Origin") is None, "the engine has none: that is its operator's choice"


async def test_the_list_of_all_models_can_be_read_too(backend: StartBackend) -> None:
    engines = [await backend(always(reply(b'{"data":[{"id":"m"}]}'))) for _ in range(2)]
    async with open_house(*engines) as house:
        answer = await house.ask(request("GET", "/v1/models", headers=[ORIGIN], length=False))
        assert answer.get("Access-Control-Allow-Origin") == "*"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/chat/completions"])
async def test_a_head_passes_and_has_no_body(backend: StartBackend, path: str) -> None:
    async def headed(peer: Peer, _message: Message) -> None:
        await peer.send(reply(b"", "200 OK", (("Content-Length", "17"), ("X-Engine", "e")), length=False))

    engine = await backend(headed)
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(2):
            answer = await client.ask(request("HEAD", path, length=False))
            assert (answer.status, answer.get("X-Engine"), answer.get("Content-Length")) == (200, "e", "17")
        assert house.controller.offered == []
