"""Where clients come in: the listener, the handler, and the connections to the backends; start, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.admission.estimator import Estimator
from gateway.dialects.base import EngineDialect
from gateway.dialects.registry import standard
from gateway.model import Backend, Observer
from gateway.proxy.client import ClientServer
from gateway.proxy.config import ProxyConfig
from gateway.proxy.deafen import deafen
from gateway.proxy.descriptors import raise_limit
from gateway.proxy.fit import Fit
from gateway.proxy.gate import Admission
from gateway.proxy.handler import Handler
from gateway.proxy.keys import KeyBook, Keys
from gateway.proxy.listener import ClientParsers
from gateway.proxy.tls import ServerTls, server_context
from gateway.proxy.upstream import Upstream, reconfigure

_log = logging.getLogger(__name__)

_UNWIND: Final = 5.0  # seconds for finished answers to be taken, and for cut requests to give back what they hold
_HANDSHAKES: Final = 0.01  # seconds for connections that were half made
_LAST_WORDS: Final = 0.1  # seconds for requests of connections that were accepted at the last moment
_HANDSHAKE: Final = 10.0  # seconds that a client has for its part of TLS


class Front:
    """Serves clients from ``start`` until ``stop``. One event loop; not restartable.

    ``upstreams`` are the backends by name; ``shared``: other processes listen on the same port.
    """

    def __init__(
        self,
        config: ProxyConfig,
        backends: Sequence[Backend],
        upstreams: Mapping[str, Upstream],
        admission: Admission,
        estimator: Estimator,
        observers: Sequence[Observer],
        keys: Keys | None,
        *,
        shared: bool = False,
    ) -> None:
        """Compose; nothing is opened before ``start``. ``keys`` None: none needed.

        Raises:
            OSError: a file of certificates cannot be read, or does not hold what it should.
        """
        self._config = config
        self._upstreams = upstreams
        self._admission = admission
        self._shared = shared
        self._dialects = standard(allow_admin=config.allow_admin_routes)
        self._fit = Fit(backends, config.max_prompt_tokens, config.max_output_tokens)
        self.keys = KeyBook(keys)
        self._handler = Handler(
            config, self._dialects, estimator, admission, upstreams, observers, self._fit, self.keys
        )
        self._tls = None if config.listener_tls is None else ServerTls(config.listener_tls)
        self._clients: ClientServer | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be bound.
        """
        raise_limit()
        config = self._config
        self._clients = ClientServer(self._handler, config, ClientParsers(self._handler))
        self._listener = await asyncio.get_running_loop().create_server(
            self._clients,
            config.host,
            config.port,
            backlog=config.backlog,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE,
            reuse_port=self._shared or None,
        )

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

    @property
    def workers(self) -> int:
        """Processes that relay: this one, once it listens."""
        return int(self._listener is not None)

    @property
    def loop_lag(self) -> float:
        """Seconds by which the event loops of other processes were late lately; there are none."""
        return 0.0

    @property
    def records_dropped(self) -> int:
        """Finished requests that other processes could not tell of; there are none."""
        return 0

    @property
    def connections_refused(self) -> int:
        """Clients that were turned away as soon as they connected."""
        return 0 if self._clients is None else self._clients.refused

    def prefer(self, kinds: Collection[str]) -> None:
        """Take a body that could be meant for several engines for one of these kinds, which are there."""
        self._dialects.prefer(kinds)

    def learn(self, backend: str, engine: EngineDialect, lengths: Mapping[str, int | None]) -> None:
        """Take the context lengths of the models that ``backend`` serves, as it says them itself."""
        self._fit.learn(backend, engine, lengths)

    def know(self, backend: Backend) -> None:
        """Take what is configured of a backend, that was known or not."""
        self._fit.know(backend)

    async def reconfigure(self, config: ProxyConfig, more: Sequence[Upstream] = ()) -> None:
        """Go on with other settings, and with what the files of certificates hold now; what runs is not touched.

        Address, port, backlog, the engines' admin routes, and whether there is TLS are as they were at the start.
        ``more`` are further upstreams to tell.

        Raises:
            OSError: a file cannot be read, or does not hold what it should; nothing is changed then.
        """
        listener = config.listener_tls
        fresh = None if listener is None else await asyncio.to_thread(server_context, listener)
        await reconfigure(tuple(dict.fromkeys((*self._upstreams.values(), *more))), config)
        if self._tls is not None and fresh is not None:
            self._tls.current = fresh
        self._config = config
        self._handler.reconfigure(config)
        self._fit.cap(config.max_prompt_tokens, config.max_output_tokens)
        if self._clients is not None:
            self._clients.reconfigure(config)

    async def finish(self) -> None:
        """Refuse new work with 503 and ``Connection: close``, and let the rest finish, within the grace time.

        The port stays open meanwhile: whoever comes before the load balancer has noticed gets an answer to act on.
        """
        if not self._admission.draining:
            _log.info("draining: %d requests in flight, %g s of grace", self.in_flight, self._config.drain_grace)
            self._admission.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_grace):
                await self._handler.idle()
        # Whoever connected as the last stream ended has sent a request that no proxy may send again: it is still
        # answered, while who comes now finds the port closed and goes elsewhere. In one turn of its loop asyncio sees
        # a connection, in the next it takes it, and only in the third it makes its transport, if the server is open.
        for listening in () if self._listener is None else self._listener.sockets:
            deafen(listening.fileno())
        await asyncio.sleep(_HANDSHAKES)
        for _ in range(3):
            await asyncio.sleep(0)
        self.close()
        await asyncio.sleep(_LAST_WORDS)

    def close(self) -> None:
        """Take no new connections."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self) -> None:
        """Cut everything that is left and close."""
        self.close()
        if self._clients is not None:
            self._handler.cutting = True
            if self.in_flight:
                _log.warning("cutting %d requests", self.in_flight)
            await self._clients.close(_UNWIND)
        for upstream in self._upstreams.values():
            upstream.close()
