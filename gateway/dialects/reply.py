"""What all APIs' replies have in common: usage, errors said in band, and bodies that are one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.dialects.base import Fault
from gateway.dialects.request import count_of
from gateway.model import Shape, Usage

_HEAD: Final = 8 * 1024
_TAIL: Final = 32 * 1024
_WHOLE: Final = 64 * 1024  # a body up to this size is parsed; of a larger one the head and the tail are searched
_USAGE_MAX: Final = 4 * 1024  # bytes that a usage object may have
_NESTED_MOST: Final = 8  # objects in a usage object, with itself
_USAGE: Final = b'"usage":'
_ERROR: Final = b'"error"'  # without one no key is that, and no type
_FAILURE: Final = 400  # the first status of failure
_JSON: Final = json.JSONDecoder()

_BUSY_CODES: Final = frozenset({429, 503, 529})
_BUSY_WORDS: Final = (
    "currently busy",  # vLLM --max-num-queued-reqs
    "backlog limit",  # vLLM --max-num-queued-tokens
    "queue is full",  # SGLang --max-queued-requests
    "overloaded",  # TGI; Anthropic overloaded_error; OpenAI server_is_overloaded
    "too many requests",  # MindIE's coordinator
    "slow_down",
    "rate_limit",
    "service unavailable",
    "serviceunavailable",
)


def usage_of(document: dict[str, Any]) -> Usage | None:
    """Token counts out of a reply, a chunk or an event; None where it has none."""
    for key in ("response", "message"):  # the Responses API's last event, Anthropic's message_start
        nested = document.get(key)
        if isinstance(nested, dict) and isinstance(nested.get("usage"), dict):
            return usage_of(nested)
    counts = next((c for c in map(document.get, ("usage", "meta_info", "details")) if isinstance(c, dict)), None)
    return _counted(counts) if counts is not None else None


def timings_of(document: dict[str, Any]) -> Usage | None:
    """Token counts of one choice, as llama.cpp says them at its end whether usage was asked for or not."""
    timings = document.get("timings")
    if not isinstance(timings, dict):
        return None
    cached = count_of(timings.get("cache_n"))
    return _usage(_sum(timings.get("prompt_n"), cached), timings.get("predicted_n"), cached)


def _counted(counts: dict[str, Any]) -> Usage | None:
    cached = counts.get("cached_tokens")
    if isinstance(details := counts.get("prompt_tokens_details"), dict):
        cached = details.get("cached_tokens")
    if isinstance(details := counts.get("input_tokens_details"), dict):
        cached = details.get("cached_tokens")
    prompt = _first(counts, "prompt_tokens", "input_tokens", "input_length")
    if "cache_read_input_tokens" in counts:  # Anthropic's input_tokens leave cached input out
        cached = counts["cache_read_input_tokens"]
        if prompt is not None:
            prompt = _sum(prompt, cached, counts.get("cache_creation_input_tokens"))
    return _usage(prompt, _first(counts, "completion_tokens", "output_tokens", "generated_tokens"), cached)


def _first(counts: dict[str, Any], one: str, other: str, third: str) -> Any:
    """The first of the three that there is."""
    count = counts.get(one)
    if count is not None or one in counts:
        return count
    return counts[other] if other in counts else counts.get(third)


def _usage(prompt: Any, completion: Any, cached: Any) -> Usage | None:
    usage = Usage(count_of(prompt), count_of(completion), count_of(cached))
    return None if usage.prompt_tokens is None and usage.completion_tokens is None else usage


def _sum(*counts: Any) -> int | None:
    known = [count for count in map(count_of, counts) if count is not None]
    return sum(known) if known else None


def find_usage(window: bytes) -> Usage | None:
    """Token counts out of a piece of JSON text: the last ``"usage"`` (SGLang: ``"meta_info"``) in it.

    Text that a model wrote cannot be taken for it: a quote inside a JSON string has a backslash before it.
    """
    at = max(window.rfind(b'"usage":'), window.rfind(b'"meta_info":'))
    if at < 0:
        return None
    start = window.index(b":", at) + 1
    text = window[start : start + _USAGE_MAX].decode(errors="replace").lstrip()
    try:
        counts, _ = _JSON.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return usage_of({"usage": counts})


def sole_usage(body: bytes) -> Usage | None:
    """Token counts of a reply that is one JSON object, tells of no error and has ``usage`` once; else None.

    They are found without a parse of the text in it, in which no such mark can be; see ``find_usage``.
    """
    at = body.find(_USAGE)
    if at < 0 or not body.startswith(b"{") or not body.endswith((b"}", b"}\n")):
        return None
    start = at + len(_USAGE)
    opened = end = body.find(b"{", start)
    for _ in range(_NESTED_MOST):  # each that begins before the end needs an end of its own
        end = body.find(b"}", end) + 1
        if opened < 0 or not end:
            return None
        opened = body.find(b"{", opened + 1, end)
        if opened < 0:
            break
    else:
        return None
    if body.find(_USAGE, start) >= 0 or body.find(_ERROR) >= 0:
        return None
    document = load(body[start:end])
    return None if document is None else _counted(document)


def fault_of(document: dict[str, Any]) -> Fault | None:
    """What ``document`` says went wrong; None where it says nothing did."""
    error = document.get("error")
    if not error:
        if document.get("object") != "error" and document.get("type") != "error":
            return None
        error = document
    said = error if isinstance(error, dict) else {"message": error, "type": document.get("error_type")}
    if count_of(said.get("code")) in _BUSY_CODES:
        return Fault.BUSY
    return fault_in(" ".join(str(said.get(key)) for key in ("message", "type", "code")))


def fault_in(text: str) -> Fault:
    """What kind of fault the words of an error message tell."""
    lowered = text[:_USAGE_MAX].lower()
    return Fault.BUSY if any(word in lowered for word in _BUSY_WORDS) else Fault.FAILED


def streams(shape: Shape, status: int, content_type: str) -> bool:
    """Whether a reply is read as a stream; some engines stream without saying so (vLLM's old demo server)."""
    kind = content_type.lower()
    unsaid = shape.stream and status < _FAILURE and "/json" not in kind
    return "event-stream" in kind or "ndjson" in kind or unsaid


def load(payload: bytes) -> dict[str, Any] | None:
    """``payload`` as a JSON object, None where it is none."""
    try:
        document = orjson.loads(payload)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


class BodyReader:
    """Listens to a body that is no stream: its usage, its end, and an error said under a status of success."""

    __slots__ = ("_counts", "_held", "_json", "_pieces", "_size", "_success", "complete", "fault", "usage")

    asides = None
    between_events = False

    def __init__(
        self, status: int, content_type: str, counts: Callable[[dict[str, Any]], Usage | None] = usage_of
    ) -> None:
        """Start before the first byte; ``counts`` finds the token counts in the document."""
        self.usage: Usage | None = None
        self.fault: Fault | None = None
        self.complete = False
        self._counts = counts
        self._success = status < _FAILURE
        self._json = "json" in content_type.lower()
        self._pieces: list[bytes] = []  # most often the one that is the whole body: it is not copied
        self._held = 0  # bytes of them
        self._size = 0

    def feed(self, data: bytes) -> int:
        """Keep what ``finish`` will read; a body that is no stream has no output events."""
        self._size += len(data)
        self._held += len(data)
        self._pieces.append(data)
        if self._held > 2 * _WHOLE:
            body = b"".join(self._pieces)
            self._pieces, self._held = [body[:_HEAD], body[-_TAIL:]], _HEAD + _TAIL
        return 0

    def finish(self) -> int:
        """Read the body."""
        if not self._json:
            self.complete = self._size > 0
        elif self._size <= _WHOLE:
            self._read_whole()
        else:
            body = b"".join(self._pieces)
            head, tail = body[:_HEAD], body[-_TAIL:]
            self.usage = find_usage(tail) or find_usage(head)
            self.complete = tail.rstrip().endswith((b"}", b"]"))
        return 0

    def _read_whole(self) -> None:
        body = b"".join(self._pieces)
        if self._success and self._counts is usage_of and (usage := sole_usage(body)) is not None:
            self.usage, self.complete = usage, True
            return
        try:
            document = orjson.loads(body)
        except ValueError:
            return
        parts = document if isinstance(document, list) else [document]  # a list: TGI's root route, SGLang's batches
        self.complete = isinstance(document, dict | list)
        if self._success:
            for part in parts:
                if isinstance(part, dict):
                    self.usage = _together(self.usage, self._counts(part))
                    self.fault = self.fault or fault_of(part)


def _together(one: Usage | None, other: Usage | None) -> Usage | None:
    """The counts of two answers in one reply."""
    if one is None or other is None:
        return one or other
    return Usage(
        _sum(one.prompt_tokens, other.prompt_tokens),
        _sum(one.completion_tokens, other.completion_tokens),
        _sum(one.cached_tokens, other.cached_tokens),
    )


class UnreadReader:
    """For replies of routes that are relayed at once: nothing in them is of interest."""

    __slots__ = ("complete",)

    usage: Usage | None = None
    fault: Fault | None = None
    asides = None
    between_events = False

    def __init__(self) -> None:
        """Start before the first byte."""
        self.complete = False

    def feed(self, data: bytes) -> int:  # noqa: ARG002 - listens to nothing
        """Ignore it."""
        return 0

    def finish(self) -> int:
        """Take the end for complete."""
        self.complete = True
        return 0
