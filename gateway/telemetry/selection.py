"""Which requests a report is about, and how an operator spells that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.telemetry.entry import Entry

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests received from ``since`` to before ``until``, seconds of the entries' own clock; None is no bound.

    ``prefix`` is the beginning of their request ids, ``model`` the name they asked for.
    """

    since: float | None = None
    until: float | None = None
    prefix: str = ""
    model: str | None = None

    def takes(self, entry: Entry) -> bool:
        """Whether the report is about ``entry``."""
        return (
            (self.since is None or entry.received >= self.since)
            and (self.until is None or entry.received < self.until)
            and (self.model is None or entry.model == self.model)
            and entry.request_id.startswith(self.prefix)
        )


def duration(text: str) -> float:
    """``90``, ``90s``, ``10m``, ``1.5h`` or ``1d`` in seconds.

    Raises:
        ValueError: it is none of these, or not above 0.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"got {text!r}, expected a duration such as 90s, 10m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def instant(text: str, now: float) -> float:
    """Seconds since the epoch of ``1796042131``, ``2026-11-30T15:04:05+01:00``, or ``15:04`` as of today.

    ``now`` is the present in seconds since the epoch. What names no time zone is in that of this process.

    Raises:
        ValueError: it is none of these.
    """
    text = text.strip()
    try:
        if re.fullmatch(r"\d{6,}(\.\d+)?", text):
            return float(text)
        if _CLOCK.fullmatch(text):
            text = f"{datetime.fromtimestamp(now).astimezone():%Y-%m-%d}T{text:0>5}"
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        wanted = "a time such as 15:04, 2026-11-30T15:04:05+01:00 or seconds since the epoch"
        raise ValueError(f"got {text!r}, expected {wanted}") from None
