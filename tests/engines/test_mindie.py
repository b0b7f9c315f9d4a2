"""Everything that a MindIE does to a proxy, done to the gateway over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from gateway.emulator.mindie import EmulatedMindIE, Service
from gateway.model import Hints, HintsUse, Outcome, Usage
from gateway.proxy.upstream import Connection, Upstream
from tests.engines.helpers import FAST, SLOW, TLS, House, open_house, tls_server
from tests.proxy.helpers import Message, RawClient, request, wait_until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "one two three"}]
CHAT: dict[str, Any] = {"model": "m", "messages": HELLO, "max_tokens": 5}
STREAM = {"stream": True}
OVER_TLS: dict[str, Any] = {"tls": tls_server(), "backend": {"tls": TLS}}
PLAIN: dict[str, Any] = {}


def post(path: str, body: object) -> bytes:
    return request("POST", path, orjson.dumps(body))


async def direct(url: str, data: bytes) -> Message:
    client = await RawClient.connect(url)
    try:
        return await client.ask(data)
    finally:
        client.close()


def same(body: bytes) -> bytes:
    """Without what differs from one answer to the next."""
    return re.sub(rb'endpoint_common_\d+|"created":\d+', b"", body)


# --------------------------------------------------------------------------------------------------------------
# Answers
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [PLAIN, OVER_TLS], ids=["plain", "tls"])
async def test_the_openai_sdk_is_served_and_tokens_are_counted_without_being_asked_for(how: dict[str, Any]) -> None:
    async with (
        open_house(**how) as house,
        openai.AsyncOpenAI(base_url=f"{house.gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        whole = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=5)
        stream = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=5, stream=True)
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content == " tide wind moss fern clay"
        assert chunks[-1].usage is not None
        legacy = await client.completions.create(model="m", prompt="a b", max_tokens=5, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in legacy]) == text
        assert [model.id async for model in client.models.list()] == ["m"]
        records = await house.records.count(4)
        assert [record.outcome for record in records] == [Outcome.COMPLETED] * 4
        assert [record.usage for record in records[:2]] == [Usage(3, 5, 0)] * 2
        assert [record.timeline.output_events for record in records[:3]] == [0, 5, 5]


DETAILS = {"parameters": {"max_new_tokens": 4, "details": True}}
TEXT = {"text_input": "a", **DETAILS}
TENSOR = {"name": "i", "shape": [1, 3], "datatype": "UINT32", "data": [5, 6, 7], **DETAILS}

# path, body, label of the route, prompt tokens where exact, cap, output events, usage
NATIVE: list[tuple[str, dict[str, Any], str, int | None, int, int, Usage | None]] = [
    ("/generate", {"prompt": "a b", "max_tokens": 4, **STREAM}, "mindie_generate", None, 4, 4, None),
    ("/generate", {"prompt": "a b", "max_tokens": 4}, "mindie_generate", None, 4, 0, None),
    ("/generate", {"inputs": "a b", **DETAILS}, "mindie_tgi", None, 4, 0, Usage(2, 4)),
    ("/generate_stream", {"inputs": "a b", **DETAILS}, "mindie_tgi_stream", None, 4, 4, Usage(2, 4)),
    ("/", {"inputs": "a b", **DETAILS, **STREAM}, "mindie_tgi", None, 4, 4, Usage(2, 4)),
    ("/", {"inputs": "a b", **DETAILS}, "mindie_tgi", None, 4, 0, Usage(2, 4)),
    ("/infer", {"inputs": "a b", **DETAILS, **STREAM}, "mindie_infer", None, 4, 4, Usage(None, 4)),
    ("/infer", {"inputs": "a b"}, "mindie_infer", None, 20, 0, None),
    ("/infer_token", {"input_id": [1, 2, 3], **DETAILS}, "mindie_infer_token", 3, 4, 0, Usage(None, 4)),
    ("/v2/models/m/infer", {"inputs": [TENSOR], "outputs": [{}]}, "mindie_triton_infer", 3, 4, 0, None),
    ("/v2/models/m/generate", TEXT, "mindie_triton", None, 4, 0, Usage(None, 4)),
    ("/v2/models/m/generate_stream", TEXT, "mindie_triton_stream", None, 4, 4, Usage(None, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "label", "tokens", "cap", "events", "usage"),
    NATIVE,
    ids=[f"{row[0]} {row[5]}" for row in NATIVE],
)
async def test_native_routes_pass_byte_for_byte_and_are_understood(
    path: str, body: dict[str, Any], label: str, tokens: int | None, cap: int, events: int, usage: Usage | None
) -> None:
    async with open_house() as house, EmulatedMindIE(FAST, ["m"]) as twin:
        expected = await direct(twin.url, post(path, body))
        answer = await house.ask(post(path, body))
        assert (answer.status, same(answer.body)) == (200, same(expected.body))
        for name in ("Content-Type", "Transfer-Encoding", "Content-Length"):
            if name != "Content-Length" or b"endpoint" not in answer.body:
                assert answer.get(name) == expected.get(name)
        assert answer.get("RequestUUID")
        record = await house.record()
        assert record.ticket is not None
        shape = record.ticket.shape
        assert (record.route.label, shape.prompt_tokens, shape.max_output) == (label, tokens, cap)
        assert (record.outcome, record.timeline.output_events, record.usage) == (Outcome.COMPLETED, events, usage)
        assert shape.model == ("m" if path.startswith("/v2") else None)


async def test_its_errors_pass_as_they_are_and_speak_against_nobody() -> None:
    async with open_house() as house, EmulatedMindIE(FAST, ["m"]) as twin:
        for number, (path, body) in enumerate(
            (("/infer", {}), ("/v2/models/x/generate", {"text_input": "a"}), ("/v1/chat/completions", {"model": "x"})),
            1,
        ):
            expected = await direct(twin.url, post(path, body))
            answer = await house.ask(post(path, body))
            assert (answer.status, answer.body) == (expected.status, expected.body)
            assert (await house.record(number)).outcome is Outcome.CLIENT_ERROR


@pytest.mark.parametrize("path", ["/infer", "/generate_stream", "/v2/models/m/generate"])
async def test_refusals_are_worded_as_mindie_would(path: str) -> None:
    async with open_house(SLOW, backend={"limit": 1}, proxy={"drain_grace": 0.0}) as house:
        client = await RawClient.connect(house.gateway.url)
        await client.send(post("/infer", {"inputs": "a", **STREAM}))
        await wait_until(lambda: house.mindie.engine.running)
        answer = await house.ask(post(path, {"inputs": "a", "text_input": "a", "parameters": {"timeout": 1}}))
        assert answer.status == 429
        document = orjson.loads(answer.body)
        assert document["error_type"] == "Too Many Requests"
        assert isinstance(document["error"], str)
        client.close()


async def test_its_administration_is_out_of_reach() -> None:
    async with open_house(ports=[0]) as house:
        for method, path in (("GET", "/stopService"), ("GET", "/v1/%73topService"), ("POST", "/v2/role/prefill")):
            assert (await house.ask(request(method, path, b"{}" if method == "POST" else b""))).status in {403, 404}
        assert house.mindie.admin_calls == 0


# --------------------------------------------------------------------------------------------------------------
# Errors inside a success
# --------------------------------------------------------------------------------------------------------------


async def test_a_timeout_in_bare_text_passes_and_is_a_failure() -> None:
    async with open_house(SLOW, token_timeout=0.3) as house:
        answer = await house.ask(post("/generate_stream", {"inputs": "a"}))
        assert (answer.status, answer.body) == (200, b"Engine callback timeout: server tokenTimeout")
        assert (await house.record()).outcome is Outcome.BACKEND_ERROR
        answer = await house.ask(post("/v1/chat/completions", CHAT | STREAM))
        assert answer.body == b"Engine callback timeout: server tokenTimeout"
        assert (await house.record(2)).outcome is Outcome.BACKEND_ERROR
        answer = await house.ask(post("/infer", {"inputs": "a"}))
        assert answer.status == 500
        assert (await house.record(3)).outcome is Outcome.BACKEND_ERROR


@pytest.mark.parametrize(
    ("path", "body"),
    [("/generate", {"prompt": "a", "max_tokens": 4000}), ("/v1/chat/completions", CHAT | {"max_tokens": 4000})],
)
async def test_an_engine_that_fails_in_the_middle_of_a_stream_is_heard(path: str, body: dict[str, Any]) -> None:
    async with open_house() as house:
        client = await RawClient.connect(house.gateway.url)
        await client.send(post(path, body | STREAM))
        head = await client.head()
        assert await client.chunk()
        house.mindie.fail_running()
        assert (await client.body(head)).body.endswith(b"Failed to get engine response")
        record = await house.record()
        assert record.outcome is Outcome.BACKEND_ERROR
        assert record.timeline.output_events > 0
        client.close()


# --------------------------------------------------------------------------------------------------------------
# A full server
# --------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def filled(server: EmulatedMindIE) -> AsyncIterator[None]:
    """Others take every thread of the server and every place before it."""
    others = [await RawClient.connect(server.url.replace("https://", "http://")) for _ in range(3 * server.link_num)]
    await wait_until(lambda: server.door.serving + server.door.waiting >= 3 * server.link_num)
    try:
        yield
    finally:
        for other in others:
            other.reset()
        await wait_until(lambda: server.door.serving + server.door.waiting < server.link_num)


@pytest.mark.parametrize("how", [PLAIN, OVER_TLS], ids=["plain", "tls"])
@pytest.mark.parametrize("body", [CHAT, CHAT | STREAM])
async def test_a_full_server_that_closes_without_a_word_is_contended_and_not_dead(
    how: dict[str, Any], body: dict[str, Any]
) -> None:
    async with open_house(link_num=2, **how) as house:
        await wait_until(lambda: house.state.health == "up")
        async with filled(house.mindie):
            answers = [await house.ask(post("/v1/chat/completions", body)) for _ in range(3)]
            for answer in answers:
                assert answer.status == 429
                assert orjson.loads(answer.body)["error"]["code"] == "slow_down"
                assert 1 <= int(answer.get("Retry-After") or 0) <= 3
                assert answer.get("x-envoy-ratelimited") == "true"
            assert [record.outcome for record in await house.records.count(3)] == [Outcome.BACKEND_BUSY] * 3
            assert house.state.health == "up"
            assert house.state.limit == 1.0
            assert house.state.limit_changes["down", "refused"] >= 1
            assert house.mindie.door.refused >= 3
        assert (await house.ask(post("/v1/chat/completions", body))).status == 200


async def test_a_native_route_is_told_so_in_its_own_words() -> None:
    async with open_house(link_num=2) as house, filled(house.mindie):
        answer = await house.ask(post("/infer", {"inputs": "a"}))
        assert answer.status == 429
        assert orjson.loads(answer.body) == {"error": "The backend is full.", "error_type": "Too Many Requests"}


async def test_a_merged_port_that_is_full_misses_probes_and_stays_up() -> None:
    async with open_house(link_num=2, ports=[0]) as house:
        await wait_until(lambda: house.state.health == "up")
        async with filled(house.mindie):
            refused = house.mindie.door.refused
            await wait_until(lambda: house.mindie.door.refused > refused + 10)
            assert house.state.health == "up"


async def test_a_server_that_is_gone_is_told_from_one_that_is_full() -> None:
    async with open_house() as house:
        await wait_until(lambda: house.state.health == "up")
        await house.mindie.stop()
        assert (await house.ask(post("/infer", {"inputs": "a"}))).status in {502, 503}
        await wait_until(lambda: house.state.health == "down")


async def test_a_server_that_dies_with_requests_inside_has_lost_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.upstream._DOOR", 0.05)
    async with open_house(SLOW) as house:
        client = await RawClient.connect(house.gateway.url)
        await client.send(post("/infer", {"inputs": "a"}))
        await wait_until(lambda: house.mindie.engine.running)
        await asyncio.sleep(0.1)
        await house.mindie.stop()
        assert (await client.answer()).status == 502
        assert (await house.record()).outcome is Outcome.BACKEND_LOST
        client.close()


async def test_a_busy_service_is_alive_though_not_ready() -> None:
    async with open_house() as house:
        house.mindie.service = Service.BUSY
        await wait_until(lambda: house.state.health == "up")
        house.mindie.service = Service.ABNORMAL
        await wait_until(lambda: house.state.health == "down")
        house.mindie.service = Service.NORMAL
        await wait_until(lambda: house.state.health == "up")


# --------------------------------------------------------------------------------------------------------------
# Threads
# --------------------------------------------------------------------------------------------------------------


async def burst(house: House, count: int, body: dict[str, Any]) -> list[int]:
    async def one() -> int:
        return (await house.ask(post("/v1/chat/completions", body))).status

    return await asyncio.gather(*(one() for _ in range(count)))


async def test_its_threads_are_never_exceeded_nor_held_by_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    open_at_once: list[int] = []

    def opened(upstream: Upstream, connection: Connection) -> None:
        upstream.connections.add(connection)
        open_at_once.append(len(upstream.connections))

    monkeypatch.setattr(Upstream, "opened", opened)
    async with open_house(link_num=8, backend={"limit": 8}) as house:
        await wait_until(lambda: house.engine.hints_use is HintsUse.USED)  # it looked for gauges on every port
        for body in (CHAT, CHAT | STREAM):
            statuses = await burst(house, 40, body)
            assert set(statuses) <= {200, 429}
            assert statuses.count(200) >= 8
        door = house.mindie.door
        assert max(open_at_once) == 8
        assert door.refused == 0
        await wait_until(lambda: door.serving == 0)
        assert house.mindie.kept_alive == 0, "each connection brings one request"
        assert house.mindie.half_closed == 0, "nothing is half-closed"


async def test_without_a_limit_that_somebody_set_a_small_server_is_not_flooded() -> None:
    async with open_house(link_num=4) as house:
        statuses = await burst(house, 60, CHAT | STREAM)
        assert set(statuses) <= {200, 429}
        assert house.mindie.door.most <= 12
        assert house.state.health == "up"
        await wait_until(lambda: house.mindie.door.serving == 0)


@pytest.mark.parametrize("body", [{"inputs": "a"}, {"inputs": "a", **STREAM}])
async def test_a_client_that_leaves_frees_engine_and_thread(body: dict[str, Any]) -> None:
    async with open_house(SLOW) as house:
        client = await RawClient.connect(house.gateway.url)
        await client.send(post("/infer", body))
        await wait_until(lambda: house.mindie.engine.running)
        client.close()
        await wait_until(lambda: house.mindie.engine.aborted == 1 and house.mindie.door.serving == 0)
        assert (await house.record()).outcome is Outcome.CLIENT_GONE


# --------------------------------------------------------------------------------------------------------------
# What it tells of itself
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [PLAIN, OVER_TLS], ids=["plain", "tls"])
@pytest.mark.parametrize("monitored", [True, False])
async def test_its_load_is_read_with_metrics_and_without(how: dict[str, Any], monitored: bool) -> None:
    async with open_house(SLOW, monitored=monitored, **how) as house:
        await wait_until(lambda: house.engine.hints_use is HintsUse.USED)
        at = house.engine.hints_at or ""
        plane = house.mindie.metrics_url if monitored else house.mindie.management_url
        assert at == plane.partition("://")[2] + ("/metrics" if monitored else "/v2/status")
        assert (house.engine.health_at or "").endswith("/v2/health/live")
        client = await RawClient.connect(house.gateway.url)
        await client.send(post("/infer", {"inputs": "a"}))
        await wait_until(lambda: house.mindie.engine.running)
        if not monitored:  # the others are sampled by the engine's clock, which stands nearly still here
            await wait_until(lambda: house.state.hints.running == 1.0)
        assert house.state.hints.kv_capacity_tokens == SLOW.kv_blocks * SLOW.block_size
        client.close()


@pytest.mark.parametrize("ports", [(0,), (0, 0, 0)])
async def test_it_is_recognised_by_what_it_answers(ports: tuple[int, ...]) -> None:
    async with open_house(ports=ports, backend={"kind": "auto"}) as house:
        await wait_until(lambda: house.engine.kind == "mindie")
        assert house.engine.detected
        answer = await house.ask(post("/generate", {"prompt": "a", "max_tokens": 2, **STREAM}))
        assert answer.body == b'{"text":[" tide"]}\0{"text":[" wind"]}\0'
        assert (await house.record()).route.label == "mindie_generate"
        await wait_until(lambda: house.mindie.door.serving == 0)


async def test_gauges_of_another_server_are_not_believed() -> None:
    async with EmulatedMindIE(FAST, ["m"]) as idle:
        planes = {"management_url": idle.management_url, "metrics_url": idle.metrics_url}
        async with open_house(SLOW, backend=planes | {"limit": 20}) as house:
            clients = [await RawClient.connect(house.gateway.url) for _ in range(10)]
            for client in clients:
                await client.send(post("/infer", {"inputs": "a"}))
            await wait_until(lambda: house.engine.hints_use is HintsUse.CONTRADICTED)
            for client in clients:
                client.close()
            await wait_until(lambda: house.engine.hints_use is HintsUse.USED)


async def test_without_any_gauges_it_is_served_all_the_same() -> None:
    async with open_house(backend={"management_url": None, "metrics_url": None}) as house:
        await wait_until(lambda: house.engine.hints_use is HintsUse.ABSENT)
        assert house.state.hints == Hints()
        assert (await house.ask(post("/v1/chat/completions", CHAT))).status == 200
        assert house.state.health == "up"
