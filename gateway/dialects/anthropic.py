"""Anthropic's Messages API as vLLM, SGLang and llama.cpp serve it."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dialects.base import Fault, ResponseReader
from gateway.dialects.reply import BodyReader, UnreadReader, fault_in, fault_of, find_usage, load, streams, usage_of
from gateway.dialects.request import read_json
from gateway.dialects.sse import EventReader
from gateway.model import Access, Rejection, Route, Shape, Usage

_MESSAGES: Final = Route("messages", Access.ADMIT)
_COUNT_TOKENS: Final = Route("count_tokens", Access.BYPASS)

_OUTPUT: Final = b'"type":"content_block_delta"'
_SIGNATURE: Final = b'"signature_delta"'  # ends a thinking block; no text

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Anthropic:
    """The dialect; stateless."""

    name = "anthropic"

    def route(self, method: str, path: str) -> Route | None:
        """See ``Dialect``."""
        if method != "POST":
            return None
        if path.endswith("/messages"):
            return _MESSAGES
        return _COUNT_TOKENS if path.endswith("/messages/count_tokens") else None

    def read_request(
        self,
        route: Route,
        content_type: str,  # noqa: ARG002 - always JSON
        body: bytes,
        *,
        blocks: bool = False,
    ) -> Shape:
        """See ``Dialect``."""
        return read_json(route, body, generates=True, blocks=blocks)

    def response_reader(self, shape: Shape, status: int, content_type: str) -> ResponseReader:
        """See ``Dialect``."""
        if shape.route.access is not Access.ADMIT:
            return UnreadReader()
        return MessageReader() if streams(shape, status, content_type) else BodyReader(status, content_type)

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:  # noqa: ARG002 - every reason has one shape here
        """See ``Dialect``."""
        return _error_json(status, message)

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:  # noqa: ARG002 - this API has no code
        """See ``Dialect``."""
        return _error_json(status, message)

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:  # noqa: ARG002 - this API has no code
        """See ``Dialect``."""
        return b"event: error\ndata: " + _error_json(status, message)[1] + b"\n\n"


def _error_json(status: int, message: str) -> tuple[str, bytes]:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - 5xx
    return "application/json", orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


class MessageReader:
    """Listens to the events of one message: a content_block_delta is output, message_stop the end."""

    __slots__ = ("_events", "complete", "fault", "usage")

    asides = None

    def __init__(self) -> None:
        """Start before the first byte."""
        self.usage: Usage | None = None
        self.fault: Fault | None = None
        self.complete = False
        self._events = EventReader()

    @property
    def between_events(self) -> bool:
        """See ``ResponseReader``."""
        return self._events.between_events

    def feed(self, data: bytes) -> int:
        """See ``ResponseReader``."""
        output = 0
        for payload in self._events.feed(data):
            if _OUTPUT in payload and _SIGNATURE not in payload:
                output += 1
            else:
                output += self._read(payload)
        return output

    def finish(self) -> int:
        """See ``ResponseReader``."""
        output = sum(self._read(payload) for payload in self._events.finish())
        if self._events.stray and not self.complete and self.fault is None:
            self.fault = fault_in(self._events.stray.decode(errors="replace"))
        return output

    def _read(self, payload: bytes) -> bool:
        """Take one event; whether it has output."""
        document = load(payload)
        if document is None:
            self.usage = find_usage(payload) or self.usage
            return False
        usage = usage_of(document)
        if usage is not None:
            self.usage = _merged(self.usage, usage)
        self.fault = fault_of(document) or self.fault
        kind = document.get("type")
        self.complete = self.complete or kind == "message_stop"
        return kind == "content_block_delta" and not _is_signature(document.get("delta"))


def _is_signature(delta: Any) -> bool:
    return isinstance(delta, dict) and delta.get("type") == "signature_delta"


def _merged(first: Usage | None, last: Usage) -> Usage:
    """message_start counts the prompt, message_delta the output; what the later leaves out stays."""
    if first is None:
        return last
    return Usage(
        first.prompt_tokens if last.prompt_tokens is None else last.prompt_tokens,
        first.completion_tokens if last.completion_tokens is None else last.completion_tokens,
        first.cached_tokens if last.cached_tokens is None else last.cached_tokens,
    )
