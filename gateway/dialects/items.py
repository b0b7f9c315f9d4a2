"""Streams of items: one JSON object after another, as the engines' own APIs send them.

How items are set apart is seen from the stream itself, not from the route: server-sent events with or without a space
behind ``data:``, or bare JSON that ends in NUL (vLLM's older server, MindIE) or in a newline (Ollama, later versions of
that server). JSON text as engines write it holds neither NUL nor newline, so both always end an item.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.dialects.base import Fault
from gateway.dialects.reply import fault_in, fault_of, load, usage_of
from gateway.dialects.sse import EventReader
from gateway.model import Usage

_HEAD: Final = 64 * 1024
_TAIL: Final = 64 * 1024
_ITEM_MAX: Final = _HEAD + _TAIL  # of one item set apart by NUL or newline; a longer one loses its middle
_SHOWN: Final = 1024
_BLANK: Final = b"\0\r\n\t "
_ENDS: Final = bytes.maketrans(b"\r\n", b"\0\0")
_DONE: Final = b"[DONE]"

Document = dict[str, Any]


def _never(_document: Document) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Items:
    """What the items of one API mean.

    ``look`` finds the few that are worth parsing: an item without a match is one piece of output and nothing else.
    ``last`` tells the item that ends the stream, ``hollow`` one without output, ``fault`` what an item says went wrong,
    ``counts`` the tokens that the last item reports. ``marked``: a whole stream has such a last item or [DONE]; without
    marks the body's end is the only end there is.
    """

    look: re.Pattern[bytes] = re.compile(rb'"error"')
    last: Callable[[Document], bool] = _never
    hollow: Callable[[Document], bool] = _never
    fault: Callable[[Document], Fault | None] = fault_of
    counts: Callable[[Document], Usage | None] = usage_of
    marked: bool = False


PLAIN: Final = Items()
"""Items of unknown meaning."""


class ItemReader:
    """Listens to a stream of items; see ``ResponseReader``."""

    __slots__ = ("_counted", "_delimited", "_ended", "_events", "_items", "_last", "_open", "fault")

    asides = None

    def __init__(self, items: Items = PLAIN) -> None:
        """Start before the first byte."""
        self.fault: Fault | None = None
        self._items = items
        self._events = EventReader()
        self._delimited: bool | None = None  # no event framing; None before the first byte
        self._open = bytearray()  # the item that has not ended
        self._last = b""
        self._counted: Usage | None = None  # by an item before the last
        self._ended = False

    @property
    def usage(self) -> Usage | None:
        """See ``ResponseReader``."""
        document = load(self._last)
        return (self._items.counts(document) if document is not None else None) or self._counted

    @property
    def complete(self) -> bool:
        """See ``ResponseReader``."""
        return self.fault is None and (self._ended if self._items.marked else bool(self._last))

    @property
    def between_events(self) -> bool:
        """See ``ResponseReader``. An event has no place among items that are set apart otherwise."""
        return self._delimited is False and self._events.between_events

    def feed(self, data: bytes) -> int:
        """See ``ResponseReader``."""
        if self._delimited is None and (start := data.lstrip(_BLANK)):
            self._delimited = start.startswith(b"{")
        if self._delimited:
            return sum(map(self._read, self._split(data)))
        return sum(map(self._read, self._events.feed(data)))

    def finish(self) -> int:
        """See ``ResponseReader``."""
        if self._delimited:
            return sum(map(self._read, self._split(b"\0")))
        output = sum(map(self._read, self._events.finish()))
        if self._events.stray:
            self._note(fault_in(self._events.stray.decode(errors="replace")))
        return output

    def _split(self, data: bytes) -> list[bytes]:
        """The items that end in ``data``, in order."""
        *ended, rest = data.translate(_ENDS).split(b"\0")
        if ended:
            ended[0] = bytes(self._open) + ended[0]
            self._open.clear()
        self._open += rest
        if len(self._open) > 2 * _ITEM_MAX:
            del self._open[_HEAD:-_TAIL]
        return [item if len(item) <= _ITEM_MAX else item[:_HEAD] + item[-_TAIL:] for item in ended]

    def _read(self, item: bytes) -> int:
        """Take one item; how many pieces of output it is."""
        item = item.strip(_BLANK)
        if not item or item == _DONE:
            self._ended = self._ended or item == _DONE
            return 0
        if self._delimited and not item.startswith(b"{"):  # an engine that fails in mid-stream writes bare text
            self._note(fault_in(item[:_SHOWN].decode(errors="replace")))
            return 0
        document = load(item) if self._items.look.search(item) else None
        return self._judge(document, item) if document is not None else self._keep(item)

    def _keep(self, item: bytes) -> int:
        self._last = item
        return 1

    def _judge(self, document: Document, item: bytes) -> int:
        fault = self._items.fault(document)
        if fault is not None:
            self._note(fault)
            return 0
        self._ended = self._ended or self._items.last(document)
        self._counted = self._items.counts(document) or self._counted
        self._keep(item)
        return 0 if self._items.hollow(document) else 1

    def _note(self, fault: Fault) -> None:
        """The first fault counts: what follows it is its consequence."""
        self.fault = self.fault or fault
