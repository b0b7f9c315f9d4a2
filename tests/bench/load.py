"""What one process carries: ``python -m tests.bench.load``. Prints a table; no part of the test run.

Four loads, a few seconds each, from this process on an engine with so many places and a gateway as it is served, each
a process of its own. Rates are held against those of the same run without overload. Linux only.
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.crowd import Stand, connected, offer, request, stand

MIB: Final = 1024 * 1024
PLACES: Final = 4
WAIT: Final = 0.4  # seconds of an answer: ten requests a second are what the engine can do
ROW: Final = "{:<34}{:>12}{:>12}{:>14}{:>14}{:>14}{:>14}"


class Watch(threading.Thread):
    """Asks /livez again and again, and keeps the worst of the loop's lag."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(daemon=True)
        self._stand = stand
        self.livez: list[float] = []
        self.lag: list[float] = []
        self.held: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.livez.append(self._stand.livez())
            told = self._stand.told()
            self.lag.append(told["lag"])
            self.held.append(told["held"])

    def end(self) -> tuple[float, float, float]:
        """(worst /livez, P99 of the lag in its median second, CPU that the loop was held for at most), milliseconds."""
        self.over.set()
        self.join()
        lag = sorted(self.lag) or [0.0]
        return 1000 * max(self.livez, default=0.0), 1000 * lag[len(lag) // 2], 1000 * max(self.held, default=0.0)


def row(name: str, served: str, lost: str, seen: tuple[float, float, float], memory: int) -> None:
    livez, lag, held = seen
    times = f"{livez:.0f} ms", f"{lag:.1f} ms", f"{held:.0f} ms"
    print(ROW.format(name, served, lost, *times, f"{memory / MIB:.0f} MiB"), flush=True)


async def overload(folder: Path, seconds: float) -> None:
    """Goodput under 20 and 50 times what the engine can do, against what it is without."""
    with stand(folder, PLACES, max_wait="0.2") as here:
        first = 0.0
        for times in (0.9, 20, 50):
            ends: Counter[int] = Counter()
            clients = await connected(here, 64 if times < 1 else 400, ends)
            watch, cpu = Watch(here), here.cpu()
            watch.start()
            await offer(here, clients, times * PLACES / WAIT, seconds, request(wait=WAIT))
            await asyncio.sleep(0.5)
            seen = watch.end()
            rate = ends[200] / seconds
            first = first or rate / times
            shed = sum(ends.values()) - ends[200]
            name = f"{times:g}x of tiny requests"
            cost = 1e6 * (here.cpu() - cpu) / max(1, sum(ends.values()))
            row(name, f"{rate / first:.0%}", str(ends[0]), seen, here.memory())
            print(f"    {dict(ends)}: {shed / seconds:.0f} refused a second, {cost:.0f} us of CPU a request")
            for client in clients:
                client.leave()
            await asyncio.sleep(1.0)


async def streams(folder: Path, count: int, seconds: float) -> None:
    """So many streams at once, an event each every half second."""
    with stand(folder, count, max_wait="30", queue_max_requests=str(count)) as here:
        ends: Counter[int] = Counter()
        clients = await connected(here, count, ends)
        watch = Watch(here)
        watch.start()
        events = max(2, int(2 * seconds))
        cpu, begun = here.cpu(), time.monotonic()
        await asyncio.gather(*(client.ask(request(wait=0.5, events=events)) for client in clients))
        share = (here.cpu() - cpu) / (time.monotonic() - begun)
        seen = watch.end()
        row(
            f"{count} streams, {2 * count} events/s",
            f"{ends[200] / count:.0%}",
            str(ends[0]),
            seen,
            here.memory(),
        )
        print(f"    {share:.0%} of a core; {sum(client.chunks for client in clients)} events of {count * events}")


async def idle(folder: Path, count: int) -> None:
    """So many open connections that say nothing, and one that does."""
    with stand(folder, PLACES) as here:
        before = here.memory()
        ends: Counter[int] = Counter()
        clients = await connected(here, count, Counter())
        (busy,) = await connected(here, 1, ends)
        watch = Watch(here)
        watch.start()
        for _ in range(50):
            await busy.ask(request(wait=0.01))
        seen = watch.end()
        each = (here.memory() - before) / count
        row(f"{count} idle connections", f"{ends[200] / 50:.0%}", str(ends[0]), seen, here.memory())
        print(f"    {each / 1024:.1f} KiB each; {sum(client.lost for client in clients)} were closed")


async def bodies(folder: Path, count: int, size: int) -> None:
    """So many clients, each with a body of so many MiB, at once."""
    with stand(folder, PLACES) as here:
        ends: Counter[int] = Counter()
        clients = await connected(here, count, ends)
        before = here.memory("VmHWM")
        data = request(wait=0.01, pad=size * MIB - 4096)
        watch = Watch(here)
        watch.start()
        await asyncio.gather(*(client.ask(data) for client in clients))
        seen = watch.end()
        peak = here.memory("VmHWM") - before
        row(f"{count} bodies of {size} MiB", f"{ends[200] / count:.0%}", str(ends[0]), seen, here.memory("VmHWM"))
        print(f"    {dict(ends)}; at most {peak / MIB:.0f} MiB more than before (GATEWAY_BODY_MEMORY: 256 MiB)")


async def run(asked: argparse.Namespace) -> None:
    """All of them."""
    print(ROW.format("load", "served well", "broke off", "worst /livez", "lag P99", "held, CPU", "memory"))
    loads: tuple[Callable[[Path], Awaitable[None]], ...] = (
        lambda folder: overload(folder, asked.seconds),
        lambda folder: streams(folder, asked.streams, asked.seconds),
        lambda folder: idle(folder, asked.idle),
        lambda folder: bodies(folder, asked.bodies, asked.size),
    )
    for number, load in enumerate(loads):
        if asked.only is None or number in asked.only:
            with tempfile.TemporaryDirectory() as folder:
                await load(Path(folder))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--bodies", type=int, default=100)
    parser.add_argument("--size", type=int, default=63, help="MiB of each body")
    parser.add_argument("--only", type=int, nargs="*", help="0 overload, 1 streams, 2 idle, 3 bodies")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
