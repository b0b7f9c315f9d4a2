"""What may differ between an answer through the gateway and the same answer without it, and nothing else."""

from __future__ import annotations

import re
from typing import Final

from tests.real.wire import Headers, Reply

# What an engine makes anew for every answer. Everything else in a body is compared byte for byte.
ANEW: Final = (
    (re.compile(rb"\b(chatcmpl-|cmpl-|embd-|modelperm-|resp_|msg_|rs_|fc_|call_)[A-Za-z0-9]{16,32}\b"), rb"\g<1>ID"),
    (re.compile(rb'"(created|created_at|completed_at)":\d+'), rb'"\g<1>":INSTANT'),
    (re.compile(rb'"timings":\{[^{}]*\}'), rb'"timings":TIMINGS'),
    (re.compile(rb'"id_slot":-?\d+'), rb'"id_slot":SLOT'),
)

# What the gateway adds to every answer; the last two only to streams, where the engine does not send its own.
ADDED: Final = {"x-request-id", "server-timing", "x-accel-buffering", "cache-control"}

# What belongs to one connection (RFC 9110, 7.6.1) or frames the body on it (RFC 9112, 6).
OF_THE_CONNECTION: Final = {"connection", "keep-alive", "transfer-encoding", "content-length"}


def comparable_body(reply: Reply) -> bytes:
    """The body with what is made anew taken out."""
    body = reply.body
    for pattern, replacement in ANEW:
        body = pattern.sub(replacement, body)
    return body


def comparable_headers(reply: Reply) -> Headers:
    """The headers, in their order, that must be the engine's own."""
    return tuple((name, value) for name, value in reply.headers if name not in ADDED | OF_THE_CONNECTION)


def framing(reply: Reply) -> str:
    """How the end of the body was told; exactly one way is right."""
    length, coding = reply.header("content-length"), reply.header("transfer-encoding")
    if length is not None:
        assert coding is None, "both a length and a coding frame this body"
        assert int(length) == len(reply.body)
        return "length"
    assert coding == "chunked"
    return "chunked"
