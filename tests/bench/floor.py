"""The least that a proxy in Python can cost: two protocols, two parsers, bytes passed on as they came.

No admission, no timing, no metrics, no log, no timeouts, no errors: not a proxy for anybody's use, but the floor that
``tests.bench.peers`` shows beside the gateway, so that what the language costs is told apart from what the gateway
does.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import Final, cast

import httptools
import uvloop


class _Upstream(asyncio.Protocol):
    """A kept connection to the engine; what comes on it goes to the client whose turn it is."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.client: _Client | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        self.ended = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        client = self.client
        if client is not None:
            client.transport.write(data)
            if self.ended:
                self.ended, self.client, client.upstream = False, None, None
                _IDLE.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self in _IDLE:
            _IDLE.remove(self)
        if self.client is not None:
            self.client.transport.close()


class _Client(asyncio.Protocol):
    """A client's connection; a request goes on when it is whole, as a proxy that admits must have it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.upstream: _Upstream | None = None
        self.request: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.request.append(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        request, self.request = b"".join(self.request), []
        if _IDLE:
            self.send(_IDLE.pop(), request)
        else:
            task = asyncio.ensure_future(self.connect(request))
            _TASKS.add(task)
            task.add_done_callback(_TASKS.discard)

    async def connect(self, request: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(_Upstream, "127.0.0.1", int(sys.argv[2]))
        self.send(upstream, request)

    def send(self, upstream: _Upstream, request: bytes) -> None:
        self.upstream, upstream.client = upstream, self
        upstream.transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.upstream is not None:
            self.upstream.client = None
            self.upstream.transport.abort()


_IDLE: Final[deque[_Upstream]] = deque()
_TASKS: Final[set[asyncio.Task[None]]] = set()


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Client, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
