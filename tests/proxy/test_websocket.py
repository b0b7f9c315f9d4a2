"""A WebSocket is relayed as it is, holds a permit while it is open, and is refused before it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from gateway.model import Outcome, Reason
from tests.proxy.helpers import (
    CHAT,
    GUARD,
    House,
    Message,
    Peer,
    StartBackend,
    always,
    open_house,
    reply,
    request,
    wait_until,
)

Talk = Callable[[web.WebSocketResponse], Awaitable[None]]
UPGRADE = [
    ("Connection", "keep-alive, Upgrade"),
    ("Upgrade", "WebSocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Engine: e\r\n\r\n"
)


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.data == "bye":
            await socket.close(code=4001, message=b"as asked")
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)


@contextlib.asynccontextmanager
async def engine(talk: Talk = echo) -> AsyncIterator[str]:
    """A server of aiohttp's with a realtime route."""

    async def realtime(asked: web.Request) -> web.StreamResponse:
        if asked.headers.get("Upgrade", "").lower() != "websocket":
            return web.Response(text="ok")
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(asked)
        await talk(socket)
        return socket

    app = web.Application()
    app.router.add_get("/{path:.*}", realtime)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def connected(house: House, path: str = "/v1/realtime") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(house.gateway.url + path, protocols=("realtime",), max_msg_size=0) as socket,
    ):
        yield socket


async def test_P45_messages_pass_both_ways_and_a_permit_is_held_until_the_end() -> None:
    async with engine() as url, open_house(url) as house:
        async with connected(house, "/v1/realtime?model=qwen-asr") as socket:
            assert socket.protocol == "realtime"
            for size in (1, 125, 126, 65_535, 65_536, 3_000_000):
                await socket.send_bytes(b"x" * size)
                assert await socket.receive_bytes(timeout=GUARD) == b"x" * size
            await socket.send_str("模型")
            assert await socket.receive_str(timeout=GUARD) == "模型"
            assert len(house.controller.running) == 1
            shape = house.controller.offered[0].shape
            assert (shape.model, shape.session, shape.route.label) == ("qwen-asr", True, "realtime")
        (record,) = await house.records.count(1)
        assert (record.outcome, record.status, record.backend) == (Outcome.COMPLETED, 101, "a")
        assert house.controller.balanced


async def test_P45_the_model_may_be_named_inside_the_session() -> None:
    """As vLLM has it: the engine greets first, and the name comes in the client's first message."""

    async def vllm(socket: web.WebSocketResponse) -> None:
        await socket.send_json({"type": "session.created"})
        async for message in socket:
            await socket.send_str(message.data)

    async with engine(vllm) as url, open_house(url) as house:
        for path in ("/v1/realtime", "/v1/realtime?model=queried"):
            async with connected(house, path) as socket:
                assert (await socket.receive_json(timeout=GUARD))["type"] == "session.created"
                await socket.send_json({"type": "session.update", "model": "qwen-asr"})
                assert (await socket.receive_json(timeout=GUARD))["model"] == "qwen-asr", "it passes as it is"
        records = await house.records.count(2)
        assert [record.ticket and record.ticket.shape.model for record in records] == ["qwen-asr", "queried"]
        assert house.controller.balanced


async def test_it_is_refused_before_the_upgrade() -> None:
    async with engine() as url, open_house(url) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with connected(house):
                pass
        assert refused.value.status == 429
        assert refused.value.headers is not None
        assert refused.value.headers["Retry-After"] == "1"
        house.controller.refuse = None
        async with connected(house) as socket:
            await socket.send_str("a")
            assert await socket.receive_str(timeout=GUARD) == "a"


async def test_it_waits_for_a_place_like_any_request() -> None:
    async with engine() as url, open_house(url, limit=1) as house:
        async with connected(house):
            client = await house.client()
            await client.send(request(body=CHAT))
            await wait_until(lambda: house.controller.queue)
        await client.head()
        await house.records.count(2)
        assert house.controller.balanced


async def test_the_engine_s_close_ends_it_and_its_code_arrives() -> None:
    async with engine() as url, open_house(url) as house:
        async with connected(house) as socket:
            await socket.send_str("bye")
            closing = await socket.receive(timeout=GUARD)
            assert (closing.type, closing.data, closing.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "as asked")
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.COMPLETED
        assert house.controller.balanced


async def test_a_client_that_vanishes_ends_it(backend: StartBackend) -> None:
    async def hold(peer: Peer, _message: Message) -> None:
        await peer.send(SWITCH)
        await peer.ended()

    scripted = await backend(hold)
    async with open_house(scripted) as house:
        client = await house.client()
        await client.send(request("GET", "/v1/realtime", headers=UPGRADE))
        assert (await client.head()).status == 101
        client.reset()
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.COMPLETED, "either side may end a session"
        assert house.controller.outcomes == [Outcome.CLIENT_GONE], "and it says nothing of the engine"
        await scripted.deserted()
        assert house.controller.balanced


async def test_an_engine_that_dies_ends_it(backend: StartBackend) -> None:
    async def die(peer: Peer, _message: Message) -> None:
        await peer.send(SWITCH + b"\x81\x01a")
        await peer.until(b"!")
        peer.reset()

    scripted = await backend(die)
    async with open_house(scripted) as house:
        client = await house.client()
        await client.send(request("GET", "/v1/realtime", headers=UPGRADE))
        await client.head()
        await client.send(b"!")
        await client.ended()
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.BACKEND_LOST
        assert house.controller.balanced


async def test_not_a_byte_is_lost_around_the_switch(backend: StartBackend) -> None:
    """The client speaks before it is answered, the engine in the same write as its head."""
    got = asyncio.Queue[bytes]()

    async def eager(peer: Peer, message: Message) -> None:
        assert message.get("Upgrade") == "websocket"
        assert message.get("Connection") == "Upgrade"
        assert message.get("Sec-WebSocket-Key") == "dGhlIHNhbXBsZSBub25jZQ=="
        await peer.send(SWITCH + b"first")
        got.put_nowait(await peer.read(9))
        await peer.send(b"last")

    scripted = await backend(eager)
    async with open_house(scripted) as house:
        client = await house.client()
        await client.send(request("GET", "/v1/realtime", headers=UPGRADE) + b"early")
        head = await client.head()
        assert (head.status, head.get("Connection"), head.get("Upgrade")) == (101, "Upgrade", "websocket")
        assert head.get("Sec-WebSocket-Accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert (head.get("X-Engine"), head.all("Content-Length")) == ("e", [])
        await client.send(b"late")
        assert await client.read(9) == b"firstlast"
        assert await got.get() == b"earlylate"
        client.close()
        await house.records.count(1)


async def test_an_engine_that_declines_is_answered_as_it_says(backend: StartBackend) -> None:
    scripted = await backend(always(reply(b'{"detail":"no"}', "403 Forbidden")))
    async with open_house(scripted) as house:
        answer = await house.ask(request("GET", "/v1/realtime", headers=UPGRADE))
        assert (answer.status, answer.body) == (403, b'{"detail":"no"}')
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.CLIENT_ERROR
        assert house.controller.balanced


async def test_a_switch_that_nobody_asked_for_is_a_failure(backend: StartBackend) -> None:
    scripted = await backend(always(SWITCH))
    async with open_house(scripted) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 502
        assert house.controller.outcomes == [Outcome.BACKEND_LOST]


async def test_one_on_which_nobody_speaks_is_closed(backend: StartBackend) -> None:
    async def mute(peer: Peer, _message: Message) -> None:
        await peer.send(SWITCH)
        await peer.ended()

    scripted = await backend(mute)
    async with open_house(scripted, idle_timeout=0.05) as house:
        client = await house.client()
        await client.send(request("GET", "/v1/realtime", headers=UPGRADE))
        assert (await client.head()).status == 101
        await client.ended()
        (record,) = await house.records.count(1)
        assert (record.outcome, record.error) == (Outcome.COMPLETED, "nobody said anything for 0.05 s")
        await scripted.deserted()


async def test_while_either_side_speaks_it_stays_open() -> None:
    async def listen(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            if message.data == "last":
                await socket.send_str("heard")

    async with engine(listen) as url, open_house(url, idle_timeout=0.5) as house, connected(house) as socket:
        for _ in range(12):
            await asyncio.sleep(0.1)
            await socket.send_str("more")
        await socket.send_str("last")
        assert await socket.receive_str(timeout=GUARD) == "heard"


async def test_an_engine_that_takes_nothing_holds_its_client_back(backend: StartBackend) -> None:
    go = asyncio.Event()
    total = 24 * 1024 * 1024

    async def slow(peer: Peer, _message: Message) -> None:
        await peer.send(SWITCH)
        transport = peer.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        transport.resume_reading()  # type: ignore[attr-defined]
        await peer.read(total)
        await peer.send(b"all")

    scripted = await backend(slow)
    async with open_house(scripted) as house:
        client = await house.client()
        await client.send(request("GET", "/v1/realtime", headers=UPGRADE))
        await client.head()
        sending = asyncio.ensure_future(client.send(b"x" * total))
        done, _ = await asyncio.wait([sending], timeout=0.5)
        assert not done, "24 MB are more than the buffers between them"
        go.set()
        assert await client.read(3) == b"all"
        await sending
        client.close()
        await house.records.count(1)


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", UPGRADE),
        ("GET", [("Connection", "Upgrade"), ("Upgrade", "h2c")]),
        ("GET", [("Upgrade", "websocket")]),
    ],
)
async def test_other_upgrades_are_ignored(backend: StartBackend, method: str, headers: list[tuple[str, str]]) -> None:
    scripted = await backend(always(reply()))
    async with open_house(scripted) as house:
        body = CHAT if method == "POST" else b""
        answer = await house.ask(request(method, "/v1/chat/completions", body, headers))
        assert answer.status == 200
        assert scripted.requests[0].get("Upgrade") is None
        assert scripted.requests[0].body == body


async def test_an_admin_route_stays_shut_to_websockets(backend: StartBackend) -> None:
    scripted = await backend(always(SWITCH))
    async with open_house(scripted) as house:
        answer = await house.ask(request("GET", "/stopService", headers=UPGRADE))
        assert answer.status == 403
        assert json.loads(answer.body)["error"]["code"] == "admin_route_denied"
        assert scripted.requests == []


async def test_draining_refuses_new_ones_and_lets_open_ones_end() -> None:
    async with engine() as url, open_house(url) as house:
        async with connected(house) as socket:
            draining = asyncio.ensure_future(house.gateway.drain())
            await wait_until(lambda: house.controller.draining)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with connected(house):
                    pass
            assert refused.value.status == 503
            await socket.send_str("still here")
            assert await socket.receive_str(timeout=GUARD) == "still here"
        await asyncio.wait_for(draining, GUARD)
        assert house.controller.balanced
