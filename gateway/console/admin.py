"""The admin port: probes and metrics for everybody, the rest for loopback or the holder of the token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.console.readiness import Readiness
from gateway.model import GatewayState


def admin_app(
    *,
    state: Callable[[], GatewayState],
    readiness: Callable[[], Readiness],
    registry: CollectorRegistry,
    config: Mapping[str, Any],
    version: str,
    token: str | None = None,
) -> web.Application:
    """Application for the admin listener.

    ``config`` is shown by /config as it is: mask secrets before. ``token`` is GATEWAY_ADMIN_TOKEN.
    """
    raise NotImplementedError
