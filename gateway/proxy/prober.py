"""Health and gauges of each backend, asked at an interval through its EngineDialect.

Only what a busy engine does not do counts against it: no connection, or an answer with 5xx, several times in a row.
A slow answer, or a connection closed without one, is what a full engine does, and changes nothing. A hung engine that
still answers its health question is found by admission, from the silence of its requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gateway.dialects.base import EngineDialect
from gateway.model import Health
from gateway.proxy.config import ProbeConfig
from gateway.proxy.fetch import Answer, Unanswered, fetch
from gateway.proxy.gate import Gate
from gateway.proxy.http import request_head
from gateway.proxy.upstream import Upstream

_log = logging.getLogger(__name__)


class Prober:
    """One task per backend. ``engines``: backend name -> the language of its kind."""

    def __init__(
        self,
        config: ProbeConfig,
        upstreams: Mapping[str, Upstream],
        engines: Mapping[str, EngineDialect],
        gate: Gate,
    ) -> None:
        self._watches = [_Watch(config, upstreams[name], engine, gate) for name, engine in engines.items()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Probe every backend from now on, at once first."""
        self._tasks = [asyncio.create_task(watch.run()) for watch in self._watches]

    async def stop(self) -> None:
        """End every task."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Watch:
    """One backend's probes and what they have come to."""

    def __init__(self, config: ProbeConfig, upstream: Upstream, engine: EngineDialect, gate: Gate) -> None:
        self._config = config
        self._upstream = upstream
        self._engine = engine
        self._gate = gate
        self._health = Health.UNKNOWN
        self._failures = 0
        self._successes = 0

    async def run(self) -> None:
        while True:
            try:
                await self.probe()
            except Exception:  # noqa: BLE001 - logged, and tried again
                _log.exception("the probe of backend %s failed inside the gateway", self._name)
            await asyncio.sleep(self._config.interval)

    @property
    def _name(self) -> str:
        return self._upstream.backend.name

    async def probe(self) -> None:
        """Ask once, health first; a backend that cannot be reached is not asked for its gauges."""
        try:
            answer = await self._ask(self._engine.health.path)
        except OSError as error:
            self._fail(f"no connection: {str(error) or type(error).__name__}")
            return
        except Unanswered as error:
            _log.debug("backend %s left a probe unanswered: %s", self._name, error)
        else:
            self._judge(answer.status)
        if self._engine.metrics is not None:
            await self._read_gauges(self._engine.metrics.path)

    def _judge(self, status: int) -> None:
        verdict = self._engine.health.verdict(status)
        if verdict is Health.DOWN:
            self._fail(f"its health answers {status}")
            return
        self._failures = 0
        self._successes += 1
        if self._health is not Health.DOWN or self._successes >= self._config.successes:
            self._note(verdict, "it answers")

    def _fail(self, why: str) -> None:
        self._successes = 0
        self._failures += 1
        if self._failures >= self._config.failures:
            self._note(Health.DOWN, why)

    def _note(self, health: Health, why: str) -> None:
        if health is self._health:
            return
        level = logging.WARNING if health is Health.DOWN else logging.INFO
        _log.log(level, "backend %s is %s: %s", self._name, health.value, why)
        self._health = health
        self._gate.note_health(self._name, health)

    async def _read_gauges(self, path: str) -> None:
        try:
            answer = await self._ask(path)
        except (OSError, Unanswered):
            return  # hints grow old and lapse by themselves
        if answer.status < 400:  # noqa: PLR2004 - HTTP's own line between answers and errors
            self._gate.note_hints(self._name, self._engine.hints(answer.body.decode("utf-8", "replace")))

    async def _ask(self, path: str) -> Answer:
        upstream = self._upstream
        line = b"GET %b%b HTTP/1.1" % (upstream.prefix, path.encode())
        headers = [(b"Accept", b"*/*"), (b"User-Agent", b"inference-gateway")]
        head = request_head(line, headers, host=upstream.host, api_key=upstream.api_key, close=True)
        return await fetch(upstream, head, self._config.timeout)
