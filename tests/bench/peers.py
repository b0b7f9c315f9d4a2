"""The gateway against the proxies that stand in the same place: ``make bench``, or ``python -m tests.bench.peers``.

A mock engine and a load in C share one core, the target has another one. All targets take turns, round after round, so
that what else the machine does falls on each of them. Rates are requests per second of the target's own CPU time: what
its core gives, whoever else wants it. Added latencies are over those of the engine asked directly in the same round.
Figures are medians of the rounds. Linux, and gcc.
"""

# ruff: noqa: T201 - a report on the terminal

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.targets import CACHE, COMPILED, TARGETS, Launch, gateway, install, installed
from tests.real.process import ROOT, free_port

PATIENCE: Final = 30.0  # seconds that a target may take to be ready
GAP: Final = 50_000  # microseconds between two chunks of a paced stream
OVERLOAD: Final = 20
SLOTS: Final = 5  # of the engine that is overloaded; with 50 ms an answer that is 100 a second
HOLD: Final = (0, 1_000, 5_000)  # streams that are open while memory is read
LEAVES: Final = 10

_REQUEST: Final = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"

Figures = dict[str, float]


class Core:
    """Which processors the target and its load run on."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.target = {cores[-1]}
        self.load = {cores[0]} if len(cores) > 1 else self.target
        if len(cores) == 1:
            print("one core for everything: latencies and rates in time are worthless, CPU figures are not")


CORE: Final = Core()


def built(name: str) -> str:
    """The C program ``name``, compiled unless it is there already."""
    source, program = Path(__file__).with_name(f"{name}.c"), CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)], check=True)  # noqa: S603, S607 - our own arguments
    return str(program)


@contextlib.contextmanager
def running(command: Sequence[str], cores: set[int], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process on ``cores``, ended at the end."""
    pinned = [shutil.which("taskset") or "taskset", "-c", ",".join(map(str, cores)), *command]
    process = subprocess.Popen(pinned, text=True, start_new_session=True, **options)  # noqa: S603 - our own arguments
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the session that was made for it
        process.wait()


class Engine:
    """The mock engine, and what it says of those who left."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._left: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def _listen(self, said: Any) -> None:
        for line in said:
            self._left.put(int(line.split()[1]))

    def left(self, since: int) -> int | None:
        """Nanoseconds from ``since`` until it saw one leave; None where it saw nobody within four seconds."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (seen := self._left.get(timeout=4)) >= since:  # not one of those who left before
                    return seen - since
        return None


def until_ready(port: int, path: str) -> None:
    """Ask until 200 comes back."""
    patience = time.monotonic() + PATIENCE
    while time.monotonic() < patience:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(0.005)
    raise TimeoutError(f"nobody answers {path} within {PATIENCE:.0f} s")


@contextlib.contextmanager
def started(launch: Launch, port: int, folder: Path) -> Iterator[tuple[int, float]]:
    """(process id, seconds until it was ready) of a target."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # translated before, as pip installs it
    with (folder / "output.log").open("w") as output:
        began = time.monotonic()
        options = {"env": environment | dict(launch.environment), "stdout": output, "stderr": output, "cwd": ROOT}
        with running(launch.command, CORE.target, **options) as process:
            until_ready(port, launch.path)
            yield process.pid, time.monotonic() - began


def client(mode: str, port: int, pid: int, *arguments: float) -> dict[str, float]:
    """What the load in C found."""
    command = [built("client"), mode, str(port), str(pid), *map(str, arguments)]
    with running(command, CORE.load, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(timeout=120)
    found: dict[str, float] = json.loads(said)
    if found["failed"]:
        raise RuntimeError(f"{found['failed']:.0f} requests failed: {said}")
    if mode != "hold" and not found["answers"]:
        raise RuntimeError("nothing came")
    return found


# --------------------------------------------------------------------------------------------------------------
# What is measured
# --------------------------------------------------------------------------------------------------------------


class Bench:
    """One target, up and running. Each test gives figures by name."""

    def __init__(self, port: int, pid: int, engine: Engine, seconds: float) -> None:
        self._port, self._pid, self._engine, self._seconds = port, pid, engine, seconds

    def rss(self) -> Figures:
        """Resident MiB, with so many streams open."""
        return {f"rss {count}": self._rss_with(count) for count in HOLD}

    def _rss_with(self, count: int) -> float:
        command = [built("client"), "hold", str(self._port), "0", str(count)]
        if not count:
            return self._resident()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with running(command, CORE.load, **pipes) as process:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            if found["open"] < count:
                return float("nan")
            return self._resident()

    def _resident(self) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def whole(self) -> Figures:
        """64 connections, answers in one piece."""
        found = client("whole", self._port, self._pid, 64, self._seconds)
        cpu = found["cpu"] / found["answers"]
        return {"req/s": found["answers"] / found["seconds"], "req/CPU s": 1 / cpu, "us/req": cpu * 1e6}

    def single(self) -> Figures:
        """One connection: latency in microseconds."""
        found = client("whole", self._port, self._pid, 1, self._seconds)
        return {"p50": found["p50"], "p99": found["p99"]}

    def paced(self) -> Figures:
        """A thousand streams, a chunk every 50 ms on each."""
        found = client("paced", self._port, self._pid, 1000, self._seconds, GAP)
        if found["open"] < 1000:
            raise RuntimeError(f"only {found['open']:.0f} streams began")
        share = found["answers"] * GAP / 1e6 / 1000 / found["seconds"]
        cpu = found["cpu"] / found["answers"] * 1e6
        return {"CPU s/1M": cpu, "chunk p50": found["p50"], "chunk p99": found["p99"], "kept up": share}

    def leave(self) -> Figures:
        """Clients that leave, at four stages: how many the engine heard of, and the slowest of them in ms."""
        figures = {}
        for name, stream, pace in (
            ("mid-stream", True, f"gap={GAP}"),
            ("in a gap", True, "gap=3000000"),
            ("before 1st byte", True, "delay=9000000"),
            ("unstreamed", False, "delay=9000000"),
        ):
            waits = sorted(wait for _ in range(LEAVES) if (wait := self._leave(stream, pace)) is not None)
            figures[f"left {name}"] = float(len(waits))
            figures[f"ms {name}"] = waits[-1] if waits else float("nan")
        return figures

    def _leave(self, stream: bool, pace: str) -> float | None:
        message = {"role": "user", "content": f"{pace} hello"}
        asked = {"model": "model", "stream": stream, "max_tokens": 100, "messages": [message]}
        body = json.dumps(asked, separators=(",", ":"))
        head = f"{_REQUEST}Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            sock.sendall((head + body).encode())
            if pace.startswith("gap"):
                while b"@" not in sock.recv(4096):
                    pass
            time.sleep(0.05)
            gone = time.monotonic_ns()
        waited = self._engine.left(gone)
        return None if waited is None else waited / 1e6


def shed(engine_port: int, folder: Path, seconds: float) -> Figures:
    """The gateway at twenty times what its engine can do: microseconds of CPU an answer, most are refusals."""
    port = free_port()
    with started(gateway(port, engine_port, folder, limit=SLOTS), port, folder) as (pid, _):
        found = client("whole", port, pid, 512, seconds, OVERLOAD * SLOTS * 1000 / 50)
    if found["refused"] < found["answers"] * OVERLOAD / 2:
        raise RuntimeError(f"that was no overload: {found}")
    return {"us/429": found["cpu"] / (found["refused"] + found["answers"]) * 1e6}


TESTS: Final[tuple[str, ...]] = ("rss", "whole", "single", "paced", "leave", "shed", "start")


def measure(
    targets: Sequence[str], tests: Sequence[str], rounds: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """All figures of all rounds, by target and name."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ("direct", *targets)}
    for number in range(rounds):
        for name, kept in found.items():
            print(f"\rround {number + 1}: {name:20}", end="", file=sys.stderr, flush=True)
            try:
                figures = _one(name, tests, seconds, first=not number)
            except (TimeoutError, RuntimeError) as error:  # the others go on
                print(f"\r{name}: {error}", file=sys.stderr)
                continue
            for key, value in figures.items():
                kept.setdefault(key, []).append(value)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return found


def _one(name: str, tests: Sequence[str], seconds: float, *, first: bool) -> Figures:
    """Once through the tests; those that do not vary, in the first round only."""
    figures: Figures = {}
    port, engine_port = free_port(), free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running([built("engine"), str(engine_port)], CORE.load, stdout=subprocess.PIPE) as process,
    ):
        engine = Engine(process)
        if name == "direct":
            bench = Bench(engine_port, process.pid, engine, seconds)
            return {
                key: value
                for test in ("single", "paced")
                if test in tests
                for key, value in getattr(bench, test)().items()
            }
        with started(TARGETS[name](port, engine_port, Path(folder)), port, Path(folder)) as (pid, ready):
            if "start" in tests:
                figures["ready"] = ready
            bench = Bench(port, pid, engine, seconds)
            for test in ("rss", "whole", "single", "paced", "leave"):
                if test in tests and (first or test not in {"rss", "leave"}):
                    figures |= getattr(bench, test)()
        if name == "gateway" and "shed" in tests:
            figures |= shed(engine_port, Path(folder), seconds)
    return figures


# --------------------------------------------------------------------------------------------------------------
# The table
# --------------------------------------------------------------------------------------------------------------


class Table:
    """The medians, and what they are beside each other. A figure that was not measured is NaN, and shows as ``-``."""

    def __init__(self, found: dict[str, dict[str, list[float]]]) -> None:
        self._found = {
            name: {key: statistics.median(each) for key, each in figures.items()} for name, figures in found.items()
        }
        self.targets = [name for name in found if name != "direct"]

    def of(self, name: str, key: str) -> float:
        """One figure."""
        return self._found.get(name, {}).get(key, float("nan"))

    def added(self, name: str, key: str) -> float:
        """Microseconds more than the engine itself takes."""
        return self.of(name, key) - self.of("direct", key)

    def ratio(self, name: str, key: str, other: str) -> float:
        """The figure of ``name``, as a multiple of another target's."""
        return self.of(name, key) / self.of(other, key)

    def _row(self, name: str) -> list[str]:
        rss = "/".join(_text(self.of(name, f"rss {count}"), 0) for count in HOLD)
        stages = ("mid-stream", "in a gap", "before 1st byte", "unstreamed")
        lefts = "/".join(_text(self.of(name, f"left {stage}"), 0) for stage in stages)
        slowest = max(self.of(name, f"ms {stage}") for stage in stages)
        return [
            name,
            _text(self.of(name, "req/s"), 0),
            _text(self.of(name, "us/req"), 0),
            f"{_text(self.added(name, 'p50'), 0)}/{_text(self.added(name, 'p99'), 0)}",
            _text(self.of(name, "CPU s/1M"), 1),
            f"{_text(self.added(name, 'chunk p50') / 1000, 2)}/{_text(self.added(name, 'chunk p99') / 1000, 2)}",
            _text(self.of(name, "kept up"), 2),
            rss,
            f"{lefts} {_text(slowest, 1)}",
            _text(self.of(name, "us/429"), 0),
            _text(self.of(name, "ready"), 2),
        ]

    def lines(self) -> Iterator[str]:
        """The table, then the ratios in one line, of the compiled gateway first."""
        titles = [
            "", "req/s", "CPU us", "1 conn +p50/p99 us", "CPU s/1M chunks", "chunk +p50/p99 ms", "kept up",
            f"MiB at {'/'.join(map(str, HOLD))}", "left (of 10), ms", "us/429", "ready s",
        ]  # fmt: skip
        rows = [titles, *map(self._row, self.targets)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
        for row in rows:
            yield "  ".join(
                f"{cell:<{width}}" if not column else f"{cell:>{width}}"
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        for name, title in ((COMPILED, "compiled"), ("gateway", "bench")):
            if name in self.targets:
                rates = [_text(self.ratio(name, "req/CPU s", other), 2) for other in ("envoy", "nginx")]
                paced = f"paced CPU {_text(self.ratio(name, 'CPU s/1M', 'vllm-router'), 2)} of vllm-router"
                p50 = _text(self.added(name, "p50"), 0)
                yield f"{title}: rps {rates[0]} of Envoy, {rates[1]} of nginx; {paced}; added p50 {p50} us"


def _text(value: float, digits: int) -> str:
    return "-" if value != value else f"{value:.{digits}f}"  # noqa: PLR0124 - NaN differs from itself


def _listed(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if strange := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)} given, expected any of {', '.join(known)}")
        return names

    return parse


def main() -> None:
    """Measure what the arguments name; without any, everything that can be had."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--targets", type=_listed([*TARGETS]), default=[*TARGETS], metavar="A,B", help=", ".join(TARGETS)
    )
    parser.add_argument("--tests", type=_listed(TESTS), default=[*TESTS], metavar="A,B", help=", ".join(TESTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load for each figure")
    parser.add_argument("--runs", action="store_true", help="print the figures of each round as well")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends it leaves no target behind
    for name in options.targets:
        if not installed(name):
            install(name)
    there = [name for name in options.targets if installed(name)]
    if missing := [name for name in options.targets if name not in there]:
        print(f"not here: {', '.join(missing)}")
    found = measure(there, options.tests, options.rounds, options.seconds)
    if options.runs:
        for name, figures in found.items():
            for key, values in figures.items():
                print(f"{name:14} {key:20} {'  '.join(f'{value:.1f}' for value in values)}")
    print("\n".join(Table(found).lines()))


if __name__ == "__main__":
    main()
