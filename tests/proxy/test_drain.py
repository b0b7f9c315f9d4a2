"""Ends: what runs may finish, what comes is sent elsewhere, and nothing is cut before its time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys

import pytest

from gateway.model import Outcome, Reason
from gateway.proxy import descriptors, front
from gateway.proxy.client import ClientConnection
from gateway.proxy.deafen import deafen
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
    House,
    Message,
    Peer,
    RawClient,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
    wait_until,
)


class Streams:
    """Streams that end when told."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        told, gone = asyncio.create_task(self.end.wait()), asyncio.create_task(peer.ended())
        await asyncio.wait({told, gone}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        gone.cancel()
        await asyncio.gather(told, gone, return_exceptions=True)
        await peer.send(chunked(event("b")) + b"0\r\n\r\n")


async def begin(house: House, count: int) -> list[tuple[RawClient, Message]]:
    clients = [await house.client() for _ in range(count)]
    for client in clients:
        await client.send(request(body=CHAT_STREAM))
    heads = [await client.head() for client in clients]
    for client in clients:
        assert await client.chunk() == event("a")
    return list(zip(clients, heads, strict=True))


async def test_C05_streams_finish_within_the_grace_time_and_new_requests_are_sent_elsewhere(
    backend: StartBackend,
) -> None:
    streams = Streams()
    engine = await backend(streams)
    async with open_house(engine, drain_grace=GUARD) as house:
        idle = await house.client()
        engine.script = always(reply())
        assert (await idle.ask(request(body=CHAT))).status == 200
        engine.script = streams
        running = await begin(house, 10)
        drained = asyncio.create_task(house.gateway.drain())
        await asyncio.sleep(0)
        for client in (idle, await house.client()):
            answer = await client.ask(request(body=CHAT))
            assert answer.status == 503
            assert answer.get("x-gateway-shed-reason") == "draining"
            assert answer.get("Connection") == "close"
            assert answer.get("Retry-After") == "1"
            assert await client.rest() == b""
        assert (await (await house.client()).ask(request("GET", "/health"))).status == 503
        assert not drained.done()
        streams.end.set()
        for client, _ in running:
            assert await client.chunk() == event("b")
            assert await client.chunk() == b""
        await asyncio.wait_for(drained, GUARD)
        records = await house.records.count(14)
        assert [record.outcome for record in records].count(Outcome.COMPLETED) == 11
        assert [record.reason for record in records].count(Reason.DRAINING) == 3
        assert house.controller.balanced
        assert house.gateway.in_flight == 0


async def test_C05_what_outlasts_the_grace_time_is_cut(backend: StartBackend, caplog: pytest.LogCaptureFixture) -> None:
    streams = Streams()
    engine = await backend(streams)
    async with open_house(engine, drain_grace=0.05) as house:
        running = await begin(house, 3)
        await asyncio.wait_for(house.gateway.drain(), GUARD)
        for client, _ in running:
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await engine.deserted()
        records = await house.records.count(3)
        assert {record.error for record in records} == {"cut at the end of the drain's grace time"}
        assert house.controller.balanced
        assert "cutting 3 requests" in caplog.text


async def test_C05_a_second_signal_forces_the_end(backend: StartBackend) -> None:
    streams = Streams()
    engine = await backend(streams)
    async with open_house(engine, drain_grace=3600.0) as house:
        running = await begin(house, 3)
        drained = asyncio.create_task(house.gateway.drain())
        await asyncio.sleep(0)
        await asyncio.wait_for(house.gateway.stop(), GUARD)
        await asyncio.wait_for(drained, GUARD)
        for client, _ in running:
            await client.ended()
        await house.records.count(3)
        assert house.controller.balanced


async def test_what_waits_when_the_drain_begins_is_served(backend: StartBackend) -> None:
    streams = Streams()
    engine = await backend(streams)
    async with open_house(engine, limit=1, drain_grace=GUARD) as house:
        ((first, _),) = await begin(house, 1)
        waiting = await house.client()
        await waiting.send(request(body=CHAT_STREAM))
        await wait_until(lambda: house.controller.queue)
        drained = asyncio.create_task(house.gateway.drain())
        await asyncio.sleep(0)
        streams.end.set()
        await first.rest()
        answer = await waiting.answer()
        assert answer.status == 200
        assert answer.get("Connection") == "close"
        assert answer.body == event("a") + event("b")
        await asyncio.wait_for(drained, GUARD)


async def test_C05_who_connects_as_the_last_stream_ends_is_answered(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_LAST_WORDS", 0.5)
    streams = Streams()
    engine = await backend(streams)
    late = socket.socket()
    late.setblocking(False)
    async with open_house(engine, drain_grace=GUARD) as house:
        host, port = house.gateway.url.removeprefix("http://").split(":")
        handler, idle = house.front._handler, house.front._handler.idle

        async def last_moment() -> None:
            """Connect in the very turn of the loop in which the drain learns that nothing runs any more."""
            await idle()
            with contextlib.suppress(BlockingIOError):
                late.connect((host, int(port)))  # the kernel answers for the listener, at once

        monkeypatch.setattr(handler, "idle", last_moment)
        ((running, _),) = await begin(house, 1)
        drained = asyncio.create_task(house.gateway.drain())
        await asyncio.sleep(0)
        streams.end.set()
        await wait_until(lambda: house.front._listener is not None and not house.front._listener.sockets)
        client = RawClient(*await asyncio.open_connection(sock=late))
        house.clients += [client]
        answer = await client.ask(request(body=CHAT))
        assert answer.status == 503
        assert answer.get("x-gateway-shed-reason") == "draining"
        assert answer.get("Connection") == "close"
        assert (await running.rest()).endswith(b"0\r\n\r\n")
        await asyncio.wait_for(drained, GUARD)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a filter of Linux")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_deafened_listener_makes_no_more_connections_and_loses_none(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def connecting() -> socket.socket:
        client = socket.socket(family)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(listener.getsockname())
        return client

    with socket.create_server((address, 0), family=family) as listener, connecting() as early:
        early.send(b"early")
        deafen(listener.fileno())
        with connecting() as late, pytest.raises(OSError, match="not connected"):
            late.getpeername()
        taken, _ = listener.accept()
        with taken:
            early.send(b" bird")
            early.shutdown(socket.SHUT_WR)
            taken.settimeout(GUARD)
            assert b"".join(iter(lambda: taken.recv(100), b"")) == b"early bird"


def test_where_the_kernel_takes_no_filter_all_is_as_it_was() -> None:
    with socket.socket(socket.AF_UNIX) as other:
        deafen(other.fileno())
    reads, writes = os.pipe()
    deafen(reads)
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("apart", [False, True])
async def test_a_finished_answer_that_is_still_being_taken_is_not_cut(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Nor one that a task of aiohttp's has served (``apart``), which ends with its connection."""
    made = ClientConnection.connection_made

    def small(self: ClientConnection, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(ClientConnection, "connection_made", small)
    size = 60_000  # more than the kernel takes now, less than what makes the relay wait
    engine = await backend(always(reply(b"x" * size)))
    async with open_house(engine) as house:
        client = await house.client(receive_buffer=2**12)
        sent = request(body=CHAT, headers=[("Connection", "close")] if apart else [])
        await client.send(sent[:-1])
        if apart:
            await wait_until(lambda: house.gateway.in_flight == 1)
        await client.send(sent[-1:])
        await house.records.count(1)
        (connection,) = house.front._clients.connections  # type: ignore[union-attr]
        transport = connection.transport
        assert transport is not None
        assert transport.get_write_buffer_size() > 0
        drained = asyncio.create_task(house.gateway.drain())
        await wait_until(transport.is_closing)
        await asyncio.sleep(0.3 if apart else 0.0)  # until what is left would be cut, if it were
        assert len((await client.answer()).body) == size
        await asyncio.wait_for(drained, GUARD)


async def test_a_finished_answer_that_nobody_takes_does_not_hold_the_end_up(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_UNWIND", 0.05)
    engine = await backend(always(reply(b"x" * 16 * 2**20)))
    async with open_house(engine) as house:
        client = await house.client(receive_buffer=2**14)
        await client.send(request(body=CHAT))
        await client.head()
        await asyncio.wait_for(house.gateway.drain(), GUARD)
        assert len(await client.rest()) < 16 * 2**20


async def test_draining_twice_is_draining_once(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        await asyncio.wait_for(asyncio.gather(house.gateway.drain(), house.gateway.drain()), GUARD)


async def test_stopping_twice_and_draining_after_it_are_harmless(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        await house.gateway.stop()
        await house.gateway.stop()
        await house.gateway.drain()
    await engine.deserted()


async def test_stopping_what_was_never_started_is_harmless() -> None:
    from gateway.proxy.server import Gateway
    from tests.proxy.helpers import ConstantEstimator, CountingController, proxy_config

    gateway = Gateway(proxy_config(), [], CountingController([]), ConstantEstimator())
    with pytest.raises(RuntimeError, match="not started"):
        assert gateway.url
    await gateway.stop()


async def test_the_url_names_the_port_that_was_bound(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, host="::1") as house:
        assert house.gateway.url.startswith("http://[::1]:")


def test_C20_the_limit_on_open_files_is_raised_or_said_to_be_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import resource

    calls: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: calls.append((what, limits)))
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1024, resource.RLIM_INFINITY))
    descriptors.raise_limit()
    assert calls == [(resource.RLIMIT_NOFILE, (65536, resource.RLIM_INFINITY))]
    assert caplog.text == ""
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, 512))
    with caplog.at_level(logging.WARNING):
        descriptors.raise_limit()
    assert calls[1] == (resource.RLIMIT_NOFILE, (512, 512))
    assert "ulimit -n" in caplog.text
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (100_000, 100_000))
    descriptors.raise_limit()
    assert len(calls) == 2


async def test_everybody_who_waits_until_nothing_is_in_flight_hears_of_it(backend: StartBackend) -> None:
    streams = Streams()
    async with open_house(await backend(streams)) as house:
        await begin(house, 1)
        waiting = [asyncio.create_task(house.front._handler.idle()) for _ in range(2)]
        await asyncio.sleep(0)
        streams.end.set()
        await asyncio.wait_for(asyncio.gather(*waiting), GUARD)
