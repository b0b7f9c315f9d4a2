"""An admin port with something to show, and ways to ask it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

from aiohttp import ClientSession, web
from aiohttp.test_utils import make_mocked_request

from gateway.console.admin import admin_app
from gateway.console.readiness import ReadinessCheck
from gateway.console.report import ReportRoutes
from gateway.model import GatewayState
from gateway.telemetry.window import Window
from tests.telemetry.helpers import gateway_state, metrics

TOKEN = "s3cret-token"
CONFIG = {"GATEWAY_PORT": 8080, "GATEWAY_ADMIN_TOKEN": "***", "queue": {"max_requests": 123}}


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def build(state: GatewayState | None = None, *, token: str | None = TOKEN, **options: Any) -> web.Application:
    shown = state or gateway_state()
    defaults: dict[str, Any] = {
        "state": lambda: shown,
        "readiness": ReadinessCheck(lambda: shown),
        "registry": metrics(shown).registry,
        "config": lambda: CONFIG,
        "routes": ReportRoutes(Window(60.0, 1_000_000)).routes(),
        "version": "1.2.3",
    }
    return admin_app(token=token, **{**defaults, **options})


@asynccontextmanager
async def served(app: web.Application, host: str = "127.0.0.1") -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(url: str, path: str, *, method: str = "GET", **headers: str) -> tuple[int, Any, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with ClientSession() as session, session.request(method, url + path, headers=named) as response:
        text = await response.text()
        body = json.loads(text) if response.content_type == "application/json" and text else text
        return response.status, body, dict(response.headers)


async def from_afar(app: web.Application, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """What ``app`` answers a peer on another machine."""
    app.freeze()
    transport = Mock()
    transport.get_extra_info = {"peername": ("203.0.113.9", 40_000)}.get
    named = {"Host": "gateway.example:8081"} | {name.replace("_", "-"): value for name, value in headers.items()}
    response = await app._handle(make_mocked_request("GET", path, headers=named, app=app, transport=transport))
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body), dict(response.headers)
