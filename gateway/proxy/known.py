"""Heads that were parsed before, known again by their bytes: of clients' requests and of backends' answers.

Most heads differ from the one before in the length of the body, and perhaps in an id; all else is the same bytes.
Such a head is parsed once, as strictly as any. After that it is recognised: by every byte of it, but for the digits of
Content-Length and the characters of X-Request-Id, of which only such are accepted as no parser could take for anything
else. What differs in anything more goes to the parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

H = TypeVar("H")

LONGEST: Final = 4096  # bytes of a head that is remembered
_LENGTHS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_IDS: Final = (b"\r\nX-Request-Id: ", b"\r\nx-request-id: ")
_ID_LONGEST: Final = 128
_DIGITS: Final = 8  # of a length
_ZERO: Final = 48  # the digit
_NINE: Final = 57
_ID_MARKS: Final = b"-_.:"


class Found(Generic[H]):
    """A message whose head is known, or that is here whole: ``size`` bytes are head and body together."""

    __slots__ = ("body_at", "head", "request_id", "size")

    def __init__(self, head: H, request_id: str, body_at: int, size: int) -> None:
        self.head = head
        self.request_id = request_id  # empty: it has none
        self.body_at = body_at
        self.size = size


class Known(Generic[H]):
    """At most ``most`` heads, and as many that are older and forgotten next, unless they come again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, H] = {}
        self._older: dict[bytes, H] = {}
        self._last: tuple[Around, H] | None = None  # most come again and again

    def find(self, data: bytes) -> Found[H] | None:
        """The message that ``data`` begins with; None where its head is not known."""
        if self._last is not None:
            around, head = self._last
            length = around.length(data)
            if length >= 0:
                return Found(head, "", around.body_at, around.body_at + length)
        cut = cut_out(data)
        if cut is None:
            return None
        key, request_id, length, body_at = cut
        known = self._known.get(key)
        if known is None:
            known = self._older.get(key)
            if known is None:
                return None
            self._add(key, known)
        if not request_id:
            self._last = Around(data, key, length, body_at), known
        return Found(known, request_id, body_at, body_at + length)

    def remember(self, data: bytes, names: Iterable[bytes], length: int, head: H, *, ids: bool = True) -> None:
        """Know ``head`` again, which the parser found at the beginning of ``data``, where that is safe.

        ``names`` are those of its headers, ``length`` is that of its body. Without ``ids`` no id may differ.
        """
        cut = cut_out(data)
        if cut is None:
            return
        key, request_id, found, body_at = cut
        lower = [name.lower() for name in names]
        if found != length or data.count(b"\r\n", 0, body_at - 2) != len(lower) + 1:
            return  # something is not where it seems to be
        if lower.count(b"content-length") != 1 or lower.count(b"x-request-id") != bool(request_id):
            return
        if ids or not request_id:
            self._add(key, head)

    def _add(self, key: bytes, head: H) -> None:
        if len(self._known) >= self._most:
            self._older, self._known = self._known, {}
        self._known[key] = head


class Around:
    """The bytes of a head without an id, before and after the digits of the length; the quickest way to know it again.

    ``body_at`` is where the body begins of the data that was looked at last.
    """

    __slots__ = ("_after", "_before", "body_at")

    def __init__(self, data: bytes, key: bytes, length: int, body_at: int) -> None:
        """Of what ``cut_out`` gave for ``data``."""
        digits = body_at - 4 - len(key)
        at = _after(data, _LENGTHS, body_at)
        self._before = data[:at]
        self._after = data[at + digits : body_at]
        self.body_at = body_at
        assert self.length(data) == length  # noqa: S101 - else ``cut_out`` cuts elsewhere

    def length(self, data: bytes) -> int:
        """The length that ``data`` tells, which begins with this head; -1 where it does not."""
        if not data.startswith(self._before):
            return -1
        first = at = len(self._before)
        end = min(len(data), first + _DIGITS)
        length = 0
        while at < end and _ZERO <= data[at] <= _NINE:
            length = 10 * length + data[at] - _ZERO
            at += 1
        body_at = at + len(self._after)
        if at == first or (data[first] == _ZERO and at > first + 1) or data[at:body_at] != self._after:
            return -1
        self.body_at = body_at
        return length


def cut_out(data: bytes) -> tuple[bytes, str, int, int] | None:
    """(head without what may differ, id, length, where the body begins); None where that cannot be told."""
    end = data.find(b"\r\n\r\n", 0, LONGEST)
    if end < 0:
        return None
    at = _after(data, _LENGTHS, end)
    stop = data.find(b"\r", at, end + 1) if at else -1
    if stop < 0 or not 0 < stop - at <= _DIGITS:
        return None
    digits = data[at:stop]
    if not digits.isdigit() or (digits.startswith(b"0") and len(digits) > 1):
        return None
    id_at = _after(data, _IDS, end)
    if not id_at:
        return data[:at] + data[stop:end], "", int(digits), end + 4
    id_stop = data.find(b"\r", id_at, end + 1)
    request_id = data[id_at:id_stop]
    if len(request_id) > _ID_LONGEST or not request_id.translate(None, _ID_MARKS).isalnum():
        return None
    first, first_stop, last, last_stop = at, stop, id_at, id_stop
    if id_at < at:
        first, first_stop, last, last_stop = id_at, id_stop, at, stop
    return data[:first] + data[first_stop:last] + data[last_stop:end], request_id.decode(), int(digits), end + 4


def _after(data: bytes, spellings: tuple[bytes, bytes], end: int) -> int:
    """Where the value begins of the first header that is spelt so; 0 where there is none."""
    for spelling in spellings:
        at = data.find(spelling, 0, end)
        if at >= 0:
            return at + len(spelling)
    return 0
