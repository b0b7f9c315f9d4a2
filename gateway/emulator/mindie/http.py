"""HTTP as cpp-httplib reads and writes it under MindIE's handlers (utils/http_rest_resource.cpp)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import orjson

KEEP_ALIVE: Final = 180.0  # seconds that an idle connection holds its thread
REQUESTS: Final = 100  # on one connection: CPPHTTPLIB_KEEPALIVE_MAX_COUNT
MAX_BODY: Final = 40 * 1024 * 1024  # maxRequestLength


@dataclass(slots=True)
class Request:
    """One request; ``close``: its connection ends with it."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    uuid: str = ""
    close: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; ``status`` 0 stands for a stream that was written already."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"


def json_answer(document: dict[str, Any], status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, orjson.dumps(document))


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request, None where the client has no more."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, target, version = start.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    close = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
    request = Request(method, target.partition("?")[0], headers=headers, close=close)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if int(headers.get("content-length", "0")) > MAX_BODY:
        writer.write(whole(request, Answer(413, b"Request body too large. Maximum allowed size is 40MB.")))
        return None
    request.body = await _read_body(reader, headers)
    return request


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def whole(request: Request, answer: Answer) -> bytes:
    """A whole answer closes its connection."""
    phrase = HTTPStatus(answer.status).phrase
    kind = f"Content-Type: {answer.content_type}\r\n" if answer.content_type else ""
    head = (
        f"HTTP/1.1 {answer.status} {phrase}\r\nConnection: close\r\nContent-Length: {len(answer.body)}\r\n"
        f"{kind}RequestUUID: {request.uuid}\r\n\r\n"
    )
    return head.encode() + (b"" if request.method == "HEAD" else answer.body)


def stream_head(request: Request) -> bytes:
    """A stream's head does not, unless it was asked to; it leaves before the first token."""
    connection = "Connection: close" if request.close else f"Keep-Alive: timeout={KEEP_ALIVE:g}, max={REQUESTS}"
    return (
        f"HTTP/1.1 200 OK\r\n{connection}\r\nContent-Type: text/event-stream\r\nRequestUUID: {request.uuid}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
