"""A curve as people read it: its knee, the level that serves best, and three ways to print it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.model import BackendState, GatewayState
from gateway.telemetry.curve import ENOUGH_REQUESTS, ENOUGH_SECONDS, Level, Objectives
from gateway.telemetry.ladder import gaps
from gateway.telemetry.spread import Spread

COARSE: Final = 4  # rungs to an octave in a printed table
KNEE: Final = 0.9  # of the best throughput
RISING: Final = 0.8  # of the highest level: a knee beyond is only where the curve breaks off
ALIKE: Final = 0.98  # of the best: the lowest level within it serves best
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class Marks:
    """``knee``: the lowest level with nine tenths of the best throughput seen: beyond, requests only wait longer.

    ``best``: the level at which most requests a second meet the objectives; without objectives, the knee. Each names
    the ``low`` of its level. ``note`` says why one is missing.
    """

    knee: int | None
    best: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """All that is told of one curve."""

    backend: str
    model: str | None  # None: all of its requests
    limit: float | None  # None: the backend is not there any more
    running: int
    levels: tuple[Level, ...]
    marks: Marks

    @property
    def unseen(self) -> list[tuple[int, int]]:
        """Levels that were not held, below and between those that were."""
        return gaps([(level.low, level.high) for level in self.levels])


def curve(backend: str, model: str | None, levels: Iterable[Level], state: GatewayState) -> Curve:
    """A curve with its marks and what the backend does now."""
    found = tuple(levels)
    books: BackendState | None = next((each for each in state.backends if each.name == backend), None)
    limit, running = (books.limit, books.running) if books else (None, 0)
    return Curve(backend, model, limit, running, found, marks(found))


def objectives_of(state: GatewayState) -> Objectives:
    """What is fast enough at this moment."""
    ttft = {lane.name: lane.ttft_objective for lane in state.lanes if lane.ttft_objective is not None}
    return Objectives(ttft, state.tpot_objective)


def marks(levels: Sequence[Level]) -> Marks:
    """Where the knee is, and which level serves best, as far as the evidence goes."""
    sound = [level for level in levels if level.enough]
    if len(sound) < _FEW:
        wanted = f"{ENOUGH_REQUESTS} requests and {ENOUGH_SECONDS:g} s each"
        return Marks(None, None, f"fewer than {_FEW} levels have evidence enough ({wanted})")
    knee, note = _knee(sound)
    if sound[0].in_objective is None:
        return Marks(knee, knee, note)
    best = _lowest(sound, [level.requests_rate * (level.in_objective or 0.0) for level in sound], ALIKE)
    return Marks(knee, best, note if best is not None else "no level meets the objectives")


def _knee(sound: Sequence[Level]) -> tuple[int | None, str | None]:
    tokens = any(level.tokens_rate for level in sound)
    knee = _lowest(sound, [level.tokens_rate if tokens else level.requests_rate for level in sound], KNEE)
    highest = sound[-1].low
    if knee is not None and knee > RISING * highest:
        return None, f"throughput still rises at {highest}, the highest level with evidence enough"
    return knee, None


def _lowest(levels: Sequence[Level], rates: Sequence[float], share: float) -> int | None:
    """The lowest of ``levels`` whose rate is at least ``share`` of the best; None where all are 0."""
    most = max(rates)
    return (
        next((level.low for level, rate in zip(levels, rates, strict=True) if rate >= share * most), None)
        if most
        else None
    )


# ---------------------------------------------------------------------------------------------------------------- JSON


def result(curves: Iterable[Curve], objectives: Objectives) -> dict[str, Any]:
    """What /curve answers; docs/admin.md describes it."""
    wanted = {"ttft": objectives.ttft, "tpot": objectives.tpot} if objectives else None
    return {"objectives": wanted, "curves": [_curve(each) for each in curves]}


def _curve(found: Curve) -> dict[str, Any]:
    return {
        "backend": found.backend,
        "model": found.model,
        "limit": None if found.limit is None else round(found.limit, 2),
        "running": found.running,
        "knee": found.marks.knee,
        "best": found.marks.best,
        "note": found.marks.note,
        "levels": [_level(level) for level in found.levels],
        "unseen": found.unseen,
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "low": level.low,
        "high": level.high,
        "level": round(level.level, 2),
        "held_seconds": round(level.held, 1),
        "seen_seconds_ago": round(level.seen, 1),
        "requests": level.requests,
        "latency": _spread(level.latency),
        "ttft": _spread(level.ttft),
        "tpot": _spread(level.tpot),
        "requests_per_second": round(level.requests_rate, 3),
        "tokens_per_second": round(level.tokens_rate, 1),
        "in_objective": None if level.in_objective is None else round(level.in_objective, 4),
        "enough": level.enough,
    }


def _spread(found: Spread | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {
        "mean": round(found.mean, 6),
        "p95": round(found.percentiles[95.0], 6),
        "p99": round(found.percentiles[99.0], 6),
    }


# ----------------------------------------------------------------------------------------------------------------- CSV

_COLUMNS: Final = (
    *("backend", "model", "low", "high", "level", "held_seconds", "seen_seconds_ago", "requests"),
    *("latency_mean", "latency_p95", "latency_p99", "ttft_mean", "ttft_p95", "ttft_p99"),
    *("tpot_mean", "tpot_p95", "tpot_p99", "requests_per_second", "tokens_per_second", "in_objective"),
    *("enough", "knee", "best"),
)


def csv_table(curves: Iterable[Curve]) -> str:
    """A line for each level, seconds and rates as in the JSON; empty where a figure is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for found in curves:
        for level in found.levels:
            writer.writerow(_row(found, level))
    return text.getvalue()


def _row(found: Curve, level: Level) -> Mapping[str, Any]:
    row: dict[str, Any] = {"backend": found.backend, "model": found.model}
    for name, value in _level(level).items():
        if name in {"latency", "ttft", "tpot"}:
            row.update({f"{name}_{figure}": number for figure, number in (value or {}).items()})
        else:
            row[name] = value
    return row | {"knee": level.low == found.marks.knee, "best": level.low == found.marks.best}


# ---------------------------------------------------------------------------------------------------------------- text

_HEAD: Final = (
    "in flight", "held s", "requests", "mean ms", "P95 ms", "P99 ms", "TTFT ms", "P99", "TPOT ms", "P99", "req/s",
    "tok/s", "in obj.", "",
)  # fmt: skip
_NO_TRAFFIC: Final = "No request has been answered yet: nothing is known of any level.\n"


def text_table(curves: Sequence[Curve]) -> str:
    """The tables that people make by hand, one a curve; levels that were never held are named as such."""
    return "\n".join(_table(found) for found in curves) or _NO_TRAFFIC


def _table(found: Curve) -> str:
    rows: list[tuple[str, ...]] = [_HEAD]
    lines = {level.low: _cells(found, level) for level in found.levels}
    lines |= {low: (_span(low, high), "never") for low, high in found.unseen}
    rows += [lines[low] for low in sorted(lines)]
    widths = [max(len(row[place]) for row in rows if len(row) == len(_HEAD)) for place in range(len(_HEAD))]
    widths[0] = max(len(row[0]) for row in rows)
    body = "".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() + "\n" for row in rows
    )
    return f"{_title(found)}\n{body}{_summary(found)}\n"


def _title(found: Curve) -> str:
    model = "all requests" if found.model is None else found.model or "no model named"
    limit = "gone" if found.limit is None else f"limit {found.limit:.1f}, {found.running} in flight now"
    return f"{found.backend}, {model} ({limit})"


def _cells(found: Curve, level: Level) -> tuple[str, ...]:
    limited = found.limit is not None and level.low <= found.limit < level.high + 1
    named = {"knee": level.low == found.marks.knee, "best": level.low == found.marks.best, "limit": limited}
    thin = [] if level.enough else ["thin"]
    return (
        _span(level.low, level.high),
        f"{level.held:.0f}",
        f"{level.requests}",
        *_milliseconds(level.latency, (95.0, 99.0)),
        *_milliseconds(level.ttft, (99.0,)),
        *_milliseconds(level.tpot, (99.0,)),
        f"{level.requests_rate:.2f}",
        f"{level.tokens_rate:.0f}",
        "-" if level.in_objective is None else f"{level.in_objective:.1%}",
        ", ".join([name for name, so in named.items() if so] + thin),
    )


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}-{high}"


def _milliseconds(found: Spread | None, percents: Sequence[float]) -> list[str]:
    if found is None:
        return ["-"] * (1 + len(percents))
    return [f"{1000.0 * value:.1f}" for value in (found.mean, *(found.percentiles[percent] for percent in percents))]


def _summary(found: Curve) -> str:
    knee, best, note = found.marks.knee, found.marks.best, found.marks.note
    known = [
        f"Knee at {knee}: beyond it, less than a tenth of throughput is to be had." if knee is not None else "",
        f"Best for the objectives: {best}." if best is not None and best != knee else "",
        f"{note[0].upper()}{note[1:]}." if note else "",
    ]
    return " ".join(filter(None, known))
