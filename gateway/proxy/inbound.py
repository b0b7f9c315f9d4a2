"""A client's request: what its head says, its body within bounds, and the way to answer it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, Protocol, cast

from aiohttp import web
from aiohttp.http import HttpVersion
from aiohttp.streams import StreamReader
from multidict import CIMultiDictProxy, MultiMapping

from gateway.admission.quota import Account
from gateway.dialects.base import Dialect
from gateway.dialects.request import name_of
from gateway.model import Access, Outcome, Priority, Record, Route, Shape, Timeline
from gateway.proxy.bodies import BodyMemory, Lease
from gateway.proxy.config import ProxyConfig
from gateway.proxy.http import CORS, ClientTerms, Rates, come_back, listed, own_reply
from gateway.proxy.listener import CLOSE, KEEP_ALIVE, ClientConnection, Written
from gateway.proxy.relay import Relay

_SAMPLE: Final = 32 * 1024  # of a larger body, the fingerprint takes so much of either end
_ID_LIMIT: Final = 256  # what is told of a request is bounded; what is sent on is not
_PATH_LIMIT: Final = 1024
_ATTEMPT_DIGITS: Final = 4
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


@dataclass(slots=True, unsafe_hash=True)
class Retries:
    """What the client says of its own patience: ``attempt`` 0 is a first one; ``read_timeout`` in seconds."""

    attempt: int
    read_timeout: float | None


class Request(Protocol):
    """What is asked of a request as the listener has it: aiohttp's own, or one of which no more than this was made."""

    @property
    def method(self) -> str:
        """As the client wrote it."""

    @property
    def raw_path(self) -> str:
        """The target as the client wrote it."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """By name, whatever its case."""

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """In their order, as they came."""

    @property
    def version(self) -> HttpVersion:
        """Of HTTP."""

    @property
    def keep_alive(self) -> bool:
        """Whether the client lets its connection stay open."""

    @property
    def content(self) -> StreamReader:
        """The body."""

    @property
    def can_read_body(self) -> bool:
        """Whether there is more of the body to read."""

    @property
    def protocol(self) -> object:
        """The connection."""

    @property
    def remote(self) -> str | None:
        """The client's address."""

    @property
    def query(self) -> MultiMapping[str]:
        """Of the target."""


class Call:
    """One request of a client and everything that becomes known of it."""

    def __init__(self, request: Request, now: float, *, cors: bool = False) -> None:
        """``cors``: pages of other origins may read what the gateway itself answers."""
        self.request = request
        self._cors = cors and "Origin" in request.headers
        self.connection = cast("ClientConnection", request.protocol)
        self.dialect: Dialect
        self.account: Account | None = None  # of its API key, where keys are asked for
        self.reserved: int | None = None  # tokens of that account which are to be given back, or made what was used
        self.rates: Rates = ()  # how the account stands, and how full the gateway is, for the answer
        self.method = request.method
        self.target = _origin_form(request.raw_path)
        self.headers = request.raw_headers
        te = b"trailers" in listed(self.headers, b"te") if "TE" in request.headers else False
        self.terms = ClientTerms(
            method=self.method,
            http10=request.version.minor == 0,
            keep_alive=request.keep_alive,
            trailers=te and request.version.minor != 0,
        )
        self.id = request.headers.get("X-Request-Id") or f"{random.getrandbits(128):032x}"
        self.timeline = Timeline(received=now)
        self.record = Record(
            request_id=_clean(self.id)[:_ID_LIMIT],
            ticket=None,
            route=UNRESOLVED,
            method=self.method,
            path=_clean(self.target.partition("?")[0])[:_PATH_LIMIT],
            timeline=self.timeline,
            outcome=Outcome.INTERNAL_ERROR,
            status=0,
            traceparent=request.headers.get("traceparent"),
        )
        self.body_pending = request.can_read_body
        self.lease: Lease | None = None  # on the memory for bodies
        self.gist = b""  # what is read in place of the body: the same, but for a large one

    @property
    def raw_id(self) -> bytes:
        """The request's id as it was on the wire."""
        return self.id.encode("utf-8", "surrogateescape")

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.request.remote or ""

    def client(self, config: ProxyConfig) -> str:
        """Who it is for fairness: the key's holder; else the configured header, a hash of the key, the address."""
        if self.account is not None:
            return self.account.terms.name
        headers = self.request.headers
        if config.client_header is not None and (named := headers.get(config.client_header)):
            return _clean(named)
        key = headers.get("Authorization") or headers.get("X-Api-Key") or headers.get("Api-Key")
        if not key:
            return self.peer
        return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def priority(self, config: ProxyConfig) -> Priority:
        """What the trusted header says, which may lower the priority of an API key and never raise it.

        Standard where neither says anything that is known.
        """
        own = Priority.STANDARD if self.account is None else self.account.terms.priority
        if config.priority_header is None:
            return own
        said = Priority.__members__.get(self.request.headers.get(config.priority_header, "").strip().upper())
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
                return _clean(named)[:_ID_LIMIT]
        return ""

    @property
    def weight(self) -> float:
        """Its client's share of a lane."""
        return 1.0 if self.account is None else self.account.terms.weight

    def retries(self) -> Retries:
        """What the SDKs of OpenAI and Anthropic say with every call (``x-stainless-*``)."""
        headers = self.request.headers
        count = headers.get("X-Stainless-Retry-Count", "")
        timeout = headers.get("X-Stainless-Read-Timeout") or headers.get("X-Stainless-Timeout")
        return Retries(int(count) if count.isdecimal() and len(count) <= _ATTEMPT_DIGITS else 0, _seconds(timeout))

    def fingerprint(self, client: str, body: bytes) -> int:
        """Recognises the same call sent again; of a large body the ends and the length speak for the whole."""
        digest = hashlib.blake2b(
            f"{client}\n{self.target}\n{len(body)}\n".encode("utf-8", "surrogateescape"), digest_size=8
        )
        if len(body) <= 2 * _SAMPLE:
            digest.update(body)
        else:
            digest.update(body[:_SAMPLE])
            digest.update(body[-_SAMPLE:])
        return int.from_bytes(digest.digest(), "big")

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
        return name_of(self.request.query.get("model"))

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
        length = self.request.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else 0

    @property
    def holds_body_back(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return (
            self.body_pending
            and not self.terms.http10
            and not self.request.content.total_bytes
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
        content = self.request.content
        body = content.read_nowait()
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
        self.lease = lease = memory.lease()
        content = self.request.content
        if self.holds_body_back:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        first, more = b"", io.BytesIO()  # which grows in place, where joining 64 MiB at the end would take 25 ms
        size = 0
        while not content.at_eof():
            if content.is_eof() and content.exception() is None:  # all of it is here, as nearly always
                part = content.read_nowait()
            else:
                part = await self._next(_patience(config, size, begun))
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

    async def _next(self, patience: float) -> bytes:
        content = self.request.content
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


def _clean(text: str) -> str:
    """Fit for a log line or a label: bytes that were not UTF-8 are replaced."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _origin_form(target: str) -> str:
    """The target as it goes on: path and query. What an absolute form says of a host is nobody's choice."""
    if target.startswith("/") or target == "*":
        return target
    scheme, separator, rest = target.partition("://")
    if not separator or not scheme.isalpha():
        return "/" + target
    slash = rest.find("/")
    query = rest.find("?")
    if slash < 0 or 0 <= query < slash:
        return "/" + (rest[query:] if query >= 0 else "")
    return rest[slash:]


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value) if value else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
