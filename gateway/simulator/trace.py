"""Traces of users: a CSV file with a line for each request, or Mooncake's JSON lines.

What the columns may be called, whatever their case and order; further columns are ignored::

    arrival   arrival_s, arrival (seconds) · arrival_ms, timestamp (milliseconds, as Mooncake has it)
              · timestamp as a date (2023-11-16 18:15:46.68, as Azure has it)
    prompt    prompt_tokens, input_tokens · input_length (Mooncake) · ContextTokens (Azure)
    output    output_tokens, completion_tokens · output_length (Mooncake) · GeneratedTokens (Azure)
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from gateway.simulator.workload import Arrival

_ARRIVAL: Final = {"arrival_s": 1.0, "arrival": 1.0, "arrival_ms": 0.001, "timestamp": 0.001}  # seconds of one unit
_PROMPT: Final = ("prompt_tokens", "input_tokens", "input_length", "contexttokens")
_OUTPUT: Final = ("output_tokens", "completion_tokens", "output_length", "generatedtokens")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d(?:\.\d+)?)(?:Z|\+00:00)?")
_Number = TypeVar("_Number", int, float)
_MOST: Final = 10_000_000  # tokens of one request


class TraceError(ValueError):
    """The trace cannot be used; the message says where, what was given and what is expected."""


def read(lines: Iterable[str], name: str) -> tuple[Arrival, ...]:
    """The requests in order of arrival, the first at 0; ``name`` is what messages call the file.

    Raises:
        TraceError: no such columns, no requests, or a value that is none.
    """
    rows = _Rows(iter(lines), name)
    found = sorted(rows.arrivals(), key=lambda arrival: arrival.at)
    if not found:
        raise TraceError(f"{name}: no requests in it, a line for each expected")
    start = found[0].at
    return tuple(arrival._replace(at=arrival.at - start) for arrival in found)


class _Rows:
    def __init__(self, lines: Iterator[str], name: str) -> None:
        self._name = name
        self._lines = lines
        self._line = 0

    def arrivals(self) -> Iterator[Arrival]:
        rows = self._table()
        first = next(rows, None)
        if first is None:
            return
        arrival = self._column(first, tuple(_ARRIVAL))
        prompt, output = self._column(first, _PROMPT), self._column(first, _OUTPUT)
        for row in itertools.chain((first,), rows):
            yield Arrival(
                self._value(row, arrival, lambda text: _seconds(text, _ARRIVAL[arrival.lower()])),
                self._value(row, prompt, lambda text: _count(text, 1)),
                self._value(row, output, lambda text: _count(text, 0)),
            )

    def _table(self) -> Iterator[Mapping[str, object]]:
        """One mapping for each line, whichever form the file has."""
        head = self._next()
        while head is not None and not head.strip():
            head = self._next()
        if head is None:
            return
        if head.lstrip().startswith("{"):
            yield from self._json_lines(head)
            return
        names = next(csv.reader([head.lstrip("\ufeff")]))
        while (line := self._next()) is not None:
            if line.strip():
                cells = next(csv.reader([line]))
                if len(cells) < len(names):
                    raise TraceError(f"{self._place}: got {len(cells)} columns, expected {len(names)} as in the head")
                yield dict(zip(map(str.strip, names), cells, strict=False))

    def _json_lines(self, line: str | None) -> Iterator[Mapping[str, object]]:
        while line is not None:
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise TraceError(f"{self._place}: got {_shown(line)}, expected a JSON object")
                yield row
            line = self._next()

    def _next(self) -> str | None:
        self._line += 1
        return next(self._lines, None)

    @property
    def _place(self) -> str:
        return f"{self._name}, line {self._line}"

    def _column(self, row: Mapping[str, object], known: Sequence[str]) -> str:
        for name in row:
            if name.lower() in known:
                return name
        raise TraceError(f"{self._name}: got columns {', '.join(row)}, expected one of {', '.join(known)} among them")

    def _value(self, row: Mapping[str, object], column: str, parse: Callable[[str], _Number]) -> _Number:
        given = row.get(column, "")
        try:
            return parse(str(given).strip())
        except ValueError as error:
            raise TraceError(f"{self._place}, column {column}: got {_shown(str(given))}, expected {error}") from None


def _seconds(text: str, unit: float) -> float:
    if (date := _DATE.fullmatch(text)) is not None:
        year, month, day, hour, minute = map(int, date.groups()[:5])
        return timegm((year, month, day, hour, minute, 0)) + float(date[6])
    try:
        value = float(text) * unit
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number, or a date such as 2023-11-16 18:15:46.68")
    return value


def _count(text: str, least: int) -> int:
    if not (text.isdecimal() and least <= int(text) <= _MOST):
        raise ValueError(f"a whole number of tokens, {least} to {_MOST}")
    return int(text)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}...")  # noqa: PLR2004 - a line
