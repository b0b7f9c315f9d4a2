"""When traffic may come: C09, C16 and the drain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.console.readiness import Readiness, ReadinessCheck
from gateway.model import EngineState, GatewayState
from tests.telemetry.helpers import backend_state, gateway_state


class World:
    """A state and a time that the test sets."""

    def __init__(self, *healths: str, pace: float | None = None) -> None:
        self.now = 1000.0
        self.pace = pace
        self.workers = 1
        self.become(*healths)
        self.check = ReadinessCheck(lambda: self.state, lambda: self.workers, lambda: self.now)

    def become(self, *healths: str, draining: bool = False) -> None:
        backends = (backend_state(f"gpu{i}", health=health, pace=self.pace) for i, health in enumerate(healths))
        self.state: GatewayState = gateway_state(*backends, draining=draining)


def test_ready_when_all_backends_are_up() -> None:
    assert World("up", "up").check() == Readiness(ready=True, degraded=False, reasons=())


def test_C16_ready_and_degraded_with_one_of_two_down() -> None:
    found = World("up", "down").check()
    assert found == Readiness(ready=True, degraded=True, reasons=("backend gpu1 is down",))


def test_C16_not_ready_while_no_backend_was_ever_reachable_and_ready_when_one_comes() -> None:
    world = World("down", "unknown")
    found = world.check()
    assert not found.ready
    assert found.reasons == ("no backend has answered yet", "backend gpu0 is down", "backend gpu1 is unknown")
    world.become("down", "up")
    assert world.check().ready


@pytest.mark.parametrize("health", ["down", "open", "half_open"])
def test_C09_once_reached_it_stays_ready_though_every_backend_is_out(health: str) -> None:
    world = World("up", "up")
    assert world.check().ready
    world.become(health, health)
    found = world.check()
    assert found.ready
    assert found.degraded
    assert found.reasons == (f"backend gpu0 is {health}", f"backend gpu1 is {health}")
    world.become("up", "up")
    assert world.check() == Readiness(ready=True, degraded=False, reasons=())


def test_C09_a_backend_that_has_put_out_tokens_was_reached_whatever_its_probes_say() -> None:
    found = World("down", pace=0.02).check()
    assert found.ready
    assert found.degraded


def test_an_engine_without_a_health_route_does_not_hold_readiness_for_ever() -> None:
    world = World("unknown")
    assert not world.check().ready
    world.now += 29.0
    assert not world.check().ready
    world.now += 1.0
    assert world.check() == Readiness(ready=True, degraded=False, reasons=())


def test_not_ready_before_the_engines_that_answer_were_asked_what_they_serve() -> None:
    world = World("up", "up")
    asked, unasked = EngineState("vllm", models={"m": None}), EngineState("vllm")
    first, second = world.state.backends
    world.state = replace(world.state, backends=(replace(first, engine=asked), replace(second, engine=unasked)))
    found = world.check()
    assert not found.ready
    assert found.reasons == ("backend gpu1 has not said yet what it serves",)
    world.state = replace(world.state, backends=(first, replace(second, engine=EngineState("vllm", models={}))))
    assert world.check().ready, "it was asked, whatever it said"
    world.state = replace(world.state, backends=(first, replace(second, engine=unasked)))
    assert world.check().ready, "once ready it stays so"


def test_one_that_cannot_be_asked_does_not_hold_readiness_for_ever() -> None:
    world = World("up")
    (backend,) = world.state.backends
    world.state = replace(world.state, backends=(replace(backend, engine=EngineState("vllm")),))
    assert not world.check().ready
    world.now += 30.0
    assert world.check().ready


def test_time_alone_does_not_make_a_dead_engine_ready() -> None:
    world = World("down")
    world.now += 3600.0
    assert not world.check().ready


def test_not_ready_while_draining() -> None:
    world = World("up")
    assert world.check().ready
    world.become("up", draining=True)
    assert world.check() == Readiness(ready=False, degraded=False, reasons=("draining: the gateway is shutting down",))


def test_without_a_backend_it_is_not_ready() -> None:
    world = World("up")
    world.state = GatewayState((), (), draining=False, overloaded=False, retries_seen={})
    assert not world.check().ready


def test_not_ready_while_no_process_relays() -> None:
    world = World("up")
    world.workers = 0
    assert world.check() == Readiness(ready=False, degraded=False, reasons=("no process relays: see the log",))
    world.workers = 1
    assert world.check().ready
