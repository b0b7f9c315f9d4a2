"""One answer on its way from a backend's connection to the client's transport, byte for byte.

Everything happens inside the backend connection's ``data_received``: the reader listens, the timeline is marked, the
bytes are written. The handler's task sleeps until the end. Backpressure: while the client's transport is full, the
backend's is not read, so at most one read and one write buffer are held.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.dialects.base import Dialect, Fault, ResponseReader
from gateway.dialects.realtime import SessionListener
from gateway.dialects.usage import UsageFilter
from gateway.model import Progress, Shape, Timeline, Usage
from gateway.proxy.bodies import Lease
from gateway.proxy.config import ProxyConfig
from gateway.proxy.http import ClientTerms, Framing, Rates, ResponseHead, chunk, framing, response_head, switching_head
from gateway.proxy.tls import TurnedAway
from gateway.proxy.upstream import Connection, Upstream

if TYPE_CHECKING:
    from gateway.proxy.client import ClientConnection

_log = logging.getLogger(__name__)

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 9.2.2
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_OK: Final = 200  # a number: one of HTTPStatus is compared in Python, at twenty times the price
BUSY: Final = frozenset({429, 503, 529})  # too many requests, unavailable, overloaded
_DIGITS: Final = 6
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@unique
class End(Enum):
    """How a relay ended, as far as the backend is concerned."""

    COMPLETE = "complete"
    CONNECT_FAILED = "connect_failed"  # nothing of the request was sent
    NO_DESCRIPTORS = "no_descriptors"  # the gateway itself could not open a socket
    LOST = "lost"
    TURNED_AWAY = "turned_away"  # closed without a byte, by a kind of engine that says so that it is full
    SILENT = "silent"
    EMPTY = "empty"  # a success without a byte where output was due
    IDLE = "idle"  # an open WebSocket on which nobody said anything
    STALE = "stale"  # a reused connection was dead before the request reached the backend


@dataclass(slots=True)
class Wire:
    """A request as it goes to any backend; ``head`` makes its head for one of them.

    ``body`` is let go when the answer begins: it is not sent again then, and streams live long.
    """

    terms: ClientTerms
    head: Callable[[Upstream], bytes]
    body: bytes
    request_id: bytes
    asks_usage: bool = False  # the gateway put that into the body: the client is not to see the answer to it
    upgrade: bool = False  # a WebSocket is asked for
    lease: Lease | None = None  # on the memory for bodies

    def let_go(self) -> None:
        """The body is not sent again."""
        self.body, self.head = b"", _sent
        if self.lease is not None:
            self.lease.end()

    rates: Rates = ()  # what is left of the client's key, and how full the gateway is


class Relay:
    """One exchange. Afterwards ``status`` is what the client got (0: nothing yet), ``fault`` and ``usage`` are read."""

    # Of so many attributes a dict would be 1.3 KiB.
    __slots__ = (
        "_client", "_comments", "_config", "_connection", "_dialect", "_filter", "_framing", "_heart", "_held",
        "_last_byte", "_limit", "_output_due", "_patience", "_paused_at", "_progress", "_reader", "_shape", "_streamed",
        "_timeline", "_told", "_tunnel", "_wire", "attempts", "bytes_out", "cut", "error", "keep_alive", "rest",
        "session", "status", "unread",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientConnection,
        wire: Wire,
        timeline: Timeline,
        config: ProxyConfig,
        dialect: Dialect,
        shape: Shape,
        *,
        output_due: bool,
        progress: Progress | None,
        patience: float = 0.0,
    ) -> None:
        """``patience``: seconds that the work itself may take before the first byte, on the slowest engine."""
        self._client = client
        self._wire = wire
        self._timeline = timeline
        self._config = config
        self._dialect = dialect
        self._shape = shape
        self._output_due = output_due
        self._progress = progress
        self._patience = patience
        self._connection: Connection | None = None
        self._told: Callable[[End], None] | None = None
        self._reader: ResponseReader | None = None
        self._filter: UsageFilter | None = None
        self._held: ResponseHead | None = None
        self._framing = Framing.NONE
        self._streamed = False
        self._comments = False  # they may still be sent: nothing of the body was
        self._heart: asyncio.TimerHandle | None = None
        self._tunnel = False
        self.session: SessionListener | None = None  # where the client may yet say which model it is for
        self._limit: float | None = None  # seconds that the backend may be silent
        self._last_byte = 0.0
        self._paused_at: float | None = None
        self.status = 0
        self.keep_alive = wire.terms.keep_alive
        self.bytes_out = 0
        self.attempts = 0
        self.error: str | None = None
        self.rest = 0.0  # seconds for which the backend asked not to be sent anything
        self.unread = False  # the backend was full, and surely processed nothing of the request
        self.cut = False  # the client's connection must be aborted, not closed

    # -- the handler's side -----------------------------------------------------------------------------------------

    def pooled(self, upstream: Upstream) -> Connection | None:
        """An idle connection for the first attempt, which is then one."""
        connection = upstream.pooled()
        if connection is not None:
            self.attempts += 1
        return connection

    async def reach(self, upstream: Upstream) -> Connection | End:
        """A connection for the next attempt, or why there is none. Where one was stale it is a fresh one."""
        connection = None if self.attempts else self.pooled(upstream)
        if connection is not None:
            return connection
        self.attempts += 1
        try:
            return await upstream.connect()
        except TurnedAway as error:
            self.error, self.unread = str(error), True
            return End.TURNED_AWAY
        except OSError as error:
            self.error = f"no connection to the backend: {str(error) or type(error).__name__}"
            return End.NO_DESCRIPTORS if error.errno in _OUT_OF_DESCRIPTORS else End.CONNECT_FAILED

    async def run(self, upstream: Upstream, reached: Connection | End) -> End:
        """Send the request and relay the answer, with what ``reach`` gave; cancelling closes the connection."""
        try:
            while not isinstance(reached, End):
                ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
                self.begin(upstream, reached, partial(_tell, ended))
                end = await ended
                if end is not End.STALE:
                    return end
                reached = await self.reach(upstream)
            return reached
        finally:
            self.close()

    def begin(self, upstream: Upstream, connection: Connection, told: Callable[[End], None]) -> None:
        """The same without a wait: ``told`` hears how it ended; then call ``close``."""
        self._client.relay = self
        self._send(upstream, connection, told)

    def close(self) -> None:
        """Let go of both sides."""
        self._client.relay = None
        self._stop_heart()
        self._count_pause()
        self.client_lost()

    def _send(self, upstream: Upstream, connection: Connection, told: Callable[[End], None]) -> None:
        self._told = told
        self._connection = connection
        self._timeline.sent = self._last_byte = time.monotonic()
        early = self._shape.stream or self._shape.session
        limit = self._config.first_byte_timeout if early else self._config.answer_timeout
        self._watch(None if limit is None else limit + self._patience)
        wire = self._wire
        once, head_only = upstream.single_use, wire.terms.method == "HEAD"
        connection.send(wire.head(upstream), wire.body, self, head_only=head_only, once=once, upgrade=wire.upgrade)
        if self._client.writing_paused:
            self.pause()

    @property
    def usage(self) -> Usage | None:
        """Token counts as the backend reported them."""
        return None if self._reader is None else self._reader.usage

    @property
    def fault(self) -> Fault | None:
        """An error that the backend said inside a success."""
        return None if self._reader is None else self._reader.fault

    # -- the client's side ------------------------------------------------------------------------------------------

    def client_lost(self) -> None:
        """The client is gone, or all is done: drop the backend's connection unless it was given back already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def pause(self) -> None:
        """The client's transport is full."""
        if self._connection is not None:
            self._paused_at = self._paused_at or time.monotonic()
            self._connection.pause()

    def resume(self) -> None:
        """The client's transport has room again."""
        self._count_pause()
        if self._connection is not None:
            self._last_byte = time.monotonic()
            self._connection.resume()

    def _count_pause(self) -> None:
        if self._paused_at is not None:
            self._timeline.paused += time.monotonic() - self._paused_at
            self._paused_at = None

    # -- the backend's side -----------------------------------------------------------------------------------------

    def head(self, head: ResponseHead, now: float) -> None:
        """Take the backend's head; it leaves with the data of the same turn."""
        self._timeline.headers = now
        self._wire.let_go()
        self._held = head
        if head.status in BUSY:
            self.rest = _seconds(head.get(b"retry-after"))
        if self._wire.upgrade:
            self.keep_alive = False
            if head.status == HTTPStatus.SWITCHING_PROTOCOLS:
                self._open_tunnel()
                return
        self._framing = framing(head, self._wire.terms)
        content_type = head.get(b"content-type")
        # Some routes always stream, and some engines stream without saying so (vLLM's old demo server).
        self._streamed = "event-stream" in content_type or (self._shape.stream and "/json" not in content_type)
        if self._streamed:
            self._client.streams()
        if head.get(b"content-encoding") not in {"", "identity"}:
            self._reader = _Opaque()
        else:
            self._reader = self._dialect.response_reader(self._shape, head.status, content_type)
            if self._wire.asks_usage and self._streamed and self._framing is not Framing.LENGTH:
                self._filter = UsageFilter()
            self._comments = (
                self._config.heartbeat is not None
                and self._progress is not None
                and head.status == _OK
                and "event-stream" in content_type
                and self._framing in {Framing.CHUNKED, Framing.CLOSE}
            )

    def data(self, data: bytes, now: float, *, ended: bool) -> None:
        """Pass body bytes on. This is the path of every chunk."""
        if data:
            if not self.bytes_out and not ended:
                self._watch(self._config.idle_timeout)
            self._last_byte = now
            self.bytes_out += len(data)
            self._listen(data, now)
        elif ended and not self.bytes_out and self._empty():
            self._fail(End.EMPTY, "the backend called the request a success and sent nothing")
            return
        if self._filter is not None:
            data = self._filter.feed(data, ended=ended)
        out = chunk(data) if data and self._framing is Framing.CHUNKED else data
        if self._held is not None:
            out = self._take_head(self._held, now, ended=ended) + out
        if ended:
            self._listen(None, now)
            out += self._last_chunk(now)
        if out and (transport := self._client.transport) is not None:
            transport.write(out)
        if self._comments:
            self._beat_later(begun=bool(self.bytes_out) or ended)
        if ended:
            self._connection = None  # it went back to its pool, or is closed
            self._finish(End.COMPLETE)

    def lost(self, error: str) -> None:
        """The backend's connection is gone before the end."""
        connection = self._connection
        stale = connection is not None and connection.reused and not connection.answered
        if stale and connection is not None and (self._wire.terms.method in _IDEMPOTENT or connection.unreached()):
            self._finish(End.STALE)
        elif connection is not None and connection.turned_away():
            self.unread = connection.unreached()
            self._fail(End.TURNED_AWAY, error)
        else:
            self._fail(End.LOST, error)

    def _listen(self, data: bytes | None, now: float) -> None:
        """Let the reader hear; one that stumbles is let go, for the bytes matter more."""
        reader = self._reader
        if reader is None:
            return
        try:
            events = reader.finish() if data is None else reader.feed(data)
        except Exception:  # noqa: BLE001 - logged; the bytes go on without it
            _log.exception("the reader of %s stumbled over an answer", self._dialect.name)
            self._reader = None
            return
        if not self._streamed:
            return
        if events:
            self._timeline.output(events, now)
            if self._progress is not None:
                self._progress.output(events, now)
        if reader.asides is not None:
            self._timeline.aside(*reader.asides, now)

    def _empty(self) -> bool:
        head = self._held
        status = self.status if head is None else head.status
        return self._output_due and status == _OK and self._framing is not Framing.NONE

    # -- comments before the first event -----------------------------------------------------------------------------

    def _beat_later(self, *, begun: bool) -> None:
        """The backend's head is out and its first event is not: keep what stands between from giving up.

        Before that head nothing can be sent, for its status is not known. No reader hears of it, nor any count.
        """
        if begun:
            self._stop_heart()
        elif self._heart is None and self._config.heartbeat is not None:
            self._heart = asyncio.get_running_loop().call_later(self._config.heartbeat, self._beat)

    def _beat(self) -> None:
        self._heart = None
        transport = self._client.transport
        if transport is not None and not self._client.writing_paused:
            transport.write(chunk(_COMMENT) if self._framing is Framing.CHUNKED else _COMMENT)
        self._beat_later(begun=False)

    def _stop_heart(self) -> None:
        self._comments = False
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    # -- WebSockets: bytes in both directions ------------------------------------------------------------------------

    def _open_tunnel(self) -> None:
        self._tunnel = True
        self._framing = Framing.CLOSE
        if self._shape.model is None:
            self.session = SessionListener()
        if self._connection is not None:
            self._connection.throttle = self._throttle_client
        self._watch(self._config.idle_timeout)
        self._client.upgraded(self)

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes of the client, as aiohttp gives them to whoever took over its connection."""
        self._last_byte = time.monotonic()
        if self.session is not None and not self.session.done:
            self.session.feed(data)
        if self._connection is not None:
            self._connection.write(data)
        return False, b""

    def feed_eof(self) -> None:
        """The client is gone; its task is cancelled, and ends everything."""

    def _throttle_client(self, paused: bool) -> None:
        transport = self._client.transport
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if paused else transport.resume_reading)()

    # -- heads and ends ---------------------------------------------------------------------------------------------

    def _take_head(self, head: ResponseHead, now: float, *, ended: bool) -> bytes:
        self._held = None
        if self._framing is Framing.CLOSE:
            self.keep_alive = False
        self.status = head.status
        if self._tunnel:
            return switching_head(head, self._wire.request_id)
        return response_head(
            head,
            self._wire.terms,
            self._framing,
            keep_alive=self.keep_alive,
            request_id=self._wire.request_id,
            timing=self._timing(now, ended=ended),
            rates=self._wire.rates,
        )

    def _timing(self, now: float, *, ended: bool) -> bytes:
        """``Server-Timing`` with what is known when the head leaves, in milliseconds.

        A stream's head has the time in the queue, and the time to the first output where that came with it; the rest
        follows in trailers if the client takes them. Other answers come whole with their head as a rule, so there
        ``ttft`` and ``total`` are the time until the head.
        """
        timeline = self._timeline
        total, first = _milliseconds(now - timeline.received), timeline.first_output
        parts = []
        if timeline.admitted is not None and timeline.offered is not None:
            parts.append(b"queue;dur=" + _milliseconds(timeline.admitted - timeline.offered))
        if first is not None:
            parts.append(b"ttft;dur=" + _milliseconds(first - timeline.received))
        elif not self._streamed:
            parts.append(b"ttft;dur=" + total)
        if ended or not self._streamed:
            parts.append(b"total;dur=" + total)
        return b", ".join(parts)

    def _last_chunk(self, now: float) -> bytes:
        if self._framing is not Framing.CHUNKED:
            return b""
        if not self._wire.terms.trailers:
            return b"0\r\n\r\n"
        return b"0\r\nServer-Timing: " + self._timing(now, ended=True) + b"\r\n\r\n"

    def _fail(self, end: End, error: str) -> None:
        self.error = error
        self.client_lost()
        if self.status:
            self._break_off(end)
        self._finish(end)

    def _break_off(self, end: End) -> None:
        """End what was begun so that the client can tell it from a whole answer.

        No last chunk or too few bytes say so by themselves; where only the connection's end marks the body's, it must
        be a reset. A stream that stands between two events also gets one in which the reason is said.
        """
        self.keep_alive = False
        transport = self._client.transport
        if transport is None:
            return
        if self._streamed and self._reader is not None and self._reader.between_events:
            event = self._dialect.stream_failure(self._shape.route, *FAILURES[end])
            if event and self._framing is Framing.CHUNKED:
                transport.write(chunk(event))
        if self._framing is Framing.CLOSE:
            self.cut = transport.get_extra_info("ssl_object") is not None  # which says a proper end where it is closed
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _finish(self, end: End) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(end)

    # -- silence ----------------------------------------------------------------------------------------------------

    def _watch(self, limit: float | None) -> None:
        self._limit = limit
        if limit is not None and self._connection is not None:
            self._connection.watch(limit)

    def check(self) -> None:
        """Fail where the backend has been silent for too long."""
        limit = self._limit
        if limit is None:
            return
        left = limit - (time.monotonic() - self._last_byte)
        if self._client.writing_paused:  # nobody listens to the backend now, so it cannot be called silent
            left = limit
        if left <= _TIMER_SLACK and self._tunnel:
            self.error = f"nobody said anything for {limit:g} s"
            self._finish(End.IDLE)
        elif left > _TIMER_SLACK:
            if self._connection is not None:
                self._connection.watch(left)
        else:
            self._fail(End.SILENT, f"the backend sent nothing for {limit:g} s")


_TIMER_SLACK: Final = 0.002
_COMMENT: Final = b": heartbeat\n\n"

# (message, status, code) of each failure, as the client is told; addresses and causes go to the log alone.
FAILURES: Final = {
    End.CONNECT_FAILED: ("The backend cannot be reached.", HTTPStatus.BAD_GATEWAY, "bad_gateway"),
    End.NO_DESCRIPTORS: (
        "The gateway is out of file descriptors.",
        HTTPStatus.SERVICE_UNAVAILABLE,
        "out_of_descriptors",
    ),
    End.LOST: (
        "The backend closed the connection before its answer was complete.",
        HTTPStatus.BAD_GATEWAY,
        "bad_gateway",
    ),
    End.TURNED_AWAY: ("The backend is full.", HTTPStatus.TOO_MANY_REQUESTS, "slow_down"),
    End.EMPTY: ("The backend sent an empty answer.", HTTPStatus.BAD_GATEWAY, "bad_gateway"),
    End.IDLE: ("Nobody said anything for too long.", HTTPStatus.REQUEST_TIMEOUT, "idle"),
    End.SILENT: ("The backend sent nothing for too long.", HTTPStatus.GATEWAY_TIMEOUT, "gateway_timeout"),
}


def _sent(_upstream: Upstream) -> bytes:
    raise RuntimeError("the request was sent, and is not sent again")


def _tell(ended: asyncio.Future[End], end: End) -> None:
    if not ended.done():
        ended.set_result(end)


def _seconds(retry_after: str) -> float:
    """``Retry-After`` where it is in seconds (RFC 9110 10.2.3); 0 for a date, which engines do not send."""
    return float(retry_after) if retry_after.isdecimal() and len(retry_after) <= _DIGITS else 0.0


def _milliseconds(seconds: float) -> bytes:
    tenths = int(seconds * 1e4 + 0.5) if seconds > 0.0 else 0  # a format for floats takes five times as long
    return b"%d.%d" % (tenths // 10, tenths % 10)


class _Opaque:
    """Stands in for a reader where the body is encoded (gzip ...): every read counts as one output event."""

    usage: Usage | None = None
    fault: Fault | None = None
    asides = None
    complete = False
    between_events = False

    def feed(self, _data: bytes) -> int:
        return 1

    def finish(self) -> int:
        return 0
