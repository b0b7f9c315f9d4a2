"""The demo on a terminal: the same overload straight at the engine and through the gateway, side by side.

On a terminal a table that grows, elsewhere plain lines. The figures come as plain values: see ``Run``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

WIDTH: Final = 80
LAST: Final = 5  # seconds at a run's end that the verdict looks at: the gateway has learnt the engine by then
LINE_EVERY: Final = 2  # seconds between plain lines
TITLES: Final = ("straight at the engine", "through the gateway")
_SHORT: Final = ("direct", "gateway")

_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=+*%#"


class Run(Protocol):
    """One side's figures so far."""

    @property
    def elapsed(self) -> float:
        """Seconds so far, at most ``duration``."""

    @property
    def duration(self) -> float:
        """Seconds that requests arrive."""

    @property
    def offered(self) -> int:
        """Requests that arrived."""

    @property
    def attempts(self) -> int:
        """Requests sent, retries included."""

    @property
    def good(self) -> int:
        """Requests answered in time."""

    @property
    def refusals(self) -> int:
        """Answers 429 and 503, to any attempt."""

    @property
    def timeouts(self) -> int:
        """Attempts that timed out."""

    @property
    def per_second(self) -> Sequence[int]:
        """Requests answered in time in each second."""

    @property
    def latency_p50(self) -> float | None:
        """Median seconds of those, None of none."""

    @property
    def latency_p99(self) -> float | None:
        """The same, P99."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played. ``best`` and ``rate`` in requests a second, ``timeout`` in seconds."""

    engine: str
    best: float
    rate: float
    timeout: float
    retries: int


@dataclass(frozen=True, slots=True)
class _Side:
    run: Run
    engine: Mapping[str, int]


class DemoView:
    """Shows the two sides as they run.

    Usage::

        with DemoView(scene) as view:
            view.show(0, snapshot, engine_state)  # straight at the engine, again and again
            view.show(1, snapshot, engine_state)  # through the gateway

    ``engine_state`` is what the emulated engine says of itself: running, waiting, finished, aborted. Leaving the
    block prints the verdict.
    """

    def __init__(self, scene: Scene, console: Console | None = None) -> None:
        """Write to ``console``, by default stdout."""
        self._scene = scene
        self._console = console or Console(highlight=False)
        self._sides: dict[int, _Side] = {}
        self._said = (0, -1)  # side and second of the last plain line
        self._live: Live | None = None
        self._bars = _BARS if self._console.encoding.lower().startswith("utf") else _PLAIN_BARS

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._picture(), console=self._console, auto_refresh=False)
            self._live.start()
        else:
            self._console.print(*self._intro(), sep="\n", soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif kind is None:
            self._console.print(self._table())
        if kind is None and len(self._sides) == len(TITLES):
            self._console.print(Text(f"\n{self._verdict()}", style="bold"), soft_wrap=self._live is None)

    def show(self, side: int, run: Run, engine: Mapping[str, int]) -> None:
        """Show how ``side`` (0 or 1) stands.

        Of the engine stays what was shown last before the end: the end itself cuts every client off.
        """
        if run.elapsed >= run.duration and side in self._sides:
            engine = self._sides[side].engine
        self._sides[side] = _Side(run, engine)
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            return
        now = (side, int(run.elapsed) // LINE_EVERY)
        if now > self._said and int(run.elapsed) > 0:
            self._said = now
            self._console.print(self._line(side), soft_wrap=True)

    # ----------------------------------------------------------------------------------------------- pictures

    def _intro(self) -> tuple[str, str]:
        scene = self._scene
        return (
            f"The emulated engine {scene.engine} can serve {scene.best:.1f} requests a second.",
            f"{scene.rate:.0f} arrive, from clients that wait {scene.timeout:g} s and try {scene.retries + 1} times.",
        )

    def _picture(self) -> Group:
        return Group(Text("\n".join(self._intro())), Text(), self._table())

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE if self._live is not None else None, width=WIDTH, pad_edge=False)
        table.add_column("")
        for title in TITLES:
            table.add_column(title, justify="right")
        columns = [self._column(self._sides.get(side)) for side in range(len(TITLES))]
        for name, *values in zip(_ROWS, *columns, strict=True):
            table.add_row(name, *values, style="bold" if name == _ROWS[1] else None)
        return table

    def _column(self, side: _Side | None) -> tuple[str, ...]:
        if side is None:
            return ("",) * len(_ROWS)
        run, best = side.run, self._scene.best
        rate = recent(run.per_second)
        waiting = side.engine["waiting"]
        return (
            f"{run.elapsed:.0f} of {run.duration:.0f}",
            f"{rate:.1f}/s",
            f"{rate / best:.0%}",
            f"{run.good} of {run.offered}",
            bars(run.per_second, best, self._bars),
            _seconds(run.latency_p50),
            _seconds(run.latency_p99),
            f"{run.attempts / max(1, run.offered):.2f}",
            f"{run.refusals}",
            f"{run.timeouts}",
            f"{side.engine['running']} + {waiting}",
            f"{side.engine['aborted']}",
        )

    def _line(self, side: int) -> str:
        run, engine = self._sides[side].run, self._sides[side].engine
        inside = f"{engine['running']}+{engine['waiting']}"
        return (
            f"{_SHORT[side]:8}{run.elapsed:3.0f} s {recent(run.per_second):6.1f}/s in time {run.timeouts:5} timeouts"
            f" {run.refusals:5} refusals  {inside} in engine"
        )

    def _verdict(self) -> str:
        direct, gated = (recent(self._sides[side].run.per_second) for side in range(len(TITLES)))
        return (
            f"Same engine, same load, last {LAST} seconds: {direct:.1f} answers a second without the\n"
            f"gateway, {gated:.1f} with it: {gated / self._scene.best:.0%} of what the engine can do."
        )


_ROWS: Final = (
    "seconds",
    f"answered in time (last {LAST} s)",
    "  of the engine's best",
    "answered in time, all",
    "  each second",
    "latency P50",
    "latency P99",
    "attempts per request",
    "told to come back later",
    "timed out",
    "engine: running + waiting",
    "engine: given up by clients",
)


def recent(per_second: Sequence[int]) -> float:
    """Mean of the last seconds; 0 of none."""
    last = per_second[-LAST:]
    return sum(last) / len(last) if last else 0.0


def bars(per_second: Sequence[int], full: float, levels: str = _BARS) -> str:
    """One character for each second, the highest at ``full`` and above."""
    top = len(levels) - 1
    return "".join(levels[min(top, round(count / full * top))] for count in per_second)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
