"""The proxy as a whole, in one process: where clients come in, and where it is decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.admission.tuning import Tuning
from gateway.dialects.base import EngineDialect
from gateway.model import Backend, GatewayState, Observer
from gateway.proxy.brain import Brain
from gateway.proxy.canary import CanaryPlan
from gateway.proxy.config import ProxyConfig
from gateway.proxy.front import Front
from gateway.proxy.gate import Gate, Quotas
from gateway.proxy.keys import KeyBook, Keys
from gateway.proxy.upstream import Upstream

_log = logging.getLogger(__name__)

_LOOK: Final = 0.1  # seconds between two looks whether a backend that leaves is idle


class Door(Protocol):
    """Where requests come in: clients' (``Front``), or those of other processes that relay."""

    keys: KeyBook

    async def start(self) -> None:
        """As ``Front.start``."""

    @property
    def url(self) -> str:
        """As ``Front.url``."""

    @property
    def in_flight(self) -> int:
        """As ``Front.in_flight``."""

    @property
    def workers(self) -> int:
        """As ``Front.workers``."""

    @property
    def loop_lag(self) -> float:
        """As ``Front.loop_lag``."""

    @property
    def records_dropped(self) -> int:
        """As ``Front.records_dropped``."""

    @property
    def connections_refused(self) -> int:
        """As ``Front.connections_refused``."""

    def prefer(self, kinds: Collection[str]) -> None:
        """As ``Front.prefer``."""

    def learn(self, backend: str, engine: EngineDialect, lengths: Mapping[str, int | None]) -> None:
        """As ``Front.learn``."""

    def know(self, backend: Backend) -> None:
        """As ``Front.know``."""

    async def reconfigure(self, config: ProxyConfig, more: Sequence[Upstream] = ()) -> None:
        """As ``Front.reconfigure``."""

    async def finish(self) -> None:
        """As ``Front.finish``."""

    def close(self) -> None:
        """As ``Front.close``."""

    async def stop(self) -> None:
        """As ``Front.stop``."""


class Gateway:
    """Serves clients from ``start`` until ``stop``. One event loop; not restartable.

    The caller (app.py) owns signals: the first SIGTERM calls ``drain``, a second one ``stop``; both may be awaited
    at once. ``await gateway.drain()`` returns when the last stream ended or was cut at the end of the grace time.
    """

    def __init__(
        self,
        config: ProxyConfig,
        backends: Sequence[Backend],
        controller: AdmissionController,
        estimator: Estimator,
        observers: Sequence[Observer] = (),
        canary: CanaryPlan | None = None,
        keys: Keys | None = None,
        door: Callable[[Gate], Door] | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Compose; nothing is opened before ``start``. Without ``canary`` none are sent; ``keys`` None: none needed.

        Without ``quotas`` what keys have used is counted here alone.

        ``door`` makes another one than the listener for clients, which then needs neither observers nor keys from here.

        Raises:
            OSError: a file of certificates cannot be read, or does not hold what it should.
        """
        self._config = config
        self._upstreams = upstreams = {backend.name: Upstream(backend, config) for backend in backends}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        gate = Gate(controller, quotas=quotas)
        self.front: Door = (
            Front(config, backends, upstreams, gate, estimator, observers, keys) if door is None else door(gate)
        )
        self.brain = Brain(config, upstreams, gate, estimator, canary, self.front.prefer, self.front.learn)
        self._stopped: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and probe. Starts whether or not any backend answers.

        Raises:
            OSError: the address cannot be bound.
        """
        await self.front.start()
        self.brain.start()

    @property
    def url(self) -> str:
        """Where it listens, with the port really bound."""
        return self.front.url

    @property
    def in_flight(self) -> int:
        """Requests being served now, queued ones included."""
        return self.front.in_flight

    def state(self) -> GatewayState:
        """Admission's state, with what is known of the engines and models (for /state, /readyz and the metrics)."""
        return self.brain.state()

    async def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings, and with what the files of certificates hold now; what runs is not touched.

        Address, port, backlog, the engines' admin routes, and whether there is TLS are as they were at the start.

        Raises:
            OSError: a file cannot be read, or does not hold what it should; nothing is changed then.
        """
        await self.front.reconfigure(config, self.brain.upstreams)
        self.brain.reconfigure(config)
        self._config = config

    async def renew_tls(self) -> None:
        """Read all certificates again, for connections to come.

        Raises:
            OSError: as above.
        """
        await self.reconfigure(self._config)

    def add_backend(self, backend: Backend) -> None:
        """One backend more, for requests to come.

        Raises:
            ValueError: there is one of this name, which may be leaving.
            OSError: a file of certificates cannot be read, or does not hold what it should.
        """
        if backend.name in self._upstreams:
            raise ValueError(f"there is a backend {backend.name!r} already, or it has not left yet")
        upstream = self._upstreams[backend.name] = Upstream(backend, self._config)
        self.front.know(backend)
        self.brain.add(upstream)

    def change_backend(self, backend: Backend) -> None:
        """Go on with another key, other models, another weight and another context length of a backend.

        Raises:
            KeyError: there is none of this name.
        """
        self._upstreams[backend.name].identify(backend)
        self.front.know(backend)
        self.brain.gate.change_backend(backend)

    def remove_backend(self, name: str) -> None:
        """Send a backend no new requests, and forget it when those that run have ended.

        Raises:
            KeyError: there is none of this name.
            ValueError: it is the last.
        """
        tuning = self.tuning
        drained = replace(tuning.backends[name], drained=True)
        if not any(other != name and other not in self._leaving for other in tuning.backends):
            raise ValueError(f"{name!r} is the only backend, and one must stay")
        self.retune(replace(tuning, backends={**tuning.backends, name: drained}))
        if name not in self._leaving:
            self._leaving[name] = asyncio.create_task(self._forget(name))

    async def _forget(self, name: str) -> None:
        upstream = self._upstreams[name]
        while upstream.in_flight or self.brain.gate.inflight(name):  # noqa: ASYNC110 - nobody tells when it is idle
            await asyncio.sleep(_LOOK)
        self.brain.forget(name)
        del self._upstreams[name], self._leaving[name]
        upstream.close()
        _log.info("backend %s has left", name)

    @property
    def keys(self) -> Keys | None:
        """The API keys in effect; None: none needed."""
        return self.front.keys.given

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Have ``call`` done once, before the next request is offered; None: nothing."""
        self.brain.gate.before_next = call

    def replace_keys(self, keys: Keys | None) -> None:
        """Go on with other API keys, from the next request on."""
        self.front.keys.replace(keys)

    @property
    def tuning(self) -> Tuning:
        """What ``retune`` can change, as it stands."""
        return self.brain.tuning

    def retune(self, tuning: Tuning) -> None:
        """Go on with what the operator wants; what waits or runs is not touched."""
        self.brain.retune(tuning)

    async def drain(self) -> None:
        """Refuse new work with 503 and ``Connection: close``, let the rest finish within the grace time, then stop.

        The port stays open meanwhile: whoever comes before the load balancer has noticed gets an answer to act on.
        """
        await self.front.finish()
        await self.stop()

    async def stop(self) -> None:
        """Cut everything that is left and close. Idempotent."""
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        self.front.close()
        for leaving in self._leaving.values():
            leaving.cancel()
        await self.brain.stop()
        await self.front.stop()
