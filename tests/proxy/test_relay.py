"""What passes: heads, framing and bytes, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random

import pytest

from gateway.model import Backend, Outcome
from gateway.proxy.client import ClientConnection
from gateway.proxy.relay import Wire
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

JSON = [("Content-Type", "application/json")]


async def test_a_reply_passes_whole_and_in_its_order(backend: StartBackend) -> None:
    headers = [("date", "now"), ("Content-Type", "application/json"), ("X-B", "1"), ("x-a", "2"), ("X-B", "3")]
    engine = await backend(always(reply(b'{"odd" :1}', "218 This Is Fine", headers)))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.start == "HTTP/1.1 218 This Is Fine"
        assert answer.body == b'{"odd" :1}'
        names = [name for name, _ in answer.headers]
        assert names == ["date", "Content-Type", "X-B", "x-a", "X-B", "Content-Length", "X-Request-Id", "Server-Timing"]
        assert answer.all("X-B") == ["1", "3"]


async def test_an_empty_header_and_an_empty_reason_pass(backend: StartBackend) -> None:
    engine = await backend(always(b"HTTP/1.1 200 \r\nX-Empty:\r\nX-Next: 1\r\nContent-Length: 2\r\n\r\n{}"))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.start == "HTTP/1.1 200 "
        assert answer.get("X-Empty") == ""
        assert answer.get("X-Next") == "1"


async def test_a_request_passes_whole_and_in_its_order(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    sent = [("Content-Type", "application/json"), ("x-custom", "ä".encode().decode("latin-1")), ("X-Custom", "2")]
    async with open_house(engine) as house:
        await house.ask(request(target="/v1/chat/completions?a=%20b&c", body=CHAT, headers=sent))
        got = engine.requests[0]
        assert got.target == "/v1/chat/completions?a=%20b&c"
        assert got.body == CHAT
        assert got.headers[:4] == [("Host", engine.url.removeprefix("http://")), *sent]
        assert got.all("Content-Length") == [str(len(CHAT))]


async def test_the_path_of_a_backends_url_stands_before_the_requests(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(Backend("a", engine.url + "/engines/one/")) as house:
        await house.ask(request(body=CHAT))
        assert engine.requests[0].target == "/engines/one/v1/chat/completions"


async def test_P46_hop_by_hop_headers_stay_behind_both_ways_and_one_framing_leaves(backend: StartBackend) -> None:
    answer_headers = [*JSON, ("Connection", "X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=9"), ("Trailer", "X-T")]
    engine = await backend(
        always(
            reply(headers=[*answer_headers, ("Transfer-Encoding", "chunked")], length=False)[:-2]
            + chunked(b"{}")
            + b"0\r\nX-T: 1\r\n\r\n"
        )
    )
    engine.script = always(
        reply(b"", headers=[*answer_headers, ("Transfer-Encoding", "chunked")], length=False)
        + chunked(b"{}")
        + b"0\r\nX-T: 1\r\n\r\n"
    )
    hop = [("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("TE", "gzip"), ("Proxy-Authorization", "secret")]
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT, headers=hop))
        assert answer.body == b"{}"
        assert [name for name, _ in answer.headers] == [
            "Content-Type",
            "Transfer-Encoding",
            "X-Request-Id",
            "Server-Timing",
        ]
        assert {name for name, _ in engine.requests[0].headers} == {
            "Host",
            "X-Forwarded-For",
            "X-Request-Id",
            "Content-Length",
        }


async def test_P46_a_backend_that_gives_both_framings_is_read_by_its_chunks(backend: StartBackend) -> None:
    engine = await backend(
        always(
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(b"{}")
            + b"0\r\n\r\n"
        )
    )
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.body == b"{}"
        assert answer.all("Content-Length") == []


async def test_P15_encoded_bytes_pass_untouched(backend: StartBackend) -> None:
    encoded = random.Random(1).randbytes(1000)
    engine = await backend(always(reply(encoded, headers=[*JSON, ("Content-Encoding", "gzip")])))
    async with open_house(engine) as house:
        answer = await house.ask(
            request(body=encoded, headers=[("Content-Encoding", "gzip"), ("Accept-Encoding", "br")])
        )
        assert answer.body == encoded
        assert answer.get("Content-Encoding") == "gzip"
        assert answer.get("Content-Length") == "1000"
        assert engine.requests[0].body == encoded
        assert engine.requests[0].get("Accept-Encoding") == "br"


async def test_an_encoded_stream_still_counts_as_output(backend: StartBackend) -> None:
    head = SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"
    engine = await backend(always(head + chunked(b"\x1f\x8b") + b"0\r\n\r\n"))
    async with open_house(engine) as house:
        await house.ask(request(body=CHAT_STREAM))
        record = (await house.records.count(1))[0]
        assert record.timeline.first_output is not None
        assert house.controller.granted[0].progress.events == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("power", [0, 6, 12, 15, 16, 18, 20, 24])
async def test_P24_no_size_is_a_cliff(backend: StartBackend, power: int) -> None:
    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply(message.body, headers=[("Content-Type", "application/octet-stream")]))

    engine = await backend(echo)
    async with open_house(engine) as house:
        client = await house.client()
        for size in (max(1, 2**power - 1), 2**power, 2**power + 1):
            body = random.Random(size).randbytes(size)
            answer = await client.ask(request(body=body))
            assert answer.status == 200
            assert answer.body == body
            assert engine.requests[-1].body == body
        assert house.controller.balanced


@pytest.mark.parametrize("power", [12, 16, 20])
async def test_P24_no_size_of_a_chunk_is_a_cliff(backend: StartBackend, power: int) -> None:
    async def stream(peer: Peer, message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(message.body) + b"0\r\n\r\n")

    engine = await backend(stream)
    async with open_house(engine) as house:
        client = await house.client()
        for size in (2**power - 1, 2**power, 2**power + 1):
            body = random.Random(size).randbytes(size)
            assert (await client.ask(request(body=body))).body == body


@pytest.mark.parametrize("megabytes", [1.3, 20])
async def test_P21_P23_large_bodies_pass(backend: StartBackend, megabytes: float) -> None:
    engine = await backend(always(reply()))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * int(megabytes * 2**20)}]}).encode()
    async with open_house(engine) as house:
        assert (await house.ask(request(body=body))).status == 200
        assert engine.requests[0].body == body


@pytest.mark.parametrize("framed", ["length", "chunked"])
async def test_P21_a_body_above_the_cap_is_refused_by_the_setting_that_says_so(
    backend: StartBackend, framed: str
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, max_body=1000) as house:
        client = await house.client()
        if framed == "length":
            await client.send(request(body=b"x" * 1001)[:-1])  # the last byte never comes, and is not waited for
        else:
            await client.send(request(headers=[("Transfer-Encoding", "chunked")], length=False) + chunked(b"x" * 1001))
        answer = await client.answer()
        assert answer.status == 413
        error = json.loads(answer.body)["error"]
        assert "GATEWAY_MAX_BODY_SIZE" in error["message"]
        assert error["code"] == "request_too_large"
        assert answer.get("Connection") == "close"
        assert engine.requests == []
        assert house.controller.offered == []
        record = (await house.records.count(1))[0]
        assert (record.status, record.outcome) == (413, Outcome.CLIENT_ERROR)


async def test_a_body_at_the_cap_passes(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, max_body=1000) as house:
        assert (await house.ask(request(body=b"x" * 1000))).status == 200


async def test_P45_a_chunked_request_goes_on_with_its_length(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(headers=[("Transfer-Encoding", "chunked")], length=False))
        for part in (CHAT[:10], CHAT[10:11], CHAT[11:]):
            await client.send(chunked(part))
        await client.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert (await client.answer()).status == 200
        assert engine.requests[0].body == CHAT
        assert engine.requests[0].all("Content-Length") == [str(len(CHAT))]
        assert engine.requests[0].all("Transfer-Encoding") == []


async def test_P45_a_body_that_stops_coming_is_given_up(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, client_timeout=0.05) as house:
        client = await house.client()
        await client.send(request(body=CHAT)[:-1])
        answer = await client.answer()
        assert answer.status == 408
        assert engine.requests == []


async def test_P11_head_and_events_pass_one_by_one(backend: StartBackend) -> None:
    """The backend sends an event only after the client has confirmed the one before: nothing can be held back."""
    confirmed: asyncio.Queue[int] = asyncio.Queue()

    async def drip(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        for index in range(50):
            await confirmed.get()
            await peer.send(chunked(event(str(index))))
        await confirmed.get()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(drip)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        assert head.status == 200
        assert head.get("Content-Type") == "text/event-stream; charset=utf-8"
        assert head.get("X-Accel-Buffering") == "no"
        for index in range(50):
            await confirmed.put(index)
            assert await client.chunk() == event(str(index))
        await confirmed.put(50)
        assert await client.chunk() == b""
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.COMPLETED
        assert record.timeline.output_events == 50
        assert record.timeline.gaps.count == 49
        assert record.bytes_out == sum(len(event(str(index))) for index in range(50))


async def test_a_stream_does_not_hold_its_requests_body(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def stream(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(stream)
    mark = b"".join(b"%d-" % index for index in range(10_000))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM[:-1] + b',"user":"%b"}' % mark))
        head = await client.head()
        engine.requests.clear()
        gc.collect()
        held = [found for found in gc.get_objects() if isinstance(found, Wire)]
        assert [wire.body for wire in held] == [b""]
        release.set()
        assert (await client.body(head)).body == event("a")


async def test_events_that_arrive_together_count_one_by_one(backend: StartBackend) -> None:
    engine = await backend(always(SSE_HEAD + chunked(event("a") + event("b") + event("c")) + b"0\r\n\r\n"))
    async with open_house(engine) as house:
        await house.ask(request(body=CHAT_STREAM))
        timeline = (await house.records.count(1))[0].timeline
        assert timeline.output_events == 3
        assert timeline.gaps.count == 2
        assert timeline.gaps.total == 0


async def test_P30_P31_characters_may_straddle_chunks_at_every_offset(backend: StartBackend) -> None:
    text = event("中文🙂") + b"data: [DONE]\n\n"

    async def split(peer: Peer, message: Message) -> None:
        at = int(message.get("X-Split") or 0)
        await peer.send(SSE_HEAD + chunked(text[:at]))
        await peer.send(chunked(text[at:]) + b"0\r\n\r\n")

    engine = await backend(split)
    async with open_house(engine) as house:
        client = await house.client()
        for at in range(1, len(text)):
            answer = await client.ask(request(body=CHAT_STREAM, headers=[("X-Split", str(at))]))
            assert answer.body == text
        records = await house.records.count(len(text) - 1)
        assert {record.timeline.output_events for record in records} == {1}


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM])
@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("400 Bad Request", Outcome.CLIENT_ERROR),
        ("404 Not Found", Outcome.CLIENT_ERROR),
        ("429 Too Many Requests", Outcome.BACKEND_BUSY),
        ("500 Internal Server Error", Outcome.BACKEND_ERROR),
        ("503 Service Unavailable", Outcome.BACKEND_BUSY),
        ("529 Overloaded", Outcome.BACKEND_BUSY),
    ],
)
async def test_P27_O20_errors_of_the_backend_pass_untouched_and_are_tried_once(
    backend: StartBackend, body: bytes, status: str, outcome: Outcome
) -> None:
    error = b'{"error":{"message":"too long","code":400}}'
    engine = await backend(always(reply(error, status, [*JSON, ("Retry-After", "7"), ("X-Custom", "kept")])))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=body))
        assert answer.start == f"HTTP/1.1 {status}"
        assert answer.body == error
        assert answer.get("Retry-After") == "7"
        assert answer.get("X-Custom") == "kept"
        assert len(engine.requests) == 1
        assert house.controller.outcomes == [outcome]
        assert (await house.records.count(1))[0].outcome is outcome


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\n', Outcome.BACKEND_ERROR),
        (b'data: {"error":{"message":"full","type":"Service Unavailable","code":503}}\n\n', Outcome.BACKEND_BUSY),
    ],
)
async def test_P28_an_error_inside_a_200_passes_and_counts_as_one(
    backend: StartBackend, first: bytes, outcome: Outcome
) -> None:
    engine = await backend(always(SSE_HEAD + chunked(first) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT_STREAM))
        assert answer.status == 200
        assert answer.body == first + b"data: [DONE]\n\n"
        assert house.controller.outcomes == [outcome]


async def test_usage_reaches_admission_and_the_record(backend: StartBackend) -> None:
    body = b'{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":5}}'
    engine = await backend(always(reply(body)))
    async with open_house(engine) as house:
        await house.ask(request(body=CHAT))
        usage = house.controller.settled[0][2]
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (3, 5)
        assert (await house.records.count(1))[0].usage == usage


@pytest.mark.parametrize("asked", ["keep-alive", None])
async def test_P32_a_client_of_http_1_0_gets_no_chunks_and_yet_event_by_event(
    backend: StartBackend, asked: str | None
) -> None:
    confirmed: asyncio.Queue[None] = asyncio.Queue()

    async def drip(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        for text in ("a", "b"):
            await confirmed.get()
            await peer.send(chunked(event(text)))
        await peer.send(b"0\r\n\r\n")

    engine = await backend(drip)
    async with open_house(engine) as house:
        client = await house.client()
        headers = [] if asked is None else [("Connection", asked)]
        await client.send(request(body=CHAT_STREAM, headers=headers, version="1.0"))
        head = await client.head()
        assert head.get("Transfer-Encoding") is None
        assert head.get("Content-Length") is None
        assert head.get("Connection") == "close"
        for text in ("a", "b"):
            await confirmed.put(None)
            assert await client.read(len(event(text))) == event(text)
        assert await client.rest() == b""


async def test_P32_a_client_of_http_1_0_keeps_its_connection_where_the_length_is_known(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(2):
            answer = await client.ask(request(body=CHAT, headers=[("Connection", "keep-alive")], version="1.0"))
            assert answer.get("Connection") == "keep-alive"
            assert answer.body == b'{"a":1}'
        answer = await client.ask(request(body=CHAT, version="1.0"))
        assert answer.get("Connection") == "close"
        assert await client.rest() == b""


async def test_a_body_that_ends_with_the_connection_gets_chunks(backend: StartBackend) -> None:
    async def until_close(peer: Peer, _message: Message) -> None:
        await peer.send(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n")
        await peer.send(b'{"a":1}')
        peer.close()

    engine = await backend(until_close)
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(2):
            answer = await client.ask(request(body=CHAT))
            assert answer.get("Transfer-Encoding") == "chunked"
            assert answer.body == b'{"a":1}'
        assert house.controller.outcomes == [Outcome.COMPLETED] * 2


async def test_P34_answers_without_a_body_leave_the_connection_usable(backend: StartBackend) -> None:
    heads = {
        "/204": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        "/304": b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nTransfer-Encoding: chunked\r\n\r\n',
        "/plain204": b"HTTP/1.1 204 No Content\r\n\r\n",
    }

    async def bodiless(peer: Peer, message: Message) -> None:
        await peer.send(heads.get(message.target, reply(b'{"a":1}')))

    engine = await backend(bodiless)
    async with open_house(engine) as house:
        client = await house.client()
        for target in heads:
            answer = await client.ask(request("GET", target))
            assert answer.start == heads[target].decode().split("\r\n")[0]
            assert answer.get("Transfer-Encoding") is None
            assert (await client.ask(request(body=CHAT))).body == b'{"a":1}'


async def test_head_gets_the_length_without_the_body(backend: StartBackend) -> None:
    engine = await backend(always(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"))
    async with open_house(engine) as house:
        client = await house.client()
        answer = await client.ask(request("HEAD", "/health"))
        assert answer.get("Content-Length") == "1234"
        engine.script = always(reply(b'{"a":1}'))
        assert (await client.ask(request(body=CHAT))).body == b'{"a":1}'
        assert engine.requests[0].method == "HEAD"
        assert engine.requests[0].all("Content-Length") == []


async def test_an_interim_answer_is_not_the_answer(backend: StartBackend) -> None:
    engine = await backend(always(b"HTTP/1.1 102 Processing\r\nX-Early: 1\r\n\r\n" + reply(b'{"a":1}')))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 200
        assert answer.get("X-Early") is None
        assert answer.body == b'{"a":1}'


async def test_P36_a_preflight_passes_without_a_permit(backend: StartBackend) -> None:
    allowed = [("Access-Control-Allow-Origin", "*"), ("Access-Control-Allow-Methods", "POST")]
    engine = await backend(always(reply(b"OK", headers=allowed)))
    async with open_house(engine, limit=0) as house:
        answer = await house.ask(request("OPTIONS", headers=[("Origin", "http://tool.test")]))
        assert answer.status == 200
        assert answer.get("Access-Control-Allow-Origin") == "*"
        assert engine.requests[0].get("Origin") == "http://tool.test"
        assert house.controller.offered == []


async def test_options_for_the_server_itself_passes(backend: StartBackend) -> None:
    engine = await backend(always(reply(b"OK")))
    async with open_house(engine) as house:
        assert (await house.ask(request("OPTIONS", "*"))).status == 200
        assert engine.requests[0].target == "*"


async def test_cheap_routes_pass_while_everything_is_full(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"data":[]}')))
    async with open_house(engine, limit=0) as house:
        for data in (request("GET", "/v1/models"), request("GET", "/health"), request(target="/tokenize", body=b"{}")):
            assert (await house.ask(data)).status == 200
        records = await house.records.count(3)
        assert [record.outcome for record in records] == [Outcome.COMPLETED] * 3
        assert all(record.ticket is None and record.backend == "a" for record in records)


async def test_an_unknown_path_passes_through_admission(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        assert (await house.ask(request(target="/some/new/route", body=b"\x00binary"))).status == 200
        assert engine.requests[0].target == "/some/new/route"
        assert engine.requests[0].body == b"\x00binary"
        assert len(house.controller.settled) == 1


async def test_P48_an_id_is_kept_or_made(backend: StartBackend) -> None:
    engine = await backend(always(reply(headers=[*JSON, ("x-request-id", "the-engines-own")])))
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT, headers=[("x-request-id", "bench-1a2b3c4d-7")]))
        assert answer.all("X-Request-Id") == ["bench-1a2b3c4d-7"]
        assert engine.requests[0].all("X-Request-Id") == ["bench-1a2b3c4d-7"]
        answer = await house.ask(request(body=CHAT))
        made = answer.get("X-Request-Id")
        assert made is not None
        assert len(made) == 32
        assert int(made, 16) >= 0
        assert engine.requests[1].all("X-Request-Id") == [made]
        assert [record.request_id for record in await house.records.count(2)] == ["bench-1a2b3c4d-7", made]


async def test_S04_no_header_chooses_where_a_request_goes(backend: StartBackend) -> None:
    engine, other = await backend(always(reply())), await backend(always(reply()))
    lures = [
        ("x-prefiller-url", other.url),
        ("X-Prefiller-Host-Port", other.url),
        ("x-gateway-destination-endpoint", other.url),
        ("X-Forwarded-Host", other.url),
        ("X-Original-URL", "/sleep"),
    ]
    async with open_house(engine) as house:
        target = f"{other.url}/v1/chat/completions?a=1"
        assert (await house.ask(request(target=target, body=CHAT, headers=lures))).status == 200
        assert other.accepted == 0
        got = engine.requests[0]
        assert got.target == "/v1/chat/completions?a=1"
        assert got.get("Host") == engine.url.removeprefix("http://")
        assert not [name for name, _ in got.headers if name.lower().startswith(("x-prefiller", "x-gateway"))]


@pytest.mark.parametrize("absolute", ["http://elsewhere", "http://elsewhere?a=1"])
async def test_S04_an_absolute_target_without_a_path_is_the_root(backend: StartBackend, absolute: str) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        await house.ask(request("GET", absolute))
        assert engine.requests[0].target == absolute.replace("http://elsewhere", "/")


@pytest.mark.parametrize(
    "path",
    ["chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "score", "audio/translations"],
)
async def test_M19_server_timing_of_a_whole_answer_on_every_api(backend: StartBackend, path: str) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        answer = await house.ask(request(target=f"/v1/{path}", body=CHAT))
        names = [part.split(";dur=")[0] for part in (answer.get("Server-Timing") or "").split(", ")]
        assert names == ["queue", "ttft", "total"]
        assert all(float(part.split("=")[1]) >= 0 for part in (answer.get("Server-Timing") or "").split(", "))


async def test_server_timing_of_a_stream_ends_in_trailers_for_those_who_take_them(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def stream(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        await release.wait()
        await peer.send(chunked(event("a")) + b"0\r\n\r\n")

    engine = await backend(stream)
    async with open_house(engine) as house:
        for taken in (True, False):
            release.clear()
            client = await house.client()
            headers = [("TE", "trailers"), ("Connection", "TE")] if taken else []
            await client.send(request(body=CHAT_STREAM, headers=headers))
            head = await client.head()
            assert (head.get("Server-Timing") or "").startswith("queue;dur=")
            assert "ttft" not in (head.get("Server-Timing") or "")
            assert head.get("Trailer") == ("Server-Timing" if taken else None)
            release.set()
            message = await client.body(head)
            assert message.body == event("a")
            if taken:
                ((name, value),) = message.trailers
                assert name == "Server-Timing"
                assert [part.split(";")[0] for part in value.split(", ")] == ["queue", "ttft", "total"]
            else:
                assert message.trailers == []


async def test_requests_may_be_pipelined(backend: StartBackend) -> None:
    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply(message.body))

    engine = await backend(echo)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(b"".join(request(body=b"%d" % index) for index in range(100)))
        for index in range(100):
            assert (await client.answer()).body == b"%d" % index
        assert house.controller.balanced


async def test_P08_a_connection_is_used_again_on_both_sides(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.upstream._PROOF", 0.0)
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(20):
            assert (await client.ask(request(body=CHAT))).status == 200
        assert len(engine.requests) == 20
        assert len({message.connection for message in engine.requests}) == 1


async def test_a_connection_is_used_again_once_one_was_seen_to_stay_open(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.upstream._PROOF", 0.1)
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(3):
            assert (await client.ask(request(body=CHAT))).status == 200
        await asyncio.sleep(0.2)
        for _ in range(20):
            assert (await client.ask(request(body=CHAT))).status == 200
        assert len({message.connection for message in engine.requests[3:]}) == 1
        assert engine.requests[3].connection in {message.connection for message in engine.requests[:3]}


async def test_no_request_meets_a_connection_that_the_backend_is_about_to_close(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp closes each connection a moment after a stream, without saying so in its head."""
    monkeypatch.setattr("gateway.proxy.upstream._PROOF", 50.0)
    closing = asyncio.Event()

    async def stream_then_close(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")) + b"0\r\n\r\n")
        await closing.wait()
        peer.close()

    engine = await backend(stream_then_close)
    async with open_house(engine, upstream_keepalive=100.0) as house:
        (upstream,) = house.front._upstreams.values()
        upstream._keeps[False] = True  # what is known of other answers proves nothing
        client = await house.client()
        for _ in range(5):
            assert (await client.ask(request(body=CHAT_STREAM))).status == 200
        closing.set()
        for _ in range(5):
            assert (await client.ask(request(body=CHAT_STREAM))).status == 200
        assert len({message.connection for message in engine.requests}) == 10
        await engine.deserted()
        assert upstream._keeps == {False: True, True: False}


async def test_P47_a_slow_reader_gets_all_of_it_and_holds_the_backend_back(backend: StartBackend) -> None:
    size = 32 * 2**20
    sent = 0

    async def flood(peer: Peer, _message: Message) -> None:
        nonlocal sent
        await peer.send(reply(b"", headers=[*JSON, ("Content-Length", str(size))], length=False))
        block = random.Random(0).randbytes(2**16)
        while sent < size:
            await peer.send(block)
            sent += len(block)

    engine = await backend(flood)
    async with open_house(engine) as house:
        client = await house.client(receive_buffer=2**14)
        await client.send(request(body=CHAT))
        head = await client.head()
        before = -1
        while before != sent:  # the backend stands still: every buffer between is full
            before = sent
            await asyncio.sleep(0.2)
        assert sent < size / 2
        message = await client.body(head)
        assert message.body == random.Random(0).randbytes(2**16) * (size // 2**16)
        assert house.controller.outcomes == [Outcome.COMPLETED]
        line = (await house.records.count(1))[0].timeline
        assert line.finished is not None
        assert line.sent is not None
        assert 0.2 <= line.paused <= line.finished - line.sent  # the backend stood still for so long at least


async def test_a_client_that_always_takes_is_never_paused(backend: StartBackend) -> None:
    engine = await backend(always(reply(b"{}", headers=JSON)))
    async with open_house(engine) as house:
        client = await house.client()
        await client.ask(request(body=CHAT))
        assert (await house.records.count(1))[0].timeline.paused == 0.0


async def test_a_pipelined_answer_waits_until_the_one_before_it_is_taken(backend: StartBackend) -> None:
    size = 8 * 2**20

    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply((message.get("X-Letter") or "").encode() * size))

    engine = await backend(echo)
    async with open_house(engine) as house:
        client = await house.client(receive_buffer=2**14)
        for letter in "ab":
            await client.send(request(body=CHAT, headers=[("X-Letter", letter)]))
        for letter in "ab":
            assert (await client.answer()).body == letter.encode() * size
        assert house.controller.outcomes == [Outcome.COMPLETED] * 2


async def test_a_backend_is_not_called_silent_while_its_client_takes_nothing(backend: StartBackend) -> None:
    size = 16 * 2**20
    engine = await backend(always(reply(b"x" * size)))
    async with open_house(engine, idle_timeout=0.02) as house:
        client = await house.client(receive_buffer=2**14)
        await client.send(request(body=CHAT))
        head = await client.head()
        await asyncio.sleep(0.2)  # ten times the bound
        assert len((await client.body(head)).body) == size
        assert house.controller.outcomes == [Outcome.COMPLETED]


async def test_every_byte_starts_the_bound_on_silence_anew(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def stream(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(stream)
    async with open_house(engine, idle_timeout=1000.0) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        assert await client.chunk() == event("a")
        (connection,) = house.front._clients.connections  # type: ignore[union-attr]
        assert isinstance(connection, ClientConnection)
        relay = connection.relay
        assert relay is not None
        upstream = relay._connection
        assert upstream is not None
        first = upstream.rings_at
        assert first < math.inf
        upstream.ring()  # but a byte came since it was set
        assert first < upstream.rings_at < math.inf
        release.set()
        await client.body(head)
        assert house.controller.outcomes == [Outcome.COMPLETED]


async def test_one_bell_rings_for_all_that_are_silent_and_for_nobody_else(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def stream(peer: Peer, message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        while message.get("X-Goes-On") and not release.is_set():
            await peer.send(chunked(event("b")))
            await asyncio.sleep(0.05)
        if message.get("X-Goes-On"):
            await peer.send(b"0\r\n\r\n")

    engine = await backend(stream)
    async with open_house(engine, idle_timeout=0.4) as house:
        talks = await house.client()
        await talks.send(request(body=CHAT_STREAM, headers=[("X-Goes-On", "1")]))
        await talks.head()
        silent = [await house.client() for _ in range(5)]
        for client in silent:
            await client.send(request(body=CHAT_STREAM))
            await client.head()
            await asyncio.sleep(0.03)
        for client in silent:
            assert await client.ended() in {True, False}
        assert house.controller.outcomes == [Outcome.BACKEND_SILENT] * 5
        release.set()
        while await talks.chunk():
            pass
        await wait_until(lambda: len(house.controller.outcomes) == 6)
        assert house.controller.outcomes[-1] is Outcome.COMPLETED
        (upstream,) = house.front._upstreams.values()
    assert upstream._bell is None


@pytest.mark.parametrize("bad", [b"zz\r\nabc", b"-1\r\n\r\n"])
async def test_a_body_that_is_not_framed_as_it_says_is_400(backend: StartBackend, bad: bytes) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(headers=[("Transfer-Encoding", "chunked")], length=False))
        await wait_until(lambda: house.gateway.in_flight)
        await client.send(bad)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.get("Connection") == "close"
        assert engine.requests == []


async def test_a_reader_that_stumbles_does_not_harm_the_bytes(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gateway.dialects.openai import StreamReader

    def stumble(_self: object, _data: bytes) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(StreamReader, "feed", stumble)
    engine = await backend(always(SSE_HEAD + chunked(event("a")) + b"0\r\n\r\n"))
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).body == event("a")
        assert house.controller.outcomes == [Outcome.COMPLETED]
        assert "stumbled" in caplog.text


async def test_an_offered_upgrade_to_http2_is_ignored_as_java_clients_expect(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    headers = [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAEAAEAAAAIAAAABAAMAAABk"),
    ]
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(2):
            assert (await client.ask(request(body=CHAT, headers=headers))).status == 200
        assert engine.requests[0].body == CHAT
        assert engine.requests[0].all("Upgrade") == engine.requests[0].all("HTTP2-Settings") == []


async def test_connect_is_refused(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: 10.0.0.1:80\r\n\r\n")
        assert (await client.answer()).status == 501
        assert engine.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        request(headers=[("X-Abc", "a\rTransfer-Encoding: chunked")]),
        request(headers=[("Content-Length", "1"), ("Transfer-Encoding", "chunked")], length=False),
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Large: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_S13_what_is_not_http_gets_400_in_the_usual_shape(backend: StartBackend, data: bytes) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(data)
        answer = await client.answer()
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert answer.get("Connection") == "close"
        assert engine.requests == []
