"""Text Generation Inference's own API (huggingface/text-generation-inference, router/src/server.rs and lib.rs).

An overloaded router answers 429 on ``/generate``, but on a stream it says so in the first event of a 200.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson

from gateway.dialects.items import Items
from gateway.dialects.native import Document, Form
from gateway.model import Access, Route

_ERRORS: Final = {400: "validation", 413: "validation", 422: "validation", 429: "overloaded", 503: "overloaded"}


def _finished(document: Document) -> bool:
    return document.get("generated_text") is not None


_TOKENS: Final = Items(re.compile(rb'"error"|"generated_text":\s*"'), last=_finished, marked=True)
_INPUTS: Final = frozenset({"inputs"})
_PATHS: Final = {
    "/": Form(Route("tgi", Access.ADMIT), _INPUTS, items=_TOKENS),
    "/generate": Form(Route("tgi_generate", Access.ADMIT), _INPUTS, stream=False, items=_TOKENS),
    "/generate_stream": Form(Route("tgi_generate_stream", Access.ADMIT), _INPUTS, stream=True, items=_TOKENS),
}


class TGI:
    """The dialect; stateless."""

    name = "tgi"
    kind = "tgi"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        return (_PATHS[path],) if method == "POST" and path in _PATHS else ()

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Native``."""
        return orjson.dumps({"error": message, "error_type": _ERRORS.get(status, "generation")})
