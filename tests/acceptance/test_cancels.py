"""A thousand streams opened and cancelled at random moments leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually

STREAMS = 1000
LIMIT = 100  # of which so many may run at once: others leave the queue
SPREAD = 8.0  # seconds in which they open
STAY = 1.5  # seconds after which one leaves, on average


def _request(max_tokens: int) -> bytes:
    body = chat("a100-llama3-8b", max_tokens=max_tokens).encoded()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _one(port: int, chance: random.Random) -> None:
    """Open a stream at a random moment, read it, and leave at another, wherever it is then."""
    data = _request(chance.randint(1, 300))
    part = chance.choice([len(data) - 20, len(data), len(data), len(data), len(data)])  # some never send all of it
    stay, reset = chance.expovariate(1.0 / STAY), chance.random() < 0.5
    await asyncio.sleep(chance.uniform(0.0, SPREAD))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(stay):
            writer.write(data[:part])
            await reader.read()
    except TimeoutError:
        pass
    finally:
        if reset:
            writer.transport.abort()
        await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _storm(port: int) -> None:
    chance = random.Random(4)
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(_one(port, chance))


async def _whole(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(50))
    reply = await reader.read()
    await _closed(writer)
    return reply


async def _all_at_once(port: int, count: int) -> list[bytes]:
    return await asyncio.gather(*(_whole(port) for _ in range(count)))


def test_a_thousand_cancelled_streams_leave_nothing(
    engine: Callable[..., EmulatedEngine], gateway: Callable[..., GatewayProcess]
) -> None:
    backend = engine("a100-llama3-8b")
    process = gateway(backends=json.dumps([{"url": backend.url, "name": "a", "limit": LIMIT}]))
    asyncio.run(_storm(process.port))

    def still() -> bool:
        books = process.state()
        return (
            not process.waiting()
            and all(not state[key] for state in books["backends"] for key in ("running", "unstarted", "tokens"))
            and all(not lane["cost"] for lane in books["lanes"])
        )

    eventually(still, "the books of the gateway are empty")
    for gauge in ("inflight_requests", "inflight_tokens", "unstarted_requests", "queue_depth", "queue_tokens"):
        assert set(process.series(f"gateway_{gauge}").values()) == {0.0}, gauge
    eventually(lambda: not any(backend.state()[key] for key in ("running", "waiting", "kv_tokens")), "the engine idles")

    outcomes = process.series("gateway_requests_total")
    gone = sum(count for series, count in outcomes.items() if 'outcome="client_gone"' in series)
    assert gone > STREAMS / 4, "the storm cancelled too little to show anything"
    assert backend.state()["aborted"] > STREAMS / 10
    assert not [series for series in outcomes if "internal_error" in series]

    # Had a permit been lost, the last of these would not run at once but wait, or be refused.
    replies = asyncio.run(_all_at_once(process.port, LIMIT))
    assert [reply.partition(b"\r\n")[0] for reply in replies] == [b"HTTP/1.1 200 OK"] * LIMIT
    assert all(b"data: [DONE]" in reply for reply in replies)
    queued = process.series("gateway_queue_wait_seconds_bucket")
    assert queued
