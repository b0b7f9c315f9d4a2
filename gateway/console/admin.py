"""The admin port: probes and metrics for everybody, the rest for callers on this machine or the holder of the token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from gateway.console.access import FORWARDED_HEADERS, Caller, denial
from gateway.console.readiness import Readiness
from gateway.console.views import state_view
from gateway.model import GatewayState
from gateway.telemetry.metrics import process_registry

_TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"


def admin_app(
    *,
    state: Callable[[], GatewayState],
    readiness: Callable[[], Readiness],
    registry: CollectorRegistry,
    config: Callable[[], Mapping[str, Any]],
    version: str,
    routes: Iterable[web.RouteDef] = (),
    token: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> web.Application:
    """Application for the admin listener; its uptime counts from this call.

    What ``config`` gives is shown by /config as it is: mask secrets before. ``routes`` are those of the other files
    of the console. ``token`` is GATEWAY_ADMIN_TOKEN; empty is none.
    """
    began = clock()
    process = process_registry()

    async def livez(_: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        found = readiness()
        view = {"ready": found.ready, "degraded": found.degraded, "reasons": found.reasons}
        return _json(view, 200 if found.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        parts = []
        for family in registry.collect():
            parts.append(generate_latest(_One(family)))
            await asyncio.sleep(0)  # one family at a time, so that no stream waits for all of them
        parts.append(await asyncio.to_thread(generate_latest, process))
        return web.Response(body=b"".join(parts), headers={"Content-Type": _TEXT_FORMAT})

    async def show_state(_: web.Request) -> web.Response:
        return _json({"version": version, "uptime_seconds": round(clock() - began, 3), **state_view(state())})

    async def show_config(_: web.Request) -> web.Response:
        return _json(config())

    app = web.Application(middlewares=[_guard(token)])
    own: dict[str, Handler] = {
        "/livez": livez,
        "/readyz": readyz,
        "/healthz": readyz,
        "/metrics": metrics,
        "/state": show_state,
        "/config": show_config,
    }
    app.add_routes([web.get(path, handler) for path, handler in own.items()])
    app.add_routes(routes)
    return app


class _One:
    """A collector of one family that was collected already."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _guard(token: str | None) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = denial(request.path, _caller(request), token)
        if refused is not None:
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None  # noqa: PLR2004 - HTTP's
            return _json({"error": refused.message}, refused.status, headers)
        try:
            return await handler(request)
        except web.HTTPException as problem:  # the router's own: no such path, no such method
            known = {resource.canonical for resource in request.app.router.resources()}
            paths = ", ".join(sorted(path for path in known if not {"{", "."} & set(path)))
            return _json({"error": f"{problem.reason}: GET {paths}"}, problem.status)

    return guard


def _caller(request: web.Request) -> Caller:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return Caller(
        peer=str(peer[0]) if isinstance(peer, tuple) else None,
        host=request.headers.get("Host"),
        authorization=request.headers.get("Authorization"),
        forwarded=any(name in request.headers for name in FORWARDED_HEADERS),
    )


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2, default=str)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
