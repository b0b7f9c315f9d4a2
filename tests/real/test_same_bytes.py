"""An answer through the gateway is the engine's answer, byte for byte."""

from __future__ import annotations

import pytest

from tests.real.cases import ANSWERS, ERRORS, LONG_TEXT, chat
from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import CONTEXT, LlamaCpp
from tests.real.process import eventually
from tests.real.same_bytes import comparable_body, comparable_headers, framing
from tests.real.wire import Reply, Request, exchange

pytestmark = pytest.mark.real


def events(reply: Reply) -> list[bytes]:
    """The events of a stream."""
    return comparable_body(reply).split(b"\n\n")


def assert_same(through: Reply, direct: Reply) -> None:
    assert through.status == direct.status
    assert comparable_headers(through) == comparable_headers(direct)
    assert framing(through) == framing(direct)
    assert comparable_body(through) == comparable_body(direct)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str, engine: LlamaCpp, gateway: GatewayProcess) -> None:
    direct, through = (exchange(port, ANSWERS[name]) for port in (engine.port, gateway.port))
    assert direct.status == 200
    assert_same(through, direct)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_the_engines_own(name: str, engine: LlamaCpp, gateway: GatewayProcess) -> None:
    direct, through = (exchange(port, ERRORS[name]) for port in (engine.port, gateway.port))
    assert direct.status >= 400
    assert_same(through, direct)


def test_choices_of_a_stream_may_interleave_but_are_the_same(engine: LlamaCpp, gateway: GatewayProcess) -> None:
    request = chat({"stream": True, "n": 2})
    direct, through = (exchange(port, request) for port in (engine.port, gateway.port))
    assert sorted(events(through)) == sorted(events(direct))
    assert events(through)[-2:] == [b"data: [DONE]", b""]


def test_a_prompt_of_several_batches(engine: LlamaCpp, gateway: GatewayProcess) -> None:
    request = chat({"messages": [{"role": "user", "content": LONG_TEXT[:CONTEXT]}], "max_tokens": 3})
    direct, through = (exchange(port, request) for port in (engine.port, gateway.port))
    assert direct.json()["usage"]["prompt_tokens"] > CONTEXT / 5
    assert_same(through, direct)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/chat/completions", "/v1/nothing"])
def test_other_methods(method: str, path: str, engine: LlamaCpp, gateway: GatewayProcess) -> None:
    request = Request(method, path, headers=(("Origin", "http://a.example"),))
    direct, through = (exchange(port, request) for port in (engine.port, gateway.port))
    assert through.status == direct.status
    assert comparable_headers(through) == comparable_headers(direct)
    assert through.body == direct.body
    assert through.header("content-length") == direct.header("content-length")


def test_the_engine_repeats_itself(engine: LlamaCpp) -> None:
    """Else a comparison would show nothing: what differs from answer to answer is all in the list."""
    for request in ANSWERS.values():
        first, second = (exchange(engine.port, request) for _ in range(2))
        assert_same(first, second)
        assert first.header("date") is None


@pytest.mark.parametrize("name", ["chat", "chat, streamed", "message, streamed", "bad JSON", "models"])
def test_what_the_gateway_adds(name: str, gateway: GatewayProcess) -> None:
    reply = exchange(gateway.port, (ANSWERS | ERRORS)[name])
    assert reply.header("x-request-id")
    timings = dict(part.strip().split(";dur=") for part in (reply.header("server-timing") or "").split(","))
    assert all(float(milliseconds) >= 0.0 for milliseconds in timings.values())
    assert timings
    if "streamed" in name:
        assert reply.header("x-accel-buffering") == "no"


def test_a_request_id_of_the_client_is_kept(gateway: GatewayProcess) -> None:
    request = chat()
    named = Request(request.method, request.path, request.body, (("X-Request-Id", "trace-4711"),))
    assert exchange(gateway.port, named).header("x-request-id") == "trace-4711"
    eventually(lambda: [line["status"] for line in gateway.logged("trace-4711")] == [200], "it is in the access log")


@pytest.mark.parametrize("name", ["rerank by a model without", "bad JSON", "unknown path, posted", "too long"])
def test_what_a_client_asks_in_vain_says_nothing_against_the_engine(name: str, gateway: GatewayProcess) -> None:
    status = exchange(gateway.port, ERRORS[name]).status
    assert {exchange(gateway.port, ERRORS[name]).status for _ in range(12)} == {status}
    assert gateway.state()["backends"][0]["health"] == "up"


def test_an_engine_that_fails_on_one_kind_of_request_still_serves_the_others(gateway: GatewayProcess) -> None:
    """Of what is too long to embed llama.cpp says 500, as of a failure of its own."""
    assert {exchange(gateway.port, ERRORS["too long to embed"]).status for _ in range(12)} == {500}
    assert exchange(gateway.port, chat()).status == 200
    eventually(lambda: gateway.state()["backends"][0]["health"] == "up", "the engine counts as up again")
