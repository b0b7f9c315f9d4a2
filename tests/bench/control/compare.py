"""The production admission against the oracle, and others' laws beside them, at one load of one row."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median, pstdev

from gateway.admission.config import AdmissionConfig, QueueConfig
from gateway.simulator.figures import Trace
from gateway.simulator.fronts import StaticFifo
from gateway.simulator.run import Result, Run, direct, gateway
from gateway.simulator.setup import Objectives, Setup
from tests.bench.control.bound import bound
from tests.bench.control.events import seeded, settling
from tests.bench.control.rows import LOADS, Row
from tests.bench.control.search import Capacity, best_static, with_limit, with_tokens
from tests.sim.laws import LAWS, Aimd, Law, Under

HEAVY = 5.0  # times: runs settle sooner, and cost more
SETTLED = 0.25  # of where it ends: so near is settled
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is run. The oracle's limit is found on the seeds ``sought`` and then used on ``seeds``, as the law is:
    whoever sets a limit by hand swept it on one day, and has it on the next. Others' laws run on ``rivals`` of them.

    At ``thorough`` loads it is sought far and wide, elsewhere on the first of them and uphill from the best
    concurrency: below 1x no limit binds, and beyond 2x the hill is the same.
    """

    seeds: tuple[int, ...] = tuple(range(30, 37))  # nothing was tuned on them
    sought: tuple[int, ...] = (20, 21)
    thorough: tuple[float, ...] = (1.0, 2.0)
    rivals: int = 1
    rival_loads: tuple[float, ...] = (1.0, 2.0)
    token_loads: tuple[float, ...] = (2.0,)
    queue_loads: tuple[float, ...] = (2.0,)
    tolerance_loads: tuple[float, ...] = ()


QUICK = Effort((30, 31, 32), (20,), (), 1, (2.0,), (2.0,), (2.0,))
FULL = Effort(tuple(range(30, 45)), (20, 21, 22), LOADS, 3, (0.8, 1.0, 2.0, 5.0, 10.0), LOADS, (1.0, 2.0, 5.0), (2.0,))
TOLERANCES = (4.0, 5.0, 6.0, 7.0, 8.0, 10.0)  # times the unloaded pace


@dataclass(frozen=True, slots=True)
class Side:
    """The gateway told of the objectives, or not told. Shares of the oracle's goodput tokens, medians over seeds."""

    limit: int  # the oracle's
    share: float
    tokens: int | None = None  # the token oracle's
    share_of_tokens: float | None = None
    figures: Figures = field(default_factory=dict)
    shares: tuple[float, ...] = ()  # each seed's
    own: tuple[float, ...] = ()  # the same on the seeds that the oracle's limit was the best of all tried for


@dataclass(frozen=True, slots=True)
class Cell:
    """One load of one row, or one scenario (``load`` 0)."""

    name: str
    load: float
    told: Side
    untold: Side
    rivals: Mapping[str, float] = field(default_factory=dict)  # share of the untold oracle's goodput tokens
    queues: Mapping[str, float] = field(default_factory=dict)  # share of the told oracle's under the lanes
    tolerances: Mapping[float, float] = field(default_factory=dict)  # share of the untold oracle's goodput tokens
    bound: float | None = None  # what nobody can beat, as a share of the told oracle's goodput tokens

    @property
    def label(self) -> str:
        return f"{self.name}/{self.load:g}x" if self.load else self.name


def compare(row: Row, load: float, known: Capacity, effort: Effort) -> Cell:
    """Everything about one load of one row."""
    gc.disable()  # a run's garbage is in cycles that live as long as the run does
    rate = load * known.rate
    side = _Sides(
        lambda seed: row.setup(rate, seed, brief=load >= HEAVY), row.objectives, effort, load in effort.thorough
    )
    mean_tokens = round(known.concurrency * row.mean_tokens()) if load in effort.token_loads else None
    told = side.compare(row.objectives.told(), known.concurrency, mean_tokens)
    untold = side.compare(AdmissionConfig(), told.limit, None, near=True)
    rivals = side.rivals(_laws(row), untold.limit) if load in effort.rival_loads else {}
    queues = side.queues(told.limit) if load in effort.queue_loads else {}
    tolerances = side.tolerances(untold.limit) if load in effort.tolerance_loads else {}
    gc.collect()
    return Cell(row.name, load, told, untold, rivals, queues, tolerances, side.bound(row.objectives.told(), told.limit))


def compare_scenario(name: str, effort: Effort) -> Cell:
    """The same for a scenario that is no load of a row."""
    gc.disable()
    make, start = seeded(name)
    side = _Sides(make, make(0).objectives, effort, thorough=False, blind=make(0).hints is not None)
    told = side.compare(make(0).objectives.told(), start, None)
    untold = side.compare(AdmissionConfig(), told.limit, None, near=True)
    gc.collect()
    return Cell(name, 0.0, told, untold)


def _laws(row: Row) -> dict[str, Callable[[], Law]]:
    """AIMD as it comes, and with the time that an answer inside the objectives takes for its timeout."""
    objectives = row.objectives
    slowest = (objectives.ttft_long or 0.0) + (objectives.tpot or 0.0) * row.mean_output()
    return {**LAWS, "aimd tuned": lambda: Aimd(slowest)}


@dataclass(slots=True)
class _Sides:
    make: Callable[[int], Setup]
    objectives: Objectives
    effort: Effort
    thorough: bool
    blind: bool = False  # run it without the engines' gauges as well

    def compare(self, config: AdmissionConfig, start: int, tokens: int | None, *, near: bool = False) -> Side:
        """``near``: ``start`` is the best limit of a like case."""
        few = self.effort.sought[: None if self.thorough else 1]
        reach = 2 if self.thorough and not near else 1
        limit = best_static(self.make, with_limit, config, start, few, reach=reach)
        runs = {seed: gateway(self.make(seed), config=config) for seed in self.effort.seeds}
        own = {seed: gateway(self.make(seed), config=config) for seed in few}
        by_hand = {seed: with_limit(self.make(seed), limit, config) for seed in {**runs, **own}}
        shares, on_own = (_ratios(some, by_hand) for some in (runs, own))
        figures = [
            _figures(self.make(seed), run) | {"shed_by_hand": by_hand[seed].figures["shed"]}
            for seed, run in runs.items()
        ]
        if self.blind:
            for seed, known in zip(runs, figures, strict=True):
                blind = gateway(replace(self.make(seed), hints=None), config=config)
                known["of_blind"] = _ratio(known["goodput_tokens"], _goodput(blind))
        of_tokens = best_tokens = None
        if tokens is not None:
            best_tokens = best_static(self.make, with_tokens, config, tokens, few[:1], most=10_000_000)
            by_tokens = {seed: _goodput(with_tokens(self.make(seed), best_tokens, config)) for seed in runs}
            of_tokens = _share(runs, by_tokens)
        return Side(limit, median(shares), best_tokens, of_tokens, medians(figures), shares, on_own)

    def bound(self, config: AdmissionConfig, limit: int) -> float:
        """Of the first seed; the runs of a row differ in it by less than the oracle's do."""
        setup = self.make(self.effort.seeds[0])
        return bound(setup) / _goodput(with_limit(setup, limit, config))

    def tolerances(self, limit: int) -> dict[float, float]:
        """The law that is told nothing, when it holds other multiples of the unloaded pace."""
        oracle = {seed: _goodput(with_limit(self.make(seed), limit, AdmissionConfig())) for seed in self.effort.seeds}
        shares = {}
        for tolerance in TOLERANCES:
            config = replace(AdmissionConfig(), limit=replace(AdmissionConfig().limit, tolerance=tolerance))
            shares[tolerance] = _share({seed: gateway(self.make(seed), config=config) for seed in oracle}, oracle)
        return shares

    def rivals(self, laws: Mapping[str, Callable[[], Law]], limit: int) -> dict[str, float]:
        seeds = self.effort.seeds[: self.effort.rivals]
        oracle = {seed: _goodput(with_limit(self.make(seed), limit, AdmissionConfig())) for seed in seeds}
        return {
            name: _share({seed: gateway(self.make(seed), make=Under(law)) for seed in seeds}, oracle)
            for name, law in laws.items()
        }

    def queues(self, limit: int) -> dict[str, float]:
        """The oracle's limit and the gateway's law, each under other queues than the lanes."""
        seeds = self.effort.seeds[: self.effort.rivals]
        lanes = self.objectives.told()
        one = replace(lanes, queue=_one_lane(lanes.queue))
        oracle = {seed: _goodput(with_limit(self.make(seed), limit, lanes)) for seed in seeds}
        ways: dict[str, Callable[[Setup], Result]] = {
            "law, one lane": lambda setup: gateway(setup, config=one),
            "oracle, one lane": lambda setup: with_limit(setup, limit, one),
            "oracle, first come, 1 s": lambda setup: _first_come(setup, limit),
            "no gateway": direct,
        }
        return {name: _share({seed: way(self.make(seed)) for seed in seeds}, oracle) for name, way in ways.items()}


def _first_come(setup: Setup, limit: int) -> Result:
    run = Run(setup)
    return run.through(StaticFifo(run.world, run.nodes, limit))


def _one_lane(queue: QueueConfig) -> QueueConfig:
    """All in the first lane: whoever is short could wait no longer."""
    return replace(queue, lanes=(replace(queue.lanes[0], name="all", threshold=None),))


def _goodput(result: Result) -> float:
    return result.figures["goodput_tokens"]


def _share(runs: Mapping[int, Result], oracle: Mapping[int, float]) -> float:
    return median(_ratio(_goodput(runs[seed]), best) for seed, best in oracle.items())


def _ratios(runs: Mapping[int, Result], best: Mapping[int, Result]) -> tuple[float, ...]:
    return tuple(_ratio(_goodput(run), _goodput(best[seed])) for seed, run in runs.items())


def _ratio(goodput: float, best: float) -> float:
    return goodput / best if best else 1.0


def medians(figures: list[Figures]) -> Figures:
    """Of each figure that all runs have."""
    names = set(figures[0]).intersection(*figures)
    return {name: median(each[name] for each in figures) for name in names}


def _figures(setup: Setup, run: Result) -> Figures:
    steady = [states[0].limit for at, states in run.trace if at >= setup.measure_from]
    ended = max(1.0, run.figures.get("ended", 0.0))
    return (
        run.figures
        | {
            "limit_cv": pstdev(steady) / fmean(steady) if len(steady) > 1 else 0.0,
            "preempted": run.figures["preemptions"] / ended,
            "converged": settled(run.trace, 0.0, setup.horizon),
        }
        | settling(setup, run.trace, settled)
    )


def settled(trace: Trace, since: float, until: float) -> float:
    """Seconds from ``since`` on until the limit stays near where it is in the last third; means of two seconds."""
    inside = [(at, states[0].limit) for at, states in trace if since < at <= until]
    if not inside:
        return 0.0
    goal = fmean(limit for at, limit in inside if at > until - (until - since) / 3)
    late = 0.0
    for number, (at, _) in enumerate(inside):
        around = [limit for _, limit in inside[max(0, number - 3) : number + 1]]
        if abs(fmean(around) - goal) > SETTLED * goal:
            late = at - since
    return late
