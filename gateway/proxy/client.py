"""A client's connection: who serves what comes on it, and what its answers and its end mean for that.

A request that is here whole and whose head is known is served at once. Everything else is given to a parser, which is
made when it is needed: aiohttp's (``listener.py``). Answers are written by the relay and by the handler straight to the
transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, cast

from gateway.dialects.errors import error_json
from gateway.proxy.config import ProxyConfig
from gateway.proxy.descriptors import few_left
from gateway.proxy.heads import Head, Heads
from gateway.proxy.http import ClientTerms, own_reply
from gateway.proxy.upstream import bytes_acked

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.proxy.handler import Exchange, Handler
    from gateway.proxy.relay import Relay

_log = logging.getLogger(__name__)

_POLL: Final = 0.02
_TELL: Final = 10.0  # seconds between two log lines about clients that are turned away
_MOMENT: Final = 0.05  # seconds for the rest of a body, before a task is made that waits for it
_HELD: Final = 64 * 1024  # bytes of a known head and its body that are kept while the rest may come


class Written:
    """An answer that is on the wire already: whoever is given it has nothing left to do."""

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


class Parser(Protocol):
    """Who is given what is no known request. It serves what it parsed, by ``ClientConnection.serve`` or by itself."""

    def data_received(self, data: bytes) -> None:
        """Take bytes."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """There is no client any more."""

    def go_on(self) -> None:
        """Serve what is parsed already, if nothing is being served."""

    @property
    def between(self) -> bool:
        """Whether what comes now is the beginning of a request, and nothing is under way there."""

    @property
    def lasting(self) -> bool:
        """Whether it has more than bytes to keep: a task."""

    @property
    def free(self) -> bool:
        """Whether it has no request to serve by itself, nor the rest of one to read."""

    @property
    def serving(self) -> bool:
        """Whether it serves one."""

    @property
    def closing(self) -> bool:
        """Whether it takes no more, for what came was not HTTP."""

    @property
    def due(self) -> float:
        """When it will have been idle for too long, by the loop's clock; 0.0 where it served nothing by itself."""

    def expect_no_body(self, seconds: float) -> None:
        """As ``ClientConnection.expect_no_body``."""

    def linger(self) -> None:
        """As ``ClientConnection.linger``."""

    def upgraded(self, relay: Relay) -> None:
        """As ``ClientConnection.upgraded``."""

    def let_go(self) -> None:
        """It is not asked for again."""


class Parsers(Protocol):
    """Makes parsers; its length is the number of those that have a task."""

    def __len__(self) -> int:
        """So many."""

    def parser(self, connection: ClientConnection, config: ProxyConfig) -> Parser:
        """One for a connection that came under these settings."""

    async def shutdown(self, seconds: float, /) -> None:
        """End the tasks that are left."""


class ClientConnection(asyncio.Protocol):
    """One client's connection. ``relay`` is the exchange that is running on it, if any."""

    __slots__ = (
        "_config", "_due", "_heads", "_held", "_idle", "_parser", "_rest", "_server", "_stall", "_unclear",
        "exchange", "head_at", "peer", "relay", "transport", "writing_paused",
    )  # fmt: skip

    def __init__(self, server: ClientServer, config: ProxyConfig) -> None:
        self.transport: asyncio.Transport | None = None  # None once it is closed
        self.relay: Relay | None = None
        self.exchange: Exchange | None = None  # that was begun without a task
        self.peer = ""
        self.head_at: float | None = None  # when the head came whose body was waited for
        self.writing_paused = False
        self._server = server
        self._config = config
        self._heads = server.heads
        self._parser: Parser | None = None
        self._unclear = False  # the parser was given something, and may wait for more of it
        self._rest: asyncio.TimerHandle | None = None  # for the rest of a body
        self._held = b""  # a known head and a part of its body
        self._due = 0.0  # when it will have been idle for too long, by the loop's clock
        self._idle: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family != getattr(socket, "AF_UNIX", None):
            # The kernel drops a client that takes nothing for so long, dead or stalled, without a timer of ours.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._config.client_timeout * 1000))
        self._server.connections.add(self)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, (list, tuple)) else name or ""
        self._rest_idle()
        if few_left(sock.fileno()):
            self._turn_away()

    def _turn_away(self) -> None:
        """There is no room; a request that comes with the connection is not read."""
        message = "The gateway is out of file descriptors."
        content_type, body = error_json(HTTPStatus.SERVICE_UNAVAILABLE, message, "out_of_descriptors")
        terms = ClientTerms(method="", keep_alive=False)
        headers = (("Retry-After", "1"),)
        reply = own_reply(HTTPStatus.SERVICE_UNAVAILABLE, headers, content_type, body, terms, keep_alive=False)
        self._server.note_refused()
        if self.transport is not None:
            self.transport.write(reply)
            self.close()

    # -- what comes -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Serve a request whose head is known; let all others be parsed."""
        if self._held:
            data, self._held = self._held + data, b""
        if self.exchange is None and (not self._unclear or self._clear()) and self._take_known(data):
            return
        self._parse(data)

    def _clear(self) -> bool:
        """Whether what comes now is the beginning of a request."""
        if self._unclear and self._parser is not None:
            self._unclear = not self._parser.between
        return not self._unclear

    def _take_known(self, data: bytes) -> bool:
        """Serve the request that ``data`` is, or keep it for a moment until it is whole; else it is to be parsed."""
        server = self._server
        found = self._heads.find(data) if self._heads is server.heads else None
        if found is None or len(data) > found.size or found.size > _HELD or server.handler.draining:
            return False
        if len(data) == found.size:
            if self._parser is not None:
                self._spare(self._parser)
            self.serve(found.head, found.request_id, data[found.body_at :])
            return True
        waits = self.waits_for_rest()
        if waits:
            self._held = data
        return waits

    def serve(self, head: Head, request_id: str, body: bytes) -> None:
        """Serve a request that is here whole."""
        if self._rest is not None:
            self.stop_waiting()
        self._server.handler.begin(head, self, request_id, body)

    def learn(self, data: bytes, head: Head, length: int) -> None:
        """Know ``head`` again, which was parsed at the beginning of ``data``."""
        if self._heads is self._server.heads:  # else its parser goes by other settings than those in effect
            self._heads.learn(data, head, length)

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            parser = self._parser = self._server.parsers.parser(self, self._config)
        self._unclear = True
        parser.data_received(data)

    def _spare(self, parser: Parser) -> None:
        """It has nothing, and what comes needs none."""
        if not parser.lasting:
            parser.let_go()
            self._parser = None

    def waits_for_rest(self) -> bool:
        """Whether the rest of a body, sent apart from its head as most clients do, may be here in a moment."""
        if self.head_at is None:
            self.head_at = time.monotonic()
            self._rest = self._server.loop.call_later(_MOMENT, self._wait_no_more)
        return self._rest is not None

    def stop_waiting(self) -> None:
        """It is here, or is waited for by a task."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _wait_no_more(self) -> None:
        self._rest = None
        if self._held:
            data, self._held = self._held, b""
            self._parse(data)
        elif self._parser is not None:
            self._parser.go_on()

    def eof_received(self) -> None:
        """A client that ends its side has left, as nginx and HAProxy take it; what it has not taken goes with it."""
        if self.relay is not None:
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, or was let go."""
        self._server.connections.discard(self)
        self.transport = None
        self._held = b""
        self.stop_waiting()
        self._stop_idle()
        if self._stall is not None:
            self._stall.cancel()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._server.handler.lost(exchange)
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.connection_lost(exc)

    # -- what goes --------------------------------------------------------------------------------------------------

    def written(self, how: Written) -> None:
        """The exchange is over: its answer is on the wire."""
        if self.exchange is None:  # the client was quicker
            return
        self.exchange = None
        parser = self._parser
        if how is CUT:
            self.abort()
        elif not how.keep_alive or (parser is not None and parser.closing):
            self.close()
        else:
            self._rest_idle()
            if parser is not None and not self._clear():
                self._server.loop.call_soon(parser.go_on)  # what is done without a wait returns here before

    def streams(self) -> None:
        """The answer is a stream, which lives long: let go of its request, and of the parser, which holds it too."""
        if self.exchange is None:  # the parser's own task has the request
            return
        self.exchange.call.let_go()
        self._stop_idle()
        if self._parser is not None and self._clear():
            self._spare(self._parser)

    def pause_writing(self) -> None:
        """The client takes bytes slower than they come."""
        self.writing_paused = True
        self._watch()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        self.writing_paused = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.relay is not None:
            self.relay.resume()

    def _watch(self) -> None:
        """See to it that a client that drips does not go on for ever; the kernel sees to one that takes nothing."""
        if self.transport is not None and self._config.client_min_rate:
            taken = bytes_acked(self.transport)
            self._stall = self._server.loop.call_later(self._config.client_timeout, self._check, taken)

    def _check(self, taken: int | None) -> None:
        self._stall = None
        now = None if self.transport is None else bytes_acked(self.transport)
        due = self._config.client_timeout * self._config.client_min_rate
        if now is None or taken is None or now - taken >= due:
            self._watch()
        else:
            self.abort()

    def upgraded(self, relay: Relay) -> None:
        """All that the client sends goes to ``relay`` from now on, and what it sent meanwhile."""
        if self._parser is not None:
            self._parser.upgraded(relay)

    def expect_no_body(self, seconds: float = 0.0) -> None:
        """The client was refused and sends no body, or no more of it: read on for so long only."""
        if self._parser is not None:
            self._parser.expect_no_body(seconds)

    def linger(self) -> None:
        """The client was refused while it sends its body: read as much again at most, so that it gets to the answer."""
        if self._parser is not None:
            self._parser.linger()

    # -- its end ----------------------------------------------------------------------------------------------------

    def _rest_idle(self) -> None:
        """From now on it is idle."""
        loop = self._server.loop
        self._due = loop.time() + self._config.client_keepalive
        if self._idle is None:
            self._idle = loop.call_at(self._due, self.close_if_idle)

    def close_if_idle(self) -> None:
        """Close what nobody asked anything for so long."""
        self._stop_idle()
        parser, loop = self._parser, self._server.loop
        due = self._due if parser is None else max(self._due, parser.due)
        if loop.time() < due:
            self._idle = loop.call_at(due, self.close_if_idle)
        elif self.exchange is None and (parser is None or parser.free):
            self.close()

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def close(self) -> None:
        """Close when what was written is taken."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def abort(self) -> None:
        """Close at once; ``connection_lost`` is then called, and whoever serves is told."""
        if self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """Close: at once where a request is running, else when the last answer has been taken."""
        if self.exchange is not None or (self._parser is not None and self._parser.serving):
            self.abort()
        elif self.transport is not None:
            self.transport.close()


class ClientServer:
    """Makes a ClientConnection for each client. Made on a running loop."""

    def __init__(self, handler: Handler, config: ProxyConfig, parsers: Parsers) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.parsers = parsers
        self.heads = _heads(config)
        self.connections: set[ClientConnection] = set()
        self.config = config
        self.refused = 0  # clients that found no file descriptors
        self._said = -math.inf  # when that was last told

    def __call__(self) -> ClientConnection:
        """A protocol for a new connection."""
        return ClientConnection(self, self.config)

    def note_refused(self) -> None:
        """One more client was turned away; now and then that is told."""
        self.refused += 1
        now = time.monotonic()
        if now - self._said >= _TELL:
            self._said = now
            _log.error(
                "clients are turned away, %d by now: nearly all file descriptors are in use; raise ulimit -n",
                self.refused,
            )

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings for connections to come."""
        self.config = config
        self.heads = _heads(config)

    async def close(self, seconds: float) -> None:
        """Cut running requests, close the rest; finished answers get ``seconds`` to be taken."""
        for connection in tuple(self.connections):
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections or len(self.parsers):  # noqa: ASYNC110 - aiohttp tells of no end of a task
                    await asyncio.sleep(_POLL)
        for connection in tuple(self.connections):
            connection.abort()
        await self.parsers.shutdown(seconds)


def _heads(config: ProxyConfig) -> Heads:
    read = {config.client_header, config.priority_header, *(source.partition(":")[2] for source in config.session_by)}
    return Heads(ids="x-request-id" not in {name.lower() for name in read if name})
