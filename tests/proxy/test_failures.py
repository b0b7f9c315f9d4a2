"""Backends that fail: what the client gets, what is tried again, and that every permit comes back."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from gateway.model import Backend, Outcome, Permit, Usage, WorkEstimate
from gateway.proxy.gate import Gate
from gateway.proxy.upstream import Upstream
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
    Message,
    Peer,
    Script,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
)
from tests.real.process import free_port

JSON = [("Content-Type", "application/json")]


async def closing(peer: Peer, _message: Message) -> None:
    peer.close()


async def resetting(peer: Peer, _message: Message) -> None:
    peer.reset()


async def silent(peer: Peer, _message: Message) -> None:
    await peer.ended()


def error_of(answer: Message) -> dict[str, object]:
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


# --------------------------------------------------------------------------------------------------------------
# Nothing was sent yet
# --------------------------------------------------------------------------------------------------------------


async def test_C19_a_refused_connection_is_not_sent_and_the_other_backend_is_tried(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"b":1}')))
    async with open_house(f"http://127.0.0.1:{free_port()}", engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.body == b'{"b":1}'
        assert house.controller.outcomes == [Outcome.CONNECT_FAILED, Outcome.COMPLETED]
        assert [ticket.avoid for ticket in house.controller.offered] == [frozenset(), {"a"}]
        record = (await house.records.count(1))[0]
        assert (record.outcome, record.backend, record.attempts, record.error) == (Outcome.COMPLETED, "b", 2, None)
        assert house.controller.balanced


async def test_C16_with_no_backend_up_it_starts_says_so_and_recovers_by_itself(backend: StartBackend) -> None:
    port = free_port()
    async with open_house(f"http://127.0.0.1:{port}") as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 503
        assert answer.get("x-gateway-shed-reason") == "no_backend"
        assert answer.get("Retry-After") == "1"
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.REFUSED
        assert house.controller.balanced
        engine = await backend(always(reply()))
        await engine.stop()
        await engine.start(port)
        assert (await house.ask(request(body=CHAT))).status == 200


async def test_a_backend_beyond_reach_is_502_when_the_attempts_are_used_up() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    async with open_house(*urls, connect_attempts=2) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 502
        error = error_of(answer)
        assert error["code"] == "bad_gateway"
        assert "127.0.0.1" not in str(error), "S10: no internal address reaches a client"
        assert answer.get("X-Request-Id") is not None
        assert house.controller.outcomes == [Outcome.CONNECT_FAILED] * 2
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.CONNECT_FAILED
        assert "Connect" in (record.error or "")


async def test_a_cheap_request_also_goes_to_a_backend_that_is_there(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"b":1}')))
    async with open_house(f"http://127.0.0.1:{free_port()}", engine) as house:
        for _ in range(2):  # they take turns: one of the two begins with the dead one
            assert (await house.ask(request(target="/tokenize", body=b"{}"))).body == b'{"b":1}'


async def test_a_cheap_request_with_no_backend_there_is_502() -> None:
    async with open_house(f"http://127.0.0.1:{free_port()}") as house:
        assert (await house.ask(request("GET", "/health"))).status == 502


async def test_P40_out_of_descriptors_is_the_gateways_own_trouble(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exhausted(_self: Upstream) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        monkeypatch.setattr(Upstream, "connect", exhausted)
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 503
        assert error_of(answer)["code"] == "out_of_descriptors"
        assert house.controller.outcomes == [Outcome.INTERNAL_ERROR]
        monkeypatch.undo()
        assert (await house.ask(request(body=CHAT))).status == 200


async def test_P40_who_comes_to_the_last_descriptors_is_told_and_what_was_let_in_goes_on(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import resource

    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        early = await house.client()
        assert (await early.ask(request(body=CHAT))).status == 200
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (8, 1024))
        for _ in range(3):
            answer = await house.ask(request(body=CHAT))
            assert answer.status == 503
            assert error_of(answer)["code"] == "out_of_descriptors"
            assert answer.get("Connection") == "close"
        assert (await early.ask(request(body=CHAT))).status == 200
        assert house.gateway.front.connections_refused == 3
        assert caplog.text.count("clients are turned away, 1 by now") == caplog.text.count("turned away") == 1
        monkeypatch.undo()
        assert (await house.ask(request(body=CHAT))).status == 200
        assert house.gateway.front.connections_refused == 3


# --------------------------------------------------------------------------------------------------------------
# The request reached the backend, and no answer came
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM])
@pytest.mark.parametrize("script", [closing, resetting])
async def test_O16_a_post_that_reached_a_backend_is_not_sent_again(
    backend: StartBackend, script: Script, body: bytes
) -> None:
    first, second = await backend(script), await backend(always(reply()))
    async with open_house(first, second) as house:
        answer = await house.ask(request(body=body))
        assert answer.status == 502
        assert error_of(answer)["code"] == "bad_gateway"
        assert answer.get("Retry-After") == "1"
        assert len(first.requests) == 1
        assert second.requests == []
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]
        record = (await house.records.count(1))[0]
        assert (record.status, record.outcome, record.attempts) == (502, Outcome.BACKEND_LOST, 1)


async def test_O16_a_backend_that_swallows_a_prompt_and_stalls_is_504_and_the_other_never_sees_it(
    backend: StartBackend,
) -> None:
    first, second = await backend(silent), await backend(always(reply()))
    async with open_house(first, second, first_byte_timeout=0.05) as house:
        answer = await house.ask(request(body=CHAT_STREAM))
        assert answer.status == 504
        assert error_of(answer)["code"] == "gateway_timeout"
        assert answer.get("x-should-retry") == "false"
        await first.deserted()
        assert len(first.requests) == 1
        assert second.requests == []
        assert house.controller.outcomes == [Outcome.BACKEND_SILENT]


async def test_O15_the_backend_sees_as_many_calls_as_the_client_makes(backend: StartBackend) -> None:
    async def failing(peer: Peer, message: Message) -> None:
        await peer.send(reply(b"{}", message.get("X-Status") or ""))

    engine = await backend(failing)
    async with open_house(engine) as house:
        client = await house.client()
        for count in (0, 1, 2):
            for status in ("500 Internal Server Error", "504 Gateway Timeout", "429 Too Many Requests"):
                headers = [("X-Status", status), ("X-Stainless-Retry-Count", str(count))]
                assert (await client.ask(request(body=CHAT, headers=headers))).start == f"HTTP/1.1 {status}"
        assert len(engine.requests) == 9
        assert [ticket.attempt for ticket in house.controller.offered] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_P50_an_answer_that_is_not_streamed_may_be_silent_for_longer_than_a_stream(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def slow(peer: Peer, _message: Message) -> None:
        await release.wait()
        await peer.send(reply())

    engine = await backend(slow)
    async with open_house(engine, first_byte_timeout=0.05) as house:
        whole, stream = await house.client(), await house.client()
        await whole.send(request(body=CHAT))
        assert (await stream.ask(request(body=CHAT_STREAM))).status == 504  # so the stream's bound has passed
        release.set()
        assert (await whole.answer()).status == 200
        timeline = (await house.records.count(2))[1].timeline
        assert timeline.first_output is None, "an answer that is not streamed has no time to first token"


async def test_answer_timeout_bounds_the_silence_of_an_answer_that_is_not_streamed(backend: StartBackend) -> None:
    engine = await backend(silent)
    async with open_house(engine, answer_timeout=0.05) as house:
        assert (await house.ask(request(body=CHAT))).status == 504


@pytest.mark.parametrize(
    ("body", "work"), [(CHAT_STREAM, WorkEstimate(400_000, 0, 1.0)), (CHAT, WorkEstimate(0, 4_000, 1.0))]
)
async def test_P44_the_bounds_on_silence_allow_for_the_work_itself(
    backend: StartBackend, body: bytes, work: WorkEstimate
) -> None:
    """A long prompt, or a long answer in one piece, takes an hour on the slowest engines."""
    release = asyncio.Event()

    async def slow(peer: Peer, message: Message) -> None:
        if not message.get("X-Short"):
            await release.wait()
            await peer.send(reply())
        await peer.ended()

    engine = await backend(slow)
    async with open_house(engine, first_byte_timeout=0.05, answer_timeout=0.05) as house:
        house.estimator.work, little = work, house.estimator.work
        long, short = await house.client(), await house.client()
        await long.send(request(body=body))
        await engine.received(1)
        house.estimator.work = little
        assert (await short.ask(request(body=body, headers=[("X-Short", "1")]))).status == 504
        release.set()
        assert (await long.answer()).status == 200


async def test_P44_the_first_event_may_come_long_after_the_head(backend: StartBackend) -> None:
    """Only the bound on the first byte counts then, not the one between bytes."""
    waited = asyncio.Event()

    async def late(peer: Peer, message: Message) -> None:
        await peer.send(SSE_HEAD)
        if message.get("X-Second"):
            await peer.send(chunked(event("a")))
            await peer.ended()
        await waited.wait()
        await peer.send(chunked(event("a")) + b"0\r\n\r\n")

    engine = await backend(late)
    async with open_house(engine, first_byte_timeout=3600.0, idle_timeout=0.05) as house:
        client, other = await house.client(), await house.client()
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        await other.send(request(body=CHAT_STREAM, headers=[("X-Second", "1")]))
        await other.head()
        await other.ended()  # so the bound between bytes has passed
        waited.set()
        assert (await client.body(head)).body == event("a")
        assert sorted(house.controller.outcomes, key=str) == [Outcome.BACKEND_SILENT, Outcome.COMPLETED]


@pytest.mark.parametrize("name", ["first_byte_timeout", "answer_timeout", "idle_timeout"])
async def test_a_bound_may_be_switched_off(backend: StartBackend, name: str) -> None:
    engine = await backend(always(SSE_HEAD + chunked(event("a")) + b"0\r\n\r\n"))
    changes: dict[str, Any] = {name: None}
    async with open_house(engine, **changes) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).status == 200
        assert (await house.ask(request(body=CHAT))).status == 200


async def test_what_is_not_http_is_502(backend: StartBackend) -> None:
    engine = await backend(always(b"SSH-2.0-OpenSSH\r\n\r\n"))
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT))).status == 502
        assert "not HTTP" in ((await house.records.count(1))[0].error or "")


async def test_an_answer_that_switches_protocols_unasked_is_502(backend: StartBackend) -> None:
    engine = await backend(always(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"))
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT))).status == 502


@pytest.mark.parametrize("script", [closing, resetting])
async def test_mindie_closes_without_a_word_when_it_is_full_and_that_is_backpressure(
    backend: StartBackend, script: Script
) -> None:
    engine = await backend(script)
    async with open_house(Backend("a", engine.url, kind="mindie")) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 429
        assert error_of(answer)["code"] == "slow_down"
        assert answer.get("Retry-After") in {"1", "2", "3"}
        assert 1000 <= int(answer.get("retry-after-ms") or 0) <= 3000
        assert answer.get("x-envoy-ratelimited") == "true"
        assert house.controller.outcomes == [Outcome.BACKEND_BUSY]


# --------------------------------------------------------------------------------------------------------------
# The answer broke off
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script_end", ["close", "reset"])
async def test_a_stream_that_breaks_off_says_why_and_does_not_end_well(backend: StartBackend, script_end: str) -> None:
    async def broken(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await asyncio.sleep(0.05)  # the event is out before a reset can overtake it
        peer.close() if script_end == "close" else peer.reset()

    engine = await backend(broken)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event("a")
        last = await client.chunk()
        assert last.startswith(b"data: ")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "bad_gateway"
        assert await client.rest() == b"", "no last chunk: the client can tell"
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]
        assert (await house.records.count(1))[0].status == 200


async def test_nothing_is_put_into_the_middle_of_an_event(backend: StartBackend) -> None:
    async def broken(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(b'data: {"cho'))
        await asyncio.sleep(0.05)
        peer.close()

    engine = await backend(broken)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == b'data: {"cho'
        assert await client.rest() == b""


async def test_O27_a_stream_that_falls_silent_ends_with_an_event_that_parses(backend: StartBackend) -> None:
    async def stall(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.ended()

    engine = await backend(stall)
    async with open_house(engine, idle_timeout=0.05) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event("a")
        last = await client.chunk()
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "gateway_timeout"
        assert await client.rest() == b""
        await engine.deserted()
        assert house.controller.outcomes == [Outcome.BACKEND_SILENT]


async def test_a_whole_answer_that_is_cut_short_ends_short(backend: StartBackend) -> None:
    async def short(peer: Peer, _message: Message) -> None:
        await peer.send(reply(b"", headers=[*JSON, ("Content-Length", "10")], length=False) + b"12345")
        peer.close()

    engine = await backend(short)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT))
        head = await client.head()
        assert head.get("Content-Length") == "10"
        assert await client.rest() == b"12345"
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]


async def test_a_client_of_http_1_0_is_reset_when_its_stream_breaks_off(backend: StartBackend) -> None:
    """Where the end of the connection is the end of the body, a clean end would pass for a whole answer."""

    async def broken(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await asyncio.sleep(0.05)
        peer.close()

    engine = await backend(broken)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM, version="1.0"))
        await client.head()
        assert await client.read(len(event("a"))) == event("a")
        assert await client.ended(), "ended cleanly"


@pytest.mark.parametrize("empty", [SSE_HEAD + b"0\r\n\r\n", reply(b"")])
async def test_P29_an_empty_success_is_none(backend: StartBackend, empty: bytes) -> None:
    engine = await backend(always(empty))
    async with open_house(engine) as house:
        client = await house.client()
        answer = await client.ask(request(body=CHAT_STREAM))
        assert answer.status == 502
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]
        assert (await house.records.count(1))[0].outcome is Outcome.BACKEND_LOST


async def test_P29_an_empty_stream_ends_badly_where_its_head_has_left_already(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def empty(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(empty)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        assert (await client.head()).status == 200
        release.set()
        rest = await client.rest()
        assert not rest.endswith(b"0\r\n\r\n")
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]


async def test_an_empty_success_is_fine_where_no_output_is_due(backend: StartBackend) -> None:
    engine = await backend(always(reply(b"")))
    async with open_house(engine) as house:
        assert (await house.ask(request("GET", "/health"))).status == 200
        assert (await house.ask(request(target="/v1/embeddings", body=b"{}"))).status == 200
        assert (await house.ask(request(target="/some/route", body=b"{}"))).status == 200
        assert house.controller.outcomes == [Outcome.COMPLETED] * 2


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages"])
async def test_a_failure_has_the_shape_of_its_route(backend: StartBackend, route: str) -> None:
    engine = await backend(closing)
    async with open_house(engine) as house:
        answer = await house.ask(request(target=route, body=CHAT))
        parsed = json.loads(answer.body)
        assert answer.status == 502
        assert ("type" in parsed) == (route == "/v1/messages")
        assert parsed["error"]["message"]


# --------------------------------------------------------------------------------------------------------------
# Books
# --------------------------------------------------------------------------------------------------------------


async def test_F02_ten_timeouts_leave_all_ten_places_free(backend: StartBackend) -> None:
    engine = await backend(silent)
    async with open_house(engine, limit=10, first_byte_timeout=0.05) as house:
        clients = [await house.client() for _ in range(10)]
        answers = await asyncio.gather(*(client.ask(request(body=CHAT_STREAM)) for client in clients))
        assert {answer.status for answer in answers} == {504}
        assert house.controller.balanced
        engine.script = always(reply())
        answers = await asyncio.gather(*(client.ask(request(body=CHAT)) for client in clients))
        assert {answer.status for answer in answers} == {200}


async def test_F03_a_malformed_request_leaves_the_one_place_free(backend: StartBackend) -> None:
    bad = {b"{not json": "400 Bad Request", b'{"model":"unknown"}': "404 Not Found"}

    async def judge(peer: Peer, message: Message) -> None:
        await peer.send(reply(b"{}", bad.get(message.body, "200 OK")))

    engine = await backend(judge)
    async with open_house(engine, limit=1) as house:
        client = await house.client()
        for body, status in bad.items():
            assert (await client.ask(request(body=body))).start == f"HTTP/1.1 {status}"
            assert (await client.ask(request(body=CHAT))).status == 200
        assert house.controller.balanced


@pytest.mark.parametrize("script", [closing, resetting, silent])
async def test_F08_failures_before_and_after_the_first_token_each_give_back_one_place(
    backend: StartBackend, script: Script
) -> None:
    async def after_the_first(peer: Peer, message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await asyncio.sleep(0.02)
        await script(peer, message)

    engine = await backend(script)
    async with open_house(engine, limit=1, first_byte_timeout=0.05, idle_timeout=0.05) as house:
        for failing in (script, after_the_first):
            engine.script = failing
            for _ in range(5):
                client = await house.client()
                await client.send(request(body=CHAT_STREAM))
                await engine.received(len(house.controller.settled) + 1)
                await house.records.count(len(house.controller.offered))
                assert house.controller.balanced
                assert house.gateway.state().backends[0].running == 0
        assert len(house.controller.settled) == 10
        engine.script = always(reply())
        assert (await house.ask(request(body=CHAT))).status == 200


async def test_a_fault_of_the_gateways_own_is_500_and_gives_back_the_place(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_self: Upstream) -> None:
        raise ZeroDivisionError

    engine = await backend(always(reply()))
    async with open_house(engine, limit=1) as house:
        monkeypatch.setattr(Upstream, "connect", broken)
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 500
        assert error_of(answer)["code"] == "internal_error"
        assert house.controller.outcomes == [Outcome.INTERNAL_ERROR]
        assert (await house.records.count(1))[0].outcome is Outcome.INTERNAL_ERROR
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert (await house.ask(request(body=CHAT))).status == 200


async def test_a_fault_of_the_gateways_own_after_the_head_ends_the_connection(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Gate, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        leave(_self, permit, outcome, usage)
        raise ZeroDivisionError

    leave = Gate.leave
    monkeypatch.setattr(Gate, "leave", broken)
    engine = await backend(always(reply(b'{"a":1}')))
    async with open_house(engine) as house:
        client = await house.client()
        assert (await client.ask(request(body=CHAT))).body == b'{"a":1}'
        assert await client.rest() == b"", "a second answer followed the first"


async def test_C13_the_models_are_those_of_every_backend_that_answers(backend: StartBackend) -> None:
    lists = {
        "a": b'{"object":"list","data":[{"id":"one","owned_by":"a"},{"id":"two"}]}',
        "b": b'{"object":"list","data":[{"id":"one","owned_by":"b"},{"id":"three"},{"no":"id"}]}',
        "odd": b"not json",
        "other": b'["no list"]',
    }
    engines = [await backend(always(reply(body))) for body in lists.values()]
    dead = Backend("dead", f"http://127.0.0.1:{free_port()}")
    mute = await backend(silent)
    named = [Backend(name, engine.url) for name, engine in zip(lists, engines, strict=True)]
    async with open_house(*named, dead, Backend("mute", mute.url), models_timeout=0.2) as house:
        answer = await house.ask(request("GET", "/v1/models", headers=[("Authorization", "Bearer k")]))
        assert answer.status == 200
        data = json.loads(answer.body)["data"]
        assert {model["id"] for model in data} == {"one", "two", "three"}
        assert len(data) == 3
        assert engines[0].requests[0].get("Authorization") == "Bearer k"
        await mute.deserted()
        record = (await house.records.count(1))[0]
        assert (record.outcome, record.status) == (Outcome.COMPLETED, 200)


async def test_C13_where_no_backend_lists_models_the_first_speaks_for_itself(backend: StartBackend) -> None:
    engines = [await backend(always(reply(b'{"error":"key"}', "401 Unauthorized"))) for _ in range(2)]
    async with open_house(*engines) as house:
        answer = await house.ask(request("GET", "/v1/models"))
        assert answer.status == 401
        assert answer.body == b'{"error":"key"}'


async def test_one_backend_answers_for_its_models_itself(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"data" : []}')))
    async with open_house(engine) as house:
        assert (await house.ask(request("GET", "/v1/models"))).body == b'{"data" : []}'


async def test_a_cheap_request_goes_to_a_backend_that_has_its_model(backend: StartBackend) -> None:
    engines = [await backend(always(reply(b'{"at":"%b"}' % name))) for name in (b"a", b"b")]
    named = [Backend("a", engines[0].url, models=("x",)), Backend("b", engines[1].url, models=("y",))]
    async with open_house(*named) as house:
        for _ in range(4):
            answer = await house.ask(request(target="/tokenize", body=b'{"model":"y","prompt":"p"}'))
            assert answer.body == b'{"at":"b"}'


async def test_a_backends_key_replaces_the_clients(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(Backend("a", engine.url, api_key="backend-key")) as house:
        await house.ask(
            request(body=CHAT, headers=[("Authorization", "Bearer client-key"), ("x-api-key", "client-key")])
        )
        assert engine.requests[0].all("Authorization") == ["Bearer backend-key"]
        assert engine.requests[0].all("x-api-key") == []
