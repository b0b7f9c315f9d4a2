"""Bytes of any kind at the listener: what reaches a backend is what the gateway saw, request for request.

Every test runs with aiohttp's parser in C, and the whole file once more with the one in Python: by itself in a process
of its own, for the choice is made at import.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
from aiohttp import http_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model import Record
from tests.dialects.helpers import cut
from tests.fuzz.effort import EFFORT, EXAMPLES
from tests.proxy.helpers import (
    CHAT,
    GUARD,
    House,
    Message,
    Peer,
    RawClient,
    ScriptedBackend,
    open_house,
    reply,
    request,
)

IN_PYTHON: Final = bool(os.environ.get("AIOHTTP_NO_EXTENSIONS"))
HIDDEN: Final = b"GET /hidden HTTP/1.1\r\nHost: b\r\n\r\n"
POST: Final = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"

# Each hides a request in what one reader takes for a body, or a field in what one reader takes for a value.
VECTORS: Final = {
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 31\r\n\r\n" + HIDDEN,
    "a list of lengths": POST + b"Content-Length: 0, 31\r\n\r\n" + HIDDEN,
    "length with a sign": POST + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "negative length": POST + b"Content-Length: -1\r\n\r\n" + HIDDEN,
    "length in hex": POST + b"Content-Length: 0x1f\r\n\r\n" + HIDDEN,
    "length with underscore": POST + b"Content-Length: 3_1\r\n\r\n" + HIDDEN,
    "length in other digits": POST + "Content-Length: \u0663\r\n\r\n".encode() + HIDDEN,
    "empty length": POST + b"Content-Length: \r\n\r\n" + HIDDEN,
    "huge length": POST + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n" + HIDDEN,
    "other coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked first": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a parameter": POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" + HIDDEN,
    "vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "space before colon": POST + b"Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + HIDDEN,
    "tab before colon": POST + b"Transfer-Encoding\t: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded": POST + b"X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded first": b"POST /v1/chat/completions HTTP/1.1\r\n Host: a\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "bare CR": POST + b"X-A: b\rTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare LF": POST + b"X-A: b\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + HIDDEN,
    "all LF": b"POST /v1/chat/completions HTTP/1.1\nHost: a\nContent-Length: 0\n\n" + HIDDEN,
    "CR CR LF": POST + b"Content-Length: 0\r\r\n\r\n" + HIDDEN,
    "NUL": POST + b"X-A: b\x00c\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "NUL in a name": POST + b"Content-Length\x00: 0\r\nContent-Length: 31\r\n\r\n" + HIDDEN,
    "no name": POST + b": chunked\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "no colon": POST + b"Transfer-Encoding chunked\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "space in a name": POST + b"X A: b\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "extension": POST + b"Transfer-Encoding: chunked\r\n\r\n0;x=\n\r\n\r\n" + HIDDEN,
    "long extension": POST + b"Transfer-Encoding: chunked\r\n\r\n0;" + b"x" * 100_000 + b"\r\n\r\n" + HIDDEN,
    "extension with CR": POST + b"Transfer-Encoding: chunked\r\n\r\n0;\r5\r\n\r\n" + HIDDEN,
    "chunk size in 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
    "chunk size with sign": POST + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n" + HIDDEN,
    "chunk size negative": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
    "chunk size too large": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n\r\n" + HIDDEN,
    "chunk size empty": POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunk longer than said": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n" + HIDDEN,
    "chunk ended by LF": POST + b"Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n" + HIDDEN,
    "trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 31\r\n\r\n" + HIDDEN,
    "chunks in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a length with GET": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: 34\r\n\r\n" + HIDDEN,
    "chunks with GET": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "version 2": b"POST /v1/completions HTTP/2.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "version 0.9": b"GET /v1/models\r\n" + HIDDEN,
    "four words": b"GET /v1/models x HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "target with CR": b"GET /v1/models\rX: y HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "target with LF": b"GET /v1/models\nX: y HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "target with NUL": b"GET /v1/models\x00 HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "escaped lines": b"GET /v1/models%0d%0aX:%20y%0d%0a%0d%0a HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "odd method": b"GE\x00T /v1/models HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "upgrade to h2c": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n" + HIDDEN,
    "hop by hop length": POST + b"Connection: Content-Length\r\nContent-Length: 31\r\n\r\n" + HIDDEN,
    "hop by hop coding": POST
    + b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "absolute target": b"GET http://evil.test/v1/models HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: evil.test\r\n\r\n" + HIDDEN,
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(64),
}


async def answered(peer: Peer, message: Message) -> None:
    await peer.send(reply(message.target.encode("latin-1")))


async def backend_of_fuzz() -> ScriptedBackend:
    return await ScriptedBackend(answered).start()


async def offer(house: House, data: bytes, cuts: Iterable[int] = ()) -> bytes:
    """Send ``data`` in pieces, end, and take whatever comes back."""
    taken = b""
    try:
        client = await RawClient.connect(house.gateway.url)
    except ConnectionError:
        return taken
    try:
        for piece in cut(data, cuts):
            client.writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(GUARD):
            while part := await client.reader.read(65536):
                taken += part
                if taken.count(b"HTTP/1.1 ") > 4:
                    break
    except ConnectionError:
        return b""
    finally:
        client.close()
    return taken


async def lives(house: House) -> bool:
    """Whether it serves on. A connection that is slow for a moment is cut here, where times are so short."""
    for _ in range(50):
        try:
            return (await house.ask(request(body=CHAT))).status == HTTPStatus.OK
        except (ConnectionError, asyncio.IncompleteReadError):
            continue
    return False


def same(records: list[Record], seen: list[Message]) -> None:
    """The backend saw the requests that the gateway saw, no more and no others, each framed in one way."""
    relayed = [record for record in records if record.backend == "a"]
    assert len(seen) <= len(relayed)
    told = [(record.method, record.path) for record in relayed]
    for message in seen:
        path = message.target.partition("?")[0]
        assert (message.method, path) in told, f"{message.method} {message.target} came from nowhere"
        assert len(message.all("Content-Length")) + len(message.all("Transfer-Encoding")) <= 1
        assert message.all("Transfer-Encoding") == []
        assert len(message.all("Host")) == 1
        assert not any(char in value for _, value in message.headers for char in "\r\n\0")


def test_the_parser_is_the_one_that_is_meant() -> None:
    python = http_parser.HttpRequestParser is http_parser.HttpRequestParserPy
    assert python == IN_PYTHON


@pytest.mark.parametrize("name", VECTORS)
async def test_nothing_is_smuggled(name: str) -> None:
    engine = await backend_of_fuzz()
    try:
        async with open_house(engine, client_keepalive=0.2, client_timeout=0.3) as house:
            said = await offer(house, VECTORS[name])
            same(house.records.all, engine.requests)
            bodies = [message.body for message in engine.requests]
            hidden = [message for message in engine.requests if message.target == "/hidden"]
            assert len(hidden) == sum(record.path == "/hidden" for record in house.records.all)
            assert not (hidden and any(b"/hidden" in body for body in bodies)), "it was read in two ways"
            assert said.count(b"HTTP/1.1 ") <= len(house.records.all) + 1
            assert b"Traceback" not in said
            assert await lives(house)
    finally:
        await engine.stop()


@pytest.mark.parametrize("name", VECTORS)
async def test_nothing_is_smuggled_behind_a_head_that_is_known(name: str) -> None:
    engine = await backend_of_fuzz()
    try:
        async with open_house(engine, client_keepalive=0.2, client_timeout=0.3) as house:
            client = await RawClient.connect(house.gateway.url)
            for data in (POST + b"Content-Length: 1\r\n\r\n1", POST + b"Content-Length: 12\r\n\r\n" + b"1" * 12):
                assert (await client.ask(data)).status == HTTPStatus.OK
            client.writer.write(VECTORS[name])
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(GUARD):
                    while await client.reader.read(65536):
                        pass
            client.close()
            same(house.records.all, engine.requests)
            hidden = [message for message in engine.requests if message.target == "/hidden"]
            assert len(hidden) == sum(record.path == "/hidden" for record in house.records.all)
            assert not (hidden and any(b"/hidden" in message.body for message in engine.requests))
            assert await lives(house)
    finally:
        await engine.stop()


LINES: Final = st.sampled_from(
    [
        *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b": ", b":", b" ", b"\t", b"\x00", b"\x0b", b"\xff", b";"),
        *(b"0\r\n\r\n", b"5\r\n", b"Content-Length: 5", b"Content-Length: 0", b"Content-Length", b"x" * 300, b"hello"),
        *(
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding",
            b"chunked",
            b"Host: a",
            b"Connection: close",
            b"HTTP/1.1",
        ),
        *(
            b"Expect: 100-continue",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"X-Request-Id: a",
            b"GET / HTTP/1.1",
        ),
        *(b"POST /v1/completions HTTP/1.1", b"GET /hidden HTTP/1.0", b"OPTIONS * HTTP/1.1", b"CONNECT a:1 HTTP/1.1"),
        *(b"HEAD /v1/models HTTP/1.1", b"Connection: keep-alive"),
    ]
)
FRAMES: Final = st.lists(st.tuples(LINES, st.sampled_from([b"", b"\r\n"])), max_size=14).map(
    lambda parts: b"".join(line + end for line, end in parts)
)
STARTS: Final = st.sampled_from([b"", POST, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"])
STREAMS: Final = st.tuples(STARTS, FRAMES | st.binary())
SOME: Final = settings(EFFORT, max_examples=EXAMPLES or 20)


@given(st.lists(STREAMS.map(b"".join), min_size=8, max_size=8), st.lists(st.integers(0, 200), max_size=4))
@SOME
def test_bytes_of_any_kind_desynchronise_nobody(streams: list[bytes], cuts: list[int]) -> None:
    async def run() -> None:
        engine = await backend_of_fuzz()
        try:
            async with open_house(engine, client_keepalive=0.05, client_timeout=0.05) as house:
                answers = await asyncio.gather(*(offer(house, stream, cuts) for stream in streams))
                same(house.records.all, engine.requests)
                assert not any(b"internal_error" in answer for answer in answers)
                assert await lives(house)
                assert house.controller.balanced
        finally:
            await engine.stop()

    asyncio.run(run())


@given(st.text(max_size=60), st.text(max_size=30))
@SOME
def test_no_value_of_a_client_splits_an_answer(value: str, name: str) -> None:
    """What is said back of a request (its id, its path in an error) adds no line to a head."""

    async def run() -> None:
        engine = await backend_of_fuzz()
        try:
            async with open_house(engine, client_keepalive=0.05, client_timeout=0.05) as house:
                sent = value.encode("utf-8", "surrogateescape").replace(b"\r\n", b"\r").replace(b"\n", b"\r")
                path = (
                    name.encode("utf-8", "surrogateescape").replace(b" ", b"+").replace(b"\r", b"").replace(b"\n", b"")
                )
                head = b"GET /stopService/%b HTTP/1.1\r\nHost: a\r\nX-Request-Id: %b\r\n\r\n" % (path, sent)
                said = (await offer(house, head)).partition(b"\r\n\r\n")[0]
                lines = said.split(b"\r\n")[1:]
                assert not any(b"\r" in line or b"\n" in line for line in lines)
                assert all(line.partition(b":")[0].decode().isprintable() for line in lines)
        finally:
            await engine.stop()

    asyncio.run(run())


@pytest.mark.skipif(IN_PYTHON, reason="this is the other process")
@pytest.mark.timeout(600)
def test_all_of_it_with_the_parser_in_python() -> None:
    environment = os.environ | {"AIOHTTP_NO_EXTENSIONS": "1", "FUZZ_EXAMPLES": str(EXAMPLES)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", __file__]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    assert ran.returncode == 0, ran.stdout[-6000:]
