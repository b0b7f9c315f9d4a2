"""The last so many rows of numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Rows:
    """Keeps the last ``capacity`` rows; the oldest is written over. The first column is the instant of the row.

    The first column is kept in double precision and the ``figures`` others in single: packed, a row takes a tenth of a
    tuple's memory.
    """

    __slots__ = ("_capacity", "_columns", "_next")

    def __init__(self, figures: int, capacity: int) -> None:
        self._columns: list[array[float]] = [array("d"), *(array("f") for _ in range(figures))]
        self._capacity = capacity
        self._next = 0

    def add(self, *row: float) -> None:
        """Take a row, a number for each column."""
        if len(self._columns[0]) < self._capacity:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return
        place = self._next
        for column, value in zip(self._columns, row, strict=True):
            column[place] = value
        self._next = (place + 1) % self._capacity

    def since(self, instant: float) -> Iterator[tuple[float, ...]]:
        """Rows that are not older than ``instant``, in no order."""
        return (row for row in zip(*self._columns, strict=True) if row[0] >= instant)
