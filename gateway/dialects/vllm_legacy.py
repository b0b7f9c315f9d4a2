"""vLLM's older server, ``vllm.entrypoints.api_server``: one route beside health, gone from 0.33.

A stream's items hold prompt and output so far, and end in NUL, or in a newline in later versions; no header says that
it is a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from gateway.dialects.native import Form
from gateway.model import Access, Route

_UNSET_CAP: Final = 16  # SamplingParams.max_tokens
_GENERATE: Final = Form(Route("vllm_generate", Access.ADMIT), frozenset({"prompt"}), unset_cap=_UNSET_CAP)


class VLLMLegacy:
    """The dialect; stateless."""

    name = "vllm_legacy"
    kind = "vllm"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        return (_GENERATE,) if method == "POST" and path == "/generate" else ()

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - FastAPI's own errors
        """See ``Native``."""
        return orjson.dumps({"detail": message})
