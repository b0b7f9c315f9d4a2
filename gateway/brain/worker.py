"""One relay process: it serves clients as a whole gateway does, and asks the brain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gateway.admission.estimator import Estimator
from gateway.brain.remote import RemoteGate
from gateway.brain.setup import Setup
from gateway.brain.view import View
from gateway.dialects.engines import ENGINES
from gateway.model import Backend
from gateway.proxy.config import ProxyConfig
from gateway.proxy.front import Front
from gateway.proxy.keys import Keys
from gateway.proxy.upstream import Upstream
from gateway.telemetry.loop_lag import LoopLag

_log = logging.getLogger(__name__)


class Worker:
    """Serves clients at the configured address, beside others, from ``start`` until ``stop``.

    ``path`` is the brain's Unix socket: what is configured here is replaced by what the brain says. ``estimator``
    learns from this worker's own requests; the brain's estimate, which comes with its verdict, counts.
    """

    def __init__(
        self, path: Path, config: ProxyConfig, backends: Sequence[Backend], estimator: Estimator, keys: Keys | None
    ) -> None:
        """Compose; nothing is opened before ``start``.

        Raises:
            OSError: a file of certificates cannot be read, or does not hold what it should.
        """
        self._lag = LoopLag()
        self._config = config
        self._setup = Setup(config, tuple(backends), keys)
        self._upstreams = {backend.name: Upstream(backend, config) for backend in backends}
        self._gate = RemoteGate(
            str(path),
            self._take,
            self._see,
            self._lag,
            lambda: self.front.in_flight,
            lambda: self.front.connections_refused,
            estimator,
        )
        self.front = Front(config, backends, self._upstreams, self._gate, estimator, (self._gate,), keys, shared=True)
        self._changes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Find the brain, then listen.

        Raises:
            OSError: the address cannot be bound.
        """
        self._lag.start()
        await self._gate.start()
        await self.front.start()
        self._gate.listens = True
        self._gate.pulse()

    async def drain(self) -> None:
        """Refuse new work with 503, let the rest finish within the grace time, then stop."""
        await self.front.finish()
        await self.stop()

    async def stop(self) -> None:
        """Cut everything that is left and close. Idempotent."""
        await self.front.stop()
        await self._gate.stop()
        self._lag.stop()

    def _take(self, setup: Setup) -> None:
        """Go on with what the brain is set up with. The address stays: it is this process's."""
        before, self._setup = self._setup, setup
        if before == setup:
            return
        logging.getLogger().setLevel(setup.log_level)
        config = replace(setup.config, host=self._config.host, port=self._config.port)
        self.front.keys.replace(setup.keys)
        for backend in setup.backends:
            upstream = self._upstreams.get(backend.name)
            if upstream is None:
                self._upstreams[backend.name] = Upstream(backend, config)
            else:
                upstream.identify(backend)
            self.front.know(backend)
        for name in self._upstreams.keys() - {backend.name for backend in setup.backends}:
            self._upstreams.pop(name).close()  # the brain forgets a backend when nothing runs on it any more
        if (config, setup.serial) != (self._config, before.serial):
            self._config = config
            change = asyncio.create_task(self._reconfigure(config))
            self._changes.add(change)
            change.add_done_callback(self._changes.discard)

    async def _reconfigure(self, config: ProxyConfig) -> None:
        try:
            await self.front.reconfigure(config)
        except OSError as error:  # the brain has read the same files, and found them good
            _log.error("certificates stay as they were: %s", error)

    def _see(self, view: View) -> None:
        """Take what the brain knows of the backends."""
        for name, (kind, lengths) in view.engines.items():
            upstream, engine = self._upstreams.get(name), ENGINES.get(kind)
            if upstream is not None and engine is not None:
                upstream.closes_when_full = engine.closes_when_full
                upstream.single_use = engine.single_use
                self.front.learn(name, engine, lengths)
        self.front.prefer({kind for kind, _ in view.engines.values()})
