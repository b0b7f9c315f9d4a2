"""What it costs to ask the brain in another process: ``python -m tests.bench.brain [SECONDS] [ASKS_PER_SECOND]``.

One worker asks at a steady rate for permits that are free, and gives each back at once. In turn with it the same number
of frames of the same size go to a process that only echoes them: what the kernel and two event loops cost anyway.
Printed are microseconds from the question to the answer, and the ratio of the two; how late the questions were, since
where the asking process is held up its questions come in a crowd, and each then waits for those before it; and the CPU
time that each takes of the other process, which tells more than the rest where the machine does other things.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.app.process import settle
from gateway.brain.desk import Desks
from gateway.brain.remote import RemoteGate
from gateway.brain.setup import Setup
from gateway.brain.view import View
from gateway.brain.wire import Channel, Kind, listen, reach
from gateway.brain.words import TICKETS
from gateway.model import Access, Backend, Outcome, Permit, Route, Shape, Ticket, Usage, WorkEstimate
from gateway.proxy.config import ProxyConfig
from gateway.proxy.gate import Gate
from gateway.proxy.keys import KeyBook

SHAPE = Shape(Route("chat", Access.ADMIT), model="m", stream=True, prompt_bytes=2000, max_output=200)
WORK = WorkEstimate(500, 200, 325.0)
BURST = 0.4  # seconds
DUE = 150.0  # microseconds

Ask = Callable[[int], Awaitable[Callable[[], None]]]
"""Ends with the answer; what it returns is done when that was timed."""


async def brain(path: Path) -> None:
    config = AdmissionConfig()
    backends = [Backend(f"gpu{number}", f"http://gpu{number}", limit=64) for number in range(16)]
    estimator = Estimator(config.estimator)
    gate = Gate(AdmissionController(config, backends, lambda low, _high: low, estimator))
    setup = Setup(ProxyConfig(host="127.0.0.1", port=0), tuple(backends), None)
    desks = Desks(path, gate, estimator, (), lambda: setup, lambda: View(gate.down, gate.routes), KeyBook(None))
    await desks.start()
    async with await listen(path.with_suffix(".echo"), _echo):
        settle()
        await asyncio.sleep(600)


def _echo() -> Channel:
    channel = Channel()
    channel.take = lambda kind, payload: channel.send(kind, bytes(payload))
    return channel


@contextmanager
def brain_process() -> Iterator[tuple[Path, int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "brain"
        process = subprocess.Popen([sys.executable, "-m", "tests.bench.brain", "--brain", str(path)])  # noqa: S603
        try:
            while not _listens(path.with_suffix(".echo")):
                time.sleep(0.05)
            yield path, process.pid
        finally:
            process.kill()
            process.wait()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0


def _ignore(_said: object) -> None:
    pass


async def asking(path: Path) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    settings = AdmissionConfig()
    estimator = Estimator(settings.estimator)
    gate = RemoteGate(str(path), _ignore, _ignore, lambda: 0.0, lambda: 0, lambda: 0, estimator)
    await gate.start()

    async def ask(number: int) -> Callable[[], None]:
        permit = await gate.enter(Ticket(number, SHAPE, WORK, client="c"))
        assert isinstance(permit, Permit), permit
        return lambda: gate.leave(permit, Outcome.COMPLETED, Usage(500, 200))

    return ask, gate.stop


async def echoing(path: Path) -> Ask:
    channel = Channel()
    await reach(str(path.with_suffix(".echo")), channel)
    waiting: list[asyncio.Future[None]] = []
    channel.take = lambda _kind, _payload: waiting.pop(0).set_result(None)
    frame = TICKETS.dumps(Ticket(1, SHAPE, WORK, client="c"))

    async def ask(_number: int) -> Callable[[], None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        channel.send(Kind.OFFER, frame)
        await future
        return lambda: None

    return ask


async def timed(ask: Ask, seconds: float, rate: float, first: int) -> tuple[list[float], list[float]]:
    """Microseconds that each question took, and by which it was late; they are due at even spaces, whatever happens."""
    took: list[float] = []
    late: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, due: float) -> None:
        began = time.perf_counter()
        late.append((began - due) * 1e6)
        end = await ask(number)
        took.append((time.perf_counter() - began) * 1e6)
        end()

    start = time.perf_counter()
    for number in range(int(seconds * rate)):
        while time.perf_counter() < (due := start + number / rate):  # noqa: ASYNC110 - timers are too coarse
            await asyncio.sleep(0)
        tasks.add(task := asyncio.create_task(one(first + number, due)))
        task.add_done_callback(tasks.discard)
    while tasks:  # noqa: ASYNC110 - the end is not timed
        await asyncio.sleep(0.01)
    return took, late


def cpu(pid: int) -> float:
    """Microseconds of CPU time of a process so far; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3
    except FileNotFoundError:
        return 0.0


async def main(seconds: float, rate: float) -> None:
    with brain_process() as (path, pid):
        ask, stop = await asking(path)
        echo = await echoing(path)
        settle()
        rows: dict[str, list[float]] = {"ask and answer": [], "echo": []}
        lates: dict[str, list[float]] = {name: [] for name in rows}
        spent = dict.fromkeys(rows, 0.0)
        first = 1
        for _ in range(max(1, round(seconds / 2 / BURST))):
            for name, question in (("ask and answer", ask), ("echo", echo)):
                before = cpu(pid)
                took, late = await timed(question, BURST, rate, first)
                spent[name] += cpu(pid) - before
                rows[name] += took
                lates[name] += late
                first += int(seconds * rate)
                await asyncio.sleep(BURST)  # a system that lets nobody have a core for long has no cause to step in
        await stop()
    heads = "".join(f"{head:>10}" for head in ("mean", "p50", "p95", "p99", f"> {DUE:.0f} us", "late p99", "CPU each"))
    print(f"{'':16}{heads}  us at {rate:.0f}/s")  # noqa: T201
    for name, took in rows.items():
        cuts, late = statistics.quantiles(took, n=100), statistics.quantiles(lates[name], n=100)
        over = f"{sum(each > DUE for each in took) / len(took):10.2%}"
        times = "".join(f"{figure:10.0f}" for figure in (statistics.fmean(took), cuts[49], cuts[94], cuts[98]))
        print(f"{name:16}{times}{over}{late[98]:10.0f}{spent[name] / len(took):10.0f}")  # noqa: T201
    ratio = statistics.median(rows["ask and answer"]) / statistics.median(rows["echo"])
    print(f"ratio of the medians {ratio:.2f}")  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:2] == ["--brain"]:
        uvloop.run(brain(Path(sys.argv[2])))
    else:
        uvloop.run(main(*(float(each) for each in (*sys.argv[1:], *("6", "5000")[len(sys.argv) - 1 :]))))
