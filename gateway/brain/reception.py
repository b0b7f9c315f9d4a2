"""What the brain has where a gateway of one process has its listener: workers come here, not clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.admission.estimator import Estimator
from gateway.brain.desk import Desks
from gateway.brain.setup import Setup
from gateway.brain.view import View
from gateway.dialects.base import EngineDialect
from gateway.model import Backend, Observer
from gateway.proxy.config import ProxyConfig
from gateway.proxy.gate import Gate
from gateway.proxy.keys import KeyBook, Keys
from gateway.proxy.upstream import Upstream, reconfigure

_log = logging.getLogger(__name__)

_LEAVING: Final = 10.0  # seconds beyond the grace time that workers have to say their last words


class Reception:
    """As ``gateway.proxy.front.Front``, for workers at the Unix socket ``path``."""

    def __init__(
        self,
        path: Path,
        config: ProxyConfig,
        backends: Sequence[Backend],
        gate: Gate,
        estimator: Estimator,
        observers: Sequence[Observer],
        keys: Keys | None,
    ) -> None:
        self.keys = KeyBook(keys)
        self._config = config
        self._gate = gate
        self._backends = {backend.name: backend for backend in backends}
        self._serial = 0
        self._engines: dict[str, tuple[str, dict[str, int | None]]] = {}
        self.desks = Desks(path, gate, estimator, observers, self._setup, self._view, self.keys)

    def _setup(self) -> Setup:
        present = self._gate.tuning.backends  # those that have left are not among them
        backends = tuple(backend for name, backend in self._backends.items() if name in present)
        return Setup(self._config, backends, self.keys.given, self._serial)

    def _view(self) -> View:
        lanes = tuple((lane.name, lane.threshold) for lane in self._gate.tuning.lanes)
        load = self._gate.load() if self._config.load_header else ""
        return View(self._gate.down, self._gate.routes, lanes, dict(self._engines), load)

    async def start(self) -> None:
        """Let workers come.

        Raises:
            OSError: the socket cannot be made.
        """
        await self.desks.start()

    @property
    def url(self) -> str:
        """Clients are the workers' business."""
        return ""

    @property
    def in_flight(self) -> int:
        """Requests being served by all workers, as they last said."""
        return sum(pulse.in_flight for pulse in self.desks.pulses)

    @property
    def workers(self) -> int:
        """Processes that listen to clients and have found this one."""
        return sum(pulse.listens for pulse in self.desks.pulses)

    @property
    def loop_lag(self) -> float:
        """Seconds by which the event loop of the worst worker was late lately."""
        return max((pulse.loop_lag for pulse in self.desks.pulses), default=0.0)

    @property
    def records_dropped(self) -> int:
        """Finished requests that workers could not tell of."""
        return self.desks.records_dropped

    @property
    def connections_refused(self) -> int:
        """Clients that workers turned away as soon as they connected."""
        return self.desks.connections_refused

    def prefer(self, kinds: Collection[str]) -> None:
        """Workers find out from the engines that they are told of."""

    def learn(self, backend: str, engine: EngineDialect, lengths: Mapping[str, int | None]) -> None:
        """Let the workers know what ``backend`` serves, and in which engine's way."""
        self._engines[backend] = engine.kind, dict(lengths)

    def know(self, backend: Backend) -> None:
        """Let the workers know a backend, before anything goes to it."""
        self._backends[backend.name] = backend
        self.desks.tell()

    async def reconfigure(self, config: ProxyConfig, more: Sequence[Upstream] = ()) -> None:
        """Go on with other settings, and with what the files of certificates hold now, for the upstreams in ``more``.

        Raises:
            OSError: a file cannot be read, or does not hold what it should; nothing is changed then.
        """
        await reconfigure(more, config)
        self._config = config
        self._serial += 1
        self.desks.tell()

    async def finish(self) -> None:
        """Refuse what arrives from now on, and wait for the workers to end, for no longer than they may take."""
        if not self._gate.draining:
            _log.info("draining: %d workers, %g s of grace", len(self.desks.pulses), self._config.drain_grace)
            self._gate.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_grace + _LEAVING):
                await self.desks.nobody.wait()

    def close(self) -> None:
        """Take no more workers; those that are there may still speak."""

    async def stop(self) -> None:
        """Send everybody away."""
        self.desks.stop()
        await asyncio.sleep(0)  # connections end in the next turn of the loop
