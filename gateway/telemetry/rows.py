"""The last so many rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct


class Rows:
    """Keeps the last ``capacity`` rows; the oldest goes. The first column is the instant of the row.

    The first column is kept in double precision and the ``figures`` others in single: packed, a row takes a tenth of a
    tuple's memory.
    """

    __slots__ = ("_full", "_pack", "_rows", "_unpack")

    def __init__(self, figures: int, capacity: int) -> None:
        form = Struct(f"=d{figures}f")
        self._pack, self._unpack = form.pack, form.iter_unpack
        self._full = capacity * form.size
        self._rows = bytearray()

    def add(self, *row: float) -> None:
        """Take a row, a number for each column."""
        self._rows += self._pack(*row)
        if len(self._rows) > self._full + self._full // 8:  # not with each row
            del self._rows[: -self._full]

    def since(self, instant: float) -> Iterator[tuple[float, ...]]:
        """Rows that are not older than ``instant``, the oldest first."""
        return (row for row in self._unpack(bytes(self._rows[-self._full :])) if row[0] >= instant)
