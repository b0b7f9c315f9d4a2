"""The last so many rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct


class Rows:
    """Keeps the last ``capacity`` rows; the oldest is written over. The first column is the instant of the row.

    The first column is kept in double precision and the ``figures`` others in single: packed, a row takes a tenth of a
    tuple's memory.
    """

    __slots__ = ("_end", "_form", "_next", "_rows")

    def __init__(self, figures: int, capacity: int) -> None:
        self._form = Struct(f"=d{figures}f")
        self._end = capacity * self._form.size
        self._next = 0
        self._rows = bytearray()

    def add(self, *row: float) -> None:
        """Take a row, a number for each column."""
        start = self._next if self._next < self._end else 0
        self._next = start + self._form.size
        self._rows[start : self._next] = self._form.pack(*row)  # behind the last one it is appended

    def since(self, instant: float) -> Iterator[tuple[float, ...]]:
        """Rows that are not older than ``instant``, in no order."""
        return (row for row in self._form.iter_unpack(bytes(self._rows)) if row[0] >= instant)
