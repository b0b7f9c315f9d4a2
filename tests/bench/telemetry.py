"""What telemetry costs: ``python -m tests.bench.telemetry``. Prints a table; no part of the test run.

Streams as 20,000 chunks a second make them, without a socket: each chunk is marked as the relay marks it, each end is
told to every observer that a gateway has, the files are written. CPU time of all threads, over what a second brings.
Exits with 1 where all of it takes more than 3 % of a core.
"""

# ruff: noqa: T201 - a table on the terminal

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.model import (
    Access,
    GatewayState,
    Observer,
    Outcome,
    Permit,
    Record,
    Route,
    Shape,
    Ticket,
    Timeline,
    Usage,
    WorkEstimate,
)
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.clients import Clients
from gateway.telemetry.curve import Curves
from gateway.telemetry.entry import Entry, Recorder, entry_of
from gateway.telemetry.facts import FactSheet
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record_file import RecordFile
from gateway.telemetry.tally import Tally, tallied
from gateway.telemetry.window import Window

RATE = 20_000  # chunks a second
MOST = 0.03  # of a core
CHAT = Route("chat", Access.ADMIT)


@dataclass
class Reader:
    """The one thing of a reader that is asked after each chunk for telemetry's sake."""

    asides: tuple[int, int] | None = None


def streams(count: int, chunks: int, pace: float) -> list[list[float]]:
    """The instants of the chunks of so many streams; ``pace`` seconds apart, as an engine jitters."""
    chance = random.Random(1)
    made = []
    for stream in range(count):
        now, instants = 1_000.0 + stream * chunks / RATE + 0.3, []
        for _ in range(chunks):
            now += max(0.0, chance.gauss(pace, pace / 8))
            instants.append(now)
        made.append(instants)
    return made


def record_of(number: int, instants: Sequence[float]) -> Record:
    """A finished request, all but its chunks."""
    came = instants[0] - 0.3
    line = Timeline(came, came + 0.0001, came + 0.0002, came + 0.01, came + 0.011, came + 0.29)
    line.finished = instants[-1] + 0.0002
    shape = Shape(CHAT, "qwen3-8b", stream=True, prompt_bytes=2_000, messages=3, max_output=512)
    ticket = Ticket(number, shape, WorkEstimate(500, 250, 375.0), "a1b2c3d4e5f60718", body_bytes=2_400)
    return Record(
        f"0123456789abcdef{number:016x}",
        ticket,
        CHAT,
        "POST",
        "/v1/chat/completions",
        line,
        Outcome.COMPLETED,
        200,
        lane="short",
        backend="gpu1",
        usage=Usage(512, len(instants), 128),
        bytes_in=2_400,
        bytes_out=len(instants) * 250,
        attempts=1,
    )


def mark(timeline: Timeline, reader: Reader, instants: Sequence[float]) -> None:
    """What the relay does with each chunk for telemetry's sake."""
    timeline.aside(1, 0, instants[0])
    for now in instants:
        timeline.output(1, now)
        if reader.asides is not None:
            timeline.aside(*reader.asides, now)


def mark_all(records: Sequence[Record], reader: Reader, all_instants: Sequence[Sequence[float]]) -> None:
    """Mark every stream."""
    for record, instants in zip(records, all_instants, strict=True):
        mark(record.timeline, reader, instants)


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(chunks: int, pace: float, seconds: int) -> dict[str, float]:
    """Share of a core by part, for streams of so many chunks."""
    all_instants = streams(seconds * RATE // chunks, chunks, pace)
    records = [record_of(number, instants) for number, instants in enumerate(all_instants)]
    reader = Reader()
    nothing = cpu(lambda: [[now for now in instants] for instants in all_instants])  # noqa: C416 - the bare loop
    marking = cpu(lambda: mark_all(records, reader, all_instants))
    parts = {"marking each chunk": max(0.0, marking - nothing)}
    with tempfile.TemporaryDirectory() as folder:
        for name, observer, stop in observers(Path(folder)):
            parts[name] = cpu(partial(tell, observer, records, stop))
    entries = [entry_of(record, record.ticket) for record in records if record.ticket is not None]
    parts["diagnosis"] = cpu(partial(diagnosed, entries * (60 // seconds))) * seconds / 10
    return {name: spent / seconds for name, spent in parts.items()}


class Learner:
    """Admission's two calls to the curve's watcher, and the record."""

    def __init__(self) -> None:
        self._curves = Curves(86_400.0)
        self._permits = 0

    def observe(self, record: Record) -> None:
        """Grant, settle, observe."""
        self._permits += 1
        line, ticket = record.timeline, record.ticket
        assert ticket is not None
        progress = self  # nobody asks it
        permit = Permit(self._permits, ticket, "gpu1", line.admitted or 0.0, progress)  # type: ignore[arg-type]
        self._curves.granted(permit, self._permits)
        self._curves.settled(permit, record.outcome, self._permits, line.finished or 0.0)
        self._curves.observe(record)


def diagnosed(entries: Sequence[Entry]) -> None:
    """What a diagnosis, made every ten seconds, does with the requests of its minute."""
    sheet = FactSheet(0.0, 60.0, GatewayState((), (), draining=False, overloaded=False, retries_seen={}))
    for entry in entries:
        sheet.add(entry)


def tell(observer: Observer, records: Sequence[Record], stop: Callable[[], None]) -> None:
    """Tell an observer of every stream's end, and let it write what it has to."""
    for record in records:
        observer.observe(record)
    stop()


def observers(folder: Path) -> list[tuple[str, Observer, Callable[[], None]]]:
    """Every observer that a gateway may have, and how it ends. Metrics work out the gaps for the access log as well."""
    state = GatewayState((), (), draining=False, overloaded=False, retries_seen={})
    window = Window(1e9, 64 * 1024 * 1024)
    log = AccessLog(str(folder / "access"), capacity=1 << 30)
    file = RecordFile(str(folder / "records"), 256 * 1024 * 1024, 1)
    return [
        ("metrics", Metrics(lambda: state, version="1", config_hash="0"), lambda: None),
        ("access log", log, lambda: log.stop(60.0)),
        ("report's window", Recorder(window), lambda: None),
        ("curve, with its permits", Learner(), lambda: None),
        ("clients", Clients(60.0), lambda: None),
        ("record file (off by default)", Recorder(file), lambda: file.stop(60.0)),
    ]


def report_time(entries: int, chunks: int) -> float:
    """CPU seconds of one report over so many streams."""
    window = Window(1e9, 1 << 40)
    recorder = Recorder(window)
    for number, instants in enumerate(streams(entries, chunks, 0.02)):
        record = record_of(number, instants)
        mark(record.timeline, Reader(), instants)
        recorder.observe(record)
    return cpu(lambda: tallied(window.entries(), Tally()))


def main() -> int:
    """Measure and print; 1 where it is too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.telemetry")
    parser.add_argument("--seconds", type=int, default=5, help="seconds of traffic (default: %(default)s)")
    seconds = parser.parse_args().seconds
    worst = 0.0
    for chunks, pace in ((50, 0.02), (200, 0.02), (1_000, 0.04)):
        parts = measure(chunks, pace, seconds)
        print(f"{RATE:,} chunks a second in streams of {chunks}:")
        for name, share in (*parts.items(), ("together", sum(parts.values()))):
            print(f"  {name:<30}{share:>7.2%} of a core")
        worst = max(worst, sum(parts.values()))
    print(f"a report over 2,000 streams of 200 chunks: {report_time(2_000, 200) * 1000:.0f} ms of CPU")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
