"""The gateway's own errors in OpenAI's shape, which every engine but Anthropic's API shares."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import orjson

from gateway.model import OF_KEY, Reason

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_REFUSALS: Final = {429: "slow_down", 503: "server_is_overloaded"}


def error_json(status: int, message: str, code: str | None) -> tuple[str, bytes]:
    """(content type, body). SDKs read exactly these four fields (openai-python, _exceptions.py)."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")  # noqa: PLR2004 - 5xx
    error = {"message": message, "type": kind, "param": None, "code": code}
    return "application/json", orjson.dumps({"error": error})


@lru_cache(maxsize=256)
def refusal_json(status: int, message: str, reason: Reason) -> tuple[str, bytes]:
    """(content type, body) of a refusal, with the codes that OpenAI itself uses: full, or beyond the key's rate.

    Under overload nearly all refusals say one of a few things: why, and after how many whole seconds to come back.
    """
    return error_json(status, message, "rate_limit_exceeded" if reason in OF_KEY else _REFUSALS.get(status))
