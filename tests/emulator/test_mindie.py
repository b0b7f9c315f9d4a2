"""The emulated MindIE over raw sockets: the bytes, the closed door, and what it takes for a client that left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.emulator.mindie import EmulatedMindIE, Service
from gateway.emulator.profiles import FLAT
from tests.proxy.helpers import Message, RawClient, request, wait_until

FAST = replace(FLAT, base=0.001, max_model_len=2048)
SLOW = replace(FLAT, base=60.0, max_model_len=2048)  # one token a minute after the first
ONE: dict[str, Any] = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b c"}]}


@contextlib.asynccontextmanager
async def mindie(profile: Any = FAST, **changes: Any) -> AsyncIterator[EmulatedMindIE]:
    async with EmulatedMindIE(profile, ["m"], **changes) as server:
        yield server


async def ask(url: str, path: str, body: object = None, method: str | None = None) -> Message:
    client = await RawClient.connect(url)
    try:
        data = b"" if body is None else orjson.dumps(body) if not isinstance(body, bytes) else body
        return await client.ask(request(method or ("GET" if body is None else "POST"), path, data))
    finally:
        client.close()


def parameters(cap: int = 2, **more: object) -> dict[str, object]:
    return {"parameters": {"max_new_tokens": cap, "details": True, **more}}


# --------------------------------------------------------------------------------------------------------------
# Bytes
# --------------------------------------------------------------------------------------------------------------


TGI_STREAM = (
    b'data: {"token":{"id":100,"text":" tide","logprob":null,"special":null},"generated_text":null,'
    b'"details":null}\n\n'
    b'data: {"token":{"id":101,"text":" wind","logprob":null,"special":null},"generated_text":" tide wind",'
    b'"details":{"prompt_tokens":2,"finish_reason":"length","generated_tokens":2,"seed":null}}\n\n'
)
INFER_STREAM = (
    b'data: {"prefill_time":61,"decode_time":null,"token":{"id":[100],"text":" tide"}}\n\n'
    b'data: {"prefill_time":null,"decode_time":20,"generated_text":" tide wind","details":null,'
    b'"token":{"id":[101],"text":null}}\n\n'
)


@pytest.mark.parametrize(
    ("path", "body", "stream"),
    [
        ("/generate", {"prompt": "a", "max_tokens": 2, "stream": True}, b'{"text":[" tide"]}\0{"text":[" wind"]}\0'),
        (
            "/generate_stream",
            {"inputs": "a b", **parameters()},
            TGI_STREAM,
        ),
        (
            "/infer",
            {"inputs": "a", "stream": True, "parameters": {"max_new_tokens": 2}},
            INFER_STREAM,
        ),
        (
            "/v2/models/m/generate_stream",
            {"id": "mine", "text_input": "a", "parameters": {"max_new_tokens": 1}},
            b'data:{"id":"mine","model_name":"m","model_version":null,"text_output":" tide"}\n\n',
        ),
    ],
)
async def test_streams_have_their_own_framing_and_no_end_mark(path: str, body: dict[str, Any], stream: bytes) -> None:
    async with mindie() as server:
        answer = await ask(server.url, path, body)
        assert (answer.status, answer.body) == (200, stream)
        assert answer.get("Content-Type") == "text/event-stream"
        assert answer.get("Connection") is None, "a stream leaves its connection open"
        assert answer.get("RequestUUID")


async def test_a_chat_says_its_usage_in_the_chunk_that_finishes_and_the_role_in_every_one() -> None:
    async with mindie() as server:
        answer = await ask(server.url, "/v1/chat/completions", CHAT | {"stream": True, "max_tokens": 2})
        *chunks, done = answer.body.removesuffix(b"\n\n").split(b"\n\n")
        assert done == b"data: [DONE]"
        documents = [orjson.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]
        deltas = [document["choices"][0]["delta"] for document in documents]
        assert deltas == [{"role": "assistant", "content": text} for text in ("", " tide", " wind")]
        assert ["usage" in document for document in documents] == [False, False, True]
        assert documents[-1]["usage"]["completion_tokens"] == 2
        assert list(documents[-1]).index("usage") < list(documents[-1]).index("choices")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/generate", {"prompt": "a b", "max_tokens": 2}, {"text": ["a b  tide wind"]}),
        ("/generate", ONE | {"stream": True}, {"generated_text": " tide"}),
        ("/", ONE, [{"generated_text": " tide"}]),
        ("/infer", ONE, {"generated_text": " tide"}),
        (
            "/infer_token",
            {"input_id": [1, 2], **parameters()},
            {
                "generated_text": " tide wind",
                "details": {
                    "finish_reason": "length",
                    "generated_tokens": 2,
                    "generated_token_ids": [100, 101],
                    "seed": None,
                },
            },
        ),
        (
            "/v2/models/m/infer",
            {"id": "x", "inputs": [{"name": "i", "shape": [1, 1], "datatype": "UINT32", "data": [5], **parameters()}],
             "outputs": [{}]},
            {"id": "x", "outputs": [{"name": "output0", "shape": [1, 2], "datatype": "UINT32", "data": [100, 101]}]},
        ),
        ("/v1/tokenizer", {"inputs": "a b c"}, {"token_number": 3, "tokens": []}),
    ],
)  # fmt: skip
async def test_whole_answers_close_their_connection(path: str, body: dict[str, Any], expected: object) -> None:
    async with mindie() as server:
        client = await RawClient.connect(server.url)
        answer = await client.ask(request("POST", path, orjson.dumps(body)))
        assert (answer.status, orjson.loads(answer.body)) == (200, expected)
        assert answer.get("Connection") == "close"
        assert answer.get("RequestUUID")
        assert await client.rest() == b""
        client.close()


async def test_defaults_are_512_and_20_tokens() -> None:
    async with mindie() as server:
        for body, most in ((CHAT | {"max_completion_tokens": 3}, 512), ({"inputs": "a"}, 20)):
            path = "/v1/chat/completions" if "model" in body else "/infer"
            lengths = [len((await ask(server.url, path, body)).body.split(b" ")) for _ in range(12)]
            assert max(lengths) <= most + 1
            assert max(lengths) > (3 if most == 512 else 15), "max_completion_tokens is not known to it"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/chat/completions", b"{", 422, "Input Validation Error"),
        ("/v1/chat/completions", {"model": "other", "messages": []}, 422, "Input Validation Error"),
        ("/v1/chat/completions", {"messages": []}, 422, "Input Validation Error"),
        ("/v1/chat/completions", {"model": "m", "messages": "no list"}, 422, "Input Validation Error"),
        ("/generate", {"text": "a"}, 422, "Input Validation Error"),
        ("/infer", {"inputs": "a", "input_id": [1]}, 422, "Input Validation Error"),
        ("/infer", {}, 422, "Input Validation Error"),
        ("/infer", {"inputs": "a " * 5000}, 422, "Input Validation Error"),
        ("/infer", {"inputs": "a", "parameters": 7}, 422, "Input Validation Error"),
        ("/infer", {"inputs": "a", "parameters": {"max_new_tokens": 0}}, 422, "Input Validation Error"),
        ("/v2/models/m/infer", {"inputs": []}, 422, "Input Validation Error"),
        ("/v2/models/m/infer", {"inputs": [{"datatype": "BYTES"}]}, 422, "Input Validation Error"),
        ("/v2/models/m/infer", {"inputs": [{"datatype": "UINT32"}]}, 422, "Input Validation Error"),
        ("/v2/models/m/infer", {"inputs": [{"datatype": "UINT32"}], "outputs": []}, 422, "Input Validation Error"),
        ("/v2/models/other/generate", {"text_input": "a"}, 404, "NotFoundError"),
        ("/v2/models/m/stopInfer", {"id": "x"}, 404, "NotFoundError"),
    ],
)  # fmt: skip
async def test_errors_are_its_own(path: str, body: object, status: int, kind: str) -> None:
    async with mindie() as server:
        answer = await ask(server.url, path, body)
        assert answer.status == status
        document = orjson.loads(answer.body)
        assert set(document) == {"error", "error_type"}
        assert document["error_type"] == kind


async def test_a_full_engine_queue_is_a_failed_dependency() -> None:
    async with mindie(replace(SLOW, max_num_queued_reqs=1)) as server:
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/generate_stream", orjson.dumps({"inputs": "a"})))
        await wait_until(lambda: server.engine.running)
        answer = await ask(server.url, "/infer", {"inputs": "a"})
        assert (answer.status, orjson.loads(answer.body)["error_type"]) == (424, "Generation Error")
        client.close()


async def test_paths_and_methods_that_it_does_not_have_are_404_without_a_body() -> None:
    async with mindie() as server:
        for method, path in (("POST", "/v1/embeddings"), ("GET", "/infer"), ("PUT", "/generate"), ("GET", "/health")):
            answer = await ask(server.url, path, b"{}" if method != "GET" else None, method)
            assert (answer.status, answer.body) == (404, b"")


async def test_bodies_come_chunked_or_after_a_hundred_continue_and_not_too_large() -> None:
    async with mindie() as server:
        body = orjson.dumps(ONE)
        client = await RawClient.connect(server.url)
        headers = [("Transfer-Encoding", "chunked"), ("Expect", "100-continue")]
        await client.send(request("POST", "/infer", headers=headers, length=False))
        assert (await client.head()).status == 100
        await client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await client.answer()).body == b'{"generated_text":" tide"}'
        client.close()
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/infer", headers=[("Content-Length", "50000000")], length=False))
        assert (await client.answer()).status == 413
        client.close()


async def test_head_is_answered_without_a_body() -> None:
    async with mindie() as server:
        answer = await ask(server.url, "/v1/models", method="HEAD")
        assert answer.status == 200
        assert int(answer.get("Content-Length") or 0) > 0


# --------------------------------------------------------------------------------------------------------------
# The door
# --------------------------------------------------------------------------------------------------------------


async def test_a_thread_to_a_connection_twice_as_many_wait_unread_and_the_next_is_closed_without_a_word() -> None:
    async with mindie(SLOW, link_num=2) as server:
        running = [await RawClient.connect(server.url) for _ in range(2)]
        for client in running:
            await client.send(request("POST", "/generate_stream", orjson.dumps({"inputs": "a"})))
        await wait_until(lambda: server.engine.running + server.engine.waiting == 2)
        waiting = [await RawClient.connect(server.url) for _ in range(4)]
        for client in waiting:
            await client.send(request("GET", "/v1/models"))
        await wait_until(lambda: server.door.waiting == 4)
        refused = await RawClient.connect(server.url)
        await refused.ended()
        assert (server.door.serving, server.door.waiting, server.door.refused) == (2, 4, 1)
        running[0].close()
        for client in waiting:
            assert (await client.answer()).status == 200
        assert server.door.most == 6
        for client in [*running, *waiting, refused]:
            client.close()


async def test_an_idle_connection_that_is_kept_open_holds_its_thread() -> None:
    async with mindie(link_num=1) as server:
        idle = await RawClient.connect(server.url)
        body = orjson.dumps(ONE)
        assert (await idle.ask(request("POST", "/generate_stream", body))).status == 200
        other = await RawClient.connect(server.url)
        await other.send(request("GET", "/v1/models"))
        await wait_until(lambda: server.door.waiting == 1)
        assert (await idle.ask(request("POST", "/generate_stream", body))).status == 200
        assert server.kept_alive == 1
        assert server.door.waiting == 1, "nobody served it meanwhile"
        idle.close()
        assert (await other.answer()).status == 200
        other.close()


async def test_a_stream_that_was_asked_to_close_frees_its_thread() -> None:
    async with mindie(link_num=1) as server:
        client = await RawClient.connect(server.url)
        body = orjson.dumps(ONE)
        answer = await client.ask(request("POST", "/generate_stream", body, [("Connection", "close")]))
        assert answer.get("Connection") == "close"
        assert await client.rest() == b""
        await wait_until(lambda: server.door.serving == 0)
        client.close()


# --------------------------------------------------------------------------------------------------------------
# Leaving, and failing
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_left_frees_the_engine(stream: bool) -> None:
    async with mindie(SLOW) as server:
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/infer", orjson.dumps({"inputs": "a", "stream": stream})))
        await wait_until(lambda: server.engine.running == 1)
        client.close()
        await wait_until(lambda: server.engine.aborted == 1)
        assert server.engine.running == 0


async def test_a_half_closed_client_is_taken_for_one_that_left() -> None:
    async with mindie(SLOW) as server:
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/infer", orjson.dumps({"inputs": "a"})))
        await wait_until(lambda: server.engine.running == 1)
        client.writer.write_eof()
        assert await client.rest() == b""
        assert (server.engine.aborted, server.half_closed) == (1, 1)
        client.close()


@pytest.mark.parametrize(
    ("changes", "more", "reason"),
    [
        ({"token_timeout": 0.3}, {}, "server tokenTimeout"),
        ({"e2e_timeout": 0.3}, {}, "server e2eTimeout"),
        ({"speed": 10.0}, {"timeout": 1}, "client timeout"),
    ],
)
async def test_waiting_too_long_is_an_error_in_bare_text_inside_a_stream(
    changes: dict[str, float], more: dict[str, int], reason: str
) -> None:
    async with mindie(SLOW, **changes) as server:
        body = {"inputs": "a", "parameters": {"max_new_tokens": 9, **more}}
        answer = await ask(server.url, "/infer", body | {"stream": True})
        assert answer.status == 200
        assert answer.body == f"Engine callback timeout: {reason}".encode()
        answer = await ask(server.url, "/infer", body)
        assert answer.status == 500
        assert orjson.loads(answer.body) == {
            "error": f"Engine callback timeout: {reason}",
            "error_type": "Incomplete Generation",
        }
        assert server.engine.running == 0


async def test_an_engine_that_fails_ends_its_streams_in_bare_text() -> None:
    async with mindie(replace(FLAT, base=0.05)) as server:
        client = await RawClient.connect(server.url)
        body = {"prompt": "a", "stream": True, "max_tokens": 500}
        await client.send(request("POST", "/generate", orjson.dumps(body)))
        head = await client.head()
        first = await client.chunk()
        server.fail_running()
        rest = (await client.body(head)).body
        assert (first + rest).endswith(b"\0Failed to get engine response")
        client.close()


# --------------------------------------------------------------------------------------------------------------
# The other planes
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "live", "ready", "health"),
    [
        (Service.NORMAL, 200, 200, 200),
        (Service.BUSY, 200, 503, 200),
        (Service.ABNORMAL, 500, 500, 500),
        (Service.STOPPED, 503, 503, 503),
    ],
)
async def test_health_is_told_on_the_management_plane(service: Service, live: int, ready: int, health: int) -> None:
    async with mindie() as server:
        server.service = service
        paths = {"/v2/health/live": live, "/v2/health/ready": ready, "/health": health, "/v2/models/m/ready": health}
        for path, status in paths.items():
            assert (await ask(server.management_url, path)).status == status
            assert (await ask(server.url, path)).status == 404


async def test_load_and_limits_are_told_without_any_switch() -> None:
    async with mindie(SLOW) as server:
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/infer", orjson.dumps({"inputs": "a b"})))
        await wait_until(lambda: server.engine.running == 1)
        told = orjson.loads((await ask(server.management_url, "/v2/status")).body)["resource"]
        assert (told["runningRequestNum"], told["waitingRequestNum"]) == (1, 0)
        assert told["totalNpuBlockNums"] - told["freeNpuBlockNums"] > 0
        slots = orjson.loads((await ask(server.management_url, "/v2/models/m/getSlotCount")).body)
        assert slots["total_slots"] - slots["free_slots"] == 1
        assert orjson.loads((await ask(server.management_url, "/v1/config")).body)["maxOutputLen"] == 512
        assert orjson.loads((await ask(server.management_url, "/metrics-json")).body)["processingInferRequestNum"] == 1
        for path in ("/info", "/health/timed", "/health/timed-5"):
            assert (await ask(server.management_url, path)).status == 200
        assert (await ask(server.management_url, "/v2/models/other/getSlotCount")).status == 404
        assert (await ask(server.management_url, "/nothing")).status == 404
        client.close()


async def test_metrics_are_off_unless_the_service_is_monitored_and_then_a_second_old_at_most() -> None:
    async with mindie() as server:
        answer = await ask(server.metrics_url, "/metrics")
        assert answer.status == 500
        assert b"MIES_SERVICE_MONITOR_MODE" in answer.body
    async with mindie(SLOW, monitored=True, speed=20.0) as server:
        assert b'num_requests_running{model_name="m"} 0.0' in (await ask(server.metrics_url, "/metrics")).body
        client = await RawClient.connect(server.url)
        await client.send(request("POST", "/infer", orjson.dumps({"inputs": "a b"})))
        await wait_until(lambda: server.engine.running == 1)
        async with asyncio.timeout(10):
            while b'num_requests_running{model_name="m"} 1.0' not in (await ask(server.metrics_url, "/metrics")).body:
                pass
        assert (await ask(server.metrics_url, "/v2/status")).status == 404
        client.close()


async def test_one_port_may_be_all_three_planes() -> None:
    async with mindie(ports=[0], monitored=True) as server:
        assert server.url == server.management_url == server.metrics_url
        for path in ("/v1/models", "/v2/health/live", "/metrics", "/v2", "/v2/models/m/config", "/v1/models/m"):
            assert (await ask(server.url, path)).status == 200


async def test_what_is_administration_is_counted() -> None:
    async with mindie(ports=[0]) as server:
        for method, path in (("GET", "/stopService"), ("POST", "/v1/role/prefill"), ("POST", "/v1/load_lora_adapter")):
            assert (await ask(server.url, path, b"{}" if method == "POST" else None)).status == 200
        assert server.admin_calls == 3
