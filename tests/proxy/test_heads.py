"""Heads that are known: a request is taken by its bytes only where the parser would take it for the same."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.proxy.heads import LONGEST, Head, Heads
from gateway.proxy.listener import ClientConnection, _Parsed
from tests.fuzz.effort import EFFORT
from tests.proxy.helpers import CHAT, RawClient, ScriptedBackend, always, open_house, reply, request

NAMED = request(body=CHAT, headers=[("X-Request-Id", "one"), ("Authorization", "Bearer k"), ("Accept", "*/*")])
NAMELESS = request(body=CHAT, headers=[("Accept", "*/*")])


def parsed(data: bytes) -> list[tuple[RawRequestMessage, bytes]]:
    """What aiohttp's parser makes of ``data``; nothing where it refuses it."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, max_line_size=8190, max_field_size=8190)
        messages, _, _ = parser.feed_data(data)
        return [(message, b"".join(content._buffer) if content.is_eof() else b"") for message, content in messages]
    except HttpProcessingError:
        return []
    finally:
        loop.close()


def learned(*requests: bytes) -> Heads:
    heads = Heads()
    for data in requests:
        ((message, body),) = parsed(data)
        heads.learn(data, Head(_Parsed(message)), len(body))
    return heads


def test_another_length_and_another_id_are_the_same_head() -> None:
    heads = learned(NAMED)
    other = NAMED.replace(b"one", b"chatcmpl-2_a.b:c").replace(str(len(CHAT)).encode(), b"3")
    found = heads.find(other)
    assert found is not None
    assert (found.request_id, found.size - found.body_at) == ("chatcmpl-2_a.b:c", 3)
    assert found.body_at == other.index(b"\r\n\r\n") + 4
    assert found.head.headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    "other",
    [
        NAMED.replace(b"Bearer k", b"Bearer x"),
        NAMED.replace(b"POST", b"PUT"),
        NAMED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        NAMED.replace(b"one", b"o ne"),
        NAMED.replace(b"one", b""),
        NAMED.replace(b"one", b"one\r\nX-More: 1"),
        NAMED.replace(b"one", b"one\x00"),
        NAMED.replace(b"one", b"o\nne"),
        NAMED.replace(b"one", b"x" * 200),
        NAMED.replace(b"Content-Length: ", b"Content-Length: 0"),
        NAMED.replace(b"Content-Length: ", b"Content-Length: +"),
        NAMED.replace(b"Content-Length: ", b"Content-Length: 1, "),
        NAMED.replace(b"Content-Length: ", b"content-length: "),
        NAMED.replace(b"Content-Length: ", b"Content-Length:  "),
        NAMED.replace(b"Content-Length: ", b"Content-Length: 3\r\nContent-Length: "),
        NAMED.replace(b"Accept", b"Transfer-Encoding: chunked\r\nAccept"),
        b"\r\n" + NAMED,
        NAMED[:-1].replace(b"\r\n\r\n", b"\r\n"),
    ],
)
def test_whatever_else_differs_is_for_the_parser(other: bytes) -> None:
    assert learned(NAMED).find(other) is None


@pytest.mark.parametrize(
    "data",
    [
        request("PUT", body=CHAT),
        request(body=CHAT, version="1.0"),
        request(body=CHAT, headers=[("Expect", "100-continue")]),
        request(body=CHAT, headers=[("Upgrade", "websocket")]),
        request(body=CHAT, headers=[("X-Request-Id", "a"), ("x-request-id", "b")]),
        request(body=CHAT, headers=[("X-Long", "x" * LONGEST)]),
        request(body=CHAT, length=False, headers=[("CONTENT-LENGTH", str(len(CHAT)))]),
        request(body=b"b: c\r\n\r\n", headers=[("X", "1")]).replace(b"Content-Length", b"CONTENT-LENGTH")
        + request(body=CHAT),
    ],
)
def test_heads_that_are_not_remembered(data: bytes) -> None:
    heads = Heads()
    message, body = parsed(data)[0]
    heads.learn(data, Head(_Parsed(message)), len(body))
    assert heads.find(data) is None


def test_a_length_that_is_not_the_parsers_teaches_nothing() -> None:
    ((message, body),) = parsed(NAMED)
    heads = Heads()
    heads.learn(NAMED, Head(_Parsed(message)), len(body) + 1)
    assert heads.find(NAMED) is None


def test_where_ids_mean_more_than_ids_none_may_differ() -> None:
    heads = Heads(ids=False)
    for data in (NAMED, NAMELESS):
        ((message, body),) = parsed(data)
        heads.learn(data, Head(_Parsed(message)), len(body))
    assert heads.find(NAMED) is None
    assert heads.find(NAMELESS) is not None


def test_no_more_than_so_many_are_remembered() -> None:
    heads = learned(*(request(body=CHAT, headers=[("X-Number", str(number))]) for number in range(600)))
    assert len(heads._known) <= 256


PIECES = st.binary(max_size=6) | st.sampled_from(
    [b"\r\n", b"\r\n\r\n", b"\n", b": ", b"0", b"1", b" ", b"\t", b"\x00", b"Content-Length: 5\r\n", b"X-Request-Id: a"]
)


@given(st.sampled_from([NAMED, NAMELESS]), st.integers(0, 400), st.integers(0, 400), PIECES)
@example(NAMED, 60, 63, b"xyz")
@settings(EFFORT, max_examples=300)
def test_what_is_known_is_what_the_parser_says(data: bytes, start: int, end: int, piece: bytes) -> None:
    other = data[:start] + piece + data[max(start, end) :]
    found = KNOWN.find(other)
    if found is None:
        return
    whole = (other + b"x" * found.size)[: found.size]
    ((message, body),) = parsed(whole)
    head = found.head
    varying = {b"content-length", b"x-request-id"}
    assert (message.method, message.path, message.version.minor) == (head.method, head.target, 1)
    assert [h for h in message.raw_headers if h[0].lower() not in varying] == [
        h for h in head.raw_headers if h[0].lower() not in varying
    ]
    assert message.headers.get("X-Request-Id", "") == found.request_id
    assert body == whole[found.body_at :]
    assert not message.should_close
    assert not message.chunked


KNOWN = learned(NAMED, NAMELESS)


async def test_a_head_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parses: list[bytes] = []
    parse = ClientConnection._parse

    def counted(self: ClientConnection, data: bytes) -> None:
        parses.append(data)
        parse(self, data)

    monkeypatch.setattr(ClientConnection, "_parse", counted)
    engine = await ScriptedBackend(always(reply())).start()
    async with open_house(engine) as house:
        client = await RawClient.connect(house.gateway.url)
        for number in range(4):
            body = CHAT.replace(b"}", b" " * number + b"}")
            assert (await client.ask(request(body=body, headers=[("X-Request-Id", f"id{number}")]))).status == 200
            assert engine.requests[-1].body == body
            assert engine.requests[-1].get("X-Request-Id") == f"id{number}"
            assert engine.requests[-1].get("Content-Length") == str(len(body))
            assert house.records.all[-1].bytes_in == len(body)
        assert len([data for data in parses if data]) == 1
        client.close()
    await engine.stop()


async def test_a_body_that_comes_apart_from_a_known_head() -> None:
    engine = await ScriptedBackend(always(reply())).start()
    async with open_house(engine) as house:
        client = await RawClient.connect(house.gateway.url)
        data = request(body=CHAT)
        assert (await client.ask(data)).status == 200
        at = data.index(b"\r\n\r\n") + 4
        for cuts in ((at,), (at, at + 1), (10,), (at + 3,), (10, at, at + 5)):
            for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                await client.send(data[start:end])
                await asyncio.sleep(0.005)
            assert (await client.answer()).status == 200
            assert engine.requests[-1].body == CHAT
        client.close()
    await engine.stop()


async def test_a_known_head_whose_body_is_late_and_what_follows_it() -> None:
    engine = await ScriptedBackend(always(reply())).start()
    async with open_house(engine) as house:
        client = await RawClient.connect(house.gateway.url)
        data = request(body=CHAT)
        assert (await client.ask(data)).status == 200
        await client.send(data[:-3])
        await asyncio.sleep(0.1)  # longer than the moment in which it is awaited without a task
        await client.send(data[-3:] + data + data[:20])
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        await client.send(data[20:])
        assert (await client.answer()).status == 200
        assert [message.body for message in engine.requests] == [CHAT] * 4
        client.close()
    await engine.stop()


async def test_a_known_head_whose_client_leaves_before_its_body() -> None:
    engine = await ScriptedBackend(always(reply())).start()
    async with open_house(engine) as house:
        client = await RawClient.connect(house.gateway.url)
        data = request(body=CHAT)
        assert (await client.ask(data)).status == 200
        await client.send(data[:-3])
        client.close()
        await asyncio.sleep(0.1)
        assert (await house.ask(data)).status == 200
        assert len(engine.requests) == 2
    await engine.stop()
