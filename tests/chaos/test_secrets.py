"""What clients say and what they show to be let in stands in no log, error, metric, trace or state."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.settings.plain import backends
from tests.proxy.helpers import Message, Peer, RawClient, ScriptedBackend, reply, request, wait_until
from tests.real.wire import Request, exchange

PROMPT: Final = "Zwetschgenkuchen-prompt"
ANSWER: Final = "Apfelstrudel-answer"
CLIENT_KEY: Final = "sk-client-Hollunder"
OTHER_KEY: Final = "sk-other-Brombeere"
BACKEND_KEY: Final = "sk-backend-Quitte"
TOKEN: Final = "admin-Mirabelle"
QUERY: Final = "Stachelbeere-query"
COOKIE: Final = "session-Heidelbeere"
SECRETS: Final = (PROMPT, ANSWER, CLIENT_KEY, OTHER_KEY, BACKEND_KEY, TOKEN, QUERY, COOKIE)
BODY: Final = json.dumps(
    {"model": "m", "user": "somebody", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
).encode()


async def engine_of(peer: Peer, message: Message) -> None:
    """Answers as the request's id says."""
    match message.get("X-Request-Id"):
        case "lost":
            peer.reset()
        case "error":
            await peer.send(reply(json.dumps({"error": {"message": ANSWER}}).encode(), "500 Internal Server Error"))
        case "garbage":
            await peer.send(f"{ANSWER}\r\n\r\n".encode())
        case "cut":
            await peer.send(reply(f'{{"choices": "{ANSWER}'.encode(), length=False)[:-2])
            peer.close()
        case _:
            body = json.dumps({"choices": [{"message": {"content": ANSWER}}], "usage": {"prompt_tokens": 3}}).encode()
            await peer.send(reply(body))


def asked(name: str, **more: str) -> bytes:
    headers = [("X-Request-Id", name), ("Cookie", COOKIE), ("X-Api-Key", OTHER_KEY)]
    headers += [
        ("Authorization", f"Bearer {CLIENT_KEY}"),
        ("Content-Type", "application/json"),
        ("Connection", "close"),
        *more.items(),
    ]
    return request(target=f"/v1/chat/completions?key={QUERY}", body=BODY, headers=headers)


async def test_nothing_that_is_said_or_shown_is_told_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = await ScriptedBackend(engine_of).start()
    log, records = tmp_path / "access.jsonl", tmp_path / "records.jsonl"
    environment = {
        "GATEWAY_BACKENDS": json.dumps([{"name": "a", "url": engine.url, "kind": "vllm", "api_key": BACKEND_KEY}]),
        "GATEWAY_HOST": "127.0.0.1",
        "GATEWAY_PORT": "0",
        "GATEWAY_ADMIN_HOST": "127.0.0.1",
        "GATEWAY_ADMIN_PORT": "0",
        "GATEWAY_ADMIN_TOKEN": TOKEN,
        "GATEWAY_ACCESS_LOG": str(log),
        "GATEWAY_RECORDS_FILE": str(records),
        "GATEWAY_METRICS_MAX_CLIENTS": "5",
    }
    with mock.patch.dict(os.environ, environment):
        loaded = load_all(None)
    assert loaded.ok
    service = Service(loaded, backends(loaded.settings))
    await service.start()
    shown: list[bytes] = []
    try:
        broken = [
            asked("bare", **{"X-Odd": f"{CLIENT_KEY}\rX"}),
            asked("nul", **{"X-Odd": f"{CLIENT_KEY}\0"}),
            b"POST /v1/chat/completions?" + QUERY.encode() + b" HTTP/9\r\n\r\n" + BODY,
            asked("length").replace(b"Content-Length: ", b"Content-Length: " + PROMPT.encode()),
            asked("json").replace(b'"max_tokens"', b'max_tokens"x'),
            asked("denied").replace(b"/v1/chat/completions", b"/sleep"),
        ]
        passed = [asked("well"), asked("error"), asked("cut"), broken[4]]
        for data in [*passed[:3], asked("lost"), asked("garbage"), *broken]:
            client = await RawClient.connect(service.gateway.url)
            await client.send(data)
            try:
                answer = await client.rest()
            except ConnectionError:
                continue
            finally:
                client.close()
            if data not in passed:  # those answers are the engine's own
                shown.append(answer)
        await wait_until(lambda: not service.gateway.in_flight)
        port = int(service.admin_url.rpartition(":")[2])
        shown += [
            (await asyncio.to_thread(exchange, port, Request("GET", path))).body
            for path in ("/metrics", "/state", "/config", "/status", "/events", "/report", "/diagnosis", "/readyz")
        ]
    finally:
        await service.stop()
        await engine.stop()
    assert log.read_text().count("\n") >= 6
    shown += [log.read_bytes(), records.read_bytes(), caplog.text.encode()]
    found = [(secret, text[max(0, text.find(secret.encode()) - 200) :][:400]) for text in shown for secret in SECRETS
             if secret.encode() in text]  # fmt: skip
    assert found == []
