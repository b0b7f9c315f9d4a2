"""Clients that leave: noticed at every stage, and nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import sys
from pathlib import Path

import pytest

from gateway.admission.config import AdmissionConfig, BreakerConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Backend, Outcome
from gateway.proxy.server import Gateway
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
    ConstantEstimator,
    House,
    Message,
    Peer,
    RawClient,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    proxy_config,
    reply,
    request,
    wait_until,
)


async def silent(peer: Peer, _message: Message) -> None:
    """Takes the request and says nothing; ends when the gateway does."""
    await peer.ended()


async def stall_in_stream(peer: Peer, _message: Message) -> None:
    await peer.send(SSE_HEAD + chunked(event("a")))
    await peer.ended()


def leave(client: Peer, how: str) -> None:
    client.close() if how == "close" else client.reset()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM])
async def test_P03_P04_a_client_that_leaves_before_the_first_byte_frees_the_backend(
    backend: StartBackend, body: bytes, how: str
) -> None:
    engine = await backend(silent)
    async with open_house(engine, limit=1) as house:
        client = await house.client()
        await client.send(request(body=body))
        await engine.received(1)
        leave(client, how)
        await engine.deserted()
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.CLIENT_GONE
        assert record.status == 0
        assert house.controller.outcomes == [Outcome.CLIENT_GONE]
        assert house.controller.balanced


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_O14_a_client_that_leaves_between_two_events_frees_the_backend(backend: StartBackend, how: str) -> None:
    engine = await backend(stall_in_stream)
    async with open_house(engine, limit=1) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event("a")
        leave(client, how)
        await engine.deserted()
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.CLIENT_GONE
        assert record.status == 200
        assert house.controller.balanced


async def test_a_client_that_ends_its_sending_side_has_left(backend: StartBackend) -> None:
    engine = await backend(silent)
    async with open_house(engine, limit=1) as house:
        client = await house.client()
        await client.send(request(body=CHAT))
        await engine.received(1)
        client.writer.write_eof()
        await engine.deserted()
        await house.records.count(1)
        assert house.controller.balanced


async def test_a_client_that_takes_nothing_and_ends_its_sending_side_has_left(backend: StartBackend) -> None:
    """Its unsent bytes would hold the connection open otherwise."""
    sent = 0

    async def flood(peer: Peer, _message: Message) -> None:
        nonlocal sent
        await peer.send(SSE_HEAD)
        while True:
            await peer.send(chunked(b"x" * 2**16))
            sent += 1

    engine = await backend(flood)
    async with open_house(engine) as house:
        client = await house.client(receive_buffer=2**12)
        await client.send(request(body=CHAT_STREAM))
        before = -1
        while before != sent:  # every buffer between is full
            before = sent
            await asyncio.sleep(0.2)
        client.writer.write_eof()
        await engine.deserted()
        assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_GONE
        assert house.controller.balanced


async def test_P04_a_killed_client_process_frees_the_backend(backend: StartBackend) -> None:
    engine = await backend(silent)
    async with open_house(engine, limit=1) as house:
        host, port = house.gateway.url.removeprefix("http://").split(":")
        code = (
            "import socket,sys,time\n"
            f"s = socket.create_connection(({host!r}, {port}))\n"
            f"s.sendall({request(body=CHAT)!r})\n"
            "time.sleep(60)\n"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        await engine.received(1)
        process.send_signal(signal.SIGKILL)
        await engine.deserted()
        await process.wait()
        await house.records.count(1)
        assert house.controller.balanced


async def test_a_client_that_leaves_while_it_sends_its_body_is_forgotten(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT)[:-5])
        await wait_until(lambda: house.gateway.in_flight)
        client.close()
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.CLIENT_GONE
        assert engine.requests == []
        assert house.controller.offered == []


async def test_O17_O18_waiters_that_left_are_never_sent_and_the_next_one_is_served(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def held(peer: Peer, _message: Message) -> None:
        await release.wait()
        await peer.send(reply())

    engine = await backend(held)
    async with open_house(engine, limit=1) as house:
        first = await house.client()
        await first.send(request(body=CHAT))
        await engine.received(1)
        waiting = [await house.client() for _ in range(100)]
        for number, client in enumerate(waiting):
            await client.send(request(body=CHAT, headers=[("X-Number", str(number))]))
        await wait_until(lambda: len(house.controller.queue) == 100)
        dead = random.Random(1).sample(range(100), 90)
        for number in dead:
            leave(waiting[number], random.Random(number).choice(["close", "reset"]))
        await house.records.count(90)
        assert len(house.controller.queue) == 10
        release.set()
        assert (await first.answer()).status == 200
        for number in set(range(100)) - set(dead):
            assert (await waiting[number].answer()).status == 200
        sent = {int(message.get("X-Number") or -1) for message in engine.requests[1:]}
        assert sent == set(range(100)) - set(dead)
        assert house.controller.balanced
        assert house.gateway.in_flight == 0


async def test_F01_a_hundred_cancelled_streams_leave_the_one_place_free(backend: StartBackend) -> None:
    engine = await backend(stall_in_stream)
    async with open_house(engine, limit=1) as house:
        for _ in range(100):
            client = await house.client()
            await client.send(request(body=CHAT_STREAM))
            assert (await client.head()).status == 200
            assert await client.chunk() == event("a")
            client.close()
        await house.records.count(100)
        assert house.controller.outcomes == [Outcome.CLIENT_GONE] * 100
        assert house.controller.balanced


async def test_F42_a_clients_own_timeout_is_never_a_failure_of_the_backend(backend: StartBackend) -> None:
    engine = await backend(silent)
    async with open_house(engine, limit=1) as house:
        for _ in range(6):
            client = await house.client()
            await client.send(request(body=CHAT, headers=[("X-Stainless-Read-Timeout", "0.1")]))
            await engine.received(len(house.controller.granted))
            client.close()
            await house.records.count(len(house.controller.offered))
        assert set(house.controller.outcomes) == {Outcome.CLIENT_GONE}
        assert [ticket.read_timeout for ticket in house.controller.offered] == [0.1] * 6


async def test_clients_that_leave_one_after_another_do_not_keep_a_hung_backend_in_use(backend: StartBackend) -> None:
    hung, sound = await backend(silent), await backend(always(reply()))
    engines = [Backend("a", hung.url), Backend("b", sound.url)]
    config = AdmissionConfig(breaker=BreakerConfig(silence=0.3))
    controller = AdmissionController(config, engines, lambda low, _high: low)
    gateway = Gateway(proxy_config(), engines, controller, ConstantEstimator(), ())
    await gateway.start()
    try:
        for _ in range(50):  # each waits longer than the slowest engine takes, and less than the bound on silence
            if gateway.state().backends[0].health == "open":
                break
            client = await RawClient.connect(gateway.url)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.ask(request(body=CHAT_STREAM)), 0.1)
            client.reset()
        assert gateway.state().backends[0].health == "open"
        client = await RawClient.connect(gateway.url)
        for _ in range(3):
            assert (await client.ask(request(body=CHAT_STREAM))).status == 200
        client.close()
    finally:
        await gateway.stop()


async def test_P09_a_client_that_vanishes_stops_the_reading_of_the_backend(backend: StartBackend) -> None:
    async def endless(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        while True:  # only the gateway ends this
            await peer.send(chunked(event("x" * 1000)))

    engine = await backend(endless)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        await client.chunk()
        client.reset()
        await engine.deserted()
        assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_GONE


async def test_a_stalled_client_is_cut_in_the_end(backend: StartBackend) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("the kernel's user timeout is Linux's")

    async def flood(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        while True:
            await peer.send(chunked(b"x" * 2**16))

    engine = await backend(flood)
    async with open_house(engine, client_timeout=1.0) as house:
        client = await house.client(receive_buffer=2**12)
        await client.send(request(body=CHAT_STREAM))
        await engine.deserted()
        record = (await house.records.count(1))[0]
        assert record.outcome is Outcome.CLIENT_GONE
        assert house.controller.balanced


async def test_F04_the_place_is_free_when_the_last_byte_is_sent_whatever_observers_do(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    seen: list[bool] = []

    class Late:
        def observe(self, _record: object) -> None:
            seen.append(house.controller.balanced)

    async with open_house(engine, limit=1, observers=[Late()]) as house:
        client = await house.client()
        for _ in range(20):
            assert (await client.ask(request(body=CHAT))).status == 200
        await house.records.count(20)
        assert seen == [True] * 20
        assert not house.controller.queue


async def test_an_observer_that_raises_harms_nobody(backend: StartBackend, caplog: pytest.LogCaptureFixture) -> None:
    engine = await backend(always(reply()))

    class Broken:
        def observe(self, _record: object) -> None:
            raise ZeroDivisionError

    async with open_house(engine, observers=[Broken()]) as house:
        client = await house.client()
        for _ in range(2):
            assert (await client.ask(request(body=CHAT))).status == 200
        await house.records.count(2)
        assert "Broken stumbled" in caplog.text


async def test_F11_a_place_is_held_until_the_body_ends(backend: StartBackend) -> None:
    release = asyncio.Event()

    async def long(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(long)
    async with open_house(engine) as house:
        clients = [await house.client() for _ in range(10)]
        for client in clients:
            await client.send(request(body=CHAT_STREAM))
        for client in clients:
            await client.head()
            assert await client.chunk() == event("a")
        assert house.gateway.state().backends[0].running == 10
        assert house.gateway.in_flight == 10
        release.set()
        for client in clients:
            assert await client.chunk() == b""
        await house.records.count(10)
        assert house.controller.balanced


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
async def test_a_thousand_streams_cancelled_at_random_moments_leave_nothing(backend: StartBackend) -> None:
    """Queued, before the head, in the stream, after its end: gauges at zero, no permit, task or descriptor left."""
    chance = random.Random(7)
    count, stays = 1000, 0.2

    async def varied(peer: Peer, _message: Message) -> None:
        await asyncio.sleep(chance.random() * 0.02)
        await peer.send(SSE_HEAD)
        for index in range(chance.randrange(8)):
            await peer.send(chunked(event(str(index))))
            await asyncio.sleep(chance.random() * 0.01)
        await peer.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def one(house: House, *, leaves: bool) -> None:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        answer = asyncio.create_task(client.answer())
        if leaves:
            await asyncio.wait({answer}, timeout=chance.random() * 0.1)
            answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        leave(client, chance.choice(["close", "reset"]))

    engine = await backend(varied)
    async with open_house(engine, limit=40, upstream_keepalive=0.05) as house:
        await asyncio.sleep(0)
        gc.collect()
        tasks, descriptors = len(asyncio.all_tasks()), _descriptors()
        for _ in range(10):
            await asyncio.gather(*(one(house, leaves=chance.random() > stays) for _ in range(count // 10)))
        records = await house.records.count(count)
        house.clients.clear()
        await engine.deserted()
        assert {record.outcome for record in records} == {Outcome.COMPLETED, Outcome.CLIENT_GONE}
        assert house.controller.balanced
        assert house.gateway.in_flight == 0
        async with asyncio.timeout(GUARD):
            while len(asyncio.all_tasks()) > tasks or _descriptors() > descriptors:
                await asyncio.sleep(0.01)
                gc.collect()
