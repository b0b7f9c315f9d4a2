"""What the head of a request says, worked out once for all requests that have it."""

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
from gateway.proxy.known import Known

_PATH_LIMIT: Final = 1024  # what is told of a request is bounded; what is sent on is not
_ATTEMPT_DIGITS: Final = 4

_KNOWN: Final = 256  # heads, and as many that are older
_UNCOMMON: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"traceparent"})
"""One with the last is another in each request: it would only take the place of heads that come again."""


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


class Heads(Known[Head]):
    """The heads of requests; of one listener, for what its parser accepts depends on its settings."""

    def __init__(self, *, ids: bool = True) -> None:
        """``ids``: nobody reads an id for anything but an id, so that it may differ."""
        super().__init__(_KNOWN)
        self._ids = ids

    def learn(self, data: bytes, head: Head, length: int) -> None:
        """Know ``head`` again, which the parser found at the beginning of ``data`` with a body of ``length`` bytes."""
        if head.terms.http10 or head.method != "POST":
            return
        names = [name for name, _ in head.raw_headers]
        if _UNCOMMON.isdisjoint([name.lower() for name in names]):
            self.remember(data, names, length, head, ids=self._ids)


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
