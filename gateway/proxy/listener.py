"""The client's side of aiohttp's low-level server: connections that tell the running relay what happens to them.

aiohttp parses requests, keeps connections alive and cancels the handler of a client that left. Answers are written by
the relay and by the handler straight to the transport, so what the handler returns has nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import MultiMapping

from gateway.dialects.errors import error_json
from gateway.proxy.config import ProxyConfig
from gateway.proxy.descriptors import few_left
from gateway.proxy.heads import Head, Heads
from gateway.proxy.http import ClientTerms, own_reply
from gateway.proxy.known import LONGEST
from gateway.proxy.relay import Relay
from gateway.proxy.upstream import bytes_acked

if TYPE_CHECKING:
    from collections import deque

    from aiohttp.http_websocket import WebSocketReader

    from gateway.proxy.handler import Exchange
    from gateway.proxy.heads import Request

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """Who serves requests."""

    @property
    def draining(self) -> bool:
        """Whether everybody is refused from now on."""

    async def __call__(self, request: Request) -> Written:
        """Serve one; returns when its answer is written."""

    def begin(self, head: Head, connection: ClientConnection, request_id: str, body: bytes) -> None:
        """Serve one that is here whole; ``connection.written`` hears of its end. Without an id it is given one."""

    def lost(self, exchange: Exchange) -> None:
        """The client of an exchange that was begun is gone."""


_UNKNOWN: Final = -(1 << 62)  # far below any count of bytes
_POLL: Final = 0.02
_TELL: Final = 10.0  # seconds between two log lines about clients that are turned away
_LINGER: Final = 10.0  # seconds for which an unwanted body is still read
_MOMENT: Final = 0.05  # seconds for the rest of a body, before a task is made that waits for it
_HELD: Final = 64 * 1024  # bytes of a known head and its body that are kept while the rest may come
_FIELDS: Final = 4  # a whole head may be as large as so many of the largest fields
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


class _Few(list[Any]):
    """In place of the deque that aiohttp makes for requests that wait: as good for a few, and 0.6 KiB less."""

    def popleft(self) -> Any:
        """Take the first."""
        return self.pop(0)


class _Parsed:
    """A head as ``Head`` reads it, out of what aiohttp's parser made."""

    __slots__ = ("_message", "headers", "keep_alive", "method", "raw_headers", "raw_path", "version")

    def __init__(self, message: RawRequestMessage) -> None:
        self._message = message
        self.method = message.method
        self.raw_path = message.path
        self.headers = message.headers
        self.raw_headers = message.raw_headers
        self.version = message.version
        self.keep_alive = not message.should_close

    @property
    def query(self) -> MultiMapping[str]:
        """Of the target."""
        return self._message.url.query


class ClientConnection(web.RequestHandler):
    """One client's connection. ``relay`` is the exchange that is running on it, if any."""

    __slots__ = (
        "_beyond", "_body", "_came", "_config", "_head", "_heads", "_held", "_linger", "_max_head", "_parked", "_rest",
        "_server", "_stall", "_tasked", "exchange", "head_at", "peer", "relay",
    )  # fmt: skip

    def __init__(self, server: ClientServer, config: ProxyConfig) -> None:
        self.relay: Relay | None = None
        self.exchange: Exchange | None = None  # that was begun without a task
        self.peer: str | None = None
        self.head_at: float | None = None  # when the head came whose body was waited for
        self._tasked = False  # aiohttp's own task runs
        self._rest: asyncio.TimerHandle | None = None  # for the rest of a body
        self._held = b""  # a known head and a part of its body
        self._came = b""  # what was given to the parser last, if it began a request
        self._parked: asyncio.Future[None] | None = None  # that task's wait, while an exchange runs
        self._config = config
        self._server = server
        self._heads = server.heads
        self._max_head = _FIELDS * config.max_header
        self._head = 0  # bytes of a head that is not whole yet
        self._body: StreamReader | None = None  # of the request that was parsed last
        self._beyond = _UNKNOWN  # bytes that the parser was given after the head of that request
        self._linger: int | None = None  # bytes of an unwanted body that are still read, so that its answer is
        self._stall: asyncio.TimerHandle | None = None
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=config.client_keepalive,
            access_log=cast("logging.Logger", None),  # None switches it off, whatever the annotation says
            max_line_size=config.max_line,
            max_field_size=config.max_header,
            max_headers=config.max_headers,
            lingering_time=min(_LINGER, config.client_timeout),
            read_bufsize=_READ_BUFFER,
            auto_decompress=False,
        )
        self._messages = cast("deque[Any]", _Few())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        sock = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family != getattr(socket, "AF_UNIX", None):
            # The kernel drops a client that takes nothing for so long, dead or stalled, without a timer of ours.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._config.client_timeout * 1000))
        super().connection_made(transport)
        name = transport.get_extra_info("peername")  # aiohttp would keep it in a dict
        self.peer = str(name[0]) if isinstance(name, list | tuple) else name
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
            self.transport.close()

    async def start(self) -> None:
        """Be the task that aiohttp makes for each connection; the one that serves is made when a request needs it."""
        if not self._tasked:
            self._task_handler = None

    @property
    def _free(self) -> bool:
        """Whether no request is being served."""
        if self._tasked:
            return self._waiter is not None and not self._waiter.done()
        return not self._request_in_progress

    @property
    def _fresh(self) -> bool:
        """Whether the parser has surely nothing of a request that is to come.

        It has nothing where exactly the bytes of the last body came after its head; who sends chunks sends more.
        """
        body = self._body
        return not self._head and (body is None or (body.is_eof() and self._beyond == body.total_bytes))

    def _serve_by_task(self) -> None:
        if self._waiter is not None:
            self._waiter.set_result(None)
        else:
            self._tasked = True
            self._task_handler = asyncio.get_running_loop().create_task(super().start())

    def _process_keepalive(self) -> None:
        """Close what nobody asked anything for so long; aiohttp's own does it where its task waits."""
        super()._process_keepalive()
        if self._keepalive_handle is None and self._keepalive and not self._tasked and self._free:
            self.force_close()

    def data_received(self, data: bytes) -> None:
        """Serve a request whose head is known; let aiohttp parse all others."""
        if self._held:
            data, self._held = self._held + data, b""
        if self._between and self._take_known(data):
            return
        self._parse(data)

    @property
    def _between(self) -> bool:
        """Whether what comes now is the beginning of a request, and nothing else is under way."""
        return (
            self._free
            and self._fresh
            and not self._messages
            and not self._upgraded
            and not self._close
            and not self._force_close
            and self._linger is None
        )

    def _take_known(self, data: bytes) -> bool:
        """Serve the request that ``data`` is, or keep it for a moment until it is whole; else it is to be parsed."""
        found = self._heads.find(data) if self._heads is self._server.heads else None
        if found is None or len(data) > found.size or found.size > _HELD or self._server.handler.draining:
            return False
        if len(data) == found.size:
            self._stop_waiting()
            self._parked, self._waiter = self._waiter, None
            self._request_in_progress = True
            self._server.handler.begin(found.head, self, found.request_id, data[found.body_at :])
            return True
        if self.head_at is None:
            self.head_at = time.monotonic()
            self._rest = asyncio.get_running_loop().call_later(_MOMENT, self._wait_no_more)
        if self._rest is not None:
            self._held = data
        return self._rest is not None

    def _parse(self, data: bytes) -> None:
        """Parse; a body that breaks the framing it announced is told to its reader, who would wait for the rest."""
        if self._linger is not None:
            before, self._linger = self._linger, self._linger - len(data)
            if self._linger < 0:
                if before >= 0:
                    self._take_no_more()
                return
        if self._parser is None:
            self._parser = self._fresh_parser()
        count, fresh = self._request_count, self._fresh and not self._messages
        between = self._body is None or self._body.is_eof()
        waiter, self._waiter = self._waiter, None  # not to be woken before it is known by whom a request is served
        try:
            super().data_received(data)
        finally:
            self._waiter = waiter
        request = self._current_request
        if request is not None and self._messages and not request.content.is_eof():
            request.content.set_exception(web.RequestPayloadError("the body is not framed as announced"))
        self._follow(data, self._request_count - count, between=between, fresh=fresh)
        if self._messages and self.exchange is None:
            self._go_on()

    def _follow(self, data: bytes, new: int, *, between: bool, fresh: bool) -> None:
        """Count what was parsed. ``new`` heads became whole; it came ``between`` requests, to a parser ``fresh``."""
        if new:
            alone = fresh and new == 1
            end = data.find(b"\r\n\r\n") if alone else -1
            self._came = data[:LONGEST] if alone else b""
            self._beyond = _UNKNOWN if end < 0 else len(data) - end - 4
            self._head = 0
            self._body = self._messages[-1][1] if self._messages else None
        elif not between:
            self._beyond += len(data)
        elif self._linger is None and not self._upgraded:
            self._head += len(data)
            if self._head > self._max_head:
                self._refuse_head()

    def _go_on(self) -> None:
        """Serve the requests that are here, one after the other; aiohttp's own task has those that come in pieces."""
        while self._messages and self._free:
            message, content = self._messages[0]
            parser = self._parser
            if isinstance(message, RawRequestMessage) and parser is not None and not self._upgraded:
                if content.is_eof() and content.exception() is None:
                    self._stop_waiting()
                    self._parked, self._waiter = self._waiter, None
                    self._request_in_progress = True
                    self._messages.popleft()
                    parser.message_consumed()
                    if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                        self._resume_reading_if_drained()
                    self._begin(message, content.read_nowait())
                    continue
                if self._may_wait(message, content):
                    return
            self._stop_waiting()
            self._serve_by_task()

    def _begin(self, message: RawRequestMessage, body: bytes) -> None:
        head, came = Head(_Parsed(message)), self._came
        self._came = b""
        if came and self._heads is self._server.heads:  # else its parser goes by other settings than those in effect
            self._heads.learn(came, head, len(body))
        self._server.handler.begin(head, self, message.headers.get("X-Request-Id", ""), body)

    def _may_wait(self, message: RawRequestMessage, content: StreamReader) -> bool:
        """Whether the rest of a body, sent apart from its head as most clients do, may be here in a moment."""
        if len(self._messages) > 1 and content.exception() is None:
            content.set_exception(web.RequestPayloadError("the body is not framed as announced"))
        if content.exception() is not None or "Expect" in message.headers or self._server.handler.draining:
            return False  # who comes as the gateway leaves is answered at once
        if self.head_at is None:
            self.head_at = time.monotonic()
            self._rest = asyncio.get_running_loop().call_later(_MOMENT, self._wait_no_more)
        return self._rest is not None

    def _stop_waiting(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _wait_no_more(self) -> None:
        self._rest = None
        if self._held:
            data, self._held = self._held, b""
            self._parse(data)
        else:
            self._go_on()

    def written(self, how: Written) -> None:
        """The exchange is over: its answer is on the wire."""
        if self.exchange is None:  # the client was quicker
            return
        self._leave_exchange()
        if how is CUT:
            self.abort()
        elif not how.keep_alive or self._close or self._force_close:
            self._keepalive = False
            self.force_close()
        else:
            self._keepalive = True
            loop = asyncio.get_running_loop()
            self._next_keepalive_close_time = loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
            if self._messages:
                loop.call_soon(self._go_on)  # whatever is done without a wait returns here before

    def _leave_exchange(self) -> None:
        self.exchange = None
        self._request_in_progress = False
        self._waiter, self._parked = self._parked, None
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, or was let go."""
        exchange = self.exchange
        self._stop_waiting()
        self._held = b""
        if exchange is not None:
            self._leave_exchange()
            self._server.handler.lost(exchange)
        super().connection_lost(exc)

    def streams(self) -> None:
        """The answer is a stream, which lives long: let go of its request, and of the parser, which holds it too."""
        if self.exchange is None:  # aiohttp's own task has the request
            return
        self.exchange.call.let_go()
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
            self._keepalive_handle = None
        if self._fresh and not (self._messages or self._buffer_paused or self._upgraded):
            self._parser = self._body = None

    def _fresh_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self,
            self._loop,
            _READ_BUFFER,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=self._max_msg_queue_size,
        )

    def _refuse_head(self) -> None:
        """Each field is within its bound, and all together are too much."""
        if self.transport is not None and not self._request_in_progress:
            message = f"The request's head is larger than {self._max_head} bytes."
            content_type, body = error_json(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "bad_request")
            terms = ClientTerms(method="", keep_alive=False)
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.transport.write(own_reply(status, (), content_type, body, terms, keep_alive=False))
        self.force_close()

    def pause_writing(self) -> None:
        """The client takes bytes slower than they come."""
        super().pause_writing()
        self._watch()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.relay is not None:
            self.relay.resume()

    def _watch(self) -> None:
        """See to it that a client that drips does not go on for ever; the kernel sees to one that takes nothing."""
        if self.transport is not None and self._config.client_min_rate:
            taken = bytes_acked(self.transport)
            self._stall = asyncio.get_running_loop().call_later(self._config.client_timeout, self._check, taken)

    def _check(self, taken: int | None) -> None:
        self._stall = None
        now = None if self.transport is None else bytes_acked(self.transport)
        due = self._config.client_timeout * self._config.client_min_rate
        if now is None or taken is None or now - taken >= due:
            self._watch()
        else:
            self.abort()

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

    def expect_no_body(self, seconds: float = 0.0) -> None:
        """The client was refused and sends no body, or no more of it: read on for so long only."""
        self._lingering_time = min(self._lingering_time, seconds)

    def linger(self) -> None:
        """The client was refused while it sends its body: read as much again at most, so that it gets to the answer."""
        self._linger = self._config.max_body

    def _take_no_more(self) -> None:
        """Close in a moment: what is not read makes it a reset, before which the client should get to its answer."""
        if self.transport is not None:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(_MOMENT, self.force_close)

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
        self.heads = _heads(config)
        self.handler = handler
        self.refused = 0  # clients that found no file descriptors
        self._said = -math.inf  # when that was last told
        super().__init__(
            cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", handler), handler_cancellation=True
        )

    def __call__(self) -> ClientConnection:
        """A protocol for a new connection."""
        return ClientConnection(self, self._config)

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
        self._config = config
        self.heads = _heads(config)

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


def _heads(config: ProxyConfig) -> Heads:
    read = {config.client_header, config.priority_header, *(source.partition(":")[2] for source in config.session_by)}
    return Heads(ids="x-request-id" not in {name.lower() for name in read if name})
