"""One run of one scenario: clients, what stands between, engines, and the figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gateway.admission.config import AdmissionConfig
from gateway.model import Backend, BackendState, Hints
from tests.sim import figures
from tests.sim.clients import Call, Front
from tests.sim.crowd import crowds, engines
from tests.sim.figures import Trace
from tests.sim.fleet import Node
from tests.sim.fronts import Direct, Gateway, StaticFifo
from tests.sim.scenario import Hinting, Scenario
from tests.sim.world import World

TRACE_EVERY = 0.5


@dataclass(slots=True)
class Result:
    """What a run gave: the figures, and how each backend's books went (every half second; empty without a gateway)."""

    figures: dict[str, float]
    calls: list[Call]
    trace: Trace = field(default_factory=list)


def gateway(scenario: Scenario, *, limit: int | None = None, config: AdmissionConfig | None = None) -> Result:
    """The production admission with its defaults; ``limit`` fixes every backend's, which is what the oracle is."""
    run = _Run(scenario)
    backends = [Backend(m.name, f"http://{m.name}", limit=limit or m.limit) for m in scenario.fleet]
    front = Gateway(run.world, run.nodes, backends, config or AdmissionConfig(), str(scenario.seed))
    if scenario.hints:
        _probe(run, front, scenario.hints)
    result = run.through(front, lambda now: front.controller.state(now).backends)
    inside = [ttft for at, ttft in front.first_tokens if at >= scenario.measure_from]
    result.figures |= {
        "queue_deepest": front.deepest,
        "longest_wait": max((decision.wait for decision in front.decisions), default=0.0),
        "engine_ttft_p90": figures.percentile(inside, 0.9),
    }
    return result


def objectives(scenario: Scenario) -> Result:
    """The production admission, told the objectives."""
    return gateway(scenario, config=scenario.told())


def oracle(scenario: Scenario) -> Result:
    """The same queue in front of the best limit set by hand."""
    return gateway(scenario, limit=scenario.oracle_limit)


def oracle_told(scenario: Scenario) -> Result:
    """The oracle whose queue is told the objectives, as it is in ``objectives``."""
    return gateway(scenario, limit=scenario.oracle_limit, config=scenario.told())


def alone(scenario: Scenario) -> Result:
    """Without the background traffic."""
    return gateway(replace(scenario, load=tuple(kind for kind in scenario.load if not kind.background)))


def direct(scenario: Scenario) -> Result:
    """No gateway at all."""
    run = _Run(scenario)
    return run.through(Direct(run.world, run.nodes))


def static_fifo(scenario: Scenario) -> Result:
    """The oracle's limit in front of one queue in order of arrival, as people build it by hand."""
    run = _Run(scenario)
    return run.through(StaticFifo(run.world, run.nodes, scenario.oracle_limit))


MODES: dict[str, Callable[[Scenario], Result]] = {
    "gateway": gateway,
    "objectives": objectives,
    "oracle": oracle,
    "oracle_told": oracle_told,
    "alone": alone,
    "direct": direct,
    "static_fifo": static_fifo,
}


class _Run:
    """The engines and the clients of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World()
        self.nodes = engines(self.world, scenario)
        self._ended: list[Call] = []

    def through(self, front: Front, state: Callable[[float], tuple[BackendState, ...]] | None = None) -> Result:
        """Let the clients send to ``front`` until the horizon."""
        scenario, world = self.scenario, self.world
        crowds(world, front, scenario, self._ended)
        trace: Trace = []
        if state is not None:
            _every(world, TRACE_EVERY, lambda: trace.append((world.now, state(world.now))))
        world.run(scenario.horizon)
        measured = [call for call in self._ended if call.ended_at >= scenario.measure_from]
        seconds = scenario.horizon - scenario.measure_from
        of = figures.of_calls(measured, scenario.objectives, seconds)
        of["preemptions"] = float(sum(node.engine.preemptions for node in self.nodes))
        return Result(of | figures.of_limits(trace, scenario.measure_from), measured, trace)


def _every(world: World, seconds: float, action: Callable[[], object]) -> None:
    def again() -> None:
        action()
        world.after(seconds, again)

    world.after(seconds, again)


def _probe(run: _Run, front: Gateway, hinting: Hinting) -> None:
    """Read each engine's gauges now and then, and let the gateway hear of them when they are old enough."""
    world = run.world

    def read() -> None:
        if world.now <= hinting.until:
            for node in run.nodes:
                hints = _gauges(node, hinting)
                world.after(hinting.delay, lambda node=node, hints=hints: front.hint(node.name, hints))  # type: ignore[misc]

    _every(world, hinting.every, read)


def _gauges(node: Node, hinting: Hinting) -> Hints:
    engine = node.engine
    capacity = engine.profile.kv_tokens
    return Hints(
        running=engine.running,
        waiting=engine.waiting,
        kv_usage=engine.kv_tokens / capacity if hinting.kv_usage is None else hinting.kv_usage,
        kv_capacity_tokens=capacity,
        preemptions_total=engine.preemptions,
    )


def sweep(scenario: Scenario, limits: Iterable[int]) -> list[tuple[int, Result]]:
    """The figures at each limit set by hand."""
    return [(limit, gateway(scenario, limit=limit)) for limit in limits]


def limits_between(low: int, high: int) -> list[int]:
    """Limits worth trying, about 19 % apart."""
    steps = itertools.count()
    tried = (round(low * 2 ** (step / 4)) for step in steps)
    return sorted(set(itertools.takewhile(lambda limit: limit <= high, tried)))
