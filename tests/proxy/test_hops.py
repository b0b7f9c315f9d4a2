"""What stands before and behind the gateway on the way: nginx as it comes, names that move, sizes of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.request import read_json
from gateway.model import Access, Outcome, Route
from gateway.proxy.config import PRIVATE, ProxyConfig
from gateway.proxy.trust import Trust
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
    Message,
    Peer,
    RawClient,
    ScriptedBackend,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
    wait_until,
)
from tests.real.process import free_port

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

# As Debian ships it: nothing of proxying is set. The second speaks HTTP/1.1 and keeps its connections.
AS_IT_COMES = ""
KEEPING = 'proxy_http_version 1.1; proxy_set_header Connection "";'

CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream gateway {{ server {gateway}; keepalive 8; {idle} }}
    server {{ listen 127.0.0.1:{port}; location / {{ {extra} proxy_pass http://gateway; }} }}
}}
"""


@contextlib.asynccontextmanager
async def nginx(gateway: str, folder: Path, extra: str = AS_IT_COMES, idle: str = "") -> AsyncIterator[str]:
    """A running nginx before ``gateway``; its URL."""
    assert NGINX is not None
    port = free_port()
    address = gateway.removeprefix("http://")
    told = CONFIGURATION.format(gateway=address, folder=folder, port=port, extra=extra, idle=idle)
    configuration = folder / "nginx.conf"
    configuration.write_text(told)
    process = _started([NGINX, "-p", str(folder), "-c", str(configuration)])
    try:
        await wait_until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "error.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await wait_until(lambda: process.poll() is not None)


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - nginx, found above


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


# --------------------------------------------------------------------------------------------------------------
# nginx in front
# --------------------------------------------------------------------------------------------------------------


@needs_nginx
@pytest.mark.parametrize("extra", [AS_IT_COMES, KEEPING], ids=["as it comes", "keeping"])
async def test_P12_a_stream_does_not_stutter_behind_nginx(backend: StartBackend, tmp_path: Path, extra: str) -> None:
    """An event leaves the engine only when the client behind nginx has seen the one before: nothing can be held."""
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def drip(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        for index in range(30):
            await seen.get()
            await peer.send(chunked(event(str(index))))
        await peer.send(b"0\r\n\r\n")

    engine = await backend(drip)
    async with open_house(engine) as house, nginx(house.gateway.url, tmp_path, extra) as url:
        client = await RawClient.connect(url)
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        assert head.status == 200
        assert (head.get("Content-Type") or "").startswith("text/event-stream")
        for index in range(30):
            await seen.put(index)
            assert await client.chunk() == event(str(index))
        assert await client.chunk() == b""
        client.close()
        assert (await house.records.count(1))[0].outcome is Outcome.COMPLETED


@needs_nginx
@pytest.mark.parametrize("extra", [AS_IT_COMES, KEEPING], ids=["as it comes", "keeping"])
async def test_P46_nginx_never_says_502(backend: StartBackend, tmp_path: Path, extra: str) -> None:
    """Whole answers and streams in turn over one connection; the engine frames its answers in every way there is."""
    framed = {
        "length": reply(b'{"a":1}'),
        "chunks": reply(b"", headers=[("Transfer-Encoding", "chunked")], length=False)
        + chunked(b'{"a":1}')
        + b"0\r\n\r\n",
        "both": reply(b"", headers=[("Content-Length", "3"), ("Transfer-Encoding", "chunked")], length=False)
        + chunked(b'{"a":1}')
        + b"0\r\n\r\n",
        "stream": SSE_HEAD + chunked(event("a")) + b"0\r\n\r\n",
    }

    async def answer(peer: Peer, message: Message) -> None:
        await peer.send(framed[message.get("X-Framing") or ""])

    engine = await backend(answer)
    async with open_house(engine) as house, nginx(house.gateway.url, tmp_path, extra) as url:
        client = await RawClient.connect(url)
        for turn in range(40):
            framing = [*framed][turn % len(framed)]
            body = CHAT_STREAM if framing == "stream" else CHAT
            told = await client.ask(request(body=body, headers=[("X-Framing", framing)]))
            assert told.status == 200
            assert told.body == (event("a") if framing == "stream" else b'{"a":1}')
        client.close()
        assert house.controller.balanced


@needs_nginx
async def test_P46_connections_that_are_closed_in_the_meantime_cost_no_request(
    backend: StartBackend, tmp_path: Path
) -> None:
    """nginx closes its idle connections as requests come, and the engine those of the gateway."""

    async def answer_and_close(peer: Peer, message: Message) -> None:
        await peer.send(reply(b"{}"))
        if message.get("X-Last"):
            peer.close()

    engine = await backend(answer_and_close)
    async with (
        open_house(engine) as house,
        nginx(house.gateway.url, tmp_path, KEEPING, "keepalive_timeout 20ms;") as url,
    ):
        client = await RawClient.connect(url)
        chance = random.Random(5)
        for turn in range(60):
            last = [("X-Last", "1")] if turn % 3 == 0 else []
            assert (await client.ask(request(body=CHAT, headers=last))).status == 200
            await asyncio.sleep(chance.uniform(0.0, 0.04))
        client.close()
        assert house.controller.balanced


def test_idle_connections_are_given_up_by_nginx_first() -> None:
    """A POST that meets a connection as the gateway closes it is a 502 of nginx, which may not send it again.

    nginx keeps idle ones for 60 s (ngx_http_upstream_module, keepalive_timeout).
    """
    assert ProxyConfig().client_keepalive > 60.0


@needs_nginx
async def test_a_refusal_passes_nginx_as_it_is(backend: StartBackend, tmp_path: Path) -> None:
    """nginx sends no POST again on a 429, and leaves its headers alone."""
    engine = await backend(always(reply()))
    async with open_house(engine, limit=0) as house, nginx(house.gateway.url, tmp_path) as url:
        house.controller.capacity = 0
        client = await RawClient.connect(url)
        told = await client.ask(request(body=CHAT))
        assert told.status == 429
        assert told.get("Retry-After")
        assert told.get("retry-after-ms")
        assert json.loads(told.body)["error"]["code"]
        client.close()
        assert len(house.controller.offered) == 1


# --------------------------------------------------------------------------------------------------------------
# Names that move
# --------------------------------------------------------------------------------------------------------------


async def test_a_name_is_looked_up_for_every_new_connection(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that comes back under another address, as in Kubernetes, is found without a restart."""
    if not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        pytest.skip("uvloop asks the system's resolver itself, where a test cannot answer")
    before = await backend(always(reply(b'"before"')))
    port = int(before.url.rpartition(":")[2])
    after = ScriptedBackend(always(reply(b'"after"')))
    await after.start(port, "127.0.0.2")
    address, resolve = ["127.0.0.1"], socket.getaddrinfo

    def moving(host: Any, *arguments: Any, **named: Any) -> Any:
        return resolve(address[0] if host == "engine.test" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    try:
        async with open_house(f"http://engine.test:{port}") as house:
            assert (await house.ask(request(body=CHAT))).body == b'"before"'
            address[0] = "127.0.0.2"
            await before.stop()
            assert (await house.ask(request(body=CHAT))).body == b'"after"'
            assert house.controller.balanced
    finally:
        await after.stop()


# --------------------------------------------------------------------------------------------------------------
# Time
# --------------------------------------------------------------------------------------------------------------


async def test_P08_an_exchange_that_lasts_is_not_idle(backend: StartBackend) -> None:
    """No idle timer cuts a stream, nor an answer that is long in coming, nor either on a connection used before."""
    keepalive = 0.05

    async def slow(peer: Peer, message: Message) -> None:
        if b'"stream":true' not in message.body:
            await asyncio.sleep(5 * keepalive)
            await peer.send(reply(b"{}"))
            return
        await peer.send(SSE_HEAD)
        for index in range(5):
            await asyncio.sleep(2 * keepalive)
            await peer.send(chunked(event(str(index))))
        await peer.send(b"0\r\n\r\n")

    engine = await backend(slow)
    async with open_house(engine, client_keepalive=keepalive, upstream_keepalive=keepalive) as house:
        client = await house.client()
        for _ in range(2):
            assert (await client.ask(request(body=CHAT))).body == b"{}"
            streamed = await client.ask(request(body=CHAT_STREAM))
            assert streamed.body == b"".join(event(str(index)) for index in range(5))
        assert house.controller.outcomes == [Outcome.COMPLETED] * 4


# --------------------------------------------------------------------------------------------------------------
# Sizes
# --------------------------------------------------------------------------------------------------------------


async def test_P10_a_stream_keeps_its_turn_among_a_hundred_long_prompts(backend: StartBackend) -> None:
    """Each prompt of 400 KB is answered only when the client has seen an event that was sent after its arrival."""
    due: asyncio.Queue[int] = asyncio.Queue()
    seen = [asyncio.Event() for _ in range(100)]

    async def serve(peer: Peer, message: Message) -> None:
        if b'"stream":true' in message.body:
            await peer.send(SSE_HEAD)
            for _ in seen:
                await peer.send(chunked(event(str(await due.get()))))
            await peer.send(b"0\r\n\r\n")
        else:
            number = int(message.get("X-Number") or 0)
            await due.put(number)
            await seen[number].wait()
            await peer.send(reply(message.body))

    engine = await backend(serve)
    prompt = json.dumps({"model": "m", "messages": [{"role": "user", "content": "long prompt " * 34_000}]}).encode()
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        asks = [request(body=prompt, headers=[("X-Number", str(number))]) for number in range(100)]
        asking = [asyncio.ensure_future(house.ask(ask)) for ask in asks]
        while data := await client.chunk():
            for number in re.findall(rb'"content":"(\d+)"', data):
                seen[int(number)].set()
        answers = await asyncio.gather(*asking)
        assert all(answer.body == prompt for answer in answers)
        assert house.controller.balanced


@pytest.mark.parametrize("kilobytes", [29, 30, 31, 100, 500])
@pytest.mark.parametrize("stream", [False, True])
async def test_P26_reading_a_prompt_bounds_nothing(backend: StartBackend, kilobytes: int, stream: bool) -> None:
    """Every one of these bodies is parsed, with the counts of streams asked for and taken out again."""
    answer = SSE_HEAD + chunked(event("a")) + b"0\r\n\r\n" if stream else reply(b"{}")
    engine = await backend(always(answer))
    content = "".join(random.Random(kilobytes).choices('ab "\\\n中', k=kilobytes * 1000))
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=body))).status == 200
        sent = json.loads(engine.requests[0].body)
        assert sent.pop("stream_options", {"include_usage": True}) == {"include_usage": True}
        assert sent == json.loads(body)
        shape = house.controller.offered[0].shape
        assert shape.prompt_bytes == len(content.encode())
        assert shape == read_json(Route("chat", Access.ADMIT), body, generates=True)


@pytest.mark.parametrize("power", range(25))
async def test_P24_a_body_of_any_power_of_two_and_its_neighbours(backend: StartBackend, power: int) -> None:
    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply(message.body))

    engine = await backend(echo)
    async with open_house(engine) as house:
        client = await house.client()
        for size in {max(2**power + off, 1) for off in (-1, 0, 1)}:
            body = random.Random(size).randbytes(size)
            assert (await client.ask(request(body=body))).body == body


@pytest.mark.parametrize("framed", ["length", "chunks"])
async def test_P47_an_answer_of_fifty_megabytes_is_whole(backend: StartBackend, framed: str) -> None:
    size, block = 50 * 2**20, random.Random(1).randbytes(2**20)

    async def large(peer: Peer, _message: Message) -> None:
        head = [("Content-Length", str(size))] if framed == "length" else [("Transfer-Encoding", "chunked")]
        await peer.send(reply(b"", headers=head, length=False))
        for _ in range(size // len(block)):
            await peer.send(block if framed == "length" else chunked(block))
        await peer.send(b"" if framed == "length" else b"0\r\n\r\n")

    engine = await backend(large)
    async with open_house(engine) as house:
        told = await house.ask(request(body=CHAT))
        assert len(told.body) == size
        assert told.body == block * (size // len(block))
        assert (await house.records.count(1))[0].bytes_out == size


async def test_P31_a_request_cut_at_every_byte_is_heard_alike(backend: StartBackend) -> None:
    """Characters of three and four bytes and JSON's own escapes, cut between any two bytes of the request's body."""

    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(reply(message.body))

    engine = await backend(echo)
    content = '中文🙂é\\u4e2d\\n"'
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}, ensure_ascii=False).encode()
    whole = request(body=body)
    async with open_house(engine) as house:
        client = await house.client()
        for cut in range(len(whole) - len(body), len(whole)):
            await client.send(whole[:cut])
            await asyncio.sleep(0)
            await client.send(whole[cut:])
            assert (await client.answer()).body == body
        assert {ticket.shape.prompt_bytes for ticket in house.controller.offered} == {len(content.encode())}


IDENTITY = (
    ("X-Forwarded-For", "1.2.3.4"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "bank.example"),
    ("Forwarded", "for=1.2.3.4"),
    ("X-Real-IP", "1.2.3.4"),
)


@pytest.mark.parametrize(
    ("networks", "believed"), [(PRIVATE, True), (("127.0.0.1/32",), True), (("10.0.0.0/8",), False), ((), False)]
)
async def test_only_trusted_peers_may_say_for_whom_they_speak(
    backend: StartBackend, networks: tuple[str, ...], believed: bool
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, trusted_proxies=networks) as house:
        assert (await house.ask(request(body=CHAT, headers=IDENTITY))).status == 200
        (seen,) = engine.requests
        assert seen.get("X-Forwarded-For") == ("1.2.3.4, 127.0.0.1" if believed else "127.0.0.1")
        assert {name: seen.get(name) for name, _ in IDENTITY[1:]} == {
            name: value if believed else None for name, value in IDENTITY[1:]
        }


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:10.1.2.3", True),
        ("172.31.255.255", True),
        ("172.32.0.1", False),
        ("203.0.113.9", False),
        ("::ffff:203.0.113.9", False),
        ("2001:db8::1", False),
        ("not an address", False),
    ],
)
def test_private_networks_are_trusted_by_default(peer: str, trusted: bool) -> None:
    trust = Trust(PRIVATE)
    assert (trust(peer), trust(peer)) == (trusted, trusted)


def test_what_is_remembered_of_peers_is_bounded() -> None:
    trust = Trust(())
    for number in range(10_000):
        trust(f"10.0.{number // 250}.{number % 250}")
    assert len(trust._known) <= 4_097
