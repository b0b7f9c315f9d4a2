"""Steady overload with churn: ``python -m tests.bench.soak --minutes 60``. A line a minute; no part of the tests.

Three times what the engine can do: streams and whole answers, clients that stay, leave in the middle and come anew.
Exits with 1 where the memory after the warm-up drifts by 5 % or more, or not all comes back at the end. Linux only.
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.crowd import Client, Stand, connected, request, stand

MIB: Final = 1024 * 1024
PLACES: Final = 16
CLIENTS: Final = 200
WARM: Final = 0.25  # share of the time that is warm-up
DRIFT: Final = 0.05
ROW: Final = "{:>7}{:>11}{:>13}{:>8}{:>10}{:>11}{:>10}{:>10}"


async def visitor(here: Stand, ends: Counter[int], until: float) -> None:
    """One client after the other: some requests on a connection, then a new one."""
    loop = asyncio.get_running_loop()
    client: Client | None = None
    while loop.time() < until:
        if client is None or client.lost or random.random() < 0.1:
            if client is not None:
                client.leave()
            _, client = await loop.create_connection(lambda: Client(ends), *here.address)
        events = random.choice((0, 0, 4, 10))
        pad = random.choice((0, 0, 0, 3_000, 200_000))
        answered = client.ask(request(wait=random.uniform(0.05, 0.2), events=events, pad=pad))
        if random.random() < 0.1:
            await asyncio.wait({answered}, timeout=random.uniform(0.0, 0.3))
            if not answered.done():
                ends[-1] += 1
                client.leave()
        else:
            await answered
        await asyncio.sleep(random.uniform(0.0, 0.8))
    if client is not None:
        client.leave()


async def watch(here: Stand, ends: Counter[int], minutes: float) -> list[tuple[float, int]]:
    """(minute, bytes of memory) of every look."""
    looks: list[tuple[float, int]] = []
    begun = time.monotonic()
    pause = min(60.0, 60.0 * minutes / 20)
    print(ROW.format("minute", "memory", "descriptors", "tasks", "lag P99", "answered", "refused", "left"), flush=True)
    while (now := time.monotonic() - begun) < minutes * 60:
        await asyncio.sleep(pause)
        told = here.told()
        looks.append((now / 60, here.memory()))
        refused = sum(count for status, count in ends.items() if status >= 400)
        figures = (f"{now / 60:.1f}", f"{looks[-1][1] / MIB:.1f} MiB", here.descriptors(), int(told["tasks"]))
        print(ROW.format(*figures, f"{1000 * told['lag']:.1f} ms", ends[200], refused, ends[-1]), flush=True)
    return looks


async def run(minutes: float, folder: Path) -> bool:
    """Whether all was well."""
    with stand(folder, PLACES, report_memory="1MiB", report_window="60s") as here:
        await asyncio.sleep(2.0)
        tasks, descriptors = here.told()["tasks"], here.descriptors()
        ends: Counter[int] = Counter()
        until = asyncio.get_running_loop().time() + minutes * 60
        visitors = [asyncio.create_task(visitor(here, ends, until)) for _ in range(CLIENTS)]
        looks = await watch(here, ends, minutes)
        await asyncio.gather(*visitors)
        await asyncio.sleep(8.0)  # longer than idle connections to the engine are kept
        steady = [memory for minute, memory in looks if minute >= WARM * minutes]
        third = max(1, len(steady) // 3)
        drift = statistics.mean(steady[-third:]) / statistics.mean(steady[:third]) - 1.0
        left = int(here.told()["tasks"] - tasks), here.descriptors() - descriptors
        state = here.state()
        inside = sum(each["running"] for each in state["backends"]) + sum(lane["depth"] for lane in state["lanes"])
        broke = ends[0]
        (last,) = await connected(here, 1, ends)
        await last.ask(request(wait=0.01))
    print(f"\nmemory drifts by {drift:+.1%} after the warm-up; {broke} answers broke off")
    print(f"at the end: {left[0]} tasks and {left[1]} descriptors more than at first, {inside} requests inside")
    return drift < DRIFT and not broke and not inside and max(left) <= 2  # timers of a moment


def main() -> int:
    """Print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if uvloop.run(run(parser.parse_args().minutes, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
