"""Heads that are known: a request is taken by its bytes only where the parser would take it for the same."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.proxy.heads import Head, Heads
from gateway.proxy.http import ResponseHead
from gateway.proxy.known import LONGEST
from gateway.proxy.listener import Parsed, Parsing
from gateway.proxy.upstream import Answers, Connection
from tests.fuzz.effort import EFFORT
from tests.proxy.helpers import CHAT, Message, Peer, RawClient, StartBackend, always, open_house, reply, request

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
        heads.learn(data, Head(Parsed(message)), len(body))
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
        request(body=CHAT, headers=[("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")]),
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
    heads.learn(data, Head(Parsed(message)), len(body))
    assert heads.find(data) is None


def test_a_length_that_is_not_the_parsers_teaches_nothing() -> None:
    ((message, body),) = parsed(NAMED)
    heads = Heads()
    heads.learn(NAMED, Head(Parsed(message)), len(body) + 1)
    assert heads.find(NAMED) is None


def test_where_ids_mean_more_than_ids_none_may_differ() -> None:
    heads = Heads(ids=False)
    for data in (NAMED, NAMELESS):
        ((message, body),) = parsed(data)
        heads.learn(data, Head(Parsed(message)), len(body))
    assert heads.find(NAMED) is None
    assert heads.find(NAMELESS) is not None


def numbered(first: int, last: int) -> list[bytes]:
    return [request(body=CHAT, headers=[("X-Number", str(number))]) for number in range(first, last)]


def test_no_more_than_so_many_are_remembered() -> None:
    heads = learned(*numbered(0, 900))
    assert len(heads._known) <= 256
    assert len(heads._older) <= 256
    assert heads.find(numbered(0, 1)[0]) is None
    assert heads.find(numbered(899, 900)[0]) is not None


def test_one_that_comes_again_outlives_those_that_do_not() -> None:
    heads = Heads()
    for data in [NAMED, *numbered(0, 2000)]:
        ((message, body),) = parsed(data)
        heads.learn(data, Head(Parsed(message)), len(body))
        assert heads.find(NAMED) is not None


PIECES = st.binary(max_size=6) | st.sampled_from(
    [b"\r\n", b"\r\n\r\n", b"\n", b": ", b"0", b"1", b" ", b"\t", b"\x00", b"Content-Length: 5\r\n", b"X-Request-Id: a"]
)


@given(st.sampled_from([NAMED, NAMELESS]), st.integers(0, 400), st.integers(0, 400), PIECES)
@example(NAMED, 60, 63, b"xyz")
@example(NAMELESS, 0, 0, b"")
@settings(EFFORT, max_examples=300)
def test_what_is_known_is_what_the_parser_says(data: bytes, start: int, end: int, piece: bytes) -> None:
    other = data[:start] + piece + data[max(start, end) :]
    found = KNOWN.find(other)
    slow = copy.copy(KNOWN)
    slow._last = None  # what came last is known by another look, which must find the same
    again = slow.find(other)
    assert (found is None) is (again is None)
    if found is None or again is None:
        return
    assert (found.head, found.request_id, found.body_at, found.size) == (
        again.head, again.request_id, again.body_at, again.size,
    )  # fmt: skip
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


async def test_a_head_is_parsed_once(backend: StartBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    parses: list[bytes] = []
    parse = Parsing.data_received

    def counted(self: Parsing, data: bytes) -> None:
        parses.append(data)
        parse(self, data)

    monkeypatch.setattr(Parsing, "data_received", counted)
    engine = await backend(always(reply()))
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
        (connection,) = house.front._clients.connections  # type: ignore[union-attr]
        assert connection._parser is None, "what comes needs none"
        client.close()


async def test_a_body_that_comes_apart_from_a_known_head(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
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


async def test_a_known_head_whose_body_is_late_and_what_follows_it(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
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


async def test_a_connection_from_before_a_reload_teaches_those_after_it_nothing(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        data = request(body=CHAT, headers=[("X-Long", "x" * 2000)])
        early = await RawClient.connect(house.gateway.url)
        assert (await early.ask(data)).status == 200
        await house.gateway.reconfigure(replace(house.gateway._config, max_header=1024))
        assert (await early.ask(data)).status == 200  # by the settings that it came under
        late = await RawClient.connect(house.gateway.url)
        assert (await late.ask(data)).status in {400, 431}
        early.close()
        late.close()


async def test_a_known_head_whose_client_leaves_before_its_body(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await RawClient.connect(house.gateway.url)
        data = request(body=CHAT)
        assert (await client.ask(data)).status == 200
        await client.send(data[:-3])
        client.close()
        await asyncio.sleep(0.1)
        assert (await house.ask(data)).status == 200
        assert len(engine.requests) == 2


# -- the other side: answers whose heads are known ----------------------------------------------------------------


def test_an_answers_head_that_comes_again_outlives_those_of_a_second() -> None:
    answers = Answers(64)
    for second in range(200):
        for date in ("always", f"second {second}"):
            data = reply(b"{}", headers=[("Date", date)])
            headers = [(b"Date", date.encode()), (b"Content-Length", b"2")]
            answers.learn(data, ResponseHead(200, b"OK", headers, length=2))
        assert answers.take(reply(b'{"a":1}', headers=[("Date", "always")])) is not None
    assert answers.take(reply(b"{}", headers=[("Date", "second 0")])) is None
    assert answers.take(reply(b"{}", headers=[("Date", "second 199")])) is not None
    assert answers.take(reply(b"{}", headers=[("Date", "second 199")]) + b"more") is None


async def test_an_answers_head_is_parsed_once_and_passed_on_with_its_own_length(
    backend: StartBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parses: list[bytes] = []
    parse = Connection._parse

    def counted(self: Connection, data: bytes) -> None:
        parses.append(data)
        parse(self, data)

    monkeypatch.setattr(Connection, "_parse", counted)
    bodies = iter([b"{}", b'{"a":1}', b"", b'{"usage":{"completion_tokens":7}}'])

    async def script(peer: Peer, _message: Message) -> None:
        body = next(bodies)
        await peer.send(reply(body, headers=[("Content-Type", "application/json"), ("X-Request-Id", f"e{len(body)}")]))

    engine = await backend(script)
    async with open_house(engine) as house:
        house.front._upstreams["a"]._keeps = {False: True}
        client = await RawClient.connect(house.gateway.url)
        answers = [await client.ask(request("POST", "/v1/embeddings", CHAT, [("X-Request-Id", "me")])) for _ in "123"]
        assert [answer.body for answer in answers[:2]] == [b"{}", b'{"a":1}']
        assert [answer.get("Content-Length") for answer in answers[:2]] == ["2", "7"]
        assert {answer.get("X-Request-Id") for answer in answers} == {"me"}
        last = await client.ask(request(body=CHAT))
        assert last.body == b'{"usage":{"completion_tokens":7}}'
        usage = house.records.all[-1].usage
        assert usage is not None
        assert usage.completion_tokens == 7
        answers_parsed = [data for data in parses if data.startswith(b"HTTP/1.1 200")]
        assert len([data for data in answers_parsed if b"X-Request-Id" in data]) == 1
        client.close()


@pytest.mark.parametrize(
    "second",
    [
        reply(b"{}") + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        reply(b"{}").replace(b"200 OK", b"500 Oh"),
        reply(b"{}").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        reply(b"{}")
        .replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")
        .replace(b"{}", b"2\r\n{}\r\n0\r\n\r\n"),
    ],
    ids=["more than asked for", "another status", "to be closed", "in chunks"],
)
async def test_an_answer_that_differs_is_parsed(backend: StartBackend, second: bytes) -> None:
    said = iter([reply(b"{}"), second])

    async def script(peer: Peer, _message: Message) -> None:
        await peer.send(next(said, reply(b"{}")))

    engine = await backend(script)
    async with open_house(engine) as house:
        house.front._upstreams["a"]._keeps = {False: True, True: True}
        client = await RawClient.connect(house.gateway.url)
        target = "/v1/embeddings"
        assert (await client.ask(request("POST", target, CHAT))).status == 200
        answer = await client.ask(request("POST", target, CHAT))
        assert (answer.status, answer.body) == (500 if b"500" in second else 200, b"{}")
        again = await client.ask(request("POST", target, CHAT))
        assert (again.status, again.body) == (200, b"{}")
        client.close()


async def test_an_answer_that_comes_in_pieces_behind_a_known_head(backend: StartBackend) -> None:
    async def script(peer: Peer, _message: Message) -> None:
        data = reply(b'{"some":"answer"}')
        for piece in (data[:10], data[10:-5], data[-5:]) if len(engine.requests) > 1 else (data,):
            await peer.send(piece)
            await asyncio.sleep(0.005)

    engine = await backend(script)
    async with open_house(engine) as house:
        house.front._upstreams["a"]._keeps = {False: True}
        client = await RawClient.connect(house.gateway.url)
        for _ in range(3):
            assert (await client.ask(request("POST", "/v1/embeddings", CHAT))).body == b'{"some":"answer"}'
        client.close()
