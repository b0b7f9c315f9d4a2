"""The curve, the diagnosis, the events and the canaries of a whole gateway over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.cli import main
from gateway.emulator.profiles import FLAT
from gateway.emulator.server import EmulatedServer
from gateway.model import Backend
from gateway.telemetry import monitor

CHAT = {"model": "flat", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20, "stream": True}


@asynccontextmanager
async def house(monkeypatch: pytest.MonkeyPatch, **settings: str) -> AsyncIterator[tuple[Service, EmulatedServer]]:
    wanted = {"host": "127.0.0.1", "port": "0", "admin_host": "127.0.0.1", "admin_port": "0", "access_log": "off"}
    for name, value in {**wanted, **settings}.items():
        monkeypatch.setenv(f"GATEWAY_{name.upper()}", value)
    async with EmulatedServer(FLAT) as engine:
        service = Service(load_all(None), [Backend("flat", engine.url, kind="vllm")])
        await service.start()
        try:
            yield service, engine
        finally:
            await service.stop()


async def ask(service: Service, path: str) -> Any:
    async with ClientSession() as session, session.get(f"{service.admin_url}{path}") as answer:
        assert answer.status == 200
        return await answer.json()


async def until(service: Service, path: str, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(50.0):
        while not condition(found := await ask(service, path)):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
    return found


async def chats(service: Service, users: int, times: int) -> None:
    """Each of ``users`` asks so many times in turn."""
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def user() -> None:
            for _ in range(times):
                async with session.post(f"{service.gateway.url}/v1/chat/completions", json=CHAT) as answer:
                    assert answer.status == 200
                    await answer.read()

        await asyncio.gather(*(user() for _ in range(users)))


async def test_the_curve_of_a_running_gateway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of this engine lasts 10 ms whatever it holds: twenty tokens take 0.2 s at any level."""
    async with house(monkeypatch, limit_initial="8", limit_min="8") as (service, _):
        await chats(service, 4, 30)
        await chats(service, 1, 2)  # a span ends with an arrival
        (found,) = (await ask(service, "/curve"))["curves"]
        level = max(found["levels"], key=lambda each: each["held_seconds"])
        assert level["low"] == 4
        assert level["requests"] >= 60
        assert level["latency"]["mean"] >= 0.19
        assert level["tpot"]["mean"] >= 0.0095
        rate = 4 / level["latency"]["mean"]  # by Little's law, less what clients take between two requests
        assert 0.5 * rate <= level["requests_per_second"] <= 1.1 * rate
        assert level["tokens_per_second"] == pytest.approx(20 * level["requests_per_second"], rel=0.1)
        arguments = ["curve", "--admin", service.admin_url]
        assert await asyncio.to_thread(main, arguments) == 0
        assert capsys.readouterr().out.startswith("flat, all requests (limit ")
        assert await asyncio.to_thread(main, [*arguments, "--json", "--backend", "flat"]) == 0
        assert json.loads(capsys.readouterr().out)["curves"][0]["backend"] == "flat"
        assert await asyncio.to_thread(main, [*arguments, "--csv"]) == 0
        assert capsys.readouterr().out.startswith("backend,model,low,high")
        assert await asyncio.to_thread(main, [*arguments, "--model", "other"]) == 2
        assert capsys.readouterr().err == "model: got 'other', expected one of flat\n"


async def test_canaries_find_an_engine_that_talks_nonsense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "LOOK", 0.01)
    async with house(monkeypatch, canary_interval="20ms") as (service, engine):
        await until(service, "/diagnosis", lambda found: not found["unknown"])
        async with asyncio.timeout(50.0):
            while engine.engine.finished < 6:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        engine.polluted = True
        found = await until(service, "/diagnosis", lambda found: found["findings"])
        (finding,) = [each for each in found["findings"] if each["cause"] == "canary_failed"]
        assert (finding["severity"], finding["backend"]) == ("critical", "flat")
        assert "!!!!" in finding["evidence"][0]
        assert await asyncio.to_thread(main, ["diagnose", "--admin", service.admin_url]) == 0
        assert "CRITICAL  flat answers a fixed prompt otherwise than before" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["diagnose", "--json", "--admin", service.admin_url]) == 0
        assert json.loads(capsys.readouterr().out)["findings"]
        async with ClientSession() as session, session.get(f"{service.admin_url}/metrics") as answer:
            metrics = await answer.text()
        assert 'gateway_finding{backend="flat",cause="canary_failed"} 1.0' in metrics
        failures = next(line for line in metrics.splitlines() if line.startswith("gateway_canary_failures_total{"))
        assert float(failures.rpartition(" ")[2]) >= 2
        engine.polluted = False
        events = await until(
            service, "/events", lambda found: any(each["kind"] == "canary_passed" for each in found["events"])
        )
        kinds = [event["kind"] for event in events["events"]]
        assert kinds.index("canary_failed") < kinds.index("canary_passed")
        assert "finding_began" in kinds


async def test_a_changed_setting_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(monkeypatch) as (service, _):
        arguments = ["limits", "--pin", "flat=3", "--admin", service.admin_url]
        assert await asyncio.to_thread(main, arguments) == 0
        (event,) = (await ask(service, "/events"))["events"]
        assert (event["kind"], event["backend"], event["text"]) == ("setting_changed", "flat", "limit pinned at 3")
