"""The report on the admin port: ``/report``, and runs that begin and end on demand.

A report over everything that is kept may have fifty thousand requests to add up. That is done in small steps, between
which the event loop serves streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from aiohttp import web
from multidict import MultiMapping

from gateway.telemetry.entry import Entry
from gateway.telemetry.report import (
    Heading,
    csv_report,
    objectives_of,
    percents_of,
    result,
    rule_of,
    text_report,
)
from gateway.telemetry.selection import Selection, duration, instant
from gateway.telemetry.tally import Figures, Tally
from gateway.telemetry.window import Run, Window, selection_of

_Text = TypeVar("_Text")
_Value = TypeVar("_Value")

_STEP: Final = 64  # entries added up before others get their turn
_GLANCE: Final = 1_000  # entries looked at before that
_DEFAULT_WINDOW: Final = "10m"
_FORMATS: Final = ("text", "json", "csv")
_KNOWN: Final = frozenset({
    "window", "since", "until", "run", "request_id_prefix", "model", "compat", "goodput", "percentiles", "format",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query asks for."""

    selection: Selection
    tally: Tally
    format: str
    label: str | None


class ReportRoutes:
    """Handlers over one window."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application.

        What changes something is a PUT: a web page cannot send one across origins without being allowed to.
        """
        return (
            web.get("/report", self._report),
            web.get("/report/runs", self._runs),
            web.put("/report/runs/{name}/start", self._start),
            web.put("/report/runs/{name}/stop", self._stop),
        )

    async def _report(self, request: web.Request) -> web.Response:
        try:
            asked = self._asked(request.query)
        except ValueError as error:
            return _refused(error)
        figures = await added_up(self._window.entries(), asked.selection, asked.tally)
        return _rendered(figures, self._heading(asked), asked.format)

    def _asked(self, query: MultiMapping[str]) -> Asked:
        unknown = sorted(set(query) - _KNOWN)
        if unknown:
            raise ValueError(f"got {', '.join(unknown)}, expected any of {', '.join(sorted(_KNOWN))}")
        shape = query.get("format", "text")
        if shape not in _FORMATS:
            raise ValueError(f"format: got {shape!r}, expected one of {', '.join(_FORMATS)}")
        goodput = [word for text in query.getall("goodput", ()) for word in text.replace(",", " ").split()]
        tally = Tally(
            _parsed("compat", rule_of, query.get("compat", "0.33")),
            _parsed("goodput", objectives_of, goodput),
            _parsed("percentiles", percents_of, query.get("percentiles", "99")),
        )
        selection = replace(
            self._span(query), prefix=query.get("request_id_prefix", ""), model=query.get("model") or None
        )
        return Asked(selection, tally, shape, query.get("run") or query.get("request_id_prefix") or None)

    def _span(self, query: Mapping[str, str]) -> Selection:
        spans = [name for name in ("run", "window", "since", "until") if name in query]
        if len(spans) > 1 and spans != ["since", "until"]:
            raise ValueError(f"got {' and '.join(spans)}, expected a run, a window, or since and until")
        if "run" in query:
            return selection_of(_parsed("run", self._window.run, query["run"]))
        if "window" in query or not (spans or query.get("request_id_prefix")):
            back = _parsed("window", duration, query.get("window", _DEFAULT_WINDOW))
            return Selection(since=self._window.now - back)
        return Selection(self._bound("since", query), self._bound("until", query))

    def _bound(self, name: str, query: Mapping[str, str]) -> float | None:
        offset = self._window.wall_offset
        now = self._window.now + offset
        return _parsed(name, lambda text: instant(text, now), query[name]) - offset if name in query else None

    def _heading(self, asked: Asked) -> Heading:
        window, since = self._window, asked.selection.since
        lost = window.lost
        missing = lost is not None and (since is None or since < lost)
        offset = window.wall_offset
        return Heading(
            asked.label, asked.selection.model, offset, lost + offset if lost is not None and missing else None
        )

    async def _runs(self, _: web.Request) -> web.Response:
        window = self._window
        return _json({"runs": [*map(self._view, window.runs())], "benches": [*map(self._view, window.benches())]})

    async def _start(self, request: web.Request) -> web.Response:
        try:
            return _json(self._view(self._window.start(request.match_info["name"])))
        except ValueError as error:
            return _refused(error)

    async def _stop(self, request: web.Request) -> web.Response:
        try:
            return _json(self._view(self._window.stop(request.match_info["name"])))
        except ValueError as error:
            return _refused(error)

    def _view(self, run: Run) -> dict[str, Any]:
        return {"name": run.name, "since": self._time(run.since), "until": run.until and self._time(run.until)}

    def _time(self, moment: float) -> str:
        return datetime.fromtimestamp(moment + self._window.wall_offset, UTC).isoformat(timespec="milliseconds")


async def added_up(kept: Sequence[Entry], selection: Selection, tally: Tally) -> Figures:
    """Figures over those of ``kept`` that ``selection`` takes."""
    selected: list[Entry] = []
    for start in range(0, len(kept), _GLANCE):
        selected += filter(selection.takes, kept[start : start + _GLANCE])
        await asyncio.sleep(0)
    selected.sort(key=lambda entry: entry.received)
    for start in range(0, len(selected), _STEP):
        tally.add_all(selected[start : start + _STEP])
        await asyncio.sleep(0)
    for values in tally.samples:
        values.sort()
        await asyncio.sleep(0)
    return tally.figures()


def _parsed(name: str, parse: Callable[[_Text], _Value], given: _Text) -> _Value:
    """``given`` as ``parse`` reads it; what is wrong with it is told with the parameter's name."""
    try:
        return parse(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _rendered(figures: Figures, heading: Heading, shape: str) -> web.Response:
    if shape == "json":
        return _json(result(figures, heading))
    if shape == "csv":
        return web.Response(text=csv_report(figures, heading), content_type="text/csv")
    return web.Response(text=text_report(figures, heading))


def _refused(error: ValueError) -> web.Response:
    return _json({"error": str(error)}, 400)


def _json(value: object, status: int = 200) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)
    return web.Response(body=body, status=status, content_type="application/json")
