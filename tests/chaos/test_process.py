"""The real process under many streams: signals, a sudden death, and no descriptors left."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from gateway.proxy.descriptors import raise_limit
from tests.proxy.helpers import (
    CHAT_STREAM,
    SSE_HEAD,
    Message,
    Peer,
    RawClient,
    ScriptedBackend,
    chunked,
    event,
    reply,
    request,
)
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, eventually

STREAMS: Final = 1000
ALL_AT_ONCE: Final = 50  # connections, so that none waits in a full backlog


class Engine(ScriptedBackend):
    """Streams that go on until ``release``."""

    def __init__(self) -> None:
        super().__init__(self._stream)
        self.release = asyncio.Event()

    async def _stream(self, peer: Peer, message: Message) -> None:
        if message.method == "GET":
            await peer.send(reply())
            return
        await peer.send(SSE_HEAD + chunked(event("first")))
        await self.release.wait()
        await peer.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    await made.stop()


def settings(engine: Engine) -> dict[str, str]:
    limit = {"name": "engine", "url": engine.url, "limit": 2 * STREAMS}
    return {
        "backends": json.dumps([limit]),
        "drain_grace": "20",
        "lanes": "all",
        "max_wait": "60",
        "queue_max_requests": str(STREAMS),
    }


async def begun(gateway: GatewayProcess, engine: Engine) -> list[RawClient]:
    """Streams, of which each has its first event."""
    clients: list[RawClient] = []
    while len(clients) < STREAMS:
        some = [await RawClient.connect(gateway.url) for _ in range(ALL_AT_ONCE)]
        for client in some:
            await client.send(request(body=CHAT_STREAM))
        for client in some:
            assert (await client.head()).status == 200
            assert await client.chunk() == event("first")
        clients += some
    assert sum(message.method == "POST" for message in engine.requests) == STREAMS
    return clients


async def end(client: RawClient) -> str:
    """How the rest of a stream ended, as a client can tell it."""
    try:
        while part := await client.chunk():
            if part.startswith(b'data: {"error"'):
                return "an error was said"
    except (ConnectionError, asyncio.IncompleteReadError):
        return "cut"
    finally:
        client.close()
    return "whole"


async def serves(gateway: GatewayProcess) -> bool:
    client = await RawClient.connect(gateway.url)
    try:
        return (await client.ask(request(body=CHAT_STREAM))).status == 200
    finally:
        client.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("signals", "ends", "code"),
    [
        ((signal.SIGTERM,), {"whole"}, 0),
        ((signal.SIGINT,), {"whole"}, 0),
        ((signal.SIGTERM, signal.SIGINT), {"cut"}, 128 + signal.SIGINT),
        ((signal.SIGKILL,), {"cut"}, -signal.SIGKILL),
    ],
    ids=["SIGTERM", "SIGINT", "twice", "SIGKILL"],
)
async def test_no_signal_makes_a_stream_look_whole_that_is_not(
    engine: Engine, tmp_path: Path, signals: tuple[int, ...], ends: set[str], code: int
) -> None:
    raise_limit()  # of this process, which has both ends
    gateway = GatewayProcess(tmp_path, settings(engine))
    try:
        await asyncio.to_thread(gateway.wait_until_ready)
        clients = await begun(gateway, engine)
        for number in signals:
            gateway.program.signal(number)
            await asyncio.sleep(0.05)
        if ends == {"whole"}:
            engine.release.set()
        assert Counter(await asyncio.gather(*map(end, clients))).keys() == ends
        assert await asyncio.to_thread(gateway.program.wait) == code
    finally:
        gateway.program.kill()
    engine.release.set()
    await engine.deserted()
    (tmp_path / "again").mkdir()
    again = GatewayProcess(tmp_path / "again", settings(engine))
    try:
        await asyncio.to_thread(again.wait_until_ready)
        assert await serves(again), "it starts anew from whatever was left"
    finally:
        again.program.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prlimit is Linux's")
async def test_P40_out_of_descriptors_it_lives_on_and_recovers(engine: Engine, tmp_path: Path) -> None:
    import resource

    gateway = GatewayProcess(tmp_path, settings(engine))
    pid = gateway.program._process.pid
    engine.release.set()
    try:
        await asyncio.to_thread(gateway.wait_until_ready)
        assert await serves(gateway)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        opened = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())  # noqa: ASYNC240 - no disk is read
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + 12, before[1]))
        idle = [await RawClient.connect(gateway.url) for _ in range(5)]
        await asyncio.sleep(0.1)
        refused: Counter[int] = Counter()
        for client in [*idle, *[await RawClient.connect(gateway.url) for _ in range(40)]]:
            try:
                await client.send(request(body=CHAT_STREAM))
                refused[(await asyncio.wait_for(client.head(), PATIENCE)).status] += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                refused[0] += 1
            client.close()
        assert refused.keys() <= {0, 200, 503}
        assert refused[503]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        async with asyncio.timeout(PATIENCE):
            while not await serves(gateway):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(gateway.running) == 0
        assert sum(gateway.series("gateway_connections_refused_total").values()) > 0
        await asyncio.to_thread(eventually, lambda: "clients are turned away" in gateway.program.tail(), "it is said")
    finally:
        assert gateway.program.stop() == 0
