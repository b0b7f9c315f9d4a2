"""No secret and no prompt in anything that the gateway tells: logs, records, metrics, traces, the admin port."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.settings.keys import hashed
from tests.app.house import House, engine
from tests.proxy.helpers import SSE_HEAD, Message, Peer, chunked, event, reply
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually
from tests.real.wire import Request, exchange

KEY = "sk-canary-client-0123456789"
ENGINE_KEY = "canary-engine-0123456789"
TOKEN = "canary-admin-0123456789"
WRONG = "sk-canary-wrong-0123456789"
COOKIE = "canary-cookie-0123456789"
QUERY = "canary-query-0123456789"
PROMPT = "canary-prompt-0123456789"
ANSWER = "canary-answer-0123456789"
SECRETS = (KEY, ENGINE_KEY, TOKEN, WRONG, COOKIE, QUERY, PROMPT, ANSWER)
SHOWN = (
    "/metrics",
    "/state",
    "/config",
    "/limits",
    "/report?format=json",
    "/curve",
    "/diagnosis",
    "/events",
    "/readyz",
)


async def script(peer: Peer, message: Message) -> None:
    """Every end that an answer may have, by the model that is asked for; secrets are in each of them."""
    if b'"broken"' in message.body:
        await peer.send(SSE_HEAD + chunked(event(ANSWER)))
        peer.reset()
    elif b'"garbage"' in message.body:
        await peer.send(f"{ANSWER} is no HTTP\r\n\r\n".encode())
    elif b'"error"' in message.body:
        await peer.send(reply(json.dumps({"error": {"message": f"{ANSWER} {PROMPT}"}}).encode(), "500 Oops"))
    elif b'"stream"' in message.body:
        await peer.send(SSE_HEAD + chunked(event(ANSWER)) + b"0\r\n\r\n")
    else:
        await peer.send(reply(json.dumps({"choices": [{"message": {"content": ANSWER}}]}).encode()))


def requests() -> list[tuple[str, dict[str, Any], str | None]]:
    """(path, body, key)."""
    found: list[tuple[str, dict[str, Any], str | None]] = []
    for model in ("m", "stream", "broken", "garbage", "error"):
        body = {
            "model": model,
            "stream": model in {"stream", "broken"},
            "messages": [{"role": "user", "content": PROMPT}],
        }
        for key in (KEY, WRONG, None):
            found += [(path, body, key) for path in ("/v1/chat/completions", "/v1/messages", "/sleep", "/%")]
    found.append(("/generate", {"inputs": PROMPT}, KEY))
    found.append(("/v1/completions", {"model": "m", "prompt": PROMPT * 4000}, KEY))
    return found


async def ask_everything(house: House) -> str:
    """All that the gateway itself answered."""
    told = []
    async with aiohttp.ClientSession() as session:
        for path, body, key in requests():
            headers = {"Cookie": f"session={COOKIE}", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
            for name, value in (("Authorization", f"Bearer {key}"), ("X-Api-Key", key)):
                sent = headers if key is None else {**headers, name: str(value)}
                url = f"{house.service.gateway.url}{path}?token={QUERY}"
                try:
                    async with session.post(url, json=body, headers=sent) as answer:
                        text = await answer.text()
                        if answer.status in {401, 400, 403, 413, 429, 502, 503, 504}:
                            told.append(f"{answer.headers} {text}")
                except aiohttp.ClientError as error:
                    told.append(repr(error))
        async with session.get(
            f"{house.service.admin_url}/state", headers={"Authorization": f"Bearer {WRONG}"}
        ) as answer:
            told.append(await answer.text())
        for path in SHOWN:
            async with session.get(
                house.service.admin_url + path, headers={"Authorization": f"Bearer {TOKEN}"}
            ) as answer:
                assert answer.status == 200 or path == "/readyz", path
                told.append(await answer.text())
        changes: tuple[tuple[str, object], ...] = (
            ("/backends", [{"name": "x", "url": f"http://user:{WRONG}@x"}]),
            ("/backends", [{"name": "x", "api_key": WRONG, "bad": WRONG}]),
        )
        for path, change in changes:
            async with session.put(house.service.admin_url + path, data=json.dumps(change)) as answer:
                assert answer.status == 400
                told.append(await answer.text())
    house.write(api_keys=f'[{{"name": "x", "keys": "{WRONG}", "oops": "{WRONG}"}}]')
    told.append(json.dumps(await house.admin("PUT", "/reload")))
    return "\n".join(told)


@pytest.mark.parametrize("log_format", ["plain", "json"])
async def test_S07_no_secret_and_no_prompt_is_told_anywhere(
    tmp_path: Path, log_format: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    log, records = tmp_path / "access.log", tmp_path / "records.jsonl"
    async with engine(script) as one:
        house = House(
            tmp_path,
            backends=json.dumps([{"name": "a", "url": one.url, "api_key": ENGINE_KEY}]),
            api_keys=json.dumps([{"name": "team", "keys": hashed(KEY), "requests_per_minute": 25}]),
            admin_token=TOKEN,
            access_log=log,
            records_file=records,
            log_level="debug",
            log_format=log_format,
            max_body_size="64KiB",
            metrics_max_clients=10,
        )
        async with house.open():
            told = await ask_everything(house)
            assert {message.get("Authorization") for message in one.requests} == {f"Bearer {ENGINE_KEY}"}
            assert not any(KEY in repr(message.headers) for message in one.requests)
    shown = capfd.readouterr()
    written = {
        "answers": told,
        "access log": log.read_text(),
        "records": records.read_text(),
        "log": caplog.text,
        "output": shown.out + shown.err,
    }
    assert all(written[name] for name in ("answers", "access log", "records", "log"))
    found = {(name, secret) for name, text in written.items() for secret in SECRETS if secret in text}
    assert found == set()


async def test_S07_no_secret_and_no_prompt_is_in_a_trace(tmp_path: Path) -> None:
    from tests.telemetry.collector import Collector

    collector = await asyncio.to_thread(Collector)
    try:
        async with engine(script) as one:
            given = json.dumps([{"name": "a", "url": one.url, "api_key": ENGINE_KEY}])
            house = House(tmp_path, backends=given, api_keys=hashed(KEY), otlp_endpoint=collector.url)
            async with house.open():
                await ask_everything_of_clients(house.service.gateway.url)
        bodies = [body for sent in collector.bodies.values() for body in sent]
        assert bodies
        assert {secret for secret in SECRETS for body in bodies if secret.encode() in body} == set()
    finally:
        await asyncio.to_thread(collector.stop)


@pytest.mark.skipif(sys.platform == "win32", reason="several processes need SO_REUSEPORT")
async def test_S07_no_secret_and_no_prompt_leaves_any_of_several_processes(tmp_path: Path) -> None:
    """What a worker saw goes to the brain, and from there into traces, metrics, logs and records."""
    from tests.telemetry.collector import Collector

    collector = await asyncio.to_thread(Collector)
    records = tmp_path / "records.jsonl"
    async with engine(script) as one:
        gateway = GatewayProcess(
            tmp_path,
            {
                "backends": json.dumps([{"name": "a", "url": one.url, "api_key": ENGINE_KEY}]),
                "api_keys": hashed(KEY),
                "admin_token": TOKEN,
                "workers": "2",
                "otlp_endpoint": collector.url,
                "records_file": str(records),
                "log_level": "debug",
                "metrics_max_clients": "10",
            },
        )
        try:
            await asyncio.to_thread(gateway.wait_until_ready)
            await asyncio.to_thread(eventually, lambda: gateway.series("gateway_workers")[""] == 2, "both listen")
            await ask_everything_of_clients(gateway.url)
            asked = [Request("GET", path) for path in SHOWN]
            answers = [(await asyncio.to_thread(exchange, gateway.admin_port, each)).body for each in asked]
        finally:
            await asyncio.to_thread(gateway.program.stop)
            await asyncio.to_thread(collector.stop)
    told = {
        "traces": b"".join(collector.bodies["/v1/traces"]),
        "exported metrics": b"".join(collector.bodies["/v1/metrics"]),
        "admin port": b"".join(answers),
        "access log": gateway.access_log.read_bytes(),
        "records": records.read_bytes(),
        "output": (tmp_path / "log").read_bytes(),
    }
    assert all(told.values())
    assert {span.name for span in collector.spans()} >= {"chat m", "chat broken", "queue", "engine"}
    assert {(name, secret) for name, text in told.items() for secret in SECRETS if secret.encode() in text} == set()


async def ask_everything_of_clients(where: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path, body, key in requests():
            headers = {"Cookie": COOKIE} if key is None else {"Cookie": COOKIE, "Authorization": f"Bearer {key}"}
            url = f"{where}{path}?token={QUERY}"
            try:
                async with session.post(url, json=body, headers=headers) as answer:
                    await answer.read()
            except aiohttp.ClientError:
                pass
