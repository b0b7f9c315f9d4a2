"""LMDeploy's own API (InternLM/lmdeploy, serve/openai/endpoints/generate.py); it queues without ever refusing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson

from gateway.dialects.items import Items
from gateway.dialects.native import Form
from gateway.model import Access, Route

_UNSET_CAP: Final = 128  # GenerateReqInput.max_tokens

# Its items end in [DONE]; the last one tells why it ended, with an empty text where that is all it tells.
_PIECES: Final = Items(
    re.compile(rb'"error"|"text":\s*""'), hollow=lambda document: not document.get("output_ids"), marked=True
)
_GENERATE: Final = Form(
    Route("lmdeploy_generate", Access.ADMIT), frozenset({"prompt", "input_ids"}), unset_cap=_UNSET_CAP, items=_PIECES
)
_TYPES: Final = {401: "authentication_error", 404: "not_found_error"}


class LMDeploy:
    """The dialect; stateless."""

    name = "lmdeploy"
    kind = "lmdeploy"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        return (_GENERATE,) if method == "POST" and path == "/generate" else ()

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Native``."""
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - 5xx
        return orjson.dumps({"object": "error", "message": message, "type": kind, "code": status, "param": None})
