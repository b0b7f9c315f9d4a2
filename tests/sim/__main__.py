"""``python -m tests.sim``: every scenario with its measured figures against the oracle, as a table.

python -m tests.sim [NAME ...] [--seeds 3]    scenarios whose names contain one of NAME; all without
python -m tests.sim NAME --sweep              the figures at each limit set by hand: where ``oracle_limit`` comes from
python -m tests.sim NAME --trace              how the limit went, every two seconds
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from tests.sim import run
from tests.sim.bands import breaches
from tests.sim.scenario import Scenario, everything

COLUMNS = (
    ("throughput", "thr/s"),
    ("goodput", "good/s"),
    ("goodput_tokens", "goodtok/s"),
    ("short.in_objective", "short"),
    ("long.in_objective", "long"),
    ("short.ttft_p99", "sTTFT99"),
    ("long.ttft_p99", "lTTFT99"),
    ("tpot_p90", "TPOT90"),
    ("shed", "shed"),
    ("amplification", "ampl"),
    ("preemptions", "preempt"),
    ("limit_mean", "limit"),
    ("limit_min", "min"),
    ("limit_max", "max"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    for scenario in everything():
        if given.names and not any(name in scenario.name for name in given.names):
            continue
        print(f"\n{scenario.name}: {scenario.why}")
        if given.sweep:
            _sweep(scenario)
        elif given.trace:
            _trace(scenario)
        else:
            _table(scenario, given.seeds)


def _table(scenario: Scenario, seeds: int) -> None:
    modes = [mode for mode in run.MODES if mode != "alone" or any(kind.background for kind in scenario.load)]
    results = {
        mode: _mean([run.MODES[mode](replace(scenario, seed=scenario.seed + n)).figures for n in range(seeds)])
        for mode in modes
        if scenario.oracle_limit or mode not in {"oracle", "oracle_told", "static_fifo"}
    }
    _header()
    for mode, figures in results.items():
        _row(mode, figures, results.get("oracle_told" if mode == "objectives" else "oracle"))
    for breach in breaches(scenario, results):
        print(f"  OUT OF BAND {breach}")


def _sweep(scenario: Scenario) -> None:
    _header()
    for limit, result in run.sweep(scenario, run.limits_between(2, 400)):
        _row(f"{limit}", result.figures, None)


def _trace(scenario: Scenario) -> None:
    for at, states in run.gateway(scenario).trace[3::4]:
        print(
            f"{at:6.1f}",
            *(f"{s.name} {s.limit:6.1f}/{s.running:<4d} {s.unstarted:3d} {s.pace} {s.pace_base}" for s in states),
        )


def _mean(of: Sequence[dict[str, float]]) -> dict[str, float]:
    names = set(of[0]).intersection(*of)
    return {name: fmean(figures[name] for figures in of) for name in names}


def _header() -> None:
    print(f"  {'':12s}{'share':>7s}" + "".join(f"{title:>10s}" for _, title in COLUMNS))


def _row(mode: str, figures: dict[str, float], oracle: dict[str, float] | None) -> None:
    share = (
        figures["goodput_tokens"] / oracle["goodput_tokens"] if oracle and oracle["goodput_tokens"] else float("nan")
    )
    print(f"  {mode:12s}{share:7.3f}" + "".join(f"{figures.get(name, float('nan')):10.3f}" for name, _ in COLUMNS))


if __name__ == "__main__":
    main()
