"""llama.cpp's own API (ggml-org/llama.cpp, tools/server/README.md).

While a request waits for a slot its stream is kept open by comment lines, which are no output. The last event of a
stream has no text; it says what was counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson

from gateway.dialects.items import Items
from gateway.dialects.native import Document, Form
from gateway.dialects.reply import timings_of
from gateway.dialects.request import count_of
from gateway.model import Access, Route, Usage

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def _stopped(document: Document) -> bool:
    return document.get("stop") is True


def _counted(document: Document) -> Usage | None:
    """The plain counts are of the whole prompt; ``timings`` also tell what the cache held."""
    timed = timings_of(document)
    prompt, output = count_of(document.get("tokens_evaluated")), count_of(document.get("tokens_predicted"))
    if prompt is None or output is None:
        return timed
    return Usage(prompt, output, None if timed is None else timed.cached_tokens)


_PIECES: Final = Items(
    re.compile(rb'"error"|"stop":\s*true'),
    last=_stopped,
    hollow=lambda document: _stopped(document) and not document.get("content"),
    counts=_counted,
    marked=True,
)
_PATHS: Final = {
    "/completion": Form(Route("completion", Access.ADMIT), frozenset({"prompt"}), items=_PIECES),
    "/infill": Form(
        Route("infill", Access.ADMIT), frozenset({"input_prefix", "input_suffix", "prompt"}), items=_PIECES
    ),
    "/embedding": Form(
        Route("embedding", Access.ADMIT), frozenset({"content", "input"}), stream=False, generates=False
    ),
    "/reranking": Form(Route("reranking", Access.ADMIT), frozenset({"query"}), stream=False, generates=False),
}


class LlamaCpp:
    """The dialect; stateless."""

    name = "llamacpp"
    kind = "llamacpp"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        return (_PATHS[path],) if method == "POST" and path in _PATHS else ()

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Native``."""
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - 5xx
        return orjson.dumps({"error": {"code": status, "message": message, "type": kind}})
