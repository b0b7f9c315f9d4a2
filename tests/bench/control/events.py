"""What befalls a running system: the scenarios of ``tests/sim`` that are no steady load of one mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from gateway.simulator.figures import Trace
from gateway.simulator.setup import Setup
from tests.sim.scenario import FOLDER, load

NAMES = (
    "burst_5s", "burst_5s_documents", "load_steps", "engine_degrades", "blip_60s", "cold_start_10x",
    "restart_full_load", "crash_full_load", "started_late", "two_backends_one_slow", "three_replicas", "hog",
    "ignore_retry_after", "own_queue_limit", "refuses_inside", "stale_hints", "kv_bound_hints_2x", "everything_long",
)  # fmt: skip


def seeded(name: str) -> tuple[Callable[[int], Setup], int]:
    """A scenario at any seed, and a limit to begin the search for the oracle's at."""
    scenario = load(FOLDER / f"{name}.toml")
    return (lambda seed: replace(scenario, seed=seed)), scenario.oracle_limit or 128


def instants(setup: Setup) -> list[float]:
    """When the load or an engine's speed changes, and the end."""
    steps = [at for kind in setup.load for at, _ in kind.rates] + [at for each in setup.fleet for at, _ in each.speeds]
    return [*sorted({at for at in steps if at > 0.0}), setup.horizon]


def settling(setup: Setup, trace: Trace, settled: Callable[[Trace, float, float], float]) -> dict[str, float]:
    """After each instant, the seconds until the limit stays near where it ends."""
    return {f"settled_{since:g}": settled(trace, since, until) for since, until in pairwise(instants(setup))}
