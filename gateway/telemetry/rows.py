"""The last so many rows of numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import pack
from typing import Final

_TOGETHER: Final = 16  # rows that go into the columns at once


class Rows:
    """Keeps the last ``capacity`` rows; the oldest is written over. The first column is the instant of the row.

    The first column is kept in double precision and the ``figures`` others in single: packed, a row takes a tenth of a
    tuple's memory.
    """

    __slots__ = ("_capacity", "_columns", "_fresh", "_next")

    def __init__(self, figures: int, capacity: int) -> None:
        self._columns: list[array[float]] = [array("d"), *(array("f") for _ in range(figures))]
        self._capacity = capacity
        self._next = 0
        self._fresh: list[tuple[float, ...]] = []

    def add(self, *row: float) -> None:
        """Take a row, a number for each column."""
        self._fresh.append(row)
        if len(self._fresh) >= _TOGETHER:
            self._take()

    def _take(self) -> None:
        """Put the fresh rows into the columns: a column at a time, as long as none is written over."""
        fresh, self._fresh = self._fresh, []
        if len(self._columns[0]) + len(fresh) <= self._capacity:
            for column, values in zip(self._columns, zip(*fresh, strict=True), strict=True):
                column.frombytes(pack(f"{len(values)}{column.typecode}", *values))  # a fifth of what ``extend`` takes
            return
        for row in fresh:
            full = len(self._columns[0]) >= self._capacity
            for column, value in zip(self._columns, row, strict=True):
                if full:
                    column[self._next] = value
                else:
                    column.append(value)
            self._next = (self._next + full) % self._capacity

    def since(self, instant: float) -> Iterator[tuple[float, ...]]:
        """Rows that are not older than ``instant``, in no order."""
        if self._fresh:
            self._take()
        return (row for row in zip(*self._columns, strict=True) if row[0] >= instant)
