"""All addresses of a name, such as a headless Service of Kubernetes has, asked for again and again.

The system's resolver answers; it knows no TTL, so the interval is the bound on how old an answer may be.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from gateway.discovery.base import Found, url

_log = logging.getLogger(__name__)


class Dns:
    """Every address of ``host``, as an engine at ``port``; asked every ``interval`` seconds."""

    def __init__(self, scheme: str, host: str, port: int, interval: float) -> None:
        self._scheme = scheme
        self._host = host
        self._port = port
        self._interval = interval
        self._trouble = ""

    async def run(self, found: Found) -> None:
        """As ``Source.run``."""
        while True:
            urls = await self._ask()
            if urls:
                await found(urls)
            await asyncio.sleep(self._interval)

    async def _ask(self) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self._trouble:
                _log.warning("no engines found under %s, those known stay: %s", self._host, trouble)
            self._trouble = trouble
            return frozenset()
        if self._trouble:
            _log.info("engines are found under %s again", self._host)
            self._trouble = ""
        return frozenset(url(self._scheme, str(address[0]), self._port) for *_, address in answers)
