"""Every finished request as a line of JSON in a file: for the same report later, and for a replay elsewhere.

docs/report.md describes the schema. The file is renamed to ``.1``, ``.2`` ... as it grows, and the oldest one goes, so
the disk it takes is bounded.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Entry
from gateway.telemetry.sink import LineSink

VERSION: Final = 1
CAPACITY: Final = 4 * 1024 * 1024  # bytes that wait for the disk; at most so much more than its size gets into a file

_LOG: Final = logging.getLogger("gateway.records")
_STAMPS: Final = ("stamps", "blanks", "unheard")
_INSTANTS: Final = ("read", "offered", "admitted", "sent", "last_output")
_PLAIN: Final[dict[str, tuple[Any, type]]] = {  # field: what a line that leaves it out means, and its type
    "request_id": ("", str),
    "route": ("chat", str),
    "model": (None, str),
    "lane": (None, str),
    "priority": (None, str),
    "backend": (None, str),
    "choice": (None, str),
    "status": (0, int),
    "stream": (False, bool),
    "generates": (True, bool),
    "retry": (0, int),
    "attempts": (0, int),
    "prompt_tokens": (None, int),
    "output_tokens": (None, int),
    "cached_tokens": (None, int),
    "estimated_prompt_tokens": (0, int),
    "estimated_output_tokens": (0, int),
    "output_events": (0, int),
}
_KEYS: Final = (*((name, name) for name in _PLAIN), *((f"{name}_us", name) for name in (*_INSTANTS, "finished")))


class RecordFile:
    """Takes entries and writes them. Never blocks, never raises."""

    def __init__(
        self,
        path: str,
        size: int,
        keep: int,
        *,
        on_trouble: Callable[[str], None] = _LOG.warning,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Open ``path``; at ``size`` bytes it is renamed, and ``keep`` files with a number are kept beside it.

        Raises:
            OSError: it cannot be opened for appending.
        """
        self._sink = RotatingSink(path, size, keep, on_trouble)
        self._clock = clock
        self._wall_clock = wall_clock

    def take(self, entry: Entry) -> None:
        """Queue the line of one finished request."""
        self._sink.write(line(entry, self._wall_clock() - self._clock()))

    def dropped(self) -> int:
        """Lines lost so far: queue full or write failed."""
        return self._sink.dropped

    def reopen(self) -> None:
        """Open the file anew, after somebody else moved it; returns at once."""
        self._sink.reopen()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most ``timeout`` seconds, and close."""
        self._sink.stop(timeout)


class RotatingSink(LineSink):
    """A file that makes room for a new one when it is full."""

    def __init__(self, path: str, size: int, keep: int, on_trouble: Callable[[str], None]) -> None:
        """``keep`` 0 keeps no other file."""
        self._full = size
        self._keep = keep
        super().__init__(path, capacity=CAPACITY, on_trouble=on_trouble)

    def _turn(self) -> None:
        super()._turn()
        try:
            if self._is_file and os.fstat(self._fd).st_size >= self._full:
                self._make_room()
        except OSError as error:
            self._on_trouble(f"cannot rename {self._target}, it goes on growing: {error.strerror}")

    def _make_room(self) -> None:
        """``records`` -> ``records.1`` -> ``records.2`` ...; the last one is overwritten."""
        names = [self._target, *(f"{self._target}.{number}" for number in range(1, self._keep + 1))]
        if self._keep:
            for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
                if Path(newer).exists():
                    Path(newer).replace(older)
        else:
            Path(self._target).unlink(missing_ok=True)
        self._renew()


# ------------------------------------------------------------------------------------------------------------- lines


def line(entry: Entry, offset: float) -> bytes:
    """One line; ``offset`` is what makes ``entry.received`` seconds since the epoch."""
    document: dict[str, Any] = {
        "version": VERSION,
        "received": round(entry.received + offset, 6),
        "outcome": entry.outcome.value,
    }
    if entry.reason is not None:
        document["reason"] = entry.reason.value
    for key, name in _KEYS:
        value = getattr(entry, name)
        if value is not None:
            document[key] = value
    document |= {f"{name}_us": stamps.tolist() for name in _STAMPS if (stamps := getattr(entry, name))}
    try:
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a name that is not valid UTF-8 arrives with lone surrogates
        document = {name: _encodable(value) for name, value in document.items()}
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def entry_in(text: bytes) -> Entry:
    """The entry of a line; ``received`` is in seconds since the epoch.

    Raises:
        ValueError: it is no such line, or of another version.
    """
    try:
        document = orjson.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}, expected {VERSION}")
        reason = document.get("reason")
        stamps = {name: array("I", document[key]) for name in _STAMPS if (key := f"{name}_us") in document}
        return Entry(
            received=float(document["received"]),
            outcome=Outcome(document["outcome"]),
            reason=None if reason is None else Reason(reason),
            finished=_typed(document["finished_us"], int),
            **{name: _typed(document.get(name, default), kind, default) for name, (default, kind) in _PLAIN.items()},
            **{name: _typed(document.get(f"{name}_us"), int, None) for name in _INSTANTS},
            stamps=stamps.get("stamps", array("I")),
            blanks=stamps.get("blanks"),
            unheard=stamps.get("unheard"),
        )
    except (LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _typed(value: Any, kind: type, *others: Any) -> Any:
    """``value``, if it is of ``kind`` or one of ``others``."""
    if not isinstance(value, kind) and not any(value is other for other in others):
        raise TypeError(f"got {value!r}, expected {kind.__name__}")
    return value


class Unreadable(Exception):  # noqa: N818 - a message for the operator, not a fault of the program
    """No line of a file could be read; the message says why the first one could not."""


def entries_in(path: Path, on_skipped: Callable[[str], object]) -> Iterator[Entry]:
    """The entries of a file, in the order in which the requests finished.

    A line that cannot be read (cut off by a full disk, say) is skipped, and told at the end.

    Raises:
        OSError: the file cannot be read.
        Unreadable: none of its lines can.
    """
    read, skipped, first = 0, 0, ""
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            try:
                yield entry_in(text)
                read += 1
            except ValueError as error:
                skipped += 1
                first = first or f"{path}, line {number}: {error}"
    if skipped and not read:
        raise Unreadable(f"{first}; expected lines of GATEWAY_RECORDS_FILE")
    if skipped:
        on_skipped(f"{path}: {skipped} of {read + skipped} lines cannot be read, the first: {first}")
