"""Token counts for streams whose client did not ask for them: asked for on the way in, taken out on the way back.

``stream_options.include_usage`` makes an engine send one more chunk before ``[DONE]``, with ``choices: []`` and the
counts. A client that did not ask may stumble over a chunk without a choice, so it never sees it; every other byte
passes as it came.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.dialects.reply import load
from gateway.model import Route

_ROUTES: Final = frozenset({"chat", "completions"})
_OPTION: Final = b'"stream_options":{"include_usage":true},'
_EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_MARK: Final = b'"usage"'
_COPIED_MAX: Final = 8 * 1024 * 1024
_HELD_MAX: Final = 64 * 1024  # bytes of an event that has not ended; counts never take so many


def ask_for_usage(route: Route, body: bytes, gist: bytes | None = None) -> bytes | None:
    """``body`` with the option put in front of its other fields; None where that is not to be done.

    It is not where nothing is streamed, where the client says anything about ``stream_options`` itself, and where a
    copy of the body would hold all others up. ``gist`` is what is read in place of a large body (``large``).
    """
    if route.label not in _ROUTES or len(body) > _COPIED_MAX:
        return None
    try:
        document = orjson.loads(body if gist is None else gist)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get("stream") is not True or "stream_options" in document:
        return None
    start = body.index(b"{") + 1
    return body[:start] + _OPTION + body[start:]


class UsageFilter:
    """Passes a stream on without the event of the counts.

    An event that is cut in two waits for its other half, because nothing can be taken back.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        """Start before the first byte."""
        self._held = b""

    def feed(self, data: bytes, *, ended: bool) -> bytes:
        """What to pass on of the next bytes; ``ended``: they are the last."""
        if not self._held and data.endswith(b"\n\n") and data.find(_MARK) < 0:  # engines write whole events
            return data
        data = self._held + data
        events, start = [], 0
        while found := _EVENT_END.search(data, start):
            events.append(data[start : found.end()])
            start = found.end()
        rest = data[start:]
        if ended or len(rest) > _HELD_MAX:
            events.append(rest)
            rest = b""
        self._held = rest
        return b"".join(event for event in events if not _is_usage(event))


def _is_usage(event: bytes) -> bool:
    if event.find(_MARK) < 0:
        return False
    document = load(event.partition(b"data:")[2])
    return document is not None and document.get("choices") == [] and isinstance(document.get("usage"), dict)
