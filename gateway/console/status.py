"""The status page: static files for everybody, and the figures it polls, ``/status``.

The files hold nothing of this gateway, so whoever reaches the port may load them, and enter the token there that
``/status`` asks for. They come from the package: no network, no build.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Final

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.console.verdict import verdict
from gateway.console.views import state_view
from gateway.model import GatewayState
from gateway.telemetry.history import BACKENDS, LANES, RECENT, SHED_SPAN, History, Pair, Sample

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path -> file and its type."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class StatusRoutes:
    """Handlers over one history."""

    def __init__(
        self, history: History, version: str, findings: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    ) -> None:
        """``findings`` gives those of /diagnosis."""
        self._history = history
        self._version = version
        self._findings = findings

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        pages = [web.get(path, _file(name, kind)) for path, (name, kind) in FILES.items()]
        return (*pages, web.get("/status", self._status))

    async def _status(self, request: web.Request) -> web.Response:
        """``?since=`` takes the number of a sample: only later ones are given.

        A new sample comes once a second; before that there is nothing new to say, and whoever has the last answer
        gets 304.
        """
        history = self._history
        try:
            since = int(request.query.get("since", "0"))
        except ValueError:
            given = request.query["since"]
            return _json({"error": f"since: got {given!r}, expected the number of a sample"}, 400)
        tag = f'W/"{int(history.started * 1000):x}-{history.last}"'
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={**HEADERS, "ETag": tag})
        view = status_view(history, self._version, since, tuple(self._findings()))
        return _json(view, 200, {"ETag": tag})


def status_view(
    history: History, version: str, since: int = 0, findings: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Everything the page shows, with the samples after ``since``. Seconds, tokens, requests, ratios."""
    state, rates = history.state, history.rates
    samples = history.since(since)
    newest = history.newest
    view = state_view(state)
    for lane in view["lanes"]:
        lane["recent_wait_seconds"] = _pair(history.waits(lane["name"]))
    hung = {finding["backend"] for finding in findings if finding["cause"] == "backend_hung"}
    for backend in view["backends"]:
        backend["hung"] = backend["name"] in hung
        backend["share"], backend["hit_rate"] = history.share(backend["name"])
    return {
        "verdict": asdict(verdict(state, rates, findings)),
        "version": version,
        "started": history.started,
        "at": newest.at if newest else history.started,
        "last": history.last,
        **view,
        "objectives": objectives(state),
        "recent": {
            "seconds": RECENT,
            "good_per_second": rates.good,
            "completed_per_second": rates.completed,
            "shed_per_second": rates.shed,
            "failed_per_second": rates.failed,
            "gone_per_second": rates.gone,
            "output_tokens_per_second": rates.tokens,
            "ttft_seconds": {
                lane.name: _pair(pair) for lane, pair in zip(state.lanes, newest.ttft if newest else (), strict=False)
            },
            "tpot_seconds": _pair(newest.tpot if newest else (None, None)),
        },
        "shed": {"seconds": SHED_SPAN, "by_reason": dict(history.shed)},
        "history": _columns(samples, state),
    }


def objectives(state: GatewayState) -> dict[str, Any]:
    """What is fast enough, in seconds; lanes without an objective are left out."""
    ttft = {lane.name: lane.ttft_objective for lane in state.lanes if lane.ttft_objective is not None}
    return {"ttft": ttft, "tpot": state.tpot_objective}


_COLUMNS: Final[Mapping[str, Callable[[Sample], float | None]]] = {
    "number": lambda each: each.number,
    "at": lambda each: each.at,
    "completed": lambda each: each.completed,
    "good": lambda each: each.good,
    "shed": lambda each: each.shed.total(),
    "failed": lambda each: each.failed,
    "tokens": lambda each: each.tokens,
    "queued": lambda each: each.queued,
    "tpot_p50": lambda each: each.tpot[0],
    "tpot_p99": lambda each: each.tpot[1],
}


def _columns(samples: Sequence[Sample], state: GatewayState) -> dict[str, Any]:
    columns: dict[str, Any] = {name: [read(each) for each in samples] for name, read in _COLUMNS.items()}
    columns["ttft"] = {
        lane.name: {
            "p50": [each.ttft[index][0] for each in samples],
            "p99": [each.ttft[index][1] for each in samples],
        }
        for index, lane in enumerate(state.lanes[:LANES])
    }
    columns["backends"] = {
        backend.name: {
            "limit": [each.limits[index] for each in samples],
            "running": [each.running[index] for each in samples],
        }
        for index, backend in enumerate(state.backends[:BACKENDS])
    }
    return columns


def _pair(pair: Pair) -> dict[str, float | None]:
    return {"p50": pair[0], "p99": pair[1]}


def _file(name: str, kind: str) -> Handler:
    body = (files("gateway.console") / "static" / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    async def answer(request: web.Request) -> web.Response:
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={**HEADERS, "ETag": tag})
        return web.Response(body=body, content_type=kind, charset="utf-8", headers={**HEADERS, "ETag": tag})

    return answer


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    return web.Response(
        body=body, status=status, content_type="application/json", headers={**HEADERS, **(headers or {})}
    )
