"""Several engines behind one gateway: one dies, one turns ten times slower, one joins; no storm, and little is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest

from gateway.emulator.engine import Profile
from gateway.emulator.load import Ask, Fate, Load, Mix, Plan, Result
from gateway.emulator.server import EmulatedServer
from tests.real.gateway import GatewayProcess
from tests.real.wire import Request, exchange

SMALL: Final = Profile("small", base=0.02, per_sequence=0.0005, per_prefill_token=0.0001, max_num_seqs=64)
RATE: Final = 30.0  # requests a second; one engine alone gives some 60
DIES, SLOWS, JOINS, ENDS = 4.0, 7.0, 9.0, 16.0
SETTLED: Final = 2.0  # seconds after the last event
TALKS: Final = 60

pytestmark = [pytest.mark.load, pytest.mark.timeout(120)]


def talks() -> Mix:
    """Conversations that go on: each request begins as the last one of the same talk did."""
    begun: Counter[int] = Counter()

    def mix(chance: random.Random) -> Ask:
        talk = chance.randrange(TALKS)
        begun[talk] += 1
        said = f"talk {talk} " * 150 + "and so on " * 40 * min(begun[talk], 20)
        document = {
            "model": SMALL.name, "max_tokens": chance.randint(10, 30), "stream": True,
            "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": said}],
        }  # fmt: skip
        return Ask("/v1/chat/completions", orjson.dumps(document), stream=True)

    return mix


def slow_down(server: EmulatedServer, speed: float) -> None:
    """Its clock goes slower from now on."""
    driver = server._driver
    driver._epoch = driver._loop.time() - driver.now() / speed
    driver._speed = speed
    if driver._timer is not None:
        driver._timer.cancel()
        driver._timer = None
    driver._arm()


async def befallen(process: GatewayProcess, engines: list[EmulatedServer]) -> Result:
    load = asyncio.create_task(Load(process.url, Plan(talks(), RATE, ENDS, timeout=20.0, grace=10.0)).run())
    await asyncio.sleep(DIES)
    await engines[0].stop()
    await asyncio.sleep(SLOWS - DIES)
    slow_down(engines[1], 0.1)
    await asyncio.sleep(JOINS - SLOWS)
    async with EmulatedServer(SMALL) as newcomer:
        joined = Request("PUT", "/backends", [{"name": "new", "url": newcomer.url}])
        assert (await asyncio.to_thread(exchange, process.admin_port, joined)).status == 200
        return await load


def lines(process: GatewayProcess) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in process.access_log.read_text().splitlines())
    return [line for line in found if line["route"] == "chat"]


def test_one_dies_one_slows_one_joins(gateway: Callable[..., GatewayProcess]) -> None:
    async def run() -> tuple[Result, GatewayProcess]:
        engines = [EmulatedServer(SMALL) for _ in range(3)]
        for engine in engines:
            await engine.start()
        named = [
            {"name": name, "url": engine.url} for name, engine in zip(("dies", "slows", "stays"), engines, strict=True)
        ]
        process = await asyncio.to_thread(
            gateway, backends=json.dumps(named), affinity="prefix", probe_interval="500ms", choice_header="true"
        )
        try:
            return await befallen(process, engines), process
        finally:
            for engine in engines[1:]:
                await engine.stop()

    result, process = asyncio.run(run())
    if result.lag > 1.0:
        pytest.skip(f"something else kept the machine busy: an arrival was {result.lag:.2f} s late")
    told = lines(process)
    state = {backend["name"]: backend for backend in process.state()["backends"]}
    tried = sum(line.get("attempts", 0) for line in told)
    print(Counter(line["outcome"] for line in told), {name: each["choices"] for name, each in state.items()})  # noqa: T201 - shown where it fails
    assert tried <= 1.05 * len(told)
    assert result.attempts_per_request <= 1.05
    late = [each for each in result.outcomes if each.arrival >= JOINS + SETTLED]
    assert sum(each.fate is Fate.GOOD for each in late) >= 0.95 * len(late)
    assert state["new"]["choices"].get("headroom", 0) + state["new"]["choices"].get("spill", 0) > 0
    assert state["dies"]["running"] == 0
    assert sum(each["choices"].get("prefix", 0) for each in state.values()) > 0.3 * len(told)
    assert state["stays"]["cached_tokens"] > 0.3 * state["stays"]["prompt_tokens"]
