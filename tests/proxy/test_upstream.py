"""Connections to a backend: reused while they are good, and never twice for a POST that may have arrived."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Backend, Outcome
from gateway.proxy.config import TlsConfig
from gateway.proxy.upstream import Connection, Upstream
from tests.proxy.helpers import (
    CHAT,
    GUARD,
    House,
    Message,
    Peer,
    ScriptedBackend,
    StartBackend,
    always,
    open_house,
    proxy_config,
    reply,
    request,
    wait_until,
)

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the proof is Linux's TCP_INFO")


def pool(house: House) -> Upstream:
    return house.front._upstreams["a"]


def trust(house: House) -> None:
    """The backend is known to keep connections."""
    pool(house)._keeps = {True: True, False: True}


async def closes_after_each(peer: Peer, _message: Message) -> None:
    await peer.send(reply())
    peer.close()


async def test_P06_a_backend_that_closes_idle_connections_costs_no_request(backend: StartBackend) -> None:
    engine = await backend(closes_after_each)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        for _ in range(50):
            assert (await client.ask(request(body=CHAT))).status == 200
        assert house.controller.outcomes == [Outcome.COMPLETED] * 50


async def test_P06_an_end_that_the_loop_has_not_seen_yet_is_found_before_the_request_is_written(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await backend(closes_after_each)
    deafen(monkeypatch)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        for _ in range(3):
            assert (await client.ask(request(body=CHAT))).status == 200
            await closed_by(engine)
        assert len(engine.requests) == 3
        assert [record.attempts for record in await house.records.count(3)] == [1, 1, 1]


def deafen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are not read: their end waits in the kernel, as it does on a busy loop."""
    release, send = Upstream.release, Connection.send

    def released(self: Upstream, connection: Connection) -> None:
        release(self, connection)
        connection.pause()

    def sent(self: Connection, *args: object, **named: object) -> None:
        send(self, *args, **named)  # type: ignore[arg-type]
        self.resume()

    monkeypatch.setattr(Upstream, "release", released)
    monkeypatch.setattr(Connection, "send", sent)


async def closed_by(engine: ScriptedBackend) -> None:
    await engine.deserted()
    await asyncio.sleep(0.01)  # asyncio closes the socket a turn after the protocol


@LINUX
async def test_P06_a_post_that_met_a_closed_socket_is_sent_again_since_nothing_of_it_arrived(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last race: the end is under way while the request is written."""
    engine = await backend(closes_after_each)
    deafen(monkeypatch)
    monkeypatch.setattr(Connection, "readable", lambda _self: False)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        for _ in range(3):
            assert (await client.ask(request(body=CHAT))).status == 200
            await closed_by(engine)
        assert len(engine.requests) == 3
        assert house.controller.outcomes == [Outcome.COMPLETED] * 3
        assert [record.attempts for record in await house.records.count(3)] == [1, 2, 2]


async def test_P06_where_the_system_cannot_prove_it_a_post_is_not_sent_again(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await backend(closes_after_each)
    deafen(monkeypatch)
    monkeypatch.setattr(Connection, "readable", lambda _self: False)
    monkeypatch.delattr(socket, "TCP_INFO", raising=False)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        assert (await client.ask(request(body=CHAT))).status == 200
        await closed_by(engine)
        assert (await client.ask(request(body=CHAT))).status == 502
        assert len(engine.requests) == 1


@pytest.mark.parametrize(("method", "target"), [("POST", "/v1/chat/completions"), ("GET", "/health")])
async def test_P06_what_arrived_on_a_reused_connection_is_sent_again_only_if_that_is_harmless(
    backend: StartBackend, method: str, target: str
) -> None:
    async def once(peer: Peer, _message: Message) -> None:
        if len(engine.requests) == 2:
            peer.close()  # it has read the request, and goes
        else:
            await peer.send(reply())

    engine = await backend(once)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        assert (await client.ask(request(method, target, body=CHAT))).status == 200
        answer = await client.ask(request(method, target, body=CHAT))
        assert engine.requests[1].connection == engine.requests[0].connection
        assert answer.status == (502 if method == "POST" else 200)
        assert len(engine.requests) == (2 if method == "POST" else 3)


@pytest.mark.parametrize("again", range(5))
async def test_O16_a_backend_that_dies_as_it_reads_a_request_on_a_reused_connection_gets_it_once(
    backend: StartBackend, again: int
) -> None:
    """Its reset is there before its acknowledgement, so that none came proves nothing."""
    del again

    async def once(peer: Peer, _message: Message) -> None:
        if len(engine.requests) % 2:
            await peer.send(reply())
        else:
            peer.reset()

    engine = await backend(once)
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        assert (await client.ask(request(body=CHAT))).status == 200
        assert (await client.ask(request(body=CHAT))).status == 502
        first, second = engine.requests
        assert second.connection == first.connection


async def test_a_wait_cancelled_as_the_connection_opens_leaves_none_behind(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop then tells of its beginning and never of its end."""
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        upstream, made = pool(house), Connection.connection_made

        def opens(self: Connection, transport: asyncio.BaseTransport) -> None:
            made(self, transport)
            waiting.cancel()

        monkeypatch.setattr(Connection, "connection_made", opens)
        waiting = asyncio.create_task(upstream.connect())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await engine.deserted()
        await wait_until(lambda: not upstream.connections)


async def test_a_connection_is_not_reused_before_its_backend_is_known_to_keep_such(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        for _ in range(3):
            await client.ask(request(body=CHAT))
        assert len({message.connection for message in engine.requests}) == 3
        trust(house)
        for _ in range(3):
            await client.ask(request(body=CHAT))
        assert len({message.connection for message in engine.requests}) == 3


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}surplus",
    ],
)
async def test_a_connection_that_is_not_to_be_reused_is_closed(backend: StartBackend, head: bytes) -> None:
    engine = await backend(always(head))
    async with open_house(engine) as house:
        trust(house)
        client = await house.client()
        for _ in range(3):
            assert (await client.ask(request(body=CHAT))).body == b"{}"
        assert len({message.connection for message in engine.requests}) == 3
        await engine.deserted()


async def test_bytes_that_nobody_asked_for_close_an_idle_connection(backend: StartBackend) -> None:
    speak = asyncio.Event()

    async def chatty(peer: Peer, _message: Message) -> None:
        await peer.send(reply())
        await speak.wait()
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    engine = await backend(chatty)
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT))).status == 200
        speak.set()
        await engine.deserted()


async def test_an_idle_connection_is_closed_when_its_time_is_over(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, upstream_keepalive=0.05) as house:
        clients = [await house.client() for _ in range(5)]
        await asyncio.gather(*(client.ask(request(body=CHAT)) for client in clients))
        await engine.deserted()
        assert pool(house).connections == set()
        assert pool(house)._idle == {}


async def test_an_idle_connection_past_its_time_is_not_used_even_before_it_is_swept(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, upstream_keepalive=1000.0) as house:
        trust(house)
        client = await house.client()
        await client.ask(request(body=CHAT))
        (connection,) = pool(house)._idle
        connection.idle_since -= 1001
        await client.ask(request(body=CHAT))
        assert engine.requests[0].connection != engine.requests[1].connection


@pytest.mark.parametrize("changes", [{"upstream_keepalive": 0.0}, {"max_idle": 0}])
async def test_keeping_none_is_possible(backend: StartBackend, changes: dict[str, Any]) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, **changes) as house:
        assert (await house.ask(request(body=CHAT))).status == 200
        await engine.deserted()


async def test_no_more_are_kept_than_allowed(backend: StartBackend) -> None:
    gate = asyncio.Event()

    async def together(peer: Peer, _message: Message) -> None:
        await gate.wait()
        await peer.send(reply())

    engine = await backend(together)
    async with open_house(engine, max_idle=3) as house:
        clients = [await house.client() for _ in range(10)]
        for client in clients:
            await client.send(request(body=CHAT))
        await engine.received(10)
        gate.set()
        await asyncio.gather(*(client.answer() for client in clients))
        await engine.when(lambda: engine.open == 3)
        assert len(pool(house)._idle) == 3


async def test_a_backend_that_answers_before_it_has_read_the_body_is_heard(backend: StartBackend) -> None:
    """413 in the middle of an upload: the answer passes, and the connection is not used again."""

    async def early(peer: Peer, _message: Message) -> None:
        await peer.send(reply(b'{"error":"large"}', "413 Payload Too Large"))
        await peer.ended()

    engine = await backend(early)
    engine.read_bodies = False
    async with open_house(engine) as house:
        trust(house)
        answer = await house.ask(request(body=b"x" * 2**24))
        assert answer.status == 413
        assert answer.body == b'{"error":"large"}'
        await engine.deserted()
        assert house.controller.outcomes == [Outcome.CLIENT_ERROR]


async def test_a_connection_attempt_into_nowhere_is_given_up() -> None:
    """A listener whose backlog is full drops what knocks: the same as an address behind a silent firewall."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        knocking = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
            knocking.append(sock)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with open_house(url, connect_timeout=0.05, connect_attempts=1) as house:
            answer = await house.ask(request(body=CHAT))
            assert answer.status == 502
            assert house.controller.outcomes == [Outcome.CONNECT_FAILED]
        for sock in knocking:
            sock.close()


async def test_a_connection_attempt_is_dropped_when_the_client_leaves() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        knocking = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
            knocking.append(sock)
        async with open_house(f"http://127.0.0.1:{full.getsockname()[1]}", connect_timeout=60.0) as house:
            client = await house.client()
            await client.send(request(body=CHAT))
            await wait_until(lambda: house.controller.granted)
            client.close()
            assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_GONE
            assert house.controller.balanced
        for sock in knocking:
            sock.close()


async def test_a_name_that_does_not_resolve_is_no_connection() -> None:
    async with open_house("http://no-such-host.invalid:1", connect_attempts=1) as house:
        assert (await house.ask(request(body=CHAT))).status == 502


# --------------------------------------------------------------------------------------------------------------
# TLS
# --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a fixed command
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    both = folder / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    return both


async def tls_backend(certificate: Path, *, ask_for_client: bool) -> tuple[asyncio.Server, str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if ask_for_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Peer(reader, writer).body(await Peer(reader, writer).head())
            writer.write(reply(b'{"tls":1}'))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:  # cancelled as the loop ends, too
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    return server, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("verify", "known", "own", "asked", "status"),
    [
        (True, True, False, False, 200),
        (True, False, False, False, 502),
        (False, False, False, False, 200),
        (True, True, True, True, 200),
        (True, True, False, True, 502),
    ],
)
async def test_backends_with_https(
    certificate: Path, verify: bool, known: bool, own: bool, asked: bool, status: int
) -> None:
    server, url = await tls_backend(certificate, ask_for_client=asked)
    tls = TlsConfig(verify, ca=str(certificate) if known else None, cert=str(certificate) if own else None)
    async with open_house(Backend("a", url), tls=tls, connect_attempts=1) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.status == status
        if status == 200:
            assert answer.body == b'{"tls":1}'
    server.close()


def test_the_default_port_follows_the_scheme() -> None:
    config = proxy_config()
    assert Upstream(Backend("a", "http://host"), config)._address == ("host", 80)
    assert Upstream(Backend("a", "https://host/v1"), config)._address == ("host", 443)
    named = Upstream(Backend("a", "http://user:secret@host:8000"), config)
    assert named.host == b"host:8000"
    assert GUARD
