"""Scenarios for the diagnosis: emulated engines and clients, the production admission, and what is found in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from gateway.admission.config import AdmissionConfig
from gateway.emulator.engine import Engine, Profile
from gateway.model import Backend, Health, Hints
from gateway.simulator.crowd import Crowd
from gateway.simulator.fleet import Node
from gateway.simulator.setup import Load
from gateway.simulator.world import World
from gateway.telemetry.causes import Finding
from gateway.telemetry.clients import Clients
from gateway.telemetry.curve import Curves
from gateway.telemetry.diagnosis import diagnose
from gateway.telemetry.entry import Recorder
from gateway.telemetry.facts import Facts, FactSheet, Look
from gateway.telemetry.window import Window
from tests.telemetry.emulated import Observed

WINDOW = 60.0


@dataclass(frozen=True)
class Engineered:
    """One engine: its profile, whether its limit is fixed, when its speed changes, and when its health fails."""

    profile: Profile
    limit: int | None = None
    speeds: tuple[tuple[float, float], ...] = ()
    gauges: bool = True
    sick_from: float = inf


@dataclass
class Case:
    """Engines and loads; what is diagnosed is the last minute before ``until``."""

    engines: Sequence[Engineered]
    loads: Sequence[Load]
    until: float = 105.0
    config: AdmissionConfig = field(default_factory=AdmissionConfig)
    lingering: Mapping[str, float] = field(default_factory=dict)
    loop_lag: float = 0.0
    canaries: Sequence[tuple[str, str]] = ()

    def run(self) -> Facts:
        world = World()
        nodes = [Node(world, name, Engine(each.profile), each.speeds) for name, each in self._named()]
        backends = [Backend(name, f"http://{name}", limit=each.limit) for name, each in self._named()]
        curves, clients = Curves(86_400.0), Clients(WINDOW, lambda: world.now)
        window = Window(3600.0, 1 << 30, lambda: world.now)
        front = Observed(
            world, nodes, backends, [Recorder(window), curves, clients], curves, self.config, lingering=self.lingering
        )
        looks: list[Look] = []
        for number, load in enumerate(self.loads):
            Crowd(world, front, load, f"{load.label}/{number}", number, self.until, [])
        for second in range(1, int(self.until) + 1):
            for node, (_, each) in zip(nodes, self._named(), strict=True):
                world.at(second, lambda node=node, each=each: _probe(front, node, each))  # type: ignore[misc]
            world.at(second, lambda: looks.append((world.now, front.controller.state(world.now))))
        world.run(self.until)
        sheet = FactSheet(world.now, WINDOW, looks[-1][1])
        for entry in window.entries():
            if entry.received + entry.finished / 1e6 >= world.now - WINDOW:
                sheet.add(entry)
        recent = [look for look in looks if look[0] > world.now - WINDOW]
        return sheet.facts(recent, curves, clients.counts(), self.loop_lag, self.canaries)

    def _named(self) -> list[tuple[str, Engineered]]:
        return [(chr(ord("a") + number), each) for number, each in enumerate(self.engines)]

    def findings(self) -> list[Finding]:
        return diagnose(self.run())


def _probe(front: Observed, node: Node, each: Engineered) -> None:
    """As the prober does: health is that of a front end, which lives on when its engine hangs."""
    engine = node.engine
    now = front._world.now
    health = Health.UP if now < each.sick_from else Health.DOWN
    front._apply(front.controller.note_health(node.name, health, now))
    if each.gauges and now < each.sick_from:
        capacity = engine.profile.kv_tokens
        usage = engine.kv_tokens / capacity
        front.hint(node.name, Hints(engine.running, engine.waiting, usage, capacity, engine.preemptions))
