"""``gateway top`` on a terminal: what the status page shows, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import floor
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gateway.console.verdict import figure

WIDTH: Final = 80
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=+*%#"
_BLOCKS: Final = ("█", "░")
_PLAIN_BLOCKS: Final = ("#", ".")
_SPARK: Final = 20  # characters, of three seconds each
_GRAIN: Final = 3
_METER: Final = 14  # characters at most
_LEAST: Final = 4
_FIXED: Final = 12  # lines beside the rows of backends and lanes, the one of the cursor included
_FEWEST: Final = 2  # backends that are shown however little room there is

_STYLES: Final = {"ok": "bold green", "warning": "bold yellow", "critical": "bold red", "info": "cyan"}
_HEALTH: Final = {
    "up": ("up", "green"),
    "unknown": ("not probed", "cyan"),
    "down": ("down", "bold red"),
    "open": ("failing", "bold red"),
    "half_open": ("on trial", "bold yellow"),
    "drained": ("drained", "cyan"),
}
_STALE: Final = 15.0  # seconds


class TopView:
    """Makes a picture of what the admin port said. ``plain`` draws with ASCII, for terminals that have nothing else."""

    def __init__(self, where: str, *, plain: bool = False) -> None:
        self._where = where
        self._bars = _PLAIN_BARS if plain else _BARS
        self._full, self._empty = _PLAIN_BLOCKS if plain else _BLOCKS
        self._dot = "|" if plain else "·"

    def picture(
        self,
        status: Mapping[str, Any] | None,
        findings: Sequence[Mapping[str, Any]] = (),
        events: Sequence[Mapping[str, Any]] = (),
        *,
        trouble: str = "",
        height: int = 24,
    ) -> Group:
        """``status`` is what /status answered last; ``trouble`` says why it does not answer now. At most ``height``."""
        if status is None:
            return Group(self._lost(trouble) if trouble else Text(f"asking {self._where} ..."))
        parts: list[Text | Table] = [self._head(status), *self._verdict(status, trouble), Text()]
        parts += [self._speed(status), self._sparks(status), Text()]
        room = height - _FIXED - len(status["lanes"])
        most = max(_FEWEST, room)
        parts += [*self._backends(status["backends"], most), Text(), self._lanes(status), *self._shed(status)]
        parts += self._tail(findings, events, room - min(len(status["backends"]), most))
        return Group(*parts)

    def _lost(self, trouble: str) -> Text:
        return Text(f"No answer from {self._where}: {trouble}", style=_STYLES["critical"])

    def _head(self, status: Mapping[str, Any]) -> Text:
        up = _span(status["at"] - status["started"])
        return Text(f"Inference Gateway {status['version']}  {self._where}  up {up}", style="bold")

    def _verdict(self, status: Mapping[str, Any], trouble: str) -> Iterator[Text]:
        if trouble:
            yield self._lost(trouble)
            return
        verdict = status["verdict"]
        yield Text(verdict["title"], style=_STYLES[verdict["level"]], overflow="ellipsis", no_wrap=True)
        more = verdict["more"]
        if verdict["also"]:
            more = f"Also: {f' {self._dot} '.join(verdict['also'])}"
        if more:
            yield Text(more, overflow="ellipsis", no_wrap=True)

    def _speed(self, status: Mapping[str, Any]) -> Text:
        recent, objectives = status["recent"], status["objectives"]
        lane = status["lanes"][0]["name"]
        answered = recent["completed_per_second"]
        share = recent["good_per_second"] / answered if answered else None
        refused = recent["shed_per_second"]
        line = Text("goodput ", no_wrap=True, overflow="ellipsis")
        line.append(f"{figure(recent['good_per_second'])}/s", style="bold")
        line.append(f" ({_percent(share)})  refused ")
        line.append(f"{figure(refused)}/s", style="bold yellow" if refused else "bold")
        line.append(f"  TTFT {lane} ")
        ttft = recent["ttft_seconds"].get(lane, _NOTHING)
        line.append(self._pair(ttft), style=_over(ttft["p99"], objectives["ttft"].get(lane)))
        line.append("  TPOT ")
        tpot = recent["tpot_seconds"]
        return line.append(self._pair(tpot), style=_over(tpot["p50"], objectives["tpot"]))

    def _pair(self, pair: Mapping[str, float | None]) -> str:
        return f"{_seconds(pair['p50'])} {self._dot} {_seconds(pair['p99'])}"

    def _sparks(self, status: Mapping[str, Any]) -> Text:
        past = status["history"]
        line = Text(no_wrap=True, overflow="crop", style="dim")
        lane = status["lanes"][0]["name"]
        shown = (
            ("good", past["good"]),
            ("refused", past["shed"]),
            ("TTFT P99", past["ttft"].get(lane, {}).get("p99", ())),
        )
        for name, values in shown:
            line.append(f"{name} ").append(self._spark(values), style="not dim cyan").append("  ")
        return line

    def _spark(self, values: Sequence[float | None]) -> str:
        last = values[-_SPARK * _GRAIN :]
        blocks = [last[start : start + _GRAIN] for start in range(0, len(last), _GRAIN)]
        means = [_mean([value for value in block if value is not None]) for block in blocks]
        most = max((mean for mean in means if mean), default=0.0)
        top = len(self._bars) - 1
        drawn = "".join(" " if mean is None else self._bars[round(mean / most * top) if most else 0] for mean in means)
        return drawn.rjust(_SPARK)

    def _backends(self, backends: Sequence[Mapping[str, Any]], most: int) -> Iterator[Table | Text]:
        table = _table("BACKEND", "HEALTH", "RUNNING / LIMIT", "", "PACE / TARGET", "KV", "QUEUE")
        table.columns[0].max_width = 18
        shown = backends if len(backends) <= most else backends[: most - 1]
        for backend in shown:
            table.add_row(*self._backend(backend))
        yield table
        if left := backends[len(shown) :]:
            out = sum(each["health"] not in {"up", "unknown"} for each in left)
            yield Text(f"{len(left)} more, {out} of them out", style="dim")

    def _backend(self, backend: Mapping[str, Any]) -> Iterator[Text | str | _Meter]:
        word, style = _HEALTH.get(backend["health"], (backend["health"], ""))
        limit, running = floor(backend["limit"]), backend["running"]
        if backend["hung"]:
            word, style = f"silent {_seconds(backend['silence_seconds'])}", "bold red"
        yield Text(backend["name"], overflow="ellipsis", no_wrap=True)
        yield Text(word, style=style)
        yield f"{running} / {limit}{' pinned' if backend['pinned'] else ''}"
        yield self._meter(running / max(1, limit))
        pace, target = backend["pace_seconds"], backend["pace_target_seconds"]
        over = _over(pace, target and 1.05 * target)
        yield Text(f"{_seconds(pace)} / {_seconds(target)}" if target else _seconds(pace), style=over)
        age = backend["hints_age_seconds"]
        engine = backend["engine"] if age is not None and age <= _STALE else {"kv_usage": None, "waiting": None}
        kv = engine["kv_usage"]
        yield Text(_percent(kv), style="bold yellow" if kv is not None and kv > 0.95 else "")  # noqa: PLR2004 - full
        yield "-" if engine["waiting"] is None else f"{engine['waiting']:.0f}"

    def _meter(self, ratio: float, style: str = "") -> _Meter:
        return _Meter(ratio, self._full, self._empty, style)

    def _lanes(self, status: Mapping[str, Any]) -> Table:
        table = _table("LANE", "WAITING", "OLDEST / MAX", "", f"WAIT P50 {self._dot} P99")
        for lane in status["lanes"]:
            ratio = lane["oldest_wait_seconds"] / lane["max_wait_seconds"]
            bound = "longer" if lane["threshold"] is None else f"to {lane['threshold']}"
            table.add_row(
                f"{lane['name']} ({bound})",
                str(lane["depth"]),
                f"{_seconds(lane['oldest_wait_seconds'])} / {_seconds(lane['max_wait_seconds'])}",
                self._meter(ratio, "yellow" if ratio > 0.8 else ""),  # noqa: PLR2004 - nearly out of time
                self._pair(lane["recent_wait_seconds"]),
            )
        return table

    def _shed(self, status: Mapping[str, Any]) -> Iterator[Text]:
        reasons = sorted(status["shed"]["by_reason"].items(), key=lambda each: -each[1])
        told = f" {self._dot} ".join(f"{reason} {count}" for reason, count in reasons)
        yield Text(f"refused in {status['shed']['seconds']} s: {told or 'none'}", no_wrap=True, overflow="ellipsis")

    def _tail(
        self, findings: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], room: int
    ) -> Iterator[Text]:
        """Findings and events, as many as fit."""
        if room < 2:  # noqa: PLR2004 - a blank line and one more
            return
        yield Text()
        room -= 1
        shown = findings[: max(1, room // 2)]
        for each in shown:
            style = _STYLES.get(each["severity"], "")
            yield Text(each["title"], style=style, no_wrap=True, overflow="ellipsis")
        room -= len(shown)
        for each in reversed(events[-room:] if room > 0 else ()):
            at = datetime.fromtimestamp(each["at"]).astimezone()
            named = not each["backend"] or each["backend"] in each["text"]
            backend = "" if named else f"{each['backend']}: "
            line = Text(f"{at:%H:%M:%S} ", style="dim", no_wrap=True, overflow="ellipsis")
            yield line.append(f"{backend}{each['text']}", style=f"not dim {_STYLES.get(each['severity'], '')}".strip())


_NOTHING: Final[Mapping[str, float | None]] = {"p50": None, "p99": None}


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", width=WIDTH)
    for index, name in enumerate(names):
        left = not index or not name or name == "HEALTH"
        table.add_column(name, justify="left" if left else "right", no_wrap=bool(name))  # a meter gives way first
    return table


class _Meter:
    """A bar as wide as there is room for."""

    def __init__(self, ratio: float, full: str, empty: str, style: str) -> None:
        self._ratio = min(1.0, ratio)
        self._full = full
        self._empty = empty
        self._style = style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_LEAST, _METER)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(_METER, options.max_width)
        full = round(self._ratio * width)
        yield Text(self._full * full + self._empty * (width - full), style=self._style, no_wrap=True)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _over(value: float | None, wanted: float | None) -> str:
    return "bold yellow" if value is not None and wanted is not None and value > wanted else ""


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.00005:  # noqa: PLR2004 - nothing, to the eye
        return "0s"
    if value < 1.0:
        return f"{1000.0 * value:.0f}ms"
    return f"{value:.2f}s" if value < 10.0 else _span(value)  # noqa: PLR2004 - three digits


def _span(seconds: float) -> str:
    for unit, size, until in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if seconds < until:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86_400.0:.0f} days"
