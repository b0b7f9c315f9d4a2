"""The requests of the last while: what the report is made of.

Entries are kept in the order in which the requests finished, and the oldest go first: those older than ``age``, and
those that no longer fit in ``memory``. So the memory is bounded whatever the traffic.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.telemetry.entry import Entry
from gateway.telemetry.selection import Selection

RUNS_MAX: Final = 100  # of each kind; the oldest are forgotten
_RUN_NAME: Final = re.compile(r"[\w.:-]{1,64}")
_BENCH_BEGIN: Final = "bench-"
_BENCH: Final = re.compile(r"bench-[0-9a-f]{8}-")  # what `vllm bench serve` begins the ids of one run with


@dataclass(slots=True)
class Run:
    """A span of time with a name. Seconds of the window's clock; ``until`` is None while it goes on."""

    name: str
    since: float
    until: float | None = None


class Window:
    """Keeps entries for ``age`` seconds within ``memory`` bytes. One event loop calls it."""

    def __init__(
        self,
        age: float,
        memory: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.age = age
        self._memory = memory
        self._clock = clock
        self._wall_clock = wall_clock
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._lost: float | None = None
        self._runs: dict[str, Run] = {}
        self._benches: dict[str, Run] = {}

    # -- filling ----------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Keep one finished request."""
        self._entries.append(entry)
        self._size += entry.size
        self._expire()
        if entry.request_id.startswith(_BENCH_BEGIN) and (bench := _BENCH.match(entry.request_id)) is not None:
            self._note_bench(bench[0], entry)

    def _note_bench(self, prefix: str, entry: Entry) -> None:
        run = self._benches.setdefault(prefix, Run(prefix, entry.received))
        run.since = min(run.since, entry.received)
        run.until = max(run.until or 0.0, entry.finished_at)
        _forget_oldest(self._benches)

    def _expire(self) -> None:
        oldest = self._clock() - self.age
        while self._entries and (self._entries[0].finished_at < oldest or self._size > self._memory):
            entry = self._entries.popleft()
            self._size -= entry.size
            self._lost = entry.finished_at

    # -- asking -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The present on the clock of the entries."""
        return self._clock()

    @property
    def wall_offset(self) -> float:
        """What to add to an instant of the entries for seconds since the epoch."""
        return self._wall_clock() - self._clock()

    @property
    def lost(self) -> float | None:
        """When the last request finished that is no longer kept; None where all are."""
        self._expire()
        return self._lost

    def entries(self) -> tuple[Entry, ...]:
        """All that are kept."""
        self._expire()
        return tuple(self._entries)

    # -- runs -------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> Run:
        """Begin a run; one of this name that has ended is forgotten.

        Raises:
            ValueError: it is no name for a run, or it goes on already.
        """
        if not _RUN_NAME.fullmatch(name):
            raise ValueError(f"got {name!r}, expected a name of 1 to 64 letters, digits and . _ : -")
        if name in self._runs and self._runs[name].until is None:
            raise ValueError(f"run {name!r} goes on already: stop it first")
        self._runs.pop(name, None)
        run = self._runs[name] = Run(name, self._clock())
        _forget_oldest(self._runs)
        return run

    def stop(self, name: str) -> Run:
        """End a run; requests that came before count, whenever they finish.

        Raises:
            ValueError: there is none of this name, or it has ended.
        """
        run = self.run(name)
        if run.until is not None:
            raise ValueError(f"run {name!r} has ended already")
        run.until = self._clock()
        return run

    def run(self, name: str) -> Run:
        """The run of this name.

        Raises:
            ValueError: there is none.
        """
        if name not in self._runs:
            known = ", ".join(self._runs) or "none"
            raise ValueError(f"got {name!r}, expected the name of a run that was started (known: {known})")
        return self._runs[name]

    def runs(self) -> tuple[Run, ...]:
        """Those that were started by name, the oldest first."""
        return tuple(self._runs.values())

    def benches(self) -> tuple[Run, ...]:
        """Runs of ``vllm bench serve``, by the prefix of their request ids, in the order of their first end."""
        return tuple(self._benches.values())


def selection_of(run: Run) -> Selection:
    """The requests that came while ``run`` went on."""
    return Selection(run.since, run.until)


def _forget_oldest(runs: dict[str, Run]) -> None:
    while len(runs) > RUNS_MAX:
        del runs[next(iter(runs))]
