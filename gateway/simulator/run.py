"""One run: clients, what stands between, engines, and the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Backend, BackendState, Health, Hints
from gateway.simulator import figures
from gateway.simulator.clients import Call, Front
from gateway.simulator.crowd import crowds, engines
from gateway.simulator.figures import Trace
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Decision, Direct, Gateway, Succession
from gateway.simulator.setup import Hinting, Setup
from gateway.simulator.world import World

TRACE_EVERY = 0.5
DEAD_AFTER = 6.0  # seconds until the prober calls an engine dead: three probes, one every two
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
        before = [self._prompts()]
        world.at(setup.measure_from, lambda: before.insert(0, self._prompts()))
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
        queried, cached = (now - then for now, then in zip(self._prompts(), before[0], strict=True))
        of["hit_rate"] = cached / queried if queried else 0.0
        return Result(of | figures.of_limits(trace, setup.measure_from), measured, trace)

    def _prompts(self) -> tuple[int, int]:
        """Prompt tokens that the engines have read so far, and of those the ones they had."""
        engines = [node.engine for node in self.nodes]
        return sum(engine.queried_tokens for engine in engines), sum(engine.cached_tokens for engine in engines)


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
    backends = {m: Backend(m.name, f"http://{m.name}", limit=limit or m.limit, weight=m.weight) for m in setup.fleet}

    def fresh() -> Gateway:
        there = [backend for machine, backend in backends.items() if machine.joins <= run.world.now]
        return make(run.world, run.nodes, there, config or AdmissionConfig(), str(setup.seed))

    def successor(first: Gateway) -> Gateway:
        second = fresh()
        if inherit is not None:
            inherit(first.controller, second.controller)
        return second

    first = fresh()
    front = first if setup.restart is None else Succession(run.world, first, setup.restart, successor)
    gateways = front.gateways if isinstance(front, Succession) else [first]
    for machine, backend in backends.items():
        if machine.joins > 0.0:
            run.world.at(machine.joins, lambda backend=backend: gateways[-1].add(backend))  # type: ignore[misc]
        run.world.at(
            machine.dies + DEAD_AFTER,
            lambda name=machine.name: gateways[-1].note_health(name, Health.DOWN),  # type: ignore[misc]
        )
    if setup.hints:
        probe(run, lambda name, hints: gateways[-1].hint(name, hints), setup.hints)  # noqa: PLW0108 - the last one by then
    result = run.through(front, lambda now: front.controller.state(now).backends, progress)
    inside = [ttft for each in gateways for at, ttft in each.first_tokens if at >= setup.measure_from]
    result.decisions = [decision for each in gateways for decision in each.decisions]
    result.figures |= {
        "queue_deepest": max(each.deepest for each in gateways),
        "longest_wait": max((decision.wait for decision in result.decisions), default=0.0),
        "sent": sent_per_want(gateways),
        "engine_ttft_p90": figures.percentile(inside, 0.9),
    }
    return result


def sent_per_want(gateways: Iterable[Gateway]) -> float:
    """How often a request was sent to an engine, in the mean of those that were; the clients' retries among them."""
    sent = sum((each.sent for each in gateways), Counter[int]())
    return sent.total() / len(sent) if sent else 0.0


def direct(setup: Setup, progress: Progress | None = None) -> Result:
    """No gateway at all."""
    run = Run(setup)
    return run.through(Direct(run.world, run.nodes), progress=progress)


def _every(world: World, seconds: float, action: Callable[[], object]) -> None:
    def again() -> None:
        action()
        world.after(seconds, again)

    world.after(seconds, again)


def probe(run: Run, hear: Callable[[str, Hints], object], hinting: Hinting) -> None:
    """Read each engine's gauges now and then, and let ``hear`` have them when they are old enough."""
    world = run.world

    def read() -> None:
        if world.now <= hinting.until:
            for node in run.nodes:
                hints = _gauges(node, hinting)
                world.after(hinting.delay, lambda node=node, hints=hints: hear(node.name, hints))  # type: ignore[misc]

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
