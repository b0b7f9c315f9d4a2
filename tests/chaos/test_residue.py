"""Short requests by the thousand leave nothing of themselves, whatever became of them.

They come from fifty clients for fifty models: what is kept of those is bounded, and has its tests where it is kept.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.settings.plain import backends
from tests.proxy.helpers import CHAT, Message, Peer, RawClient, ScriptedBackend, reply, request, wait_until

BATCH = 240
PER_REQUEST = 3.0  # objects that the collector sees, what time alone brings included; a request that stays is dozens


async def often_failing(peer: Peer, message: Message) -> None:
    """Three in ten are cut off: before the head, within it, or after it."""
    match int(message.get("X-Request-Id") or 0) % 10:
        case 0:
            peer.reset()
        case 1:
            await peer.send(b"HTTP/1.1 200")
            peer.close()
        case 2:
            await peer.send(reply(b'{"choices":')[:-4])
            peer.reset()
        case _:
            await peer.send(reply(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}'))


async def batch(url: str, numbers: Iterator[int]) -> None:
    """So many requests, most of them on connections of their own."""
    for _ in range(BATCH // 8):
        clients = [await RawClient.connect(url) for _ in range(8)]
        for client in clients:
            number = next(numbers)
            headers = [("X-Request-Id", str(number)), ("Authorization", f"Bearer key-{number % 50}")]
            await client.send(request(body=CHAT.replace(b'"m"', b'"model-%d"' % (number % 50)), headers=headers))
        for client in clients:
            try:
                await client.answer()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                client.close()


async def test_F07_C22_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """With every observer on; the window of the report is bounded by time, here to next to nothing."""
    engine = await ScriptedBackend(often_failing).start()
    environment = {
        "GATEWAY_BACKENDS": json.dumps([{"name": "a", "url": engine.url, "kind": "openai", "limit": 64}]),
        "GATEWAY_HOST": "127.0.0.1",
        "GATEWAY_PORT": "0",
        "GATEWAY_ADMIN_HOST": "127.0.0.1",
        "GATEWAY_ADMIN_PORT": "0",
        "GATEWAY_ACCESS_LOG": str(tmp_path / "access.jsonl"),
        "GATEWAY_UPSTREAM_KEEPALIVE": "0",
        "GATEWAY_REPORT_WINDOW": "0.1",
        "GATEWAY_DIAGNOSIS_WINDOW": "10",
        "GATEWAY_METRICS_MAX_CLIENTS": "5",
    }
    with mock.patch.dict(os.environ, environment):
        loaded = load_all(None)
    service = Service(loaded, backends(loaded.settings))
    await service.start()
    numbers = iter(range(10**9))
    counts = []
    try:
        for _ in range(4):
            await batch(service.gateway.url, numbers)
            await wait_until(lambda: not service.gateway.in_flight)
            engine.requests.clear()
            await asyncio.sleep(0.15)
            gc.collect()
            counts.append(len(gc.get_objects()))
    finally:
        await service.stop()
        await engine.stop()
    grown = counts[3] - counts[1]  # what is made once was made by then
    assert grown < PER_REQUEST * 2 * BATCH, counts
