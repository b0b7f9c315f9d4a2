"""Clients that send or take as little as they can: bounded in time and in bytes, and no permit is held meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.model import Outcome
from gateway.proxy.bodies import BodyMemory
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
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

KIB = 1024


async def drip(client: RawClient, data: bytes = b"x", pause: float = 0.01) -> None:
    """Send ``data`` again and again until the other side has had enough."""
    async with asyncio.timeout(GUARD):
        while not client.reader.at_eof():
            client.writer.write(data)
            await asyncio.sleep(pause)


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Slow: "])
async def test_a_head_that_drips_is_cut(backend: StartBackend, begun: bytes) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, client_keepalive=0.3) as house:
        client = await house.client()
        await client.send(begun)
        dripping = asyncio.create_task(drip(client))
        await client.ended()
        dripping.cancel()
        assert engine.requests == []
        assert house.controller.offered == []


async def test_a_head_that_is_too_large_on_the_whole_is_refused(backend: StartBackend) -> None:
    """Each of its fields is within the bound, and it is not whole yet."""
    engine = await backend(always(reply()))
    async with open_house(engine, max_header=KIB) as house:
        client = await house.client()
        fields = [b"X-%d: %b\r\n" % (index, b"x" * 900) for index in range(5)]
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"".join(fields[:3]))
        await asyncio.sleep(0.01)
        await client.send(b"".join(fields[3:]))
        answer = await client.answer()
        assert answer.status == 431
        assert answer.get("Connection") == "close"
        await client.ended()
        assert engine.requests == []


async def test_many_heads_in_turn_are_each_held_to_the_bound_alone(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, max_header=KIB) as house:
        client = await house.client()
        for _ in range(10):
            sent = request(body=CHAT, headers=[("X-Long", "x" * 900)])
            await client.send(sent[:500])
            await asyncio.sleep(0.005)
            assert (await client.ask(sent[500:])).status == 200


async def test_a_body_that_drips_is_refused_and_never_asks_for_a_permit(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, client_timeout=0.3, client_min_rate=100_000.0) as house:
        client = await house.client()
        await client.send(request(headers=[("Content-Length", "1000000")], length=False))
        dripping = asyncio.create_task(drip(client))
        answer = await client.answer()
        dripping.cancel()
        assert answer.status == 408
        assert b"request_timeout" in answer.body
        assert house.controller.offered == []
        assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_ERROR


@pytest.mark.parametrize(
    ("head", "body", "status"), [("Content-Length: 9", b"x", 408), ("Transfer-Encoding: chunked", b"zz\r\n", 400)]
)
async def test_a_connection_whose_body_cannot_go_on_is_closed_at_once(
    backend: StartBackend, caplog: pytest.LogCaptureFixture, head: str, body: bytes, status: int
) -> None:
    """Nothing is left that could be read to its end."""
    engine = await backend(always(reply()))
    async with open_house(engine, client_timeout=0.1) as house:
        client = await house.client()
        name, value = head.split(": ")
        await client.send(request(headers=[(name, value)], length=False) + body)
        assert (await client.answer()).status == status
        async with asyncio.timeout(GUARD / 4):
            await client.ended()
        assert "exception" not in caplog.text


async def test_a_body_that_is_slow_but_keeps_its_rate_is_taken(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(engine, client_timeout=0.2, client_min_rate=10.0) as house:
        client = await house.client()
        whole = request(body=CHAT)
        for start in range(0, len(whole), 20):
            await client.send(whole[start : start + 20])
            await asyncio.sleep(0.05)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(("rate", "cut"), [(10_000_000.0, True), (0.0, False)])
async def test_a_client_that_takes_its_answer_in_drips_is_cut(backend: StartBackend, rate: float, cut: bool) -> None:
    async def endless(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD)
        for _ in range(300):
            await peer.send(chunked(event("x" * 64 * KIB)))
        await peer.send(b"0\r\n\r\n")

    engine = await backend(endless)
    async with open_house(engine, client_timeout=0.2, client_min_rate=rate) as house:
        client = await house.client(receive_buffer=4 * KIB)
        await client.send(request(body=CHAT_STREAM))
        seen = 0
        try:
            for _ in range(100):
                seen += len(await client.reader.read(KIB))
                await asyncio.sleep(0.02)
                if client.reader.at_eof() or house.controller.outcomes:
                    break
        except ConnectionError:
            pass
        if cut:
            assert (await house.records.count(1))[0].outcome is Outcome.CLIENT_GONE
            assert house.controller.balanced
        else:
            assert house.controller.outcomes == []
            client.reset()
            await house.records.count(1)


async def test_a_backend_whose_head_never_ends_is_502(backend: StartBackend) -> None:
    async def endless(peer: Peer, _message: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while True:
            await peer.send(b"x" * 64 * KIB)

    engine = await backend(endless)
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT))).status == 502
        assert "head of more than" in ((await house.records.count(1))[0].error or "")
        await engine.deserted()


# --------------------------------------------------------------------------------------------------------------
# Many large bodies
# --------------------------------------------------------------------------------------------------------------


async def test_a_hundred_large_bodies_stay_within_the_memory_for_bodies(backend: StartBackend) -> None:
    """Those that find no room are told to come back; the rest are served; small ones always find room."""
    release = asyncio.Event()

    async def slow(peer: Peer, _message: Message) -> None:
        await release.wait()
        await peer.send(reply())

    engine = await backend(slow)
    memory, size = 8 * KIB * KIB, KIB * KIB
    async with open_house(engine, body_memory=memory, limit=1) as house:
        clients = [await house.client() for _ in range(100)]
        large = request(body=b'{"pad":"%b"}' % (b"x" * size))
        for client in clients:
            client.writer.write(large)
        await wait_until(lambda: len(house.controller.offered) + len(house.records.all) == len(clients))
        assert 0 <= len(house.controller.offered) - memory // size <= 1, "64 KiB of each are not counted"
        assert memory - size < house.front._handler._memory.held <= memory
        small = await house.client()
        await small.send(request(body=CHAT))
        await wait_until(lambda: house.controller.offered[-1].body_bytes == len(CHAT))
        release.set()
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert Counter(answer.status for answer in answers).keys() == {200, 429}
        for answer in answers:
            if answer.status == 429:
                assert answer.get("Retry-After") in {"1", "2", "3"}
                assert b"GATEWAY_BODY_MEMORY" in answer.body
        assert (await small.answer()).status == 200
        assert house.front._handler._memory.held == 0


@pytest.mark.parametrize("end", ["answered", "left"])
async def test_the_memory_of_a_body_is_given_back(backend: StartBackend, end: str) -> None:
    begun, answer, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(peer: Peer, _message: Message) -> None:
        begun.set()
        if end == "left":
            await peer.ended()
        await answer.wait()
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine = await backend(script)
    async with open_house(engine) as house:
        memory = house.front._handler._memory
        client = await house.client()
        await client.send(request(body=CHAT_STREAM + b" " * 300_000))
        await begun.wait()
        assert memory.held > 200_000
        if end == "left":
            client.reset()
            await house.records.count(1)
            assert memory.held == 0
            return
        answer.set()
        head = await client.head()
        await client.chunk()
        assert memory.held == 0, "the answer has begun: the body is let go"
        release.set()
        await client.body(head)
        await house.records.count(1)
        assert memory.held == 0


def test_a_lease_counts_what_is_above_the_first_of_each_body() -> None:
    memory = BodyMemory(100_000)
    one, two = memory.lease(), memory.lease()
    assert one.grow(64 * KIB)
    assert memory.held == 0
    assert one.grow(64 * KIB + 60_000)
    assert one.grow(64 * KIB + 90_000)
    assert memory.held == 90_000
    assert not two.grow(64 * KIB + 10_001)
    assert two.grow(64 * KIB + 10_000)
    memory.limit = 1
    assert one.grow(64 * KIB + 90_000), "it grew no more"
    assert memory.lease().grow(64 * KIB), "a small one finds room whatever is held"
    one.end()
    one.end()
    assert memory.held == 10_000
