"""The ways to run a scenario, and the search for the best limit set by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

from gateway.simulator.fronts import StaticFifo
from gateway.simulator.run import Result, Run, direct, gateway
from tests.sim.scenario import Scenario

__all__ = ["MODES", "Result", "direct", "gateway", "limits_between", "sweep"]


def objectives(scenario: Scenario) -> Result:
    """The production admission, told the objectives."""
    return gateway(scenario, config=scenario.objectives.told())


def oracle(scenario: Scenario) -> Result:
    """The same queue in front of the best limit set by hand."""
    return gateway(scenario, limit=scenario.oracle_limit)


def oracle_told(scenario: Scenario) -> Result:
    """The oracle whose queue is told the objectives, as it is in ``objectives``."""
    return gateway(scenario, limit=scenario.oracle_limit, config=scenario.objectives.told())


def alone(scenario: Scenario) -> Result:
    """Without the background traffic."""
    return gateway(replace(scenario, load=tuple(kind for kind in scenario.load if not kind.background)))


def static_fifo(scenario: Scenario) -> Result:
    """The oracle's limit in front of one queue in order of arrival, as people build it by hand."""
    run = Run(scenario)
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


def sweep(scenario: Scenario, limits: Iterable[int]) -> list[tuple[int, Result]]:
    """The figures at each limit set by hand."""
    return [(limit, gateway(scenario, limit=limit)) for limit in limits]


def limits_between(low: int, high: int) -> list[int]:
    """Limits worth trying, about 19 % apart."""
    steps = itertools.count()
    tried = (round(low * 2 ** (step / 4)) for step in steps)
    return sorted(set(itertools.takewhile(lambda limit: limit <= high, tried)))
