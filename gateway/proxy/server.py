"""The proxy as a whole: listener, gate, connections to the backends, prober; start, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.admission.tuning import Tuning
from gateway.dialects.registry import standard
from gateway.model import Backend, GatewayState, Observer
from gateway.proxy.canary import Canaries, CanaryPlan
from gateway.proxy.config import ProxyConfig
from gateway.proxy.fit import Fit
from gateway.proxy.gate import Gate
from gateway.proxy.handler import Handler
from gateway.proxy.keys import KeyBook, Keys
from gateway.proxy.listener import ClientServer
from gateway.proxy.prober import Prober
from gateway.proxy.tls import ServerTls, server_context
from gateway.proxy.upstream import Upstream

_log = logging.getLogger(__name__)

_UNWIND: Final = 5.0  # seconds for finished answers to be taken, and for cut requests to give back what they hold
_MODELS_SHOWN: Final = 64
_DESCRIPTORS: Final = 65_536  # open files wanted, two to a request
_FEW: Final = 4_096
_LOOK: Final = 0.1  # seconds between two looks whether a backend that leaves is idle
_HANDSHAKE: Final = 10.0  # seconds that a client has for its part of TLS


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
    ) -> None:
        """Compose; nothing is opened before ``start``. Without ``canary`` none are sent; ``keys`` None: none needed.

        Raises:
            OSError: a file of certificates cannot be read, or does not hold what it should.
        """
        self._config = config
        self._gate = Gate(controller)
        self._estimator = estimator
        self._upstreams = {backend.name: Upstream(backend, config) for backend in backends}
        dialects = standard(allow_admin=config.allow_admin_routes)
        fit = self._fit = Fit(backends, config.max_prompt_tokens, config.max_output_tokens)
        self._prober = Prober(config, self._upstreams, self._gate, dialects.prefer, fit.learn)
        self._keys = KeyBook(keys)
        self._handler = Handler(config, dialects, estimator, self._gate, self._upstreams, observers, fit, self._keys)
        self._canaries = Canaries(canary, self._upstreams, self._gate.is_down) if canary is not None else None
        self._tls = None if config.listener_tls is None else ServerTls(config.listener_tls)
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._clients: ClientServer | None = None
        self._listener: asyncio.Server | None = None
        self._stopped: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and probe. Starts whether or not any backend answers.

        Raises:
            OSError: the address cannot be bound.
        """
        raise_descriptor_limit()
        config = self._config
        self._clients = ClientServer(self._handler, config)
        self._listener = await asyncio.get_running_loop().create_server(
            self._clients,
            config.host,
            config.port,
            backlog=config.backlog,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE,
        )
        self._prober.start()
        if self._canaries is not None:
            self._canaries.start()

    @property
    def url(self) -> str:
        """Where it listens, with the port really bound."""
        if self._listener is None:
            raise RuntimeError("the gateway is not started")
        host, port = self._listener.sockets[0].getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def in_flight(self) -> int:
        """Requests being served now, queued ones included."""
        return self._handler.in_flight

    def state(self) -> GatewayState:
        """Admission's state, with what is known of the engines and models (for /state, /readyz and the metrics)."""
        state = self._gate.state()
        backends = tuple(replace(each, engine=self._prober.state(each.name)) for each in state.backends)
        return replace(state, backends=backends, models=self._estimator.learned(_MODELS_SHOWN))

    async def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings, and with what the files of certificates hold now; what runs is not touched.

        Address, port, backlog, the engines' admin routes, and whether there is TLS are as they were at the start.

        Raises:
            OSError: a file cannot be read, or does not hold what it should; nothing is changed then.
        """
        everybody = (*self._upstreams.values(), *self._prober.upstreams)
        listener = config.listener_tls
        # In threads: the system's authorities alone are some hundred certificates.
        fresh = await asyncio.to_thread(lambda: [upstream.fresh_tls(config.tls) for upstream in everybody])
        if self._tls is not None and listener is not None:
            self._tls.current = await asyncio.to_thread(server_context, listener)
        for upstream, context in zip(everybody, fresh, strict=True):
            upstream.reconfigure(config, context)
        self._config = config
        self._handler.reconfigure(config)
        self._prober.reconfigure(config)
        self._fit.cap(config.max_prompt_tokens, config.max_output_tokens)
        if self._clients is not None:
            self._clients.reconfigure(config)

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
        self._fit.know(backend)
        self._gate.add_backend(backend)
        self._prober.add(upstream)
        if self._canaries is not None:
            self._canaries.add(upstream)

    def change_backend(self, backend: Backend) -> None:
        """Go on with another key, other models, another weight and another context length of a backend.

        Raises:
            KeyError: there is none of this name.
        """
        self._upstreams[backend.name].identify(backend)
        self._fit.know(backend)
        self._gate.change_backend(backend)

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
        while upstream.in_flight or self._gate.inflight(name):  # noqa: ASYNC110 - nobody tells when it is idle
            await asyncio.sleep(_LOOK)
        self._prober.forget(name)
        self._gate.remove_backend(name)
        del self._upstreams[name], self._leaving[name]
        upstream.close()
        _log.info("backend %s has left", name)

    def replace_keys(self, keys: Keys | None) -> None:
        """Go on with other API keys, from the next request on."""
        self._keys.replace(keys)

    @property
    def tuning(self) -> Tuning:
        """What ``retune`` can change, as it stands."""
        return self._gate.tuning

    def retune(self, tuning: Tuning) -> None:
        """Go on with what the operator wants; what waits or runs is not touched."""
        self._gate.retune(tuning)

    async def drain(self) -> None:
        """Refuse new work with 503 and ``Connection: close``, let the rest finish within the grace time, then stop.

        The port stays open meanwhile: whoever comes before the load balancer has noticed gets an answer to act on.
        """
        if not self._gate.draining:
            _log.info("draining: %d requests in flight, %g s of grace", self.in_flight, self._config.drain_grace)
            self._gate.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_grace):
                await self._handler.idle.wait()
        await self.stop()

    async def stop(self) -> None:
        """Cut everything that is left and close. Idempotent."""
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for leaving in self._leaving.values():
            leaving.cancel()
        await self._prober.stop()
        if self._canaries is not None:
            await self._canaries.stop()
        if self._clients is not None:
            self._handler.cutting = True
            if self.in_flight:
                _log.warning("cutting %d requests", self.in_flight)
            await self._clients.close(_UNWIND)
        for upstream in self._upstreams.values():
            upstream.close()
        self._gate.close()


def raise_descriptor_limit() -> None:
    """Lift the soft limit on open files as far as the hard one allows, and say so where that is little."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < _FEW:
        _log.warning("only %d files may be open at once: about %d requests; raise ulimit -n", wanted, wanted // 2)
