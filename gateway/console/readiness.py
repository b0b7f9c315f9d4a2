"""Is this gateway fit to take traffic?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gateway.model import BackendState, GatewayState

_ELIGIBLE: Final = frozenset({"up", "unknown"})
_SETTLED: Final = 30.0  # seconds after which probes have found a dead engine dead, and nothing is waited for


@dataclass(frozen=True, slots=True)
class Readiness:
    """``degraded``: ready, but some backend is out. ``reasons``: one short sentence each, none where all is well."""

    ready: bool
    degraded: bool
    reasons: tuple[str, ...]


class ReadinessCheck:
    """Ready from the moment any backend was reachable, and said what it serves, until the gateway drains.

    Before every engine that answers was asked for its models, a request could go to one that does not serve its model.

    Once ready, backends that go down only degrade it: engines miss probes when they are busy, and taking every
    gateway out of service for that would turn a slow moment into an outage.
    """

    def __init__(
        self,
        state: Callable[[], GatewayState],
        workers: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``state`` is admission's, ``workers`` how many processes relay; ``clock`` gives seconds."""
        self._state = state
        self._workers = workers
        self._clock = clock
        self._began = clock()
        self._reached = False

    def __call__(self) -> Readiness:
        """Look now."""
        state = self._state()
        reached = tuple(filter(self._reachable, state.backends))
        unasked = () if self._settled() else tuple(filter(_unasked, reached))
        self._reached = self._reached or bool(reached and not unasked)
        out = tuple(each for each in state.backends if each.health not in _ELIGIBLE)
        if state.draining:
            return Readiness(ready=False, degraded=False, reasons=("draining: the gateway is shutting down",))
        if not self._workers():
            return Readiness(ready=False, degraded=False, reasons=("no process relays: see the log",))
        if unasked and not self._reached:
            reasons = tuple(f"backend {each.name} has not said yet what it serves" for each in unasked)
            return Readiness(ready=False, degraded=False, reasons=reasons)
        if not self._reached:
            return Readiness(
                ready=False, degraded=False, reasons=("no backend has answered yet", *_told(state.backends))
            )
        return Readiness(ready=True, degraded=bool(out), reasons=_told(out))

    def _reachable(self, backend: BackendState) -> bool:
        """It answers probes or has put out tokens, or is unknown for long.

        An engine that has no health route answers probes with 404: that is unknown for ever, and no reason to wait.
        """
        if backend.health == "up" or backend.pace is not None:
            return True
        return backend.health == "unknown" and self._settled()

    def _settled(self) -> bool:
        return self._clock() - self._began >= _SETTLED


def _unasked(backend: BackendState) -> bool:
    return backend.engine is not None and backend.engine.models is None


def _told(backends: Iterable[BackendState]) -> tuple[str, ...]:
    """Which, and why where the prober knows it."""
    return tuple(f"backend {each.name} is {each.health}{_why(each)}" for each in backends)


def _why(backend: BackendState) -> str:
    trouble = None if backend.engine is None else backend.engine.trouble
    return f": {trouble}" if trouble else ""
