"""A large JSON body made small, in steps: what a parser would hold the event loop for is found out without it.

Large bodies are large by few things: pictures and recordings as base64, long texts, arrays of token ids. The middle of
such a string, and all but the first of such numbers, are left out and counted, so that what remains is parsed as any
other body. A parser that is given all of it takes 1 ms for a MiB of base64, 6 for one of ids and 50 for one of empty
lists, which become 25 MiB of objects, and nothing else runs meanwhile: it cannot be sent to a thread, because it makes
Python's objects. So a body that is large by many small things is not parsed at all: it counts by its size, and its
model is not known.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final

import orjson

from gateway.dialects import media
from gateway.model import Shape

LARGE: Final = 128 * 1024
"""Bytes; a body of more is condensed before it is read."""

_STEP: Final = 256 * 1024  # bytes looked at before others get their turn
_STRINGS_STEP: Final = 1000
_STRINGS: Final = 100_000  # in one body; of more it is not told what it asks for
_VALUES: Final = 50_000  # that are left to parse
_WHOLE: Final = 2 * 1024 * 1024  # bytes of a string that are kept,
_HEAD: Final = 64 * 1024  # where so many are kept already,
_FULL: Final = 4 * 1024 * 1024
_SCRAP: Final = 256  # and where even more are
_MOST: Final = 12 * 1024 * 1024
_NUMBERS: Final = re.compile(rb"(\d+)([\d,\s]{256,}\d)")
_SPACE: Final = b" \t\r\n"
_HIGH_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_MEDIA_FIELDS: Final = frozenset({b"data", b"url", b"image_url", b"file_data", b"audio", b"image", b"video"})


@dataclass(frozen=True, slots=True)
class Condensed:
    """``body`` stands for the whole one, which has ``size`` bytes; empty where it is not told what that asks for.

    Left out are ``text`` bytes, ``wide`` of them no ASCII, ``ids`` token ids and ``media`` tokens.
    """

    body: bytes
    size: int
    text: int = 0
    wide: int = 0
    ids: int = 0
    media: int = 0

    def restored(self, shape: Shape) -> Shape:
        """The shape of the whole body, where ``shape`` is that of what stands for it."""
        if not self.body:
            return replace(shape, prompt_bytes=self.size)
        grown = 1.0 + self.text / max(shape.prompt_bytes, 1)
        exact = shape.prompt_tokens is not None
        return replace(
            shape,
            prompt_bytes=shape.prompt_bytes + self.text,
            dense_bytes=round(shape.dense_bytes * grown),
            sign_bytes=round(shape.sign_bytes * grown),
            wide_bytes=min(shape.wide_bytes + self.wide, shape.prompt_bytes + self.text),
            prompt_tokens=None if shape.prompt_tokens is None else shape.prompt_tokens + self.ids,
            media_tokens=shape.media_tokens + self.media + (0 if exact else self.ids),
        )


def condensed(body: bytes) -> Generator[None, None, Condensed]:
    """Make a large body small; the caller may do something else wherever this yields."""
    first = body[:_STEP].lstrip(_SPACE)[:1]
    if first != b"{":
        # A list or a string is no request, and may be anything inside; what is no JSON ends a parser at once.
        return Condensed(b"" if first in {b"[", b'"', b""} else body, len(body))
    return (yield from _Scan(body).run())


class _Scan:
    """One walk through a body, from string to string."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._kept: list[bytes] = []
        self._size = 0  # of what is kept
        self._text = 0
        self._wide = 0
        self._ids = 0
        self._media = 0

    def run(self) -> Generator[None, None, Condensed]:
        body, at, strings = self._body, 0, 0
        last = b""  # the string before, which may be the name of the next
        while True:
            begin = body.find(b'"', at)
            between = yield from self._between(at, len(body) if begin < 0 else begin)
            if begin < 0:
                break
            end = yield from self._end(begin + 1)
            strings += 1
            if end < 0 or strings > _STRINGS or self._size > _MOST:
                return Condensed(b"", len(body))
            yield from self._keep_string(begin, end, last if between == b":" else b"")
            last = body[begin + 1 : min(end, begin + 32)]
            at = end + 1
            if strings % _STRINGS_STEP == 0:
                yield
        small = b"".join(self._kept)
        if small.count(b",") > _VALUES or small.count(b"[") > _VALUES:
            return Condensed(b"", len(body))
        return Condensed(small, len(body), self._text, self._wide, self._ids, self._media)

    def _between(self, start: int, end: int) -> Generator[None, None, bytes]:
        """Keep what is between two strings, of a long row of numbers the first; return what little there is."""
        if end - start < _SCRAP:
            piece = self._body[start:end]
            self._keep(piece)
            return piece.strip(_SPACE)
        for at in range(start, end, _STEP):
            self._keep(_NUMBERS.sub(self._count, self._body[at : min(at + _STEP, end)]))
            yield
            if self._size > _MOST:
                break
        return b""

    def _count(self, row: re.Match[bytes]) -> bytes:
        self._ids += row[2].count(b",")
        return row[1]

    def _end(self, start: int) -> Generator[None, None, int]:
        """Where the string ends that begins at ``start``; -1: nowhere."""
        body, at, looks = self._body, start, 0
        while True:
            end = body.find(b'"', at)
            if end < 0 or not self._escapes(start, end):
                return end
            at = end + 1
            looks += 1
            if looks % _STRINGS_STEP == 0:
                yield

    def _keep_string(self, begin: int, end: int, name: bytes) -> Generator[None, None, None]:
        room = _WHOLE if self._size < _FULL // 2 else _HEAD if self._size < _FULL else _SCRAP
        if end - begin <= room:
            self._keep(self._body[begin : end + 1])
            return
        cut = self._cut(begin + 1, begin + room)
        head = self._body[begin:cut]
        self._keep(head + b'"')
        if name in _MEDIA_FIELDS:
            self._media += media.further_tokens(head[1:_HEAD].decode(errors="replace"), end - cut)
        else:
            yield from self._count_text(cut, end)

    def _count_text(self, start: int, end: int) -> Generator[None, None, None]:
        """Count what is between, as it is in UTF-8 and without JSON's escapes."""
        while start < end:
            stop = min(start + _STEP, end)
            piece = self._body[start : stop if stop == end else self._cut(start, stop)]
            start += len(piece) or _STEP
            if piece.isascii() and b"\\" not in piece:
                self._text += len(piece)
            else:
                text = _unescaped(piece)
                size = len(text.encode())
                self._text += size
                self._wide += (size - len(text)) * 3 // 2  # as ``request`` counts it
            yield

    def _cut(self, start: int, wanted: int) -> int:
        """Where a string may be cut: not inside a character, nor inside what stands for one."""
        body, cut = self._body, wanted
        while cut > start and body[cut] & 0xC0 == 0x80:  # noqa: PLR2004 - bytes of UTF-8 that are no first ones
            cut -= 1
        escape = body.rfind(b"\\", max(start, cut - 6), cut)
        if escape >= 0 and self._escapes(start, escape + 1):
            cut = escape
        half = max(start, cut - 6)
        return half if _HIGH_SURROGATE.fullmatch(body[half:cut]) and self._escapes(start, half + 1) else cut

    def _escapes(self, start: int, end: int) -> bool:
        """Whether what stands at ``end`` is escaped: an odd number of backslashes precedes it, from ``start`` on."""
        body, reach = self._body, 8
        while True:
            begin = max(start, end - reach)
            other = len(body[begin:end].rstrip(b"\\"))
            if other or begin == start:
                return (end - begin - other) % 2 == 1
            reach *= 8

    def _keep(self, piece: bytes) -> None:
        self._kept.append(piece)
        self._size += len(piece)


def _unescaped(piece: bytes) -> str:
    try:
        text: str = orjson.loads(b'"%b"' % piece)
    except ValueError:  # the engine will say so
        return piece.decode(errors="replace")
    return text
