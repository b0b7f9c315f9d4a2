"""One run: clients, what stands between, engines, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Backend, BackendState, Hints
from gateway.simulator import figures
from gateway.simulator.clients import Call, Front
from gateway.simulator.crowd import crowds, engines
from gateway.simulator.figures import Trace
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Decision, Direct, Gateway, Succession
from gateway.simulator.setup import Hinting, Setup
from gateway.simulator.world import World

TRACE_EVERY = 0.5
STEPS = 100  # in which progress is told
Progress = Callable[[float], object]  # told the share of the run that is over


@dataclass(slots=True)
class Result:
    """What a run gave: the figures; with a gateway also its verdicts, and every half second each backend's books."""

    figures: dict[str, float]
    calls: list[Call]
    trace: Trace = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


class Run:
    """The engines and the clients of one run."""

    def __init__(self, setup: Setup) -> None:
        """Prepare; ``through`` runs it, once."""
        self.setup = setup
        self.world = World()
        self.nodes = engines(self.world, setup)
        self._ended: list[Call] = []

    def through(
        self,
        front: Front,
        state: Callable[[float], tuple[BackendState, ...]] | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Let the clients send to ``front`` until the horizon."""
        setup, world = self.setup, self.world
        crowds(world, front, Direct(world, self.nodes), setup, self._ended)
        trace: Trace = []
        if state is not None:
            _every(world, TRACE_EVERY, lambda: trace.append((world.now, state(world.now))))
        for step in range(1, STEPS + 1):
            world.run(setup.horizon * step / STEPS)
            if progress is not None:
                progress(step / STEPS)
        measured = [call for call in self._ended if call.ended_at >= setup.measure_from]
        seconds = setup.horizon - setup.measure_from
        of = figures.of_calls(measured, setup.objectives, seconds)
        of["preemptions"] = float(sum(node.engine.preemptions for node in self.nodes))
        return Result(of | figures.of_limits(trace, setup.measure_from), measured, trace)


Make = Callable[[World, Sequence[Node], Sequence[Backend], AdmissionConfig, str], Gateway]
Inherit = Callable[[AdmissionController, AdmissionController], object]


def gateway(
    setup: Setup,
    *,
    limit: int | None = None,
    config: AdmissionConfig | None = None,
    make: Make = Gateway,
    inherit: Inherit | None = None,
    progress: Progress | None = None,
) -> Result:
    """The production admission, with its defaults unless given; ``limit`` fixes every backend's.

    ``inherit``: told the first controller and the second when a restart is simulated, to hand on what was learned.
    """
    run = Run(setup)
    backends = [Backend(m.name, f"http://{m.name}", limit=limit or m.limit, weight=m.weight) for m in setup.fleet]

    def fresh() -> Gateway:
        return make(run.world, run.nodes, backends, config or AdmissionConfig(), str(setup.seed))

    def successor(first: Gateway) -> Gateway:
        second = fresh()
        if inherit is not None:
            inherit(first.controller, second.controller)
        return second

    first = fresh()
    front = first if setup.restart is None else Succession(run.world, first, setup.restart, successor)
    gateways = front.gateways if isinstance(front, Succession) else [first]
    if setup.hints:
        _probe(run, gateways, setup.hints)
    result = run.through(front, lambda now: front.controller.state(now).backends, progress)
    inside = [ttft for each in gateways for at, ttft in each.first_tokens if at >= setup.measure_from]
    result.decisions = [decision for each in gateways for decision in each.decisions]
    result.figures |= {
        "queue_deepest": max(each.deepest for each in gateways),
        "longest_wait": max((decision.wait for decision in result.decisions), default=0.0),
        "engine_ttft_p90": figures.percentile(inside, 0.9),
    }
    return result


def direct(setup: Setup, progress: Progress | None = None) -> Result:
    """No gateway at all."""
    run = Run(setup)
    return run.through(Direct(run.world, run.nodes), progress=progress)


def _every(world: World, seconds: float, action: Callable[[], object]) -> None:
    def again() -> None:
        action()
        world.after(seconds, again)

    world.after(seconds, again)


def _probe(run: Run, gateways: Sequence[Gateway], hinting: Hinting) -> None:
    """Read each engine's gauges now and then, and let the gateway hear of them when they are old enough."""
    world = run.world

    def read() -> None:
        if world.now <= hinting.until:
            for node in run.nodes:
                hints = _gauges(node, hinting)
                world.after(hinting.delay, lambda node=node, hints=hints: gateways[-1].hint(node.name, hints))  # type: ignore[misc]

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
