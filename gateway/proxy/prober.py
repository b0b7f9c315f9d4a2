"""Health and gauges of each backend, asked at an interval through its EngineDialect."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dialects.base import EngineDialect
from gateway.proxy.config import ProbeConfig
from gateway.proxy.gate import Gate


class Prober:
    """One task per backend; made and run by the Gateway."""

    def __init__(self, config: ProbeConfig, engines: Mapping[str, EngineDialect], gate: Gate) -> None:
        """``engines``: backend name -> the language of its kind."""
        raise NotImplementedError

    def start(self) -> None:
        """Probe every backend from now on, at once first."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End every task."""
        raise NotImplementedError
