"""What happened lately, in words: a ring of events for /events, the status page and whoever comes in at 3 a.m.

Most are differences between two looks at admission's state; findings, canaries and changed settings are added by those
who know of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.model import BackendState, GatewayState

KEPT: Final = 1_000
SHOWN: Final = 200  # where nobody says how many
DEEP: Final = 0.9  # a limit that falls to this share or below was cut; less is the law's daily work
_OUT: Final = frozenset({"open", "half_open"})


@dataclass(frozen=True, slots=True)
class Event:
    """``severity`` is info, warning or critical. ``backend`` is None where it is about the gateway."""

    kind: str
    text: str
    backend: str | None = None
    severity: str = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


class EventLog:
    """Keeps the last thousand. ``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: deque[tuple[int, float, Event]] = deque(maxlen=KEPT)
        self.last = 0
        """Number of the youngest; 0 where there was none."""

    def add(self, event: Event) -> None:
        """Take one that happened now."""
        self.last += 1
        self._kept.append((self.last, self._clock(), event))

    def view(self, since: int = 0, limit: int = SHOWN) -> dict[str, Any]:
        """What /events answers: the youngest ``limit`` of those after number ``since``; see docs/admin.md."""
        later = [each for each in self._kept if each[0] > since]
        return {"last": self.last, "events": [_shown(*each) for each in later[max(0, len(later) - limit) :]]}


def _shown(number: int, at: float, event: Event) -> dict[str, Any]:
    return {
        "id": number,
        "at": round(at, 3),
        "kind": event.kind,
        "severity": event.severity,
        "backend": event.backend,
        "text": event.text,
        "data": dict(event.data),
    }


# ------------------------------------------------------------------------------------ differences between two states


def differences(before: GatewayState, after: GatewayState) -> Iterator[Event]:
    """What happened between two looks, a second or so apart."""
    known = {backend.name: backend for backend in before.backends}
    for backend in after.backends:
        if backend.name in known:
            yield from _of_backend(known[backend.name], backend)
    if after.overloaded is not before.overloaded:
        yield _overload(began=after.overloaded)
    if after.draining and not before.draining:
        yield Event("draining", "the gateway drains: it refuses what arrives and lets the rest finish")


def _overload(*, began: bool) -> Event:
    if began:
        text = "sustained overload: much more arrives than leaves, so clients are told not to retry"
        return Event("overload_began", text, severity="warning")
    return Event("overload_ended", "the overload is over")


def _of_backend(before: BackendState, after: BackendState) -> Iterator[Event]:
    name = after.name
    down = _risen(before, after, "down")
    if down and not any(direction == "down" for direction, _ in before.limit_changes):
        yield Event("limit_found", f"slow start is over at a limit of {after.limit:.1f}", name)
    if down and after.limit <= DEEP * before.limit:
        data = {"from": round(before.limit, 2), "to": round(after.limit, 2), "reasons": down}
        yield Event("limit_cut", f"limit {before.limit:.1f} -> {after.limit:.1f}: {', '.join(down)}", name, data=data)
    if "kv" in down and after.token_limit is not None:
        had = "none" if before.token_limit is None else f"{before.token_limit:.0f}"
        data = {"from": before.token_limit, "to": round(after.token_limit)}
        yield Event("token_limit_cut", f"token limit {had} -> {after.token_limit:.0f}: KV cache full", name, data=data)
    yield from _of_health(name, before.health, after.health)


def _risen(before: BackendState, after: BackendState, wanted: str) -> list[str]:
    """Reasons of changes in the ``wanted`` direction that were made in between."""
    return [
        reason
        for (direction, reason), count in after.limit_changes.items()
        if direction == wanted and count > before.limit_changes.get((direction, reason), 0)
    ]


def _of_health(name: str, before: str, after: str) -> Iterator[Event]:
    if after in _OUT and before not in _OUT:
        yield Event("breaker_opened", "breaker opened: it gets no requests but a trial now and then", name, "critical")
    if before in _OUT and after not in _OUT:
        yield Event("breaker_closed", "breaker closed: it serves again", name)
    if after == "down" != before:
        yield Event("backend_down", "its health check fails", name, "critical")
    if before == "down" and after == "up":
        yield Event("backend_up", "its health check passes again", name)
