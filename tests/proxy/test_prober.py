"""Health: what counts against a backend, what does not, and that probing disturbs nobody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.model import Backend, Health, HintsUse
from gateway.proxy.config import ProbeConfig
from gateway.proxy.gate import Gate
from gateway.proxy.prober import Prober, Watch
from gateway.proxy.upstream import Upstream
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
    CountingController,
    Message,
    Peer,
    Script,
    ScriptedBackend,
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
from tests.real.process import free_port

OK, FAILING = always(reply(b"", headers=())), always(reply(b"", "503 Service Unavailable", ()))


class Probing:
    """One backend's watch, driven probe by probe."""

    def __init__(self, url: str, **changes: float) -> None:
        self.controller = CountingController(["a"])
        probe = ProbeConfig(**{"interval": 0.001, "timeout": GUARD, "failures": 3, "successes": 2, **changes})  # type: ignore[arg-type]
        config = proxy_config(connect_timeout=0.2, probe=probe)
        self.upstream = Upstream(Backend("a", url, kind="vllm"), config)
        self.watch = Watch(config, self.upstream, Gate(self.controller))

    async def probe(self, times: int = 1) -> list[Health]:
        for _ in range(times):
            await self.watch.probe()
        return self.controller.health["a"]


@pytest.fixture
async def engine(backend: StartBackend) -> ScriptedBackend:
    return await backend(always(reply()))


async def test_C11_it_takes_k_failures_in_a_row_to_go_down_and_m_successes_to_return(engine: ScriptedBackend) -> None:
    probing = Probing(engine.url)
    assert await probing.probe() == [Health.UP]
    engine.probe_script = FAILING
    assert await probing.probe(2) == [Health.UP]
    engine.probe_script = OK
    assert await probing.probe() == [Health.UP]
    engine.probe_script = FAILING
    assert await probing.probe(2) == [Health.UP]
    assert await probing.probe() == [Health.UP, Health.DOWN]
    assert await probing.probe(5) == [Health.UP, Health.DOWN]
    engine.probe_script = OK
    assert await probing.probe() == [Health.UP, Health.DOWN]
    assert await probing.probe() == [Health.UP, Health.DOWN, Health.UP]


async def test_a_backend_that_cannot_be_reached_goes_down_and_comes_back(engine: ScriptedBackend) -> None:
    port = free_port()
    probing = Probing(f"http://127.0.0.1:{port}")
    assert await probing.probe(2) == []
    assert await probing.probe() == [Health.DOWN]
    await engine.stop()
    await engine.start(port)
    assert await probing.probe(2) == [Health.DOWN, Health.UP]


async def mute(peer: Peer, _message: Message) -> None:
    await peer.ended()


async def hang_up(peer: Peer, _message: Message) -> None:
    peer.close()


@pytest.mark.parametrize("script", [mute, hang_up])
async def test_C08_a_busy_engine_that_misses_probes_is_not_ejected(engine: ScriptedBackend, script: Script) -> None:
    probing = Probing(engine.url, timeout=0.02)
    await probing.probe()
    engine.probe_script = script
    assert await probing.probe(10) == [Health.UP]
    await engine.deserted()


async def test_a_server_that_does_not_know_the_question_is_not_dead(engine: ScriptedBackend) -> None:
    engine.probe_script = always(reply(b"", "404 Not Found", ()))
    probing = Probing(engine.url)
    assert Health.DOWN not in await probing.probe(10)


async def test_gauges_are_passed_on(engine: ScriptedBackend) -> None:
    async def gauges(peer: Peer, message: Message) -> None:
        text = b"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n" if message.target == "/metrics" else b""
        await peer.send(reply(text, headers=()))

    engine.probe_script = gauges
    probing = Probing(engine.url)
    await probing.probe()
    (hints,) = probing.controller.hints["a"]
    assert (hints.running, hints.kv_usage, hints.waiting) == (3.0, 0.5, None)
    assert [message.target for message in engine.probes] == ["/health", "/v1/models", "/metrics"]


async def test_F39_gauges_that_fail_say_nothing(engine: ScriptedBackend) -> None:
    async def no_metrics(peer: Peer, message: Message) -> None:
        if message.target == "/metrics":
            await peer.send(reply(b"vllm:num_requests_running 3\n", "404 Not Found", ()))
        else:
            await peer.send(reply(b"", headers=()))

    engine.probe_script = no_metrics
    probing = Probing(engine.url, timeout=0.02)
    assert await probing.probe(3) == [Health.UP]
    engine.probe_script = mute
    await probing.probe()
    assert probing.controller.hints["a"] == []


async def test_M21_gauges_that_are_not_there_are_missed_once_and_aloud(
    engine: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def no_metrics(peer: Peer, message: Message) -> None:
        await peer.send(reply(b"", "404 Not Found" if message.target == "/metrics" else "200 OK", ()))

    engine.probe_script = no_metrics
    probing = Probing(engine.url)
    with caplog.at_level(logging.INFO, "gateway.proxy.prober"):
        assert await probing.probe(5) == [Health.UP]
    told = [record.message for record in caplog.records if "gauges" in record.message]
    assert told == ["backend a: its gauges are absent; its limit rests on what the gateway measures"]
    assert probing.watch.state.hints_use is HintsUse.ABSENT


async def test_gauges_without_end_are_given_up(engine: ScriptedBackend) -> None:
    async def endless(peer: Peer, message: Message) -> None:
        if message.target == "/metrics":
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await peer.send(b"x" * 2**20)
        await peer.send(reply(b"", headers=()))

    engine.probe_script = endless
    probing = Probing(engine.url)
    assert await probing.probe() == [Health.UP]
    await engine.deserted()
    assert probing.controller.hints["a"] == []


async def test_a_probe_carries_the_key_and_keeps_no_connection(engine: ScriptedBackend) -> None:
    probing = Probing(engine.url)
    probing.upstream.api_key = b"key"
    await probing.probe(3)
    assert {message.get("Authorization") for message in engine.probes} == {"Bearer key"}
    assert {message.get("Connection") for message in engine.probes} == {"close"}
    await engine.deserted()
    assert probing.upstream.connections == set()


async def test_C10_one_backend_in_a_black_hole_disturbs_no_other(engine: ScriptedBackend) -> None:
    """Nothing answers there, not even with a refusal: its probe waits for its own timeout, alone."""
    controller = CountingController(["hole", "good"])
    gate = Gate(controller)
    config = proxy_config(connect_timeout=GUARD, probe=ProbeConfig(interval=0.001))
    hole = Upstream(Backend("hole", "http://192.0.2.1:1"), config)
    good = Upstream(Backend("good", engine.url), config)
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def never() -> None:
        await waiting

    hole.connect = never  # type: ignore[method-assign,assignment]
    prober = Prober(config, {"hole": hole, "good": good}, gate)
    prober.start()
    await wait_until(lambda: len(engine.probes) >= 10)
    assert controller.health == {"hole": [], "good": [Health.UP]}
    await prober.stop()
    assert waiting.cancelled()


async def test_a_probe_that_breaks_is_tried_again(engine: ScriptedBackend, caplog: pytest.LogCaptureFixture) -> None:
    probing = Probing(engine.url)
    calls = 0

    async def broken(_in_flight: int) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    probing.watch._hints.read = broken  # type: ignore[assignment]
    task = asyncio.create_task(probing.watch.run())
    await wait_until(lambda: calls >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "failed inside the gateway" in caplog.text


async def test_C08_F10_what_runs_is_never_touched_by_a_probe(engine: ScriptedBackend) -> None:
    release = asyncio.Event()

    async def long(peer: Peer, _message: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")))
        await release.wait()
        await peer.send(b"0\r\n\r\n")

    engine.script = long
    engine.probe_script = FAILING
    async with open_house(engine, probe=ProbeConfig(interval=0.001)) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        await wait_until(lambda: Health.DOWN in house.controller.health["a"])
        assert house.gateway.state().backends[0].running == 1
        release.set()
        assert (await client.body(head)).body == event("a")


async def test_cheap_requests_go_to_a_backend_that_is_not_down_first(backend: StartBackend) -> None:
    good, bad = await backend(always(reply(b'{"at":"good"}'))), await backend(always(reply(b'{"at":"bad"}')))
    bad.probe_script = FAILING
    async with open_house(bad, good, probe=ProbeConfig(interval=0.001)) as house:
        await wait_until(lambda: Health.DOWN in house.controller.health["a"])
        for _ in range(4):
            assert (await house.ask(request(target="/tokenize", body=CHAT))).body == b'{"at":"good"}'
