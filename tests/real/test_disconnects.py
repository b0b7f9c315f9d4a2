"""A client that leaves frees what it held: its place in the queue, its permit, the engine's slot.

What llama.cpp itself does, seen without any gateway: it notices that a stream's reader has left when it writes the
next token; it never notices that nobody waits for an answer that is not streamed, and generates it to its end.
"""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.real.cases import chat, lasting, marked, slow_to_begin
from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import CONTEXT, LlamaCpp
from tests.real.process import Program, eventually
from tests.real.tap import Tap, Tapped
from tests.real.wire import exchange, opened, sent

pytestmark = pytest.mark.real

Leave = Callable[[http.client.HTTPConnection], None]


def close(connection: http.client.HTTPConnection) -> None:
    """Leave as a client does that has no further interest."""
    connection.close()


def reset(connection: http.client.HTTPConnection) -> None:
    """Leave as a client does whose machine gives up."""
    assert connection.sock is not None
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture(params=[close, reset], ids=["closed", "reset"])
def leave(request: pytest.FixtureRequest) -> Leave:
    chosen: Leave = request.param
    return chosen


@pytest.fixture
def gateway(patient_gateway: GatewayProcess, engine: LlamaCpp) -> Iterator[GatewayProcess]:
    """One at a time behind the tap; all must be idle before the test and after it."""
    at_rest(patient_gateway, engine)
    yield patient_gateway
    at_rest(patient_gateway, engine)
    assert exchange(patient_gateway.port, chat()).status == 200


def at_rest(gateway: GatewayProcess, engine: LlamaCpp) -> None:
    eventually(lambda: gateway.running() == gateway.waiting() == 0, "the gateway holds no permit and no queue")
    eventually(lambda: engine.running() == 0, "the engine has no request in a slot")


def left(gateway: GatewayProcess, mark: str) -> None:
    """The gateway knows that the client left, and nothing else went wrong."""
    outcomes = ["client_gone"]
    eventually(lambda: [line["outcome"] for line in gateway.logged(mark)] == outcomes, f"the log says: {outcomes}")


def cut_off(tap: Tap, mark: str) -> Tapped:
    """The gateway closed the connection of this request before the engine did."""
    (upstream,) = tap.that_heard(mark.encode())
    eventually(lambda: upstream.ended_by == "gateway", "the gateway ended its own request")
    return upstream


def cut_off_unanswered(tap: Tap, mark: str) -> None:
    """And the engine had not answered yet."""
    upstream = cut_off(tap, mark)
    assert upstream.said.count(b"HTTP/1.1 ") == upstream.heard.count(b"\r\nHost: ") - 1


def tokens_made(engine: LlamaCpp) -> float:
    return engine.figure("tokens_predicted_total")


def test_while_streaming(leave: Leave, gateway: GatewayProcess, engine: LlamaCpp, tap: Tap) -> None:
    before = tokens_made(engine)
    mark = f"leaves the stream, {leave.__name__}"
    with opened(gateway.port, lasting(mark, stream=True)) as (connection, response):
        assert response.read1().startswith(b"data: ")
        assert engine.running() == gateway.running() == 1
        leave(connection)
    left(gateway, mark)
    cut_off(tap, mark)
    at_rest(gateway, engine)
    assert tokens_made(engine) - before < CONTEXT / 2


def test_before_the_first_token_of_a_stream(leave: Leave, gateway: GatewayProcess, engine: LlamaCpp, tap: Tap) -> None:
    before = tokens_made(engine)
    mark = f"leaves before the first token, {leave.__name__}"
    connection = sent(gateway.port, slow_to_begin(mark))
    eventually(lambda: engine.running() == 1, "the engine reads the prompt")
    leave(connection)
    left(gateway, mark)
    cut_off(tap, mark)
    at_rest(gateway, engine)
    assert tokens_made(engine) - before < 10


def test_before_an_answer_that_is_not_streamed(
    leave: Leave, gateway: GatewayProcess, engine: LlamaCpp, tap: Tap
) -> None:
    mark = f"leaves before the answer, {leave.__name__}"
    connection = sent(gateway.port, lasting(mark, stream=False, tokens=500))
    eventually(lambda: engine.running() == 1, "the engine writes the answer")
    leave(connection)
    left(gateway, mark)
    cut_off_unanswered(tap, mark)
    eventually(lambda: gateway.running() == 0, "the permit is back")


def test_while_queued(leave: Leave, gateway: GatewayProcess, engine: LlamaCpp, tap: Tap) -> None:
    with opened(gateway.port, lasting("goes before it", stream=True)):
        waiting = sent(gateway.port, marked(f"{leave.__name__} in the queue"))
        behind = sent(gateway.port, marked(f"{leave.__name__} before it"))
        eventually(lambda: gateway.waiting() == 2, "two requests wait")
        leave(waiting)
        left(gateway, f"{leave.__name__} in the queue")
        eventually(lambda: gateway.waiting() == 1, "the place in the queue is free")
        assert gateway.running() == engine.running() == 1
    with closing(behind), behind.getresponse() as answer:
        assert answer.status == http.HTTPStatus.OK
        answer.read()
    assert tap.that_heard(f"{leave.__name__} before it".encode())
    assert not tap.that_heard(f"{leave.__name__} in the queue".encode())


@pytest.mark.parametrize("manner", ["stream", "whole"])
def test_when_the_client_is_killed(
    manner: str, gateway: GatewayProcess, engine: LlamaCpp, tap: Tap, tmp_path: Path
) -> None:
    """P04 (vllm-project/vllm#10806)."""
    mark = f"killed, {manner}"
    client = Program("client", ["tests.real.lone_client", str(gateway.port), mark, manner], tmp_path / "log", {})
    try:
        eventually(lambda: engine.running() == 1, "the engine works for the client")
        if manner == "stream":
            eventually(lambda: "data: " in client.tail(), "the client reads the stream")
    finally:
        client.kill()
    left(gateway, mark)
    (cut_off if manner == "stream" else cut_off_unanswered)(tap, mark)
    eventually(lambda: gateway.running() == 0, "the permit is back")


def test_cancelled_streams_never_use_up_the_limit(gateway: GatewayProcess) -> None:
    """F01 (BerriAI/litellm#27955)."""
    for _ in range(25):
        with opened(gateway.port, lasting("cancelled", stream=True)) as (_, response):
            assert response.status == http.HTTPStatus.OK
            assert response.read1()


def test_all_leave_at_once(gateway: GatewayProcess, tap: Tap) -> None:
    """O17 (ray-project/ray#21438): what nobody waits for any more is never sent to the engine."""
    crowd = [sent(gateway.port, lasting("one of a crowd", stream=i % 2 == 0)) for i in range(40)]
    eventually(lambda: gateway.waiting() == len(crowd) - 1, "one runs, the others wait")
    for connection in reversed(crowd):  # the one that runs leaves last: else the next would be sent in its place
        connection.close()
    eventually(lambda: gateway.waiting() == gateway.running() == 0, "all are gone")
    assert sum(upstream.heard.count(b"X-Request-Id: one of a crowd") for upstream in tap.connections) == 1
