"""What a balancer in front is told of the load, in the form that Envoy reads."""

from __future__ import annotations

import pytest

from gateway.model import LaneState, Reason
from gateway.proxy.load import HEADER, LoadReport
from tests.proxy.helpers import CHAT, StartBackend, always, open_house, reply, request
from tests.telemetry.helpers import backend_state, gateway_state


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.state = gateway_state()
        self.report = LoadReport(lambda: self.state, lambda: self.now)

    def told(self) -> dict[str, float]:
        kind, _, text = self.report().partition(" ")
        assert kind == "TEXT"
        return {name: float(value) for name, value in (each.split("=") for each in text.split(", "))}


def test_utilization_is_what_runs_and_waits_over_what_may_run() -> None:
    world = World()
    world.state = gateway_state(
        backend_state("a", running=6, limit=8.0),
        backend_state("b", running=2, limit=2.0),
        backend_state("c", running=0, limit=50.0, health="down"),
        lanes=(LaneState("only", 7, 0, 0, 0),),
    )
    told = world.told()
    assert told["application_utilization"] == pytest.approx(1.5)
    assert (told["named_metrics.running"], told["named_metrics.waiting"]) == (8, 7)
    assert told["named_metrics.limit"] == 10


def test_a_gateway_that_serves_nobody_is_full() -> None:
    world = World()
    world.state = gateway_state(backend_state("a", health="open"))
    assert world.told()["application_utilization"] == 1.0
    world.now += 1.0
    world.state = gateway_state(backend_state("a", running=0), draining=True, lanes=())
    assert world.told()["application_utilization"] == 1.0


def test_the_rate_follows_what_was_finished_and_decays() -> None:
    world = World()
    for _ in range(40):
        world.report.finished += 25
        world.now += 0.25
        rate = world.told()["rps_fractional"]
    assert rate == pytest.approx(100, rel=0.01)
    world.now += 5.0
    assert world.told()["rps_fractional"] == 0.0


def test_it_is_made_four_times_a_second_at_most() -> None:
    world = World()
    before = world.report()
    world.state = gateway_state(backend_state("a", running=5))
    world.now += 0.2
    assert world.report() == before
    world.now += 0.05
    assert world.report() != before


async def test_answers_carry_it_where_it_is_wanted(backend: StartBackend) -> None:
    engine = await backend(always(reply(headers=[(HEADER, "TEXT named_metrics.of_the_engine=1")])))
    async with open_house(engine, load_header=True, limit=1) as house:
        answer = await house.ask(request(body=CHAT))
        (told,) = answer.all(HEADER)
        assert told.startswith("TEXT application_utilization=")
    async with open_house(engine) as house:
        answer = await house.ask(request(body=CHAT))
        assert answer.all(HEADER) == ["TEXT named_metrics.of_the_engine=1"]


async def test_so_do_refusals(backend: StartBackend) -> None:
    async with open_house(await backend(always(reply())), load_header=True) as house:
        house.controller.refuse = Reason.QUEUE_FULL
        answer = await house.ask(request(body=CHAT))
        assert answer.status == 429
        assert len(answer.all(HEADER)) == 1
