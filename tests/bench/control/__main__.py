"""``make bench-control``: the production admission against the oracle, on every engine and mix, at every load.

python -m tests.bench.control [NAME ...]      rows (ENGINE/MIX) and scenarios whose names contain one of NAME
    [--loads 1,2]                             at these loads only
    [--seeds 3]                               so many, instead of seven
    [--quick]                                 three seeds, and the oracle sought uphill on one
    [--law-only]                              no other laws, queues or limits in tokens
    [--tolerances]                            what other tolerances would give who is told nothing
    [--full]                                  fifteen seeds, others' laws at every load, every queue: hours

Ctrl-C ends it and prints what is known by then.
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace

from tests.bench.control.compare import FULL, QUICK, Cell, Effort, compare, compare_scenario
from tests.bench.control.events import NAMES
from tests.bench.control.rows import LOADS, ROWS, Row
from tests.bench.control.search import Capacity, capacity
from tests.bench.control.tables import everything


def main() -> None:
    given = _arguments()
    effort = FULL if given.full else QUICK if given.quick else Effort()
    if given.law_only:
        effort = replace(effort, rival_loads=(), token_loads=(), queue_loads=())
    if given.tolerances:
        effort = replace(effort, tolerance_loads=given.loads)
    if given.seeds:
        effort = replace(effort, seeds=tuple(range(30, 30 + given.seeds)))
    rows = [row for row in ROWS if _wanted(row.name, given.names)]
    names = [name for name in NAMES if _wanted(name, given.names)]
    started, used = time.monotonic(), os.times()
    with ProcessPoolExecutor(given.workers, initializer=_deaf) as pool:
        cells, scenarios = _sweep(pool, rows, given.loads, names, effort)
    after = os.times()
    for line in everything(cells, scenarios):
        if line.startswith("control:"):
            _note(f"{time.monotonic() - started:.0f} s, {after.children_user - used.children_user:.0f} s of computing")
        print(line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.control")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--loads", type=lambda text: tuple(map(float, text.split(","))), default=LOADS)
    parser.add_argument("--seeds", type=int)
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true")
    much.add_argument("--full", action="store_true")
    parser.add_argument("--law-only", action="store_true")
    parser.add_argument("--tolerances", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    return parser.parse_args()


def _wanted(name: str, names: Sequence[str]) -> bool:
    return not names or any(part in name for part in names)


def _sweep(
    pool: ProcessPoolExecutor, rows: Sequence[Row], loads: tuple[float, ...], names: Sequence[str], effort: Effort
) -> tuple[list[Cell], list[Cell]]:
    """Everything at once over the workers; capacities come first, for the loads are told in them."""
    known: list[tuple[Row, Future[Capacity]]] = [(row, pool.submit(capacity, row)) for row in rows]
    found = [(row, future.result()) for row, future in known]
    cells = {(row.name, load): pool.submit(compare, row, load, has, effort) for load in loads for row, has in found}
    scenarios = {name: pool.submit(compare_scenario, name, effort) for name in names}
    pending = [*cells.values(), *scenarios.values()]
    try:
        for done, _ in enumerate(as_completed(pending), 1):
            _note(f"{done} of {len(pending)} cells", end="\r")
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
    ended = {future for future in pending if future.done() and not future.cancelled()}
    for name, future in (*cells.items(), *scenarios.items()):
        if future in ended and (fault := future.exception()) is not None:
            ended.discard(future)  # one cell less, and not all of them
            _note(f"{name} failed: {fault!r}")
    ordered = [cells[row.name, load] for row in rows for load in sorted(loads)]
    return (
        [future.result() for future in ordered if future in ended],
        [future.result() for future in scenarios.values() if future in ended],
    )


def _deaf() -> None:
    """Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _note(text: str, end: str = "\n") -> None:
    print(f"{text:<40}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
