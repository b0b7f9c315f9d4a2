"""Routes that no dialect knows: measured by whatever fields they have, relayed as they are.

A stream may be server-sent events or JSON items set apart by NUL or newline; each counts as one piece of output.
"""

from __future__ import annotations

from typing import Final

from gateway.dialects.base import ResponseReader
from gateway.dialects.errors import error_json, refusal_json
from gateway.dialects.items import ItemReader
from gateway.dialects.reply import BodyReader, UnreadReader, streams
from gateway.dialects.request import read_json
from gateway.model import Access, Rejection, Route, Shape

OTHER: Final = "other"
_ADMITTED: Final = Route(OTHER, Access.ADMIT)
_BYPASSED: Final = Route(OTHER, Access.BYPASS)
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})


class Passthrough:
    """The dialect of everything else; stateless."""

    name = OTHER

    def route(self, method: str, path: str) -> Route:  # noqa: ARG002 - nothing is known of the path
        """Whatever may carry a body is taken for work."""
        return _BYPASSED if method in _BODILESS else _ADMITTED

    def read_request(
        self,
        route: Route,
        content_type: str,  # noqa: ARG002 - the body tells
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
        if streams(shape, status, content_type):
            return ItemReader()
        return BodyReader(status, content_type)

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return refusal_json(status, message, rejection.reason)

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return error_json(status, message, code)

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return b"data: " + error_json(status, message, code)[1] + b"\n\n"
