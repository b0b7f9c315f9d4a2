"""The client's side of aiohttp's low-level server: connections that tell the running relay what happens to them.

aiohttp parses requests, keeps connections alive and cancels the handler of a client that left. Answers are written by
the relay and by the handler straight to the transport, so what the handler returns has nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.dialects.errors import error_json
from gateway.proxy.config import ProxyConfig
from gateway.proxy.http import ClientTerms, own_reply
from gateway.proxy.relay import Relay

if TYPE_CHECKING:
    from aiohttp.http_websocket import WebSocketReader

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable["Written"]]

_POLL: Final = 0.02
_READ_BUFFER: Final = 256 * 1024  # request bodies are taken whole: fewer pauses than with the 64 KiB default


class Written:
    """An answer that is on the wire already."""

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to do."""

    async def write_eof(self) -> None:
        """Nothing is left to do."""


class Cut(Written):
    """An answer that was broken off where only a connection without a proper end can tell."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Abort it."""
        if request.transport is not None:
            request.transport.abort()


KEEP_ALIVE: Final = Written(keep_alive=True)
CLOSE: Final = Written(keep_alive=False)
CUT: Final = Cut(keep_alive=False)


class ClientConnection(web.RequestHandler):
    """One client's connection. ``relay`` is the exchange that is running on it, if any."""

    __slots__ = ("_timeout", "relay")

    def __init__(self, server: ClientServer, config: ProxyConfig) -> None:
        self.relay: Relay | None = None
        self._timeout = config.client_timeout
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=config.client_keepalive,
            access_log=cast("logging.Logger", None),  # None switches it off, whatever the annotation says
            max_line_size=config.max_line,
            max_field_size=config.max_header,
            max_headers=config.max_headers,
            read_bufsize=_READ_BUFFER,
            auto_decompress=False,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        sock = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family != getattr(socket, "AF_UNIX", None):
            # The kernel drops a client that takes nothing for so long, dead or stalled, without a timer of ours.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._timeout * 1000))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse; a body that breaks the framing it announced is told to its reader, who would wait for the rest."""
        super().data_received(data)
        request = self._current_request
        if request is not None and self._messages and not request.content.is_eof():
            request.content.set_exception(web.RequestPayloadError("the body is not framed as announced"))

    def pause_writing(self) -> None:
        """The client takes bytes slower than they come."""
        super().pause_writing()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        if self.relay is not None:
            self.relay.resume()

    def eof_received(self) -> None:
        """A client that ends its side has left, as nginx and HAProxy take it; what it has not taken goes with it."""
        if self.relay is not None:
            self.abort()

    def upgraded(self, relay: Relay) -> None:
        """All that the client sends goes to ``relay`` from now on, and what it sent meanwhile."""
        self.set_parser(cast("WebSocketReader", relay))

    def abort(self) -> None:
        """Close at once; asyncio then calls ``connection_lost``, and aiohttp cancels the handler."""
        if self.transport is not None:
            self.transport.abort()

    def expect_no_body(self) -> None:
        """The client was refused before it sent its body: do not linger to read it."""
        self._lingering_time = 0.0

    def end(self) -> None:
        """Close: at once where a request is running, else when the last answer has been taken."""
        if self._request_in_progress:
            self.abort()
        elif self.transport is not None:
            self.transport.close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what aiohttp could not parse, in the shape of OpenAI's errors."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        _log.debug("bad request from %s: %s", request.remote, type(exc).__name__)  # the message quotes what was sent
        if self.transport is not None:
            content_type, body = error_json(status, "The request is not valid HTTP.", "bad_request")
            terms = ClientTerms(method="", keep_alive=False)
            self.transport.write(own_reply(status, (), content_type, body, terms, keep_alive=False))
        return cast("web.StreamResponse", CLOSE)


class ClientServer(web.Server):
    """Makes a ClientConnection for each client."""

    def __init__(self, handler: Handler, config: ProxyConfig) -> None:
        self._config = config
        super().__init__(
            cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", handler), handler_cancellation=True
        )

    def __call__(self) -> ClientConnection:
        """A protocol for a new connection."""
        return ClientConnection(self, self._config)

    async def close(self, seconds: float) -> None:
        """Cut running requests, close the rest; finished answers get ``seconds`` to be taken."""
        for connection in self.connections:
            cast("ClientConnection", connection).end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:  # noqa: ASYNC110 - aiohttp tells nobody when the last one is gone
                    await asyncio.sleep(_POLL)
        for connection in self.connections:
            cast("ClientConnection", connection).abort()
        await self.shutdown(seconds)
