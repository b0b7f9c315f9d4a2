"""``make bench-fleet``: the gateway's choice among several engines against what other routers do.

python -m tests.bench.fleet [NAME ...]     parts whose names contain one of NAME: mooncake/4, chats/16, mixed, events
    [--seeds 5]                            medians over so many
    [--ours]                               beside the best two rules only

Ctrl-C ends it and prints what is known by then.
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

from tests.bench.fleet.compare import HEADROOM, OURS, POLICIES, SHARES, Figures, cell, event, split
from tests.bench.fleet.rows import EVENTS, LOADS, ROWS, SIZES
from tests.bench.fleet.tables import Cell, Report, everything

SOUGHT = 2  # seeds on which every split of the mixed fleet is tried
BEST = ("prefix affinity", "cache_aware", "prefix affinity, open", "cache_aware, open")  # of the rivals
Job = tuple[str, Any, Any, int]  # kind, what, policy or share, seed
Work = Callable[[], Figures]


def main() -> None:
    given = _arguments()
    seeds = tuple(range(20, 20 + given.seeds))
    started, used = time.monotonic(), os.times()
    with ProcessPoolExecutor(given.workers, initializer=_deaf) as pool:
        jobs = _jobs(given.names, seeds, (OURS, *BEST) if given.ours else POLICIES)
        report = report_of(_run(pool, jobs), jobs)
    after = os.times()
    _note(f"{time.monotonic() - started:.0f} s, {after.children_user - used.children_user:.0f} s of computing")
    for line in everything(report):
        print(line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    return parser.parse_args()


def _jobs(names: Sequence[str], seeds: Sequence[int], policies: Sequence[str]) -> dict[Job, Work]:
    """Every run, the longest first."""

    def wanted(part: str) -> bool:
        return not names or any(name in part for name in names)

    jobs: dict[Job, Work] = {
        ("cell", (row.name, size, load), policy, seed): partial(cell, row.name, size, load, policy, seed)
        for size in sorted(SIZES, reverse=True)
        for row in ROWS
        for load in LOADS
        for policy in policies
        for seed in seeds
        if policy != HEADROOM or size == min(SIZES)
        if wanted(f"{row.name}/{size}/{load:g}x")
    }
    if wanted("mixed"):
        jobs |= {
            ("split", load, share, seed): partial(split, load, share, seed)
            for load in LOADS
            for share in (None, *SHARES)
            for seed in seeds[:SOUGHT]
        }
    if wanted("events"):
        jobs |= {("event", each.name, None, seed): partial(event, each.name, seed) for each in EVENTS for seed in seeds}
    return jobs


def _run(pool: ProcessPoolExecutor, jobs: Mapping[Job, Work]) -> dict[Job, Figures]:
    futures = {pool.submit(work): job for job, work in jobs.items()}
    try:
        for done, _ in enumerate(as_completed(futures), 1):
            _note(f"{done} of {len(futures)} runs", end="\r")
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
    found: dict[Job, Figures] = {}
    for future, job in futures.items():
        if future.cancelled() or not future.done():
            continue
        if (fault := future.exception()) is not None:
            _note(f"{job} failed: {fault!r}")
        else:
            found[job] = future.result()
    return found


def report_of(found: Mapping[Job, Figures], jobs: Mapping[Job, Work]) -> Report:
    """What all seeds have."""
    groups: dict[tuple[str, Any], dict[Any, dict[int, Figures]]] = {}
    for job in jobs:
        kind, what, which, seed = job
        runs = groups.setdefault((kind, what), {}).setdefault(which, {})
        runs |= {seed: found[job]} if job in found else {}
    whole = {place: same for place, group in groups.items() if (same := _of_common_seeds(group))}
    cells = [Cell(what[0], what[1], what[2], runs) for (kind, what), runs in whole.items() if kind == "cell"]
    return Report(
        sorted(cells, key=lambda each: (each.row, each.size, each.load)),
        {what: runs for (kind, what), runs in whole.items() if kind == "split"},
        {what: runs[None] for (kind, what), runs in whole.items() if kind == "event"},
    )


def _of_common_seeds(group: Mapping[Any, Mapping[int, Figures]]) -> dict[Any, list[Figures]]:
    """The runs of those seeds that every policy has; nothing where there are none."""
    seeds = sorted(set.intersection(*(set(runs) for runs in group.values())))
    return {which: [runs[seed] for seed in seeds] for which, runs in group.items()} if seeds else {}


def _deaf() -> None:
    """Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _note(text: str, end: str = "\n") -> None:
    print(f"{text:<40}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
