"""A client's request: what its head says, its body within bounds, and the way to answer it."""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Final, NamedTuple
from zlib import adler32, crc32

from aiohttp import web
from aiohttp.http import HttpVersion, HttpVersion11
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy, MultiMapping

from gateway.admission.quota import Account
from gateway.dialects.base import Dialect
from gateway.dialects.request import name_of
from gateway.model import Access, Outcome, Priority, Record, Route, Shape, Timeline
from gateway.proxy.bodies import BodyMemory, Lease
from gateway.proxy.client import CLOSE, KEEP_ALIVE, ClientConnection, Written
from gateway.proxy.config import ProxyConfig
from gateway.proxy.heads import Head, clean
from gateway.proxy.http import CORS, Rates, come_back, listed, own_reply
from gateway.proxy.relay import Relay

_SAMPLE: Final = 32 * 1024  # of a larger body, the fingerprint takes so much of either end
_ID_LIMIT: Final = 256  # what is told of a request is bounded; what is sent on is not
_MOMENT: Final = 1.0  # seconds in which one that drips gets to read that it is refused


class Refused(Exception):  # noqa: N818 - not an error: one of the answers
    """The gateway answers this request itself. ``code`` is the error's machine-readable word."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        outcome: Outcome = Outcome.CLIENT_ERROR,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.outcome = outcome
        self.headers = headers


class Call:
    """One request of a client and everything that becomes known of it."""

    def __init__(
        self,
        head: Head,
        connection: ClientConnection,
        now: float,
        *,
        request_id: str = "",
        content: StreamReader | None = None,
        body: bytes | None = None,
        pending: bool = True,
        cors: bool = False,
    ) -> None:
        """``body`` is all of it, where it is here; else it is read from ``content``, if any of it is ``pending``.

        ``cors``: pages of other origins may read what the gateway itself answers.
        """
        self.request = head
        self.connection = connection
        self.dialect: Dialect
        self.account: Account | None = None  # of its API key, where keys are asked for
        self.reserved: int | None = None  # tokens of that account which are to be given back, or made what was used
        self.rates: Rates = ()  # how the account stands, and how full the gateway is, for the answer
        self.method = head.method
        self.target = head.target
        self.headers = head.raw_headers
        self.terms = head.terms
        self.id = request_id or random.getrandbits(128).to_bytes(16).hex()  # told apart, not kept secret
        self._cors = cors and head.foreign
        self._content = content
        self._body = body
        self.timeline = Timeline(received=now)
        self.record = Record(
            request_id=clean(self.id)[:_ID_LIMIT],
            ticket=None,
            route=UNRESOLVED,
            method=head.method,
            path=head.path,
            timeline=self.timeline,
            outcome=Outcome.INTERNAL_ERROR,
            status=0,
            traceparent=head.traceparent,
        )
        self.body_pending = pending
        self.lease: Lease | None = None  # on the memory for bodies
        self.gist = b""  # what is read in place of the body: the same, but for a large one

    def let_go(self) -> None:
        """Nobody asks for the request any more."""
        self.request, self.headers, self._content = _GONE, (), None

    @property
    def raw_id(self) -> bytes:
        """The request's id as it was on the wire."""
        return self.id.encode("utf-8", "surrogateescape")

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.connection.peer

    def client(self, config: ProxyConfig) -> str:
        """Who it is for fairness: the key's holder; else the configured header, a hash of the key, the address."""
        if self.account is not None:
            return self.account.terms.name
        return self.request.named(config) or self.peer

    def priority(self, config: ProxyConfig) -> Priority:
        """What the trusted header says, which may lower the priority of an API key and never raise it.

        Standard where neither says anything that is known.
        """
        own = Priority.STANDARD if self.account is None else self.account.terms.priority
        said = self.request.priority(config)
        if said is None:
            return own
        return said if self.account is None else max(own, said)

    def session(self, config: ProxyConfig, shape: Shape, client: str) -> str:
        """What it belongs together with, by the first of the configured names that it has; empty where it has none."""
        for source in config.session_by:
            if source == "conversation":
                named = shape.conversation
            elif source == "user":
                named = shape.user
            elif source == "key":
                named = client
            else:
                named = self.request.headers.get(source.removeprefix("header:"))
            if named:
                return clean(named)[:_ID_LIMIT]
        return ""

    @property
    def weight(self) -> float:
        """Its client's share of a lane."""
        return 1.0 if self.account is None else self.account.terms.weight

    def fingerprint(self, client: str, body: bytes) -> int:
        """Recognises the same call sent again; of a large body the ends and the length speak for the whole."""
        said = f"{client}\n{self.target}\n{len(body)}\n".encode("utf-8", "surrogateescape")
        if len(body) > 2 * _SAMPLE:
            body = body[:_SAMPLE] + body[-_SAMPLE:]
        # Nobody gains by another call's sums, which he would have to know; a hash would take up to ten times as long.
        return crc32(body, crc32(said)) << 32 | adler32(body)

    def upgrades_to_websocket(self) -> bool:
        """Whether a WebSocket is asked for, as RFC 6455 4.1 has it; RFC 9110 7.8 allows to ignore all else (h2c)."""
        return (
            self.request.headers.get("Upgrade", "").lower() == "websocket"
            and b"upgrade" in listed(self.headers, b"connection")
            and self.method == "GET"
            and not self.terms.http10
            and not self.body_pending
        )

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks if a page may ask (Fetch standard, CORS preflight): no key, no body, no work."""
        headers = self.request.headers
        asks = "Origin" in headers and "Access-Control-Request-Method" in headers
        return self.method == "OPTIONS" and asks and not self.body_pending

    @property
    def queried_model(self) -> str | None:
        """``model`` in the query: how OpenAI's realtime clients name it."""
        query = self.request.query
        return None if query is None else name_of(query.get("model"))

    def note(self, relay: Relay, backend: str, outcome: Outcome) -> None:
        """Take over what a relay found."""
        record = self.record
        record.backend, record.outcome = backend, outcome
        record.status, record.usage, record.error = relay.status, relay.usage, relay.error
        record.bytes_out = relay.bytes_out
        record.attempts += relay.attempts
        if record.ticket is not None and relay.session is not None and relay.session.model is not None:
            record.ticket = replace(record.ticket, shape=replace(record.ticket.shape, model=relay.session.model))

    # -- the body ---------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Content-Length; 0 where it is not told."""
        if self._body is not None:
            return len(self._body)
        length = self.request.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else 0

    @property
    def holds_body_back(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return (
            self.body_pending
            and not self.terms.http10
            and self._content is not None
            and not self._content.total_bytes
            and self.request.headers.get("Expect", "").lower() == "100-continue"
        )

    def take_body(self, config: ProxyConfig, memory: BodyMemory) -> bytes:
        """The whole body, which is here.

        Raises:
            Refused: it is too large, or there is no room for it.
        """
        if not self.body_pending:
            return b""
        self.lease = lease = memory.lease()
        body, self._body = self._body, None
        if body is None:
            body = b"" if self._content is None else self._content.read_nowait()
        if len(body) > config.max_body:
            raise too_large(config.max_body)
        if not lease.grow(len(body)):
            raise no_room()
        self.body_pending = False
        self.record.bytes_in = len(body)
        return body

    async def read_body(self, config: ProxyConfig, memory: BodyMemory) -> bytes:
        """The whole body.

        Raises:
            Refused: it is too large, there is no room for it, or it stopped coming or drips.
        """
        if not self.body_pending:
            return b""
        limit, begun = config.max_body, time.monotonic()
        content = self._content
        if content is None or self._body is not None:
            return self.take_body(config, memory)
        self.lease = lease = memory.lease()
        if self.holds_body_back:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        first, more = b"", io.BytesIO()  # which grows in place, where joining 64 MiB at the end would take 25 ms
        size = 0
        while not content.at_eof():
            if content.is_eof() and content.exception() is None:  # all of it is here, as nearly always
                part = content.read_nowait()
            else:
                part = await self._next(content, _patience(config, size, begun))
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if not lease.grow(size):
                raise no_room()
            if size == len(part):
                first = part
            else:
                if not more.tell():
                    more.write(first)
                more.write(part)
        self.body_pending = False
        self.record.bytes_in = size
        return more.getvalue() or first

    async def _next(self, content: StreamReader, patience: float) -> bytes:
        try:
            async with asyncio.timeout(patience):
                return await content.readany()
        except TimeoutError:
            self.connection.expect_no_body(_MOMENT)
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", "The request's body stopped coming.") from None
        except web.RequestPayloadError:
            self.connection.expect_no_body()
            raise Refused(HTTPStatus.BAD_REQUEST, "bad_request", "The request's body is not valid HTTP.") from None

    # -- the answer -------------------------------------------------------------------------------------------------

    def reply(
        self, status: int, headers: Iterable[tuple[str, str]], content: tuple[str, bytes], *, keep_alive: bool
    ) -> Written:
        """Write a whole answer of the gateway's own. A connection whose body is unread does not stay open."""
        keep_alive = keep_alive and self.terms.keep_alive and not self.body_pending
        if self.holds_body_back:
            self.connection.expect_no_body()
        elif self.body_pending:
            self.connection.linger()
        content_type, body = content
        lines = [*headers, ("X-Request-Id", self.id), *(CORS if self._cors else ())]
        self._write(own_reply(status, lines, content_type, body, self.terms, keep_alive=keep_alive))
        self.record.status = status
        self.record.bytes_out = len(body)
        return KEEP_ALIVE if keep_alive else CLOSE

    def _write(self, data: bytes) -> None:
        if self.connection.transport is not None:
            self.connection.transport.write(data)


def _patience(config: ProxyConfig, size: int, begun: float) -> float:
    """Seconds to wait for more of a body of which ``size`` bytes have come since ``begun``: fewer, the slower it is."""
    if not config.client_min_rate:
        return config.client_timeout
    left = config.client_timeout + size / config.client_min_rate - (time.monotonic() - begun)
    return min(config.client_timeout, left)


_NO_NAMES: Final[CIMultiDictProxy[str]] = CIMultiDictProxy(CIMultiDict())


class _Nothing(NamedTuple):
    """What a head is read from that says nothing."""

    method: str = "GET"
    raw_path: str = "/"
    headers: CIMultiDictProxy[str] = _NO_NAMES
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    version: HttpVersion = HttpVersion11
    keep_alive: bool = False
    query: MultiMapping[str] = _NO_NAMES


_GONE: Final = Head(_Nothing())
"""In the place of one that nobody asks for any more: compiled, it can neither be None nor lack its attributes."""

UNRESOLVED: Final = Route("unresolved", Access.DENY)


def too_large(limit: int) -> Refused:
    """The refusal of a body above ``limit`` bytes."""
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "request_too_large",
        f"The request's body is larger than {limit} bytes. GATEWAY_MAX_BODY_SIZE sets this bound.",
    )


def no_room() -> Refused:
    """The refusal of a body that the memory for bodies has no room for."""
    wait = random.uniform(1.0, 3.0)  # noqa: S311 - spreads who comes back
    return Refused(
        HTTPStatus.TOO_MANY_REQUESTS,
        "slow_down",
        "Too many large requests are under way. GATEWAY_BODY_MEMORY sets this bound.",
        Outcome.REFUSED,
        come_back(wait, HTTPStatus.TOO_MANY_REQUESTS),
    )
