"""TLS towards clients and towards backends, and certificates that are replaced while it runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.model import Backend, BackendTls, Outcome
from gateway.proxy.config import ListenerTls, TlsConfig
from gateway.trust import trusting
from tests.proxy.certificates import Authority, Certificate
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
    House,
    Message,
    Peer,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "root")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other-root")


def listener(tmp_path: Path, certificate: Certificate, client_ca: Certificate | None = None) -> ListenerTls:
    """Files that a test may replace."""
    put(tmp_path, certificate)
    if client_ca is not None:
        (tmp_path / "clients.pem").write_bytes(client_ca.cert.read_bytes())
    ca = None if client_ca is None else str(tmp_path / "clients.pem")
    return ListenerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"), ca)


def put(folder: Path, certificate: Certificate) -> None:
    (folder / "cert.pem").write_bytes(certificate.cert.read_bytes())
    (folder / "key.pem").write_bytes(certificate.key.read_bytes())


class TlsClient(Peer):
    @classmethod
    async def connect(cls, house: House, context: ssl.SSLContext) -> TlsClient:
        port = int(house.gateway.url.rpartition(":")[2])
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    @property
    def issued_to(self) -> str:
        """Subject of the certificate that the gateway showed."""
        (((_, name),),) = self.writer.get_extra_info("peercert")["subject"]
        return str(name)

    async def ask(self, data: bytes) -> Message:
        await self.send(data)
        return await self.body(await self.head())


async def asked(house: House, context: ssl.SSLContext) -> tuple[int, str]:
    """(status, whom the certificate is for)."""
    client = await TlsClient.connect(house, context)
    try:
        answer = await client.ask(request(body=CHAT))
        return answer.status, client.issued_to
    finally:
        client.close()


async def test_clients_are_served_over_tls(authority: Authority, backend: StartBackend, tmp_path: Path) -> None:
    async def stream(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + b"".join(chunked(event(str(n))) for n in range(50)) + b"0\r\n\r\n")

    engine = await backend(stream)
    certificate = authority.issue("gateway")
    async with open_house(engine, listener_tls=listener(tmp_path, certificate)) as house:
        assert house.gateway.url.startswith("https://127.0.0.1:")
        client = await TlsClient.connect(house, authority.root.context())
        for _ in range(2):
            answer = await client.ask(request(body=CHAT_STREAM))
            assert (answer.status, answer.body) == (200, b"".join(event(str(n)) for n in range(50)))
        client.close()


async def test_a_client_that_leaves_is_noticed_over_tls(
    authority: Authority, backend: StartBackend, tmp_path: Path
) -> None:
    async def endless(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await peer.ended()

    engine = await backend(endless)
    async with open_house(engine, listener_tls=listener(tmp_path, authority.issue("gateway"))) as house:
        client = await TlsClient.connect(house, authority.root.context())
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        client.close()
        assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_GONE
        await engine.deserted()


async def test_a_broken_stream_is_told_from_a_whole_one_over_tls(
    authority: Authority, backend: StartBackend, tmp_path: Path
) -> None:
    async def broken(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        peer.reset()

    engine = await backend(broken)
    async with open_house(engine, listener_tls=listener(tmp_path, authority.issue("gateway"))) as house:
        for version in ("1.1", "1.0"):
            client = await TlsClient.connect(house, authority.root.context())
            await client.send(request(body=CHAT_STREAM, version=version))
            await client.head()
            rest = b""
            try:
                rest = await client.rest()
            except ConnectionError:
                rest = b"reset"
            assert not rest.endswith(b"0\r\n\r\n")
            assert version == "1.1" or rest == b"reset", "without framing only a reset tells"
            client.close()


async def test_what_is_not_tls_gets_nothing_and_harms_nobody(
    authority: Authority, backend: StartBackend, tmp_path: Path
) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, listener_tls=listener(tmp_path, authority.issue("gateway"))) as house:
        port = int(house.gateway.url.rpartition(":")[2])
        for data in (request(body=CHAT), b"\x16\x03\x01\x00\x05hello", b"\x00" * 1000):
            peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
            await peer.send(data)
            await peer.ended()
            peer.close()
        old = trusting(str(authority.root.cert))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await asked(house, old))[0] == 200
        assert len(engine.requests) == 1


async def test_a_certificate_is_replaced_while_streams_go_on(
    authority: Authority, backend: StartBackend, tmp_path: Path
) -> None:
    async def slow(peer: Peer, message: Message) -> None:
        if b"stream" not in message.body:
            await peer.send(reply())
            return
        await peer.send(SSE_HEAD + chunked(event("a")))
        await more.wait()
        await peer.send(chunked(event("b")) + b"0\r\n\r\n")

    more = asyncio.Event()
    engine = await backend(slow)
    context = authority.root.context()
    async with open_house(engine, listener_tls=listener(tmp_path, authority.issue("before"))) as house:
        running = await TlsClient.connect(house, context)
        await running.send(request(body=CHAT_STREAM))
        head = await running.head()
        assert await asked(house, context) == (200, "before")
        put(tmp_path, authority.issue("after"))
        await house.gateway.renew_tls()
        assert await asked(house, context) == (200, "after")
        more.set()
        assert (await running.body(head)).body == event("a") + event("b")
        running.close()


@pytest.mark.parametrize("broken", ["half", "garbage", "missing"])
async def test_a_certificate_that_does_not_fit_changes_nothing(
    authority: Authority, backend: StartBackend, tmp_path: Path, broken: str
) -> None:
    engine = await backend(always(reply()))
    context = authority.root.context()
    async with open_house(engine, listener_tls=listener(tmp_path, authority.issue("before"))) as house:
        if broken == "half":  # the key is written after it
            (tmp_path / "cert.pem").write_bytes(authority.issue("after").cert.read_bytes())
        elif broken == "garbage":
            (tmp_path / "cert.pem").write_text("nothing of use", encoding="utf-8")
        else:
            (tmp_path / "cert.pem").unlink()
        with pytest.raises(OSError, match=r"."):
            await house.gateway.renew_tls()
        assert await asked(house, context) == (200, "before")


async def test_clients_show_certificates_of_the_authority_that_is_current(
    authority: Authority, other: Authority, backend: StartBackend, tmp_path: Path
) -> None:
    engine = await backend(always(reply()))
    ours, theirs = authority.issue("client"), other.issue("client")
    tls = listener(tmp_path, authority.issue("gateway"), client_ca=authority.root)
    async with open_house(engine, listener_tls=tls) as house:

        async def served(context: ssl.SSLContext) -> bool:
            try:
                return (await asyncio.wait_for(asked(house, context), GUARD))[0] == 200
            except (OSError, asyncio.IncompleteReadError):
                return False

        contexts = [authority.root.context(), ours.context(authority.root), theirs.context(authority.root)]
        assert [await served(context) for context in contexts] == [False, True, False]
        (tmp_path / "clients.pem").write_bytes(other.root.cert.read_bytes())
        await house.gateway.renew_tls()
        assert [await served(context) for context in contexts] == [False, False, True], "nobody resumes a session"


async def tls_engine(certificate: Certificate, clients: Certificate) -> tuple[asyncio.Server, str, list[str]]:
    """A backend that demands a certificate, as MindIE does by default, and notes whose it was shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(clients.cert)
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            message = await peer.body(await peer.head())
            if message.get("User-Agent") != "inference-gateway":
                (((_, name),),) = writer.get_extra_info("peercert")["subject"]
                seen.append(str(name))
            await peer.send(reply(headers=[("Connection", "close")]))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:  # cancelled as the loop ends, too
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    return server, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


@pytest.mark.parametrize("own", [False, True])
async def test_the_certificate_shown_to_backends_is_replaced_while_it_runs(
    authority: Authority, tmp_path: Path, own: bool
) -> None:
    server, url, seen = await tls_engine(authority.issue("engine"), authority.root)
    put(tmp_path, authority.issue("before"))
    files = str(authority.root.cert), str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    engine = Backend("a", url, tls=BackendTls(None, *files) if own else BackendTls())
    async with open_house(engine, tls=TlsConfig() if own else TlsConfig(True, *files)) as house:
        assert (await house.ask(request(body=CHAT))).status == 200
        (tmp_path / "key.pem").unlink()
        with pytest.raises(OSError, match=r"."):
            await house.gateway.renew_tls()
        assert (await house.ask(request(body=CHAT))).status == 200
        put(tmp_path, authority.issue("after"))
        await house.gateway.renew_tls()
        assert (await house.ask(request(body=CHAT))).status == 200
        assert seen == ["before", "before", "after"]
    server.close()
