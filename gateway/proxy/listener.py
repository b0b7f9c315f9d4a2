"""What is parsed of a client's bytes, by the handler of aiohttp's low-level server: all but known heads.

aiohttp parses, and where more than the engine has to be waited for before a request is here whole, its task serves it,
and is cancelled where the client leaves. A request that is here whole is served without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import MultiMapping

from gateway.dialects.errors import error_json
from gateway.proxy.client import CLOSE, ClientConnection
from gateway.proxy.config import ProxyConfig
from gateway.proxy.heads import Head
from gateway.proxy.http import ClientTerms, own_reply
from gateway.proxy.known import LONGEST

if TYPE_CHECKING:
    from collections import deque

    from aiohttp.http_websocket import WebSocketReader

    from gateway.proxy.handler import Handler
    from gateway.proxy.relay import Relay

_log = logging.getLogger(__name__)

_UNKNOWN: Final = -(1 << 62)  # far below any count of bytes
_LINGER: Final = 10.0  # seconds for which an unwanted body is still read
_LAST_READ: Final = 0.05  # seconds between the last byte that is read of one and the end of its connection
_FIELDS: Final = 4  # a whole head may be as large as so many of the largest fields
_READ_BUFFER: Final = 256 * 1024  # request bodies are taken whole: fewer pauses than with the 64 KiB default


class _Few(list[Any]):
    """In place of the deque that aiohttp makes for requests that wait: as good for a few, and 0.6 KiB less."""

    def popleft(self) -> Any:
        """Take the first."""
        return self.pop(0)


class Parsed:
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


class Parsing(web.RequestHandler):
    """One client's bytes as aiohttp reads them, and its task where one is needed; see ``client.Parser``."""

    __slots__ = ("_beyond", "_body", "_came", "_head", "_linger", "_max_body", "_max_head", "_tasked", "client")

    def __init__(self, manager: ClientParsers, client: ClientConnection, config: ProxyConfig) -> None:
        self.client = client
        self._tasked = False  # aiohttp's own task runs
        self._came = b""  # what was given to the parser last, if it began a request
        self._max_head = _FIELDS * config.max_header
        self._max_body = config.max_body
        self._head = 0  # bytes of a head that is not whole yet
        self._body: StreamReader | None = None  # of the request that was parsed last
        self._beyond = _UNKNOWN  # bytes that the parser was given after the head of that request
        self._linger: int | None = None  # bytes of an unwanted body that are still read, so that its answer is
        super().__init__(
            manager,
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
        self.transport = client.transport

    # -- what the connection asks of its parser -----------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether no request is being served here."""
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

    @property
    def between(self) -> bool:
        """Whether what comes now is the beginning of a request, and nothing is under way."""
        return (
            self.free
            and self._fresh
            and not self._messages
            and not self._buffer_paused
            and not self._upgraded
            and not self.closing
            and self._linger is None
        )

    @property
    def lasting(self) -> bool:
        """Whether aiohttp's task runs."""
        return self._tasked

    @property
    def serving(self) -> bool:
        """Whether aiohttp's task serves a request."""
        return self._request_in_progress

    @property
    def closing(self) -> bool:
        """Whether nothing more is taken."""
        return self._close or self._force_close

    @property
    def due(self) -> float:
        """When that task will have been idle for too long."""
        return self._next_keepalive_close_time

    def expect_no_body(self, seconds: float) -> None:
        """Read on for so long only."""
        self._lingering_time = min(self._lingering_time, seconds)

    def linger(self) -> None:
        """Read as much as a body may have, at most."""
        self._linger = self._max_body

    def upgraded(self, relay: Relay) -> None:
        """All bytes go to ``relay`` from now on."""
        self.set_parser(cast("WebSocketReader", relay))

    def let_go(self) -> None:
        """It is not asked for again: parser and handler hold each other."""
        self._parser = self._body = None

    # -- what aiohttp does ----------------------------------------------------------------------------------------

    def _process_keepalive(self) -> None:
        self._keepalive_handle = None
        self.client.close_if_idle()

    def data_received(self, data: bytes) -> None:
        """Parse; a body that breaks the framing it announced is told to its reader, who would wait for the rest."""
        if self._linger is not None:
            before, self._linger = self._linger, self._linger - len(data)
            if self._linger < 0:
                if before >= 0:
                    self._take_no_more()
                return
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
        self.go_on()

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

    def go_on(self) -> None:
        """Serve the requests that are here, one after the other; aiohttp's own task has those that come in pieces."""
        client = self.client
        while self._messages and self.free and client.exchange is None:
            message, content = self._messages[0]
            parser = self._parser
            if isinstance(message, RawRequestMessage) and parser is not None and not self._upgraded:
                if content.is_eof() and content.exception() is None:
                    self._messages.popleft()
                    parser.message_consumed()
                    self._request_in_progress = True  # what is parsed meanwhile comes after it
                    if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                        self._resume_reading_if_drained()
                    body = content.read_nowait()
                    self._request_in_progress = False
                    self._serve(message, body)
                    continue
                if self._may_wait(message, content):
                    return
            client.stop_waiting()
            self._serve_by_task()

    def _serve(self, message: RawRequestMessage, body: bytes) -> None:
        head, came = Head(Parsed(message)), self._came
        self._came = b""
        if came:
            self.client.learn(came, head, len(body))
        self.client.serve(head, message.headers.get("X-Request-Id", ""), body)

    def _may_wait(self, message: RawRequestMessage, content: StreamReader) -> bool:
        """Whether a body that is not whole is waited for without a task."""
        if len(self._messages) > 1 and content.exception() is None:
            content.set_exception(web.RequestPayloadError("the body is not framed as announced"))
        if content.exception() is not None or "Expect" in message.headers:
            return False
        # Who comes as the gateway leaves is answered at once.
        return not self._manager_of_ours.handler.draining and self.client.waits_for_rest()

    @property
    def _manager_of_ours(self) -> ClientParsers:
        return cast("ClientParsers", self._manager)

    def _serve_by_task(self) -> None:
        if self._waiter is not None:
            self._waiter.set_result(None)
        elif self.transport is not None:
            self._tasked = True
            self._manager_of_ours.connection_made(self, self.transport)
            self._task_handler = self._loop.create_task(self.start())

    def _refuse_head(self) -> None:
        """Each field is within its bound, and all together are too much."""
        if self.transport is not None and not self._request_in_progress and self.client.exchange is None:
            message = f"The request's head is larger than {self._max_head} bytes."
            content_type, body = error_json(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "bad_request")
            terms = ClientTerms(method="", keep_alive=False)
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.transport.write(own_reply(status, (), content_type, body, terms, keep_alive=False))
        self.force_close()

    def _take_no_more(self) -> None:
        """Close in a moment: what is not read makes it a reset, before which the client should get to its answer."""
        if self.transport is not None:
            self.transport.pause_reading()
            self._loop.call_later(_LAST_READ, self.force_close)

    def force_close(self) -> None:
        """Close when what was written is taken."""
        super().force_close()
        self.client.close()

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


class ClientParsers(web.Server):
    """Makes them, and knows those that have a task."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        super().__init__(
            cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", handler), handler_cancellation=True
        )

    def __len__(self) -> int:
        return len(self._connections)

    def parser(self, connection: ClientConnection, config: ProxyConfig) -> Parsing:
        """One for a connection that came under these settings."""
        return Parsing(self, connection, config)
