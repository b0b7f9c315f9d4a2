"""Heads and headers as bytes: what is taken out, what is put in, and how a body is framed.

Everything else of a head passes as it came: order, case, duplicates, reason phrase. Rules are RFC 9110 section 7.6.1
(hop-by-hop) and RFC 9112 section 6 (framing). A backend's trailers are dropped, as RFC 9110 section 6.5.1 allows: no
engine is known to send any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from http import HTTPStatus
from typing import Final

from gateway.admission.quota import Standing
from gateway.model import Reason, Rejection

Headers = Sequence[tuple[bytes, bytes]]
Rates = Sequence[tuple[str, str]]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Headers by which routers of known inference stacks are told an address to call (llm-d's prefill and encode sidecar,
# Envoy's original-destination cluster and the endpoint picker). A client must never choose where a request goes.
_ROUTING: Final = frozenset(
    {
        b"x-prefiller-url",
        b"x-prefiller-host-port",
        b"x-prefiller-hosts-ports",
        b"x-encoder-hosts-ports",
        b"x-data-parallel-host-port",
        b"x-envoy-original-dst-host",
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-subset",
    }
)

_REPLACED_IN_REQUEST: Final = (
    _HOP_BY_HOP | _ROUTING | {b"host", b"content-length", b"expect", b"x-request-id", b"x-forwarded-for"}
)
# What a proxy says of whom it speaks for. Of a client that is no proxy of ours it would be believed further on.
_IDENTITY: Final = frozenset(
    {
        b"forwarded",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-forwarded-server",
        b"x-forwarded-client-cert",
        b"x-forwarded-user",
        b"x-original-forwarded-for",
        b"x-real-ip",
        b"x-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"x-envoy-external-address",
    }
)
_REPLACED_OF_STRANGERS: Final = _REPLACED_IN_REQUEST | _IDENTITY
_LENGTH: Final = frozenset({b"content-length"})
_NO_CONTENT: Final = 204
BODYLESS: Final = frozenset({_NO_CONTENT, 304})
_UPGRADE: Final = b"Connection: Upgrade\r\nUpgrade: websocket"
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_REPLACED_IN_RESPONSE: Final = _HOP_BY_HOP | {b"x-request-id"}


@unique
class Framing(Enum):
    """How the end of a response body is told to the client."""

    NONE = "none"  # no body: HEAD, 204, 304
    LENGTH = "length"  # Content-Length, as the backend gave it
    CHUNKED = "chunked"
    CLOSE = "close"  # by the end of the connection: clients of HTTP/1.0


class HeadMemo:
    """What was worked out of a head, and holds for all that differ from it in the length of the body alone."""

    __slots__ = ("around", "first")

    def __init__(self) -> None:
        self.first: dict[bytes, bytes] | None = None  # values by name in lower case
        self.around: tuple[bytes, bytes] | None = None  # what the client gets of it, before and after that length


@dataclass(slots=True)
class ResponseHead:
    """A backend's status line and headers. ``length`` is None where the backend gave none, or framed by chunks."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    chunked: bool = False
    length: int | None = None
    memo: HeadMemo = field(default_factory=HeadMemo, compare=False, repr=False)

    def get(self, name: bytes) -> str:
        """Value of the first header ``name`` (lower case, any but the length's), or an empty string."""
        first = self.memo.first
        if first is None:
            first = self.memo.first = {key.lower(): value for key, value in reversed(self.headers)}
        value = first.get(name)
        return "" if value is None else value.decode("latin-1")

    def with_length(self, length: int) -> ResponseHead:
        """The same head of a body of another length."""
        return ResponseHead(self.status, self.reason, self.headers, False, length, self.memo)


@dataclass(slots=True, unsafe_hash=True)
class ClientTerms:
    """What the client's request settles about the answer it can take."""

    method: str
    http10: bool = False
    keep_alive: bool = True
    trailers: bool = False  # it said ``TE: trailers``


def listed(headers: Headers, name: bytes) -> set[bytes]:
    """Lower-case members of every comma-separated header ``name`` (lower case)."""
    return {
        item.strip().lower()
        for key, value in headers
        if key.lower() == name
        for item in value.split(b",")
        if item.strip()
    }


def _without(dropped: frozenset[bytes], headers: Headers) -> frozenset[bytes]:
    """``dropped`` and what ``Connection`` names; nearly always that is nothing that has to be looked for."""
    for name, said in headers:
        if len(name) == _CONNECTION_LENGTH and name.lower() == b"connection" and said not in _BARE:
            return dropped | listed(headers, b"connection")
    return dropped


_CONNECTION_LENGTH: Final = len(b"connection")
_BARE: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


def passed_on(headers: Headers, *, credentials: bool = True, trusted: bool = True) -> bytes:
    """The client's own lines that a backend is sent, each with its line end before it.

    What the client says of others passes only where it is ``trusted``, the hops it came by as well: they stand last,
    as the beginning of X-Forwarded-For. Its ``credentials`` pass only where they are for the backend.
    """
    dropped = _without(_REPLACED_IN_REQUEST if trusted else _REPLACED_OF_STRANGERS, headers)
    if not credentials:
        dropped |= _CREDENTIALS
    out = []
    hops = []
    for name, value in headers:
        lower = name.lower()
        if lower not in dropped:
            out.append(b"\r\n" + name + b": " + value)
        elif lower == b"x-forwarded-for" and trusted:
            hops.append(value + b", ")
    return b"".join(out) + b"\r\nX-Forwarded-For: " + b"".join(hops)


def request_head(
    line: bytes,
    passed: bytes,
    *,
    host: bytes,
    peer: bytes = b"",
    request_id: bytes | None = None,
    length: int | None = None,
    api_key: bytes | None = None,
    close: bool = False,
    upgrade: bool = False,
) -> bytes:
    """Head for the backend, with lines as ``passed_on`` gives them. ``length`` None: no body and no Content-Length.

    ``peer`` ends X-Forwarded-For, the last of these lines. Where the backend has an ``api_key`` of its own, no
    credentials may be among what is passed on. ``upgrade`` asks for a WebSocket.
    """
    key = b"" if api_key is None else b"\r\nAuthorization: Bearer " + api_key
    named = b"" if request_id is None else b"\r\nX-Request-Id: " + request_id
    size = b"" if length is None else b"\r\nContent-Length: %d" % length
    last = b""
    if upgrade or close:
        last = b"\r\n" + (_UPGRADE if upgrade else b"Connection: close")
    return b"%b\r\nHost: %b%b%b%b%b%b%b\r\n\r\n" % (line, host, passed, peer, key, named, size, last)


def switching_head(head: ResponseHead, request_id: bytes) -> bytes:
    """Head for the client of a 101: what follows is no longer HTTP."""
    dropped = _REPLACED_IN_RESPONSE | {b"content-length"}
    out = [b"HTTP/1.1 %d %b" % (head.status, head.reason), _UPGRADE]
    out.extend(name + b": " + value for name, value in head.headers if name.lower() not in dropped)
    out.extend((b"X-Request-Id: " + request_id, b"\r\n"))
    return b"\r\n".join(out)


def framing(head: ResponseHead, terms: ClientTerms) -> Framing:
    """How the answer's body is framed for this client."""
    if terms.method == "HEAD" or head.status in BODYLESS:
        return Framing.NONE
    if head.length is not None:
        return Framing.LENGTH
    return Framing.CLOSE if terms.http10 else Framing.CHUNKED


def response_head(
    head: ResponseHead,
    terms: ClientTerms,
    framed: Framing,
    *,
    keep_alive: bool,
    request_id: bytes,
    timing: bytes,
    rates: Rates = (),
) -> bytes:
    """Head for the client: the backend's own, with exactly one framing header and the gateway's additions."""
    streamed = head.get(b"content-type").startswith("text/event-stream")
    if framed is Framing.LENGTH and head.length is not None and not rates and not streamed:
        before, after = _around_length(head)
        start = b"%b%d%b" % (before, head.length, after)
    else:
        start = _start(head, terms, framed, rates, streamed=streamed)
    closing = b"".join([b"\r\n" + line for line in _connection(terms, keep_alive=keep_alive)])
    return b"%b\r\nX-Request-Id: %b\r\nServer-Timing: %b%b\r\n\r\n" % (start, request_id, timing, closing)


def _start(head: ResponseHead, terms: ClientTerms, framed: Framing, rates: Rates, *, streamed: bool) -> bytes:
    dropped = _without(_REPLACED_IN_RESPONSE, head.headers)
    if rates:
        dropped |= {name.encode() for name, _ in rates}
    if head.length is None or head.status == _NO_CONTENT:
        dropped |= _LENGTH
    out = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    seen = set()
    for name, value in head.headers:
        lower = name.lower()
        if lower in dropped or (lower == b"content-length" and lower in seen):
            continue
        seen.add(lower)
        out.append(name + b": " + value)
    if framed is Framing.CHUNKED:
        out.append(b"Transfer-Encoding: chunked")
        if terms.trailers:
            out.append(b"Trailer: Server-Timing")
    if streamed:
        out.extend(line for name, line in _UNBUFFERED if name not in seen)
    out.extend(f"{name}: {value}".encode() for name, value in rates)
    return b"\r\n".join(out)


def _around_length(head: ResponseHead) -> tuple[bytes, bytes]:
    """The lines of a head that pass, before and after the digits of its length: once for all that are alike."""
    around = head.memo.around
    if around is None:
        dropped = _without(_REPLACED_IN_RESPONSE, head.headers)
        parts = [b"HTTP/1.1 %d %b" % (head.status, head.reason), b""]
        place = 0
        for name, value in head.headers:
            lower = name.lower()
            if lower == b"content-length":
                if not place:
                    parts[0] += b"\r\n" + name + b": "
                    place = 1
            elif lower not in dropped:
                parts[place] += b"\r\n" + name + b": " + value
        around = head.memo.around = parts[0], parts[1]
    return around


# What tells nginx and browsers not to hold back or keep a stream.
_UNBUFFERED: Final = (
    (b"x-accel-buffering", b"X-Accel-Buffering: no"),
    (b"cache-control", b"Cache-Control: no-cache"),
)


def own_reply(
    status: int,
    headers: Iterable[tuple[str, str]],
    content_type: str,
    body: bytes,
    terms: ClientTerms,
    *,
    keep_alive: bool,
) -> bytes:
    """A whole answer of the gateway's own."""
    out = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\nContent-Type: {content_type}\r\n"
    out += f"Content-Length: {len(body)}\r\n"
    for name, value in headers:
        out += f"{name}: {value}\r\n"
    head = out.encode("utf-8", "surrogateescape")
    for line in _connection(terms, keep_alive=keep_alive):
        head += line + b"\r\n"
    return head + b"\r\n" + (b"" if terms.method == "HEAD" else body)


_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


def _connection(terms: ClientTerms, *, keep_alive: bool) -> tuple[bytes, ...]:
    if not keep_alive:
        return (b"Connection: close",)
    return (b"Connection: keep-alive",) if terms.http10 else ()


def chunk(data: bytes) -> bytes:
    """``data`` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_EXPOSED: Final = (
    *("Retry-After", "retry-after-ms", "x-should-retry", "x-gateway-shed-reason", "X-Request-Id"),
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
)
CORS: Final = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Expose-Headers", ", ".join(_EXPOSED)),
)
"""Let a page of any origin read an answer of the gateway's own, which holds nothing of anybody's."""


# --------------------------------------------------------------------------------------------------------------
# Refusals
# --------------------------------------------------------------------------------------------------------------

# 429 says contended, 503 says that nobody can serve: gateways in front (GPUStack's Envoy, nginx where so configured)
# send a POST again on 503 but not on 429.
_REFUSALS: Final = {
    Reason.QUEUE_FULL: (429, "Too many requests are waiting already."),
    Reason.DEADLINE: (429, "The request could not start in time."),
    Reason.QUEUE_TIMEOUT: (429, "The request waited too long for a free place."),
    Reason.RETRY_BUDGET: (429, "Too many requests are retries."),
    Reason.NO_BACKEND: (503, "No backend can serve the request now."),
    Reason.DRAINING: (503, "This gateway is shutting down."),
    Reason.KEY_REQUESTS: (429, "Your API key's requests per minute are spent."),
    Reason.KEY_TOKENS: (429, "Your API key's tokens per minute are spent."),
    Reason.KEY_IN_FLIGHT: (429, "Your API key has as many requests running as it may."),
}


def refusal(rejection: Rejection) -> tuple[int, str, list[tuple[str, str]]]:
    """(status, message, headers) of a refusal."""
    status, sentence = _REFUSALS[rejection.reason]
    headers = [*come_back(rejection.retry_after, status), ("x-gateway-shed-reason", rejection.reason.value)]
    if rejection.should_retry is not None:
        headers.append(("x-should-retry", "true" if rejection.should_retry else "false"))
    return status, f"{sentence} Retry after {_seconds(rejection.retry_after)} s.", headers


def _seconds(wait: float) -> int:
    return max(1, math.ceil(wait))


def come_back(wait: float, status: int) -> tuple[tuple[str, str], ...]:
    """Headers of an answer with ``status`` that tell a client to come back after ``wait`` seconds.

    ``Retry-After`` is whole seconds, rounded up and never 0 (integer parsers reject fractions, and SDKs read 0 as
    unset); ``retry-after-ms`` is what the OpenAI and Anthropic SDKs prefer; ``x-envoy-ratelimited`` keeps Envoy from
    trying again.
    """
    headers = (("Retry-After", str(_seconds(wait))), ("retry-after-ms", str(max(1, math.ceil(wait * 1000)))))
    limited = (("x-envoy-ratelimited", "true"),) if status == HTTPStatus.TOO_MANY_REQUESTS else ()
    return headers + limited


def rate_headers(standings: Iterable[Standing]) -> Rates:
    """``x-ratelimit-*`` as OpenAI names and spells them ("Rate limits in headers" in its guide to rate limits)."""
    return [
        (f"x-ratelimit-{what}-{standing.what}", value)
        for standing in standings
        for what, value in (
            ("limit", str(standing.limit)),
            ("remaining", str(standing.remaining)),
            ("reset", _span(standing.reset)),
        )
    ]


def _span(seconds: float) -> str:
    """``12ms``, ``1.5s``, ``6m0s``."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < _SECOND:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds / _SECOND, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


_SECOND: Final = 1000  # milliseconds
