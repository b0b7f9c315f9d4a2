"""The monitor: looks, events, and a diagnosis every ten looks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.model import GatewayState, Outcome, Reason
from gateway.telemetry import monitor as module
from gateway.telemetry.clients import Clients
from gateway.telemetry.curve import Curves
from gateway.telemetry.events import EventLog
from gateway.telemetry.monitor import Monitor, Sources
from gateway.telemetry.window import Window
from tests.telemetry.entries import ended, entry
from tests.telemetry.helpers import backend_state, gateway_state, record, refused


class Bench:
    """A monitor whose time, state and requests are made by hand."""

    def __init__(self, seconds: float = 60.0, **sources: Any) -> None:
        self.now = 1000.0
        self.shown: GatewayState = gateway_state(backend_state(silence=0.0, running=2), lanes=())
        self.window = Window(3600.0, 1 << 30, lambda: self.now)
        self.log = EventLog()
        made = Sources(self.state, self.window, Curves(3600.0), Clients(seconds, lambda: self.now), **sources)
        self.monitor = Monitor(made, self.log, seconds, lambda: self.now, lambda: 5e8 + self.now)

    def state(self) -> GatewayState:
        return self.shown

    def change(self, **changes: Any) -> None:
        self.shown = gateway_state(replace(self.shown.backends[0], **changes), lanes=())

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.monitor.look()
            self.now += 1.0

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.log.view()["events"]]

    @property
    def causes(self) -> list[tuple[str, str | None]]:
        return self.monitor.findings.causes()


async def test_what_happens_between_two_looks_is_told() -> None:
    bench = Bench()
    await bench.look()
    bench.change(health="down")
    await bench.look(2)
    assert bench.kinds == ["backend_down"]


async def test_a_diagnosis_is_made_every_ten_looks() -> None:
    bench = Bench()
    bench.change(silence=200.0)
    await bench.look(9)
    assert bench.causes == []
    await bench.look()
    assert bench.causes == [("backend_hung", "gpu1")]
    assert bench.kinds == ["finding_began"]
    bench.change(silence=0.0)
    await bench.look(50)
    assert bench.causes == []
    assert bench.kinds == ["finding_began", "finding_ended"]


async def test_it_rests_on_the_requests_of_the_window_and_no_others() -> None:
    bench = Bench(seconds=60.0)
    for number in range(100):  # long ago everything was refused
        bench.window.take(ended(Outcome.REFUSED, 900.0 + number * 0.1, reason=Reason.DEADLINE))
    for number in range(30):
        bench.window.take(entry(990.0 + number * 0.1))
    bench.change(running=20, limit=12.5, pace=0.05)
    await bench.look(40)
    assert bench.causes == []
    view = bench.monitor.findings.view()
    assert view["window_seconds"] == 60.0
    assert view["unknown"] == []


async def test_of_very_many_requests_only_the_youngest_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 200)
    bench = Bench()
    for number in range(1000):
        bench.window.take(entry(1000.0 + number * 0.01))
    bench.now = 1011.0
    await bench.look(10)
    assert bench.monitor.findings.view()["window_seconds"] < 13.0


async def test_others_have_their_turn_during_a_diagnosis() -> None:
    bench = Bench()
    for number in range(1000):
        bench.window.take(entry(1000.0 + number * 0.001))
    await bench.look(9)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await bench.look()
    other.cancel()
    assert turns >= 1000 // 128


async def test_its_sources_are_asked() -> None:
    lag, canaries = (lambda: 0.5), (lambda: [("gpu1", "Prompt 1 was answered otherwise.")])
    bench = Bench(loop_lag=lag, canaries=canaries)
    await bench.look(10)
    assert bench.causes == [("canary_failed", "gpu1"), ("gateway_busy", None)]


async def test_shedding_begins_with_the_first_refusal_and_ends_after_calm() -> None:
    bench = Bench()
    await bench.look()
    for reason in (Reason.DEADLINE, Reason.DEADLINE, Reason.QUEUE_FULL):
        bench.monitor.observe(refused(reason=reason))
    bench.monitor.observe(record())
    await bench.look(2)
    bench.monitor.observe(refused(reason=Reason.DEADLINE))
    await bench.look(29)
    assert bench.kinds == ["shedding_began"]
    (began,) = bench.log.view()["events"]
    assert began["text"] == "requests are refused: 2 deadline, 1 queue_full in a second"
    assert began["data"] == {"reasons": {"deadline": 2, "queue_full": 1}}
    await bench.look(3)
    assert bench.kinds == ["shedding_began", "shedding_ended"]
    bench.monitor.observe(refused(reason=Reason.DEADLINE))
    await bench.look()
    assert bench.kinds == ["shedding_began", "shedding_ended", "shedding_began"]


async def test_looks_that_are_too_old_are_forgotten() -> None:
    bench = Bench(seconds=20.0)
    await bench.look(100)
    assert len(bench.monitor._looks) == 21


async def test_started_it_looks_by_itself_and_survives_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    bench, looks = Bench(), 0

    def state() -> GatewayState:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise RuntimeError("planted")
        return bench.shown

    sources = Sources(state, bench.window, Curves(60.0), Clients(60.0))
    monitor = Monitor(sources, bench.log, 60.0)
    monitor.start()
    async with asyncio.timeout(30.0):
        while looks < 5:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
    monitor.stop()
    monitor.stop()  # idempotent
    assert "the monitor stumbled" in caplog.text
