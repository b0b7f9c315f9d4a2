"""Clients of the plain kind: curl, HTTP/1.0, bodies announced or sent in their own way."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import closing
from typing import Final

import pytest

from tests.real.cases import GZIPPED, STREAM, chat, lasting
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, eventually
from tests.real.same_bytes import ANEW
from tests.real.tap import Tap
from tests.real.wire import Request, exchange

pytestmark = pytest.mark.real

CURL: Final = shutil.which("curl")
needs_curl = pytest.mark.skipif(CURL is None, reason="curl is not installed")
BIG: Final = chat({"messages": [{"role": "user", "content": "hello"}], "padding": "x" * 1_500_000})


def curl(port: int, *arguments: str, path: str = "/v1/chat/completions", data: bytes = b"") -> tuple[str, bytes]:
    """(head of the last answer, everything after it) of one call of curl."""
    assert CURL is not None
    command = [CURL, "-sS", "-i", "-m", f"{PATIENCE:g}", *arguments, f"http://127.0.0.1:{port}{path}"]
    if data:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    finished = subprocess.run(command, input=data, capture_output=True, check=True)  # noqa: S603 - curl, found above
    text = finished.stdout.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = text.partition(b"\r\n\r\n")
    return head.decode().lower(), body


def talk(port: int, request: bytes) -> bytes:
    """Send these bytes and read until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def one_zero(request: Request, *headers: str) -> bytes:
    """An HTTP/1.0 request."""
    body = request.encoded()
    head = [f"{request.method} {request.path} HTTP/1.0", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def without_ids(body: bytes) -> bytes:
    """The body with what is made anew taken out."""
    for pattern, replacement in ANEW:
        body = pattern.sub(replacement, body)
    return body


@needs_curl
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_curl(version: str, stream: bool, served: int) -> None:
    head, body = curl(served, version, "-N", data=chat({"stream": stream}).encoded())
    assert " 200 " in head.splitlines()[0]
    assert without_ids(body) == without_ids(exchange(served, chat({"stream": stream})).body)


@needs_curl
def test_curl_head(served: int) -> None:
    head, body = curl(served, "-I", path="/v1/models")
    assert " 200 " in head.splitlines()[0]
    assert body == b""


@needs_curl
def test_curl_announces_a_big_body(served: int) -> None:
    head, body = curl(served, "-H", "Expect: 100-continue", data=BIG.encoded())
    assert " 200 " in head.splitlines()[0]
    assert json.loads(body)["usage"]["completion_tokens"] == 24


def test_http_1_0_stream(gateway: GatewayProcess) -> None:
    """P32 (aio-libs/aiohttp#476). llama.cpp itself sends chunks to such a client, which cannot read them."""
    head, _, body = talk(gateway.port, one_zero(chat(STREAM))).partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert b"transfer-encoding" not in head.lower()
    assert without_ids(body) == without_ids(exchange(gateway.port, chat(STREAM)).body)


def test_http_1_0_stream_comes_as_it_is_made(gateway: GatewayProcess) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as connection:
        connection.sendall(one_zero(lasting("by and by", stream=True)))
        heard = b""
        while heard.count(b"data: ") < 3:
            heard += connection.recv(65536)
        assert gateway.running() >= 1


def test_http_1_0_may_keep_its_connection(gateway: GatewayProcess) -> None:
    request = one_zero(chat(), "Connection: keep-alive")
    with (
        socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as connection,
        connection.makefile("rb") as answers,
    ):
        for _ in range(2):
            connection.sendall(request)
            head = dict(
                line.lower().split(b": ", 1) for line in iter(lambda: answers.readline().strip(), b"") if b": " in line
            )
            assert json.loads(answers.read(int(head[b"content-length"])))["usage"]["completion_tokens"] == 24
            assert head[b"connection"] == b"keep-alive"


def test_a_body_that_waits_to_be_asked_for(gateway: GatewayProcess) -> None:
    body = BIG.encoded()
    head = f"POST {BIG.path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as connection:
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_too_big_is_never_asked_for(gateway: GatewayProcess) -> None:
    """P35 (aio-libs/aiohttp#8877)."""
    size = 65 * 1024 * 1024
    head = f"POST {BIG.path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"GATEWAY_MAX_BODY_SIZE" in answer


def test_a_body_in_chunks(served: int) -> None:
    body = chat().encoded()
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = talk(served, head.encode() + chunked)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert without_ids(answer.partition(b"\r\n\r\n")[2]) == without_ids(exchange(served, chat()).body)


def test_a_compressed_body_reaches_the_engine_as_it_is(patient_gateway: GatewayProcess, tap: Tap) -> None:
    """S14, S15: nothing is unpacked on the way, so nothing can be made to unpack without end."""
    headers = (("Content-Encoding", "gzip"),)
    assert exchange(patient_gateway.port, Request("POST", "/v1/chat/completions", GZIPPED, headers)).status == 415
    eventually(lambda: bool(tap.that_heard(GZIPPED)), "the body goes on as it is")  # it may answer from the head alone
    (upstream,) = tap.that_heard(GZIPPED)
    assert b"content-encoding: gzip\r\n" in bytes(upstream.heard).lower()


def test_pipelined_requests_are_answered_in_order(served: int) -> None:
    one = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    two = "GET /v1/nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answers = talk(served, (one + two).encode())
    assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"HTTP/1.1 404 Not Found\r\n" in answers


def test_one_connection_serves_many(gateway: GatewayProcess) -> None:
    with closing(socket.create_connection(("127.0.0.1", gateway.port), PATIENCE)) as connection:
        for _ in range(50):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.recv(65536).endswith(b'{"status":"ok"}')
