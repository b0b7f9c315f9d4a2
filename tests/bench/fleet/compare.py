"""One policy in one run, and what came of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from random import Random
from statistics import fmean
from typing import Final

from gateway.admission.config import AdmissionConfig, Affinity, BalanceConfig
from gateway.model import BackendState
from gateway.simulator.clients import Call
from gateway.simulator.figures import Trace, of_group
from gateway.simulator.fronts import Direct
from gateway.simulator.run import Result, Run, gateway, probe, sent_per_want
from gateway.simulator.setup import Setup
from tests.bench.fleet.rivals import RIVALS, Router, Rule, Split, guarded
from tests.bench.fleet.rows import EVENTS, MIXED, ROWS, machines, mixed

Figures = dict[str, float]
OURS: Final = "gateway"
HEADROOM: Final = "gateway, no affinity"
OPEN: Final = ", open"
"""After a rival's name: as it is deployed, before engines that take in all that comes."""
OPENLY: Final = tuple(name + OPEN for name in RIVALS)
GUARDED: Final = tuple(RIVALS)
"""The same rules where each engine has this gateway's admission before it: what the choice alone brings."""
POLICIES: Final = (OURS, HEADROOM, *OPENLY, *GUARDED)
AFTER: Final = 20.0  # seconds within which goodput must be back
FOR: Final = 40.0  # seconds over which it is then measured
GOODPUT: Final = "goodput_tokens"
ASKED: Final = "asked_tokens"
KEPT: Final = (
    GOODPUT, ASKED, "in_objective", "shed", "hit_rate", "skew", "sent", "amplification",
    "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p90",
)  # fmt: skip
SHARES: Final = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
"""Of the requests, to each 310P: what the oracle's split is sought among."""


def run(setup: Setup, policy: str | Callable[[Random], Rule], *, told: bool = True) -> Result:
    """``policy``: one of ``POLICIES``, or a rule. ``told``: of the objectives."""
    config = setup.objectives.told() if told else AdmissionConfig()
    if policy in {OURS, HEADROOM}:
        affinity = Affinity.PREFIX if policy == OURS else Affinity.NONE
        return gateway(setup, config=replace(config, balance=BalanceConfig(affinity)))
    rule = (RIVALS[policy.removesuffix(OPEN)] if isinstance(policy, str) else policy)(Random(f"rule/{setup.seed}"))
    simulated = Run(setup)
    if policy in OPENLY:
        return _open(simulated, rule)
    gateways = guarded(simulated.world, simulated.nodes, config)
    if setup.hints:
        probe(simulated, lambda name, hints: gateways[name].hint(name, hints), setup.hints)
    every = list(gateways.values())
    result = simulated.through(
        Router(every, rule), lambda now: tuple(each.controller.state(now).backends[0] for each in every)
    )
    result.figures["sent"] = sent_per_want(every)
    return result


def _open(simulated: Run, rule: Rule) -> Result:
    engines = [Direct(simulated.world, [node]) for node in simulated.nodes]
    state = BackendState("", "", "up", inf, None, 0, 0, 0, None, None, None, {}, None)
    return simulated.through(
        Router(engines, rule), lambda _now: tuple(replace(state, running=engine.present) for engine in engines)
    )


def figures(setup: Setup, result: Result) -> Figures:
    """Those of the run that are told, and ``skew``: mean requests in flight on an engine, the most over the mean."""
    loads = in_flight(result.trace, setup.measure_from)
    known = result.figures | {"skew": max(loads) / fmean(loads) if any(loads) else 1.0}
    return {name: known[name] for name in KEPT if name in known}


def in_flight(trace: Trace, since: float) -> list[float]:
    """Of each engine, in the mean."""
    rows = [[state.running for state in states] for at, states in trace if at >= since]
    return [fmean(column) for column in zip(*rows, strict=True)]


def cell(row: str, size: int, load: float, policy: str, seed: int) -> Figures:
    """One run of one row."""
    setup = next(each for each in ROWS if each.name == row).setup(machines(size), load, seed)
    return _quietly(lambda: figures(setup, run(setup, policy)))


def split(load: float, share: float | None, seed: int) -> Figures:
    """The mixed fleet: ``share`` of the requests to each 310P, or as the gateway chooses.

    It is told no objectives: what suits a 310P would have the GPU take in far more than it should.
    """
    setup = MIXED.setup(mixed(), load, seed)
    if share is None:
        return _quietly(lambda: figures(setup, run(setup, OURS, told=False)))
    npus = len(setup.fleet) - 1
    weights = (1.0 - npus * share, *[share] * npus)
    return _quietly(lambda: figures(setup, run(setup, lambda _: Split(weights), told=False)))


def event(name: str, seed: int) -> Figures:
    """Goodput from 20 s after an event on, over what a fleet gives that was so from the start."""
    what = next(each for each in EVENTS if each.name == name)
    chats = ROWS[-1]
    befallen, best = (chats.setup(fleet, what.load * 4 / len(fleet), seed) for fleet in (what.fleet, what.after))
    return _quietly(lambda: _recovery(befallen, best, what.at))


def _recovery(befallen: Setup, best: Setup, at: float) -> Figures:
    since, until = at + AFTER, at + AFTER + FOR
    one, other = run(befallen, OURS), run(best, OURS)
    goodputs = [_goodput(result.calls, setup, since, until) for result, setup in ((one, befallen), (other, best))]
    return {
        "recovery": goodputs[0] / goodputs[1],
        "sent": one.figures["sent"],
        "amplification": one.figures["amplification"],
    }


def _goodput(calls: Sequence[Call], setup: Setup, since: float, until: float) -> float:
    ended = [call for call in calls if since <= call.ended_at < until]
    return of_group(ended, setup.objectives, until - since)[GOODPUT] if ended else 0.0


def _quietly(act: Callable[[], Figures]) -> Figures:
    """A run's garbage is in cycles that live as long as the run does: not looked for while it goes on."""
    gc.disable()
    try:
        return act()
    finally:
        gc.enable()
        gc.collect()
