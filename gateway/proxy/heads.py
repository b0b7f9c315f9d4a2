"""What the head of a request says, and the heads that are known.

Most requests of a client differ from the one before in the length of their body, and perhaps in an id; all else of the
head is the same bytes. Such a head is parsed once, by aiohttp's parser and as strictly. After that it is recognised: by
every byte of it, but for the digits of Content-Length and the characters of X-Request-Id, of which only such are
accepted as no parser could take for anything else. What differs in anything more goes to the parser.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp.http import HttpVersion
from aiohttp.streams import StreamReader
from multidict import CIMultiDictProxy, MultiMapping

from gateway.model import Priority
from gateway.proxy.config import ProxyConfig
from gateway.proxy.http import ClientTerms, Headers, listed, passed_on

_PATH_LIMIT: Final = 1024  # what is told of a request is bounded; what is sent on is not
_ATTEMPT_DIGITS: Final = 4

_KNOWN: Final = 256  # heads, and as many that are older
LONGEST: Final = 4096  # bytes of a head that is remembered
_LENGTHS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_IDS: Final = (b"\r\nX-Request-Id: ", b"\r\nx-request-id: ")
_ID_LONGEST: Final = 128
_DIGITS: Final = 8  # of a length
_ZERO: Final = 48  # the digit
_ID_MARKS: Final = b"-_.:"
_UNCOMMON: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer"})
_NEVER_AGAIN: Final = b"traceparent"  # another one in each request: such a head would only take the place of others


class Asked(Protocol):
    """What a head is read from: a request of aiohttp's, or one of which no more than this was made."""

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
    def query(self) -> MultiMapping[str]:
        """Of the target."""


class Request(Asked, Protocol):
    """What is asked of a request of aiohttp's own."""

    @property
    def content(self) -> StreamReader:
        """The body."""

    @property
    def can_read_body(self) -> bool:
        """Whether there is more of the body to read."""

    @property
    def protocol(self) -> object:
        """The connection."""


@dataclass(slots=True, unsafe_hash=True)
class Retries:
    """What the client says of its own patience: ``attempt`` 0 is a first one; ``read_timeout`` in seconds."""

    attempt: int
    read_timeout: float | None


class Head:
    """Everything that a head says but for the length of the body and the request's id, worked out once."""

    __slots__ = (
        "_config", "_named", "_passed", "_priority", "content_type", "foreign", "headers", "method", "path", "query",
        "raw_headers", "raw_target", "retries", "target", "terms", "traceparent",
    )  # fmt: skip

    def __init__(self, request: Asked) -> None:
        names = request.headers
        self.headers = names
        self.method = request.method
        self.target = _origin_form(request.raw_path)
        self.raw_target = self.target.encode("utf-8", "surrogateescape")
        self.path = clean(self.target.partition("?")[0])[:_PATH_LIMIT]
        self.query = request.query if "?" in self.target else None
        self.raw_headers: Headers = request.raw_headers
        self.traceparent = names.get("traceparent")
        self.content_type = names.get("Content-Type", "")
        self.foreign = "Origin" in names
        http10 = request.version.minor == 0
        self.terms = ClientTerms(
            method=self.method,
            http10=http10,
            keep_alive=request.keep_alive,
            trailers="TE" in names and not http10 and b"trailers" in listed(self.raw_headers, b"te"),
        )
        self.retries = _retries(names)
        self._config: ProxyConfig | None = None  # what the next two were worked out for
        self._named: str | None = None
        self._priority: Priority | None = None
        self._passed: dict[int, bytes] = {}

    def named(self, config: ProxyConfig) -> str | None:
        """Who the client is by the configured header, else by a hash of its key; None where it has neither."""
        if self._config is not config:
            self._settle(config)
        return self._named

    def priority(self, config: ProxyConfig) -> Priority | None:
        """What the trusted header says; None where there is none, or it says nothing that is known."""
        if self._config is not config:
            self._settle(config)
        return self._priority

    def _settle(self, config: ProxyConfig) -> None:
        names = self.headers
        self._named = self._priority = None
        if config.client_header is not None and (said := names.get(config.client_header)):
            self._named = clean(said)
        elif key := names.get("Authorization") or names.get("X-Api-Key") or names.get("Api-Key"):
            self._named = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        if config.priority_header is not None:
            self._priority = Priority.__members__.get(names.get(config.priority_header, "").strip().upper())
        self._config = config

    def passed(self, *, credentials: bool, trusted: bool) -> bytes:
        """The lines of it that go on to a backend; see ``http.passed_on``."""
        key = 2 * credentials + trusted
        lines = self._passed.get(key)
        if lines is None:
            lines = self._passed[key] = passed_on(self.raw_headers, credentials=credentials, trusted=trusted)
        return lines


class Found:
    """A request that is here whole, or whose head is: ``size`` bytes are head and body together."""

    __slots__ = ("body_at", "head", "request_id", "size")

    def __init__(self, head: Head, request_id: str, body_at: int, size: int) -> None:
        self.head = head
        self.request_id = request_id  # empty: it has none
        self.body_at = body_at
        self.size = size


class Heads:
    """The heads that are known; of one listener, for what its parser accepts depends on its settings."""

    def __init__(self, *, ids: bool = True) -> None:
        """``ids``: nobody reads an id for anything but an id, so that it may differ."""
        self._ids = ids
        self._known: dict[bytes, Head] = {}
        self._older: dict[bytes, Head] = {}  # that are forgotten next, unless they come again
        self._last: tuple[Around, Head] | None = None  # most come again and again

    def find(self, data: bytes) -> Found | None:
        """The request that ``data`` begins with; None where its head is not known."""
        if self._last is not None:
            around, head = self._last
            length = around.length(data)
            if length >= 0:
                return Found(head, "", around.body_at, around.body_at + length)
        cut = cut_out(data)
        if cut is None:
            return None
        key, request_id, length, body_at = cut
        known = self._known.get(key)
        if known is None:
            known = self._older.get(key)
            if known is None:
                return None
            self._known[key] = known
        if not request_id:
            self._last = Around(data, key, length, body_at), known
        return Found(known, request_id, body_at, body_at + length)

    def learn(self, data: bytes, head: Head, length: int) -> None:
        """Know ``head`` again, which the parser found at the beginning of ``data`` with a body of ``length`` bytes."""
        cut = cut_out(data)
        if cut is None or cut[2] != length or (cut[1] and not self._ids):
            return
        if head.terms.http10 or head.method != "POST":
            return
        if data.count(b"\r\n", 0, cut[3] - 2) != len(head.raw_headers) + 1:  # else it is not where it seems to be
            return
        lower = [name.lower() for name, _ in head.raw_headers]
        if lower.count(b"content-length") != 1 or lower.count(b"x-request-id") != bool(cut[1]):
            return
        if _NEVER_AGAIN in lower or not _UNCOMMON.isdisjoint(lower):
            return
        if len(self._known) >= _KNOWN:
            self._older, self._known = self._known, {}
        self._known[cut[0]] = head


class Around:
    """The bytes of a head without an id, before and after the digits of the length; the quickest way to know it again.

    ``body_at`` is where the body begins of the data that was looked at last.
    """

    __slots__ = ("_after", "_before", "body_at")

    def __init__(self, data: bytes, key: bytes, length: int, body_at: int) -> None:
        """Of what ``cut_out`` gave for ``data``."""
        digits = body_at - 4 - len(key)
        at = _after(data, _LENGTHS, body_at)
        self._before = data[:at]
        self._after = data[at + digits : body_at]
        self.body_at = body_at
        assert self.length(data) == length  # noqa: S101 - else ``cut_out`` cuts elsewhere

    def length(self, data: bytes) -> int:
        """The length that ``data`` tells, which begins with this head; -1 where it does not."""
        before = self._before
        if not data.startswith(before):
            return -1
        at = len(before)
        stop = data.find(b"\r", at, at + _DIGITS + 1)
        if stop <= at or not data.startswith(self._after, stop):
            return -1
        digits = data[at:stop]
        if not digits.isdigit() or (digits[0] == _ZERO and stop > at + 1):
            return -1
        self.body_at = stop + len(self._after)
        return int(digits)


def cut_out(data: bytes) -> tuple[bytes, str, int, int] | None:
    """(head without what may differ, id, length, where the body begins); None where that cannot be told."""
    end = data.find(b"\r\n\r\n", 0, LONGEST)
    if end < 0:
        return None
    at = _after(data, _LENGTHS, end)
    stop = data.find(b"\r", at, end + 1) if at else -1
    if stop < 0 or not 0 < stop - at <= _DIGITS:
        return None
    digits = data[at:stop]
    if not digits.isdigit() or (digits.startswith(b"0") and len(digits) > 1):
        return None
    id_at = _after(data, _IDS, end)
    if not id_at:
        return data[:at] + data[stop:end], "", int(digits), end + 4
    id_stop = data.find(b"\r", id_at, end + 1)
    request_id = data[id_at:id_stop]
    if len(request_id) > _ID_LONGEST or not request_id.translate(None, _ID_MARKS).isalnum():
        return None
    first, first_stop, last, last_stop = at, stop, id_at, id_stop
    if id_at < at:
        first, first_stop, last, last_stop = id_at, id_stop, at, stop
    return data[:first] + data[first_stop:last] + data[last_stop:end], request_id.decode(), int(digits), end + 4


def _after(data: bytes, spellings: tuple[bytes, bytes], end: int) -> int:
    """Where the value begins of the first header that is spelt so; 0 where there is none."""
    for spelling in spellings:
        at = data.find(spelling, 0, end)
        if at >= 0:
            return at + len(spelling)
    return 0


def _retries(names: CIMultiDictProxy[str]) -> Retries:
    """What the SDKs of OpenAI and Anthropic say with every call (``x-stainless-*``)."""
    count = names.get("X-Stainless-Retry-Count", "")
    timeout = names.get("X-Stainless-Read-Timeout") or names.get("X-Stainless-Timeout")
    return Retries(int(count) if count.isdecimal() and len(count) <= _ATTEMPT_DIGITS else 0, _seconds(timeout))


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value) if value else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def clean(text: str) -> str:
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
