"""Questions to one backend, on whichever of its ports they are answered.

Only the port that serves may tell of death: another one that cannot be reached is one that this gateway was not given,
or guessed wrongly.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.dialects.base import EngineDialect, Plane
from gateway.proxy.config import ProxyConfig
from gateway.proxy.fetch import Answer, Unanswered, fetch
from gateway.proxy.http import request_head
from gateway.proxy.upstream import Upstream


class Planes:
    """The ports of one backend: as configured, else the engine's own defaults on the same host."""

    def __init__(self, serving: Upstream, config: ProxyConfig) -> None:
        self._serving = serving
        self._config = config
        backend = serving.backend
        self._given = {Plane.MANAGEMENT: backend.management_url, Plane.METRICS: backend.metrics_url}
        self._others: dict[Plane, Upstream] = {}

    def settle(self, engine: EngineDialect) -> None:
        """Find the ports that an engine of this kind has."""
        url = urlsplit(self._serving.backend.url)
        defaults = {plane: port for serving, plane, port in engine.neighbours if serving == url.port}
        for plane, given in self._given.items():
            host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
            address = given or (f"{url.scheme}://{host}:{defaults[plane]}" if plane in defaults else None)
            if address is not None:
                self._others[plane] = Upstream(self._serving.backend, self._config, address=address)
            else:
                self._others.pop(plane, None)

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings; the connections' own are told elsewhere."""
        self._config = config

    @property
    def others(self) -> tuple[Upstream, ...]:
        """What is asked besides the port that serves."""
        return tuple(self._others.values())

    def is_given(self, plane: Plane) -> bool:
        """The operator said where it is: what it says is believed."""
        return self._given.get(plane) is not None

    def address(self, plane: Plane) -> str:
        """Where it is, for people; without the path."""
        upstream = self._serving if plane is Plane.SERVING else self._others.get(plane)
        return upstream.host.decode() if upstream is not None else ""

    async def ask(self, path: str, plane: Plane = Plane.SERVING) -> Answer:
        """GET ``path`` over a connection of its own.

        Raises:
            OSError: the port that serves cannot be reached.
            Unanswered: no whole answer within the probe's timeout, or there is no such plane.
        """
        if plane is Plane.SERVING:
            return await self._ask(self._serving, path)
        upstream = self._others.get(plane)
        if upstream is None:
            raise Unanswered(f"no {plane.value} plane is known")
        try:
            return await self._ask(upstream, path)
        except OSError as error:
            raise Unanswered(f"the {plane.value} plane: {str(error) or type(error).__name__}") from error

    async def _ask(self, upstream: Upstream, path: str) -> Answer:
        line = b"GET %b%b HTTP/1.1" % (upstream.prefix, path.encode())
        lines = b"\r\nAccept: */*\r\nUser-Agent: inference-gateway"
        head = request_head(line, lines, host=upstream.host, api_key=upstream.api_key, close=True)
        return await fetch(upstream, head, self._config.probe.timeout)
