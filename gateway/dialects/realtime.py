"""Which model a realtime session is about, where its client says so inside the WebSocket (RFC 6455).

vLLM takes the model from the client's first ``session.update``, OpenAI from the query. It cannot choose the backend:
vLLM sends ``session.created`` first and clients wait for it, so a backend is there before the name is.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.request import name_of, parse

_MOST: Final = 64 * 1024  # bytes of the client that are looked at; its first messages are short
_TEXT, _CONTINUATION, _BINARY = 1, 0, 2
_LONG, _LONGER = 126, 127  # lengths that stand for a length in the next two or eight bytes


class SessionListener:
    """Hears a client's frames until one of its messages names the model, or too much was said without."""

    def __init__(self) -> None:
        """Start at the first byte after the upgrade."""
        self.model: str | None = None
        self.done = False
        self._heard = 0
        self._rest = bytearray()
        self._text: bytearray | None = None  # of a message that is not complete

    def feed(self, data: bytes) -> None:
        """Take the next bytes; after ``done`` there is no use in it."""
        self._heard += len(data)
        self._rest += data
        while not self.done and (frame := _frame(self._rest)) is not None:
            self._take(*frame)
        self.done = self.done or self._heard > _MOST

    def _take(self, head: int, payload: bytes) -> None:
        kind, last = head & 0x0F, bool(head & 0x80)
        if head & 0x70:  # compressed: it cannot be read without having read all before it
            self.done = True
        elif kind == _TEXT:
            self._text = bytearray(payload)
        elif kind == _CONTINUATION and self._text is not None:
            self._text += payload
        elif kind == _BINARY:
            self._text = None
        if last and kind in {_TEXT, _CONTINUATION} and self._text is not None:
            self._read(bytes(self._text))
            self._text = None

    def _read(self, text: bytes) -> None:
        event = parse(text) or {}
        if event.get("type") == "session.update":
            session: Any = event.get("session")
            inner = session.get("model") if isinstance(session, dict) else None
            self.model = name_of(event.get("model")) or name_of(inner)
            self.done = self.model is not None


def _frame(data: bytearray) -> tuple[int, bytes] | None:
    """(first byte, payload) of the frame that ``data`` begins with, taken off it; None where it is not whole."""
    if len(data) < 2:  # noqa: PLR2004 - first byte and length
        return None
    size, at = data[1] & 0x7F, 2
    if size >= _LONG:
        width = 2 if size == _LONG else 8
        size, at = int.from_bytes(data[at : at + width]), at + width
    masked = bool(data[1] & 0x80)
    end = at + 4 * masked + size
    if len(data) < end:
        return None
    payload = bytes(data[at + 4 * masked : end])
    if masked:
        mask = int.from_bytes((bytes(data[at : at + 4]) * (size // 4 + 1))[:size])
        payload = (int.from_bytes(payload) ^ mask).to_bytes(size)
    head = data[0]
    del data[:end]
    return head, payload
