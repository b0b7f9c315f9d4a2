"""Routes that no dialect knows: measured by whatever fields they have, relayed as they are.

Among them are the native routes of MindIE, TGI, SGLang, Triton, llama.cpp and vLLM's demo server, whose streams are
server-sent events or JSON items set apart by NUL or newline. Each item counts as one piece of output.
"""

from __future__ import annotations

from typing import Final

from gateway.dialects.base import Fault, ResponseReader
from gateway.dialects.errors import error_json, refusal_json
from gateway.dialects.reply import BodyReader, UnreadReader, fault_in, fault_of, load, streams, usage_of
from gateway.dialects.request import read_json
from gateway.dialects.sse import EventReader
from gateway.model import Access, Rejection, Route, Shape, Usage

_ADMITTED: Final = Route("other", Access.ADMIT)
_BYPASSED: Final = Route("other", Access.BYPASS)
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_ITEM_MAX: Final = 16 * 1024
_BLANK: Final = b"\0\r\n\t "


class Passthrough:
    """The dialect of everything else; stateless."""

    name = "other"

    def route(self, method: str, path: str) -> Route:  # noqa: ARG002 - nothing is known of the path
        """Whatever may carry a body is taken for work."""
        return _BYPASSED if method in _BODILESS else _ADMITTED

    def read_request(self, route: Route, content_type: str, body: bytes) -> Shape:  # noqa: ARG002 - the body tells
        """See ``Dialect``."""
        return read_json(route, body, generates=True)

    def response_reader(self, shape: Shape, status: int, content_type: str) -> ResponseReader:
        """See ``Dialect``."""
        if shape.route.access is not Access.ADMIT:
            return UnreadReader()
        if streams(shape, status, content_type):
            return ItemReader()
        return BodyReader(status, content_type)

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:  # noqa: ARG002 - every reason has one shape here
        """See ``Dialect``."""
        return refusal_json(status, message)

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return error_json(status, message, code)

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return b"data: " + error_json(status, message, code)[1] + b"\n\n"


class ItemReader:
    """Listens to a stream of items of unknown meaning. Its end is the body's end: nothing else marks it."""

    __slots__ = ("_before", "_delimited", "_events", "_last", "complete", "fault")

    asides = None

    def __init__(self) -> None:
        """Start before the first byte."""
        self.fault: Fault | None = None
        self.complete = False
        self._events = EventReader()
        self._delimited: bool | None = None  # JSON items without event framing; None before the first byte
        self._before = b""  # the last byte, in case an item's end is split
        self._last = b""  # the last item, or the end of it

    @property
    def usage(self) -> Usage | None:
        """See ``ResponseReader``."""
        item = self._last.rstrip(_BLANK)
        if self._delimited:
            item = item[max(item.rfind(b"}\0"), item.rfind(b"}\n")) + 1 :].lstrip(_BLANK)
        document = load(item)
        return usage_of(document) if document is not None else None

    @property
    def between_events(self) -> bool:
        """See ``ResponseReader``."""
        return self._delimited is False and self._events.between_events

    def feed(self, data: bytes) -> int:
        """See ``ResponseReader``."""
        if self._delimited is None and (start := data.lstrip(_BLANK)):
            self._delimited = start.startswith(b"{")
        if not self._delimited:
            return self._count(self._events.feed(data))
        joined = self._before + data
        self._before = joined[-1:]
        self._last = (self._last + data)[-_ITEM_MAX:]
        return joined.count(b"}\0") + joined.count(b"}\n")

    def finish(self) -> int:
        """See ``ResponseReader``."""
        output = int(self._before == b"}") if self._delimited else self._count(self._events.finish())
        if self._events.stray and self.fault is None:
            self.fault = fault_in(self._events.stray.decode(errors="replace"))
        self.complete = bool(self._last) and self.fault is None
        return output

    def _count(self, payloads: list[bytes]) -> int:
        output = 0
        for payload in payloads:
            document = load(payload) if b'"error"' in payload else None
            fault = fault_of(document) if document is not None else None
            if fault is not None:
                self.fault = fault
            elif payload.strip() != b"[DONE]":
                output += 1
                self._last = payload
        return output
