"""Connections to one backend: opened, written to, listened to, kept for reuse.

A connection carries one exchange at a time and pushes what arrives straight into its receiver, inside
``data_received``: no coroutine is woken per chunk. That is what keeps a thousand streams on one core (waking one per
chunk saturates at 13 to 19 thousand chunks a second; pushing takes 0.8 of a core at 20 thousand).
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from gateway.model import Backend
from gateway.proxy.config import ProxyConfig, TlsConfig
from gateway.proxy.http import BODYLESS, ResponseHead
from gateway.proxy.known import Known
from gateway.proxy.tls import TurnedAway, client_context

_COALESCE: Final = 64 * 1024  # head and body up to this size leave in one write
_DOOR: Final = 2.0  # seconds in which a full engine closes a connection that it will not serve
_SHUT: Final = 5  # connections closed like that in a row, with nothing else in flight, before it counts as gone
_GRAIN: Final = 0.25  # seconds by which a bell may ring late, so that thousands are not looked at for each one
_EARLY: Final = 0.002  # timers may fire so much too early
_PROOF: Final = 1.0  # seconds that an idle connection stays open before its backend is known to keep such ones
_FIRST_FINAL_STATUS: Final = 200
_HEAD_LIMIT: Final = 256 * 1024  # bytes of an answer's head
_KNOWN: Final = 64  # heads of one backend's answers, and as many that are older; some hold the second they were sent at
_SWITCHING: Final = 101
_HEAD, _BODY, _DONE = "head", "body", "done"  # phases of an answer


class Receiver(Protocol):
    """Who takes the answer. Calls come in the order head, data (one or more), or lost at any time."""

    def head(self, head: ResponseHead, now: float) -> None:
        """The head is complete; ``data`` follows in the same turn of the loop, perhaps empty."""

    def data(self, data: bytes, now: float, *, ended: bool) -> None:
        """Body bytes without framing; ``ended``: the answer is complete with them."""

    def lost(self, error: str) -> None:
        """The connection ended or broke before the answer was complete."""

    def check(self) -> None:
        """Time has passed, as ``Connection.watch`` was asked to tell; perhaps less of it."""


class Connection(asyncio.Protocol):
    """One connection. ``answered``: at least one byte came back for the exchange at hand.

    ``chunked``: so was the last answer's body.
    """

    __slots__ = (
        "_acked",
        "_chunks",
        "_ended",
        "_head",
        "_head_only",
        "_head_size",
        "_headers",
        "_keep",
        "_once",
        "_parser",
        "_paused",
        "_phase",
        "_poll",
        "_pool",
        "_reason",
        "_receiver",
        "_told",
        "_until_close",
        "_upgrade",
        "_upgraded",
        "answered",
        "chunked",
        "idle_since",
        "opened_at",
        "reused",
        "rings_at",
        "throttle",
        "transport",
    )

    def __init__(self, pool: Upstream) -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self.reused = self.chunked = self.answered = False
        self.idle_since = self.opened_at = 0.0
        self._paused = False
        self._acked: int | None = None  # bytes of ours before the request at hand, as the system counts them
        self._head: ResponseHead | None = None  # that is still to be told of
        self._told: int | None = None  # the same of all that was written; None where that cannot be told
        self._poll: select.poll | None = None
        self.rings_at = math.inf  # when the receiver is to look
        self._ended = False  # the backend sent its FIN
        self._phase = _HEAD
        self._keep = self._upgrade = self._upgraded = False
        self.throttle: Callable[[bool], None] | None = None  # told when it takes no more for now, and when it does
        self._detach()

    def _detach(self) -> None:
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = None

    # -- what the pool and the relay ask --------------------------------------------------------------------------

    def send(
        self,
        head: bytes,
        body: bytes,
        receiver: Receiver,
        *,
        head_only: bool = False,
        once: bool = False,
        upgrade: bool = False,
    ) -> None:
        """Write a request; its answer goes to ``receiver``.

        ``head_only``: the answer to HEAD has no body. ``once``: the connection is not kept for another request.
        ``upgrade``: another protocol is asked for; after a 101 all bytes go to ``receiver`` as they come, to the end
        of the connection, and ``write`` sends.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            receiver.lost("the connection was closed before the request was sent")
            return
        self._receiver = receiver
        self._expect_head()
        self._head_only = head_only
        self._once = once
        self._upgrade = upgrade
        self._until_close = self._keep = self.answered = False
        self._parser = None
        self._acked = self._told
        if self._told is not None:
            self._told += len(head) + len(body)
        if len(body) <= _COALESCE:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def write(self, data: bytes) -> None:
        """Send bytes after the upgrade."""
        if self.transport is not None:
            self.transport.write(data)

    @property
    def busy(self) -> bool:
        """An answer is awaited or under way."""
        return self._receiver is not None

    def turned_away(self) -> bool:
        """Whether its end means that the backend is full. To be asked once, when it has ended.

        It does where it came at the door: at once, without a byte, on a connection that was not used before, from a
        kind of engine that says so that it is full. A process that dies ends old connections as well; and where
        nobody is let in any more although nothing of ours is inside, the engine behind the door is gone.
        """
        pool = self._pool
        at_door = not self.reused and not self.answered and time.monotonic() - self.opened_at < _DOOR
        return pool.closes_when_full and at_door and pool.door_shut()

    def unreached(self) -> bool:
        """Whether the peer surely got nothing of the request just written on a reused connection.

        True where the backend ended the connection (FIN) without having acknowledged a byte of it: the request met a
        socket that was closed already, so it may be sent again. A reset alone proves nothing: Linux drops the
        acknowledgement that it carries, so a backend that dies right after it read the request looks the same. Where
        the system cannot say, the answer is False.
        """
        if not self._ended or self._acked is None or self.answered or self.transport is None:
            return False
        acked = bytes_acked(self.transport)
        return acked is not None and acked <= self._acked

    def readable(self) -> bool:
        """Whether an idle connection has something to say, which can only be its end."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self._poll is None:
            if not hasattr(select, "poll"):
                return False
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def watch(self, seconds: float) -> None:
        """Have the receiver ``check`` in so many seconds, or sooner: a bell that rings before is left as it is.

        It goes on from one request to the next, so that most set none.
        """
        due = time.monotonic() + seconds
        if due < self.rings_at:
            self.rings_at = due
            self._pool.ring_by(due)

    def ring(self) -> None:
        """Time has passed."""
        self.rings_at = math.inf
        if self._receiver is not None:
            self._receiver.check()

    def pause(self) -> None:
        """Take no more from the backend until ``resume``."""
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Take from the backend again."""
        if self._paused:
            self._paused = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once, and tell nobody."""
        self._detach()
        self.rings_at = math.inf
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self.transport = cast("asyncio.Transport", transport)
        self.opened_at = time.monotonic()
        # Under TLS the system counts other bytes than ours.
        self._told = None if transport.get_extra_info("sslcontext") else bytes_acked(self.transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Parse, then hand on what came in one go."""
        if self._upgraded and self._receiver is not None:
            self._receiver.data(data, time.monotonic(), ended=False)
            return
        if self._receiver is None:  # nothing was asked
            self.abort()
            return
        if not self.answered:
            self.answered = True
            self._pool.doors_shut = 0
        whole = self._phase is _HEAD and not self._head_size and not self._upgrade and not self._head_only
        if whole and self._take_known(data):
            return
        self._parse(data)
        if whole and self._phase is _DONE and self._keep and self._head is not None:
            self._pool.answers.learn(data, self._head)
        self._deliver()

    def _parse(self, data: bytes) -> None:
        if self._phase is _HEAD:
            self._head_size += len(data)
        parser = self._parser or self._make_parser()
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._phase is not _DONE:
                self._broken(f"the backend's answer is not HTTP: {error}")
            self._keep = False
        except httptools.HttpParserUpgrade as switch:
            self._switch(data[switch.args[0] :])
        if self._phase is _HEAD and self._head_size > _HEAD_LIMIT:
            self._broken(f"the backend's answer has a head of more than {_HEAD_LIMIT} bytes")

    def _make_parser(self) -> httptools.HttpResponseParser:
        """One for each answer: no state of the last one, and the answer to HEAD needs no mending."""
        self._parser = parser = httptools.HttpResponseParser(self)
        # A backend that gives both framings means chunks (RFC 9112 6.3); what leaves here has one.
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    def _take_known(self, data: bytes) -> bool:
        """Take an answer that is here whole and has a head that was parsed before, but for its length."""
        head = self._pool.answers.take(data)
        if head is None or head.length is None:
            return False
        self._phase, self._keep, self._until_close, self.chunked = _DONE, True, False, False
        self._head = head
        if head.length:
            self._chunks.append(data[-head.length :])
        self._deliver()
        return True

    def _switch(self, rest: bytes) -> None:
        """It answered 101: what follows is no longer HTTP, and ends with the connection."""
        if not self._upgrade:
            self._broken("the backend switched to a protocol that nobody asked for")
            return
        self._phase, self._until_close, self._upgraded = _BODY, True, True
        self._parser = None
        if rest:
            self._chunks.append(rest)

    def pause_writing(self) -> None:
        """The backend takes bytes slower than they come."""
        if self.throttle is not None:
            self.throttle(True)

    def resume_writing(self) -> None:
        """The backend caught up."""
        if self.throttle is not None:
            self.throttle(False)

    def eof_received(self) -> None:
        """The backend ended its side: the end of a body without framing, else a loss. Nothing is half-closed."""
        receiver = self._receiver
        self._ended = True
        if receiver is not None and self._until_close and self._phase is _BODY:
            self.abort()
            receiver.data(b"", time.monotonic(), ended=True)
        else:
            self._broken("the backend closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._pool.closed(self)
        self._ended = self._ended or isinstance(exc, BrokenPipeError)  # what a reset after a FIN is called
        self._broken(f"the connection to the backend broke: {exc}")
        self.transport = None

    def _broken(self, error: str) -> None:
        receiver = self._receiver
        if receiver is not None:
            self._receiver = None  # `unreached` is asked while the socket is still there
            receiver.lost(error)
        self.abort()

    # -- httptools --------------------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        self._phase = _HEAD
        self._head_size = 0
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = None
        self._chunks: list[bytes] = []

    def on_message_begin(self) -> None:
        """Something follows the whole answer: nobody asked for it."""
        if self._phase is _DONE:
            self._keep = False

    def on_status(self, reason: bytes) -> None:
        """The reason phrase, perhaps in parts."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer: those are dropped."""
        if self._phase is _HEAD:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = cast("httptools.HttpResponseParser", self._parser).get_status_code()
        if status < _FIRST_FINAL_STATUS and status != _SWITCHING:
            return  # an interim answer; its end is met in on_message_complete
        if self._phase is not _HEAD:
            return
        head = ResponseHead(status, self._reason, self._headers)
        _read_framing(head)
        self._head = head
        self.chunked = head.chunked
        self._phase = _DONE if self._head_only else _BODY
        self._until_close = not head.chunked and head.length is None

    def on_body(self, data: bytes) -> None:
        """Body bytes without framing."""
        if self._phase is _BODY:
            self._chunks.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole, or it was an interim one."""
        if self._phase is _HEAD:
            self._expect_head()
        elif self._phase is _BODY:
            self._phase = _DONE
            self._keep = cast("httptools.HttpResponseParser", self._parser).should_keep_alive()

    def _deliver(self) -> None:
        receiver = self._receiver
        head, chunks = self._head, self._chunks
        ended = self._phase is _DONE
        if receiver is None or not (chunks or ended or head):
            return
        now = time.monotonic()
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
        else:
            data = b""
        if head is not None:
            self._head = None
            receiver.head(head, now)
        if ended:
            self._finish()
        receiver.data(data, now, ended=ended)

    def _finish(self) -> None:
        transport = self.transport
        if (
            not self._keep
            or self._once
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            self.abort()
            return
        self._detach()
        self.resume()
        self._pool.release(self)


def _read_framing(head: ResponseHead) -> None:
    for name, value in head.headers:
        lower = name.lower()
        if lower == b"transfer-encoding":
            head.chunked = b"chunked" in value.lower()
        elif lower == b"content-length":
            head.length = int(value)
    if head.chunked:
        head.length = None


class Answers(Known[ResponseHead]):
    """The heads of one backend's answers."""

    def take(self, data: bytes) -> ResponseHead | None:
        """The head of an answer that ``data`` is whole; None where such a head was not parsed before."""
        found = self.find(data)
        if found is None or found.size != len(data):
            return None
        return found.head.with_length(found.size - found.body_at)

    def learn(self, data: bytes, head: ResponseHead) -> None:
        """Know ``head`` again, which the parser found in ``data``, an answer that is here whole and kept alive."""
        if head.length is None or head.status < _FIRST_FINAL_STATUS or head.status in BODYLESS:
            return
        self.remember(data, [name for name, _ in head.headers], head.length, head)


def bytes_acked(transport: asyncio.Transport) -> int | None:
    """Bytes of ours that the peer acknowledged: ``tcpi_bytes_acked``, at offset 120 of Linux's struct tcp_info."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    except OSError:
        return None
    return int(struct.unpack_from("=Q", info, 120)[0]) if len(info) == 128 else None  # noqa: PLR2004 - as asked for


async def reconfigure(upstreams: Sequence[Upstream], config: ProxyConfig) -> None:
    """Let all go on with other settings, and with what the files of certificates hold now; what runs is not touched.

    Raises:
        OSError: a file cannot be read, or does not hold what it should; nothing is changed then.
    """
    # In a thread: the system's authorities alone are some hundred certificates.
    fresh = await asyncio.to_thread(lambda: [upstream.fresh_tls(config.tls) for upstream in upstreams])
    for upstream, context in zip(upstreams, fresh, strict=True):
        upstream.reconfigure(config, context)


class Upstream:
    """The connections of one backend, or of another plane of it: those to ``url``."""

    def __init__(self, backend: Backend, config: ProxyConfig, *, address: str | None = None) -> None:
        self.backend = backend
        self._config = config
        self.closes_when_full = False  # these two are its kind's; see EngineDialect
        self.single_use = False
        self.doors_shut = 0  # connections closed at the door since it last said anything
        url = urlsplit(address or backend.url)
        self._address = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        self._secure = url.scheme == "https"
        self.tls = self.fresh_tls(config.tls)
        self.host = url.netloc.rpartition("@")[2].encode()
        self.prefix = url.path.rstrip("/").encode()
        self.api_key = None if backend.api_key is None else backend.api_key.encode()
        self.connections: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # in the order of their last use
        self._keeps: dict[bool, bool] = {}  # whether it keeps a connection after an answer (in chunks?), where known
        self.answers = Answers(_KNOWN)
        self._proof = min(_PROOF, config.upstream_keepalive / 2)
        self._sweeper: asyncio.TimerHandle | None = None
        self._bell: asyncio.TimerHandle | None = None  # one for all connections: a timer for each would be half a KiB
        self._bell_at = math.inf  # when it rings

    def fresh_tls(self, config: TlsConfig) -> ssl.SSLContext | None:
        """A context of what the files of certificates hold now.

        Raises:
            OSError: a file cannot be read, or does not hold what it should.
        """
        return client_context(config, self.backend.tls) if self._secure else None

    def reconfigure(self, config: ProxyConfig, tls: ssl.SSLContext | None) -> None:
        """Go on with other settings, and connections to come with another context."""
        self._config = config
        self.tls = tls

    def identify(self, backend: Backend) -> None:
        """Go on with what is configured of the same engine now."""
        self.backend = backend
        self.api_key = None if backend.api_key is None else backend.api_key.encode()

    def pooled(self) -> Connection | None:
        """The idle connection used last that is still good, or None.

        An engine may promise to keep a connection and close it right after the answer all the same: llama.cpp does so
        after every stream. A request sent on it in that very moment is lost, and is not safe to send again. So a
        connection is reused only where such ones are known to stay open.
        """
        now = time.monotonic()
        while (connection := self._proven(now)) is not None:
            del self._idle[connection]
            if now - connection.idle_since < self._config.upstream_keepalive and not connection.readable():
                self._keeps[connection.chunked] = connection.reused = True
                return connection
            connection.abort()
        return None

    def _proven(self, now: float) -> Connection | None:
        """The idle connection used last of those that are known to stay open."""
        for connection in reversed(self._idle):
            if now - connection.idle_since >= self._proof or self._keeps.get(connection.chunked):
                return connection
        return None

    async def connect(self) -> Connection:
        """Open a fresh connection.

        Raises:
            TurnedAway: the backend is full.
            OSError: no connection within the timeout (TimeoutError included).
        """
        loop = asyncio.get_running_loop()
        connection = Connection(self)
        host, port = self._address
        try:
            async with asyncio.timeout(self._config.connect_timeout):
                await loop.create_connection(lambda: connection, host, port, ssl=self.tls)
        except BaseException as error:
            connection.abort()
            self.closed(connection)  # uvloop does not say so where the wait is cancelled in the turn it succeeds
            if self.tls and self.closes_when_full and isinstance(error, _CLOSED_AT_DOOR) and self.door_shut():
                raise TurnedAway("closed before TLS was up") from error
            raise
        return connection

    def door_shut(self) -> bool:
        """A connection was closed at the door: count it, and whether somebody is behind that door."""
        self.doors_shut += 1
        return self.doors_shut <= _SHUT or self.in_flight > 0

    @property
    def in_flight(self) -> int:
        """Connections on which an answer is awaited or under way."""
        return sum(connection.busy for connection in self.connections)

    def opened(self, connection: Connection) -> None:
        """Count a connection in."""
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """Count a connection out; an idle one is forgotten at once."""
        self.connections.discard(connection)
        if connection in self._idle:
            del self._idle[connection]
            if time.monotonic() - connection.idle_since < self._proof:  # too soon to be an idle timeout
                self._keeps[connection.chunked] = False

    def release(self, connection: Connection) -> None:
        """Keep a connection whose answer was complete."""
        if self._config.upstream_keepalive <= 0 or len(self._idle) >= self._config.max_idle:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweep_in(self._config.upstream_keepalive)

    def ring_by(self, due: float) -> None:
        """See to it that a connection rings then."""
        if due < self._bell_at:
            if self._bell is not None:
                self._bell.cancel()
            self._bell_at = due
            self._bell = asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._bell, self._bell_at = None, math.inf
        now, after = time.monotonic(), math.inf
        for connection in tuple(self.connections):
            if connection.rings_at <= now + _EARLY:
                connection.ring()
            after = min(after, connection.rings_at)
        if after < math.inf:
            self.ring_by(max(after, now + _GRAIN))

    def _sweep_in(self, delay: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        """Close what is idle for too long: an engine may spend a thread on every open connection (MindIE does)."""
        self._sweeper = None
        oldest = time.monotonic() - self._config.upstream_keepalive
        for connection in tuple(self._idle):
            if connection.idle_since > oldest:
                self._sweep_in(connection.idle_since - oldest + 0.01)
                return
            del self._idle[connection]
            connection.abort()

    def close(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._bell is not None:
            self._bell.cancel()
            self._bell, self._bell_at = None, math.inf
        for connection in tuple(self.connections):
            connection.abort()


_CLOSED_AT_DOOR: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)
