"""What is wrong now and since when: the last diagnosis, with its memory, as programs and people read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.telemetry.causes import Finding
from gateway.telemetry.events import Event, EventLog

LINGERS: Final = 30.0  # seconds that a finding may be out of sight and still be the same


@dataclass(slots=True)
class _Known:
    finding: Finding
    since: float
    seen: float


class Findings:
    """Keeps what was found; tells ``log`` when a finding begins and ends. ``clock``: seconds since the epoch."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}
        self._now: list[_Known] = []
        self._at: float | None = None
        self._seconds = 0.0
        self._unknown: Sequence[str] = ()

    def take(self, found: Sequence[Finding], unknown: Sequence[str], seconds: float) -> None:
        """Take a diagnosis of the last ``seconds``."""
        now = self._at = self._clock()
        self._seconds, self._unknown = seconds, unknown
        self._now = [self._noted(finding, now) for finding in found]
        for key, known in list(self._known.items()):
            if now - known.seen > LINGERS:
                del self._known[key]
                self._tell("finding_ended", known.finding, "info")

    def _noted(self, finding: Finding, now: float) -> _Known:
        key = finding.cause.value, finding.title
        if key not in self._known:
            self._known[key] = _Known(finding, now, now)
            self._tell("finding_began", finding, finding.severity.value)
        known = self._known[key]
        known.finding, known.seen = finding, now
        return known

    def _tell(self, kind: str, finding: Finding, severity: str) -> None:
        text = finding.title if kind == "finding_began" else f"no longer: {finding.title}"
        self._log.add(Event(kind, text, finding.backend, severity, {"cause": finding.cause.value}))

    def causes(self) -> list[tuple[str, str | None]]:
        """What there is now: the cause and the backend of each."""
        return [(known.finding.cause.value, known.finding.backend) for known in self._now]

    def listed(self) -> list[dict[str, Any]]:
        """What there is now, as /diagnosis shows it."""
        return [_shown(known) for known in self._now]

    def view(self) -> dict[str, Any]:
        """What /diagnosis answers; docs/admin.md describes it."""
        waiting = [] if self._at is not None else ["The gateway has only just started: nothing was judged yet."]
        return {
            "at": self._clock() if self._at is None else self._at,
            "window_seconds": round(self._seconds, 1),
            "findings": self.listed(),
            "unknown": [*waiting, *self._unknown],
        }

    def text(self) -> str:
        """The same for people."""
        return "\n".join(_lines(self.view()))


def _shown(known: _Known) -> dict[str, Any]:
    finding = known.finding
    return {
        "cause": finding.cause.value,
        "title": finding.title,
        "severity": finding.severity.value,
        "backend": finding.backend,
        "since": round(known.since, 3),
        "evidence": list(finding.evidence),
        "advice": list(finding.advice),
    }


def _lines(view: Mapping[str, Any]) -> Iterator[str]:
    span = f"{view['window_seconds']:.0f} s"
    yield f"Nothing is wrong, as far as the last {span} show." if not view["findings"] else f"In the last {span}:"
    for found in view["findings"]:
        yield ""
        since = _age(view["at"] - found["since"])
        yield f"{found['severity'].upper()}  {found['title']}  [{found['cause']}, for {since}]"
        yield from (f"    {sentence}" for sentence in found["evidence"])
        yield "  What to turn:"
        yield from (f"    - {sentence}" for sentence in found["advice"])
    if view["unknown"]:
        yield ""
        yield "Not judged:"
        yield from (f"    {sentence}" for sentence in view["unknown"])
    yield ""


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes
