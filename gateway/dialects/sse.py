"""Server-sent events on bytes, read as they pass: where an event ends and what its data is, nothing more.

Follows the WHATWG event stream format as far as engines use it: ``data:`` with or without a space, several data lines
joined by a newline, ``:`` comments (llama.cpp pings with them), LF, CRLF or CR. Names, ids and retry times are skipped:
every payload here names its own type. Nothing is decoded, so a character cut in two by a chunk is of no concern.
"""

from __future__ import annotations

from typing import Final

_HEAD: Final = 64 * 1024
_TAIL: Final = 64 * 1024
_LIMIT: Final = _HEAD + _TAIL  # of one event; a longer one loses its middle
_SLACK: Final = 2  # line ends at the end of what is kept, which the event will not have
_STRAY: Final = 1024
_FIELDS: Final = (b"event:", b"id:", b"retry:", b":")


class EventReader:
    """Splits a byte stream into events. Any split of the same bytes gives the same events.

    Memory is bounded: of an event over 128 KiB the first and the last 64 KiB remain. ``stray`` is the last line that
    is no event field at all: engines that fail in mid-stream write their error as bare text (MindIE) or bare JSON.
    """

    __slots__ = ("_carriage", "_clean", "_open", "stray")

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._open = bytearray()  # the event that has not ended
        self._carriage = False  # the last byte was a CR: its LF may follow
        self._clean = True  # neither of the two
        self.stray = b""

    @property
    def between_events(self) -> bool:
        """Every event so far has ended."""
        return self._clean

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in ``data``, in order."""
        if self._clean and data.endswith(b"\n\n") and data.find(b"\r") < 0:  # engines write whole events
            end = len(data) - 2
            start = data.find(b"\n") + 1 if data.startswith(b"event:") else 0
            if data.startswith(b"data: ", start) and data.find(b"\n", start) == end <= _LIMIT:
                return [data[start + 6 : end]]
            return [p for p in map(self._payload, data[:end].split(b"\n\n")) if p is not None]
        if self._carriage or b"\r" in data:
            data = self._line_feeds(data)
        scanned = max(len(self._open) - 1, 0)
        self._open += data
        payloads = self._take(scanned)
        self._clean = not self._open and not self._carriage
        return payloads

    def finish(self) -> list[bytes]:
        """The data of an event that the stream's end cut off, if there is any."""
        self._open += b"\n\n"
        return self._take(max(len(self._open) - 3, 0))

    def _line_feeds(self, data: bytes) -> bytes:
        """Every line end as one LF; a CR at the end waits for what follows it."""
        if self._carriage:
            data = b"\r" + data
        self._carriage = data.endswith(b"\r")
        if self._carriage:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, scanned: int) -> list[bytes]:
        """Cut the ended events off ``_open``; no end is in its first ``scanned`` bytes."""
        payloads: list[bytes] = []
        start, end = 0, self._open.find(b"\n\n", scanned)
        while end >= 0:
            payload = self._payload(bytes(self._open[start:end]))
            if payload is not None:
                payloads.append(payload)
            start = end + 2
            end = self._open.find(b"\n\n", start)
        if start:
            del self._open[:start]
        if len(self._open) > 2 * _LIMIT:
            del self._open[_HEAD : -_TAIL - _SLACK]
        return payloads

    def _payload(self, event: bytes) -> bytes | None:
        if len(event) > _LIMIT:
            event = event[:_HEAD] + event[-_TAIL:]
        line = event[event.find(b"\n") + 1 :] if event.startswith(b"event:") else event
        if line.startswith(b"data:") and b"\n" not in line:
            return _value(line)
        return self._joined(event)

    def _joined(self, event: bytes) -> bytes | None:
        """The data lines of an event, one after another."""
        lines: list[bytes] = []
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                lines.append(_value(line))
            elif line and not line.startswith(_FIELDS):
                self.stray = line[:_STRAY]
        return b"\n".join(lines) if lines else None


def _value(line: bytes) -> bytes:
    return line[6:] if line[5:6] == b" " else line[5:]
