"""Looks at admission's state once a second, tells what happened, and says every ten seconds what is wrong.

A look costs microseconds. A diagnosis goes over the requests of the last minute, in small steps between which the event
loop serves streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from gateway.model import GatewayState, Record
from gateway.telemetry.clients import Clients
from gateway.telemetry.curve import Curves
from gateway.telemetry.diagnosis import diagnose, unknown
from gateway.telemetry.entry import Entry
from gateway.telemetry.events import Event, EventLog, differences
from gateway.telemetry.facts import FactSheet, Look
from gateway.telemetry.findings import Findings
from gateway.telemetry.window import Window

LOOK: Final = 1.0  # seconds
DIAGNOSIS: Final = 10  # looks
CALM: Final = 30.0  # seconds without a refusal until shedding is over
MOST: Final = 10_000  # requests that a diagnosis goes over: the youngest
_STEP: Final = 16  # of them, before others have their turn: a tenth of a millisecond

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from. ``canaries``: backends whose answers have changed, and how."""

    state: Callable[[], GatewayState]
    window: Window
    curves: Curves
    clients: Clients
    loop_lag: Callable[[], float] = lambda: 0.0
    canaries: Callable[[], Iterable[tuple[str, str]]] = lambda: ()


class Monitor:
    """An observer that also looks by itself once started. A diagnosis covers the last ``seconds``."""

    def __init__(
        self,
        sources: Sources,
        log: EventLog,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` is that of the requests, ``wall_clock`` gives seconds since the epoch."""
        self.findings = Findings(log, wall_clock)
        self._sources = sources
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._looks: deque[Look] = deque()
        self._since_diagnosis = 0
        self._refused: Counter[str] = Counter()
        self._shedding: float | None = None  # when the last refusal was, while it goes on
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def observe(self, record: Record) -> None:
        """Take a finished request: refusals are counted."""
        if record.reason is not None:
            self._refused[record.reason.value] += 1

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - logged, and the next look may do better
                _log.exception("the monitor stumbled")
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        """Look once; diagnose where it is due."""
        now, state = self._clock(), self._sources.state()
        if self._looks:
            for event in differences(self._looks[-1][1], state):
                self._log.add(event)
        self._tell_shedding(now)
        self._looks.append((now, state))
        while self._looks[0][0] < now - self._seconds:
            self._looks.popleft()
        self._since_diagnosis += 1
        if self._since_diagnosis >= DIAGNOSIS:
            self._since_diagnosis = 0
            await self._diagnose(now, state)

    def _tell_shedding(self, now: float) -> None:
        refused, self._refused = self._refused, Counter()
        if refused:
            if self._shedding is None:
                reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
                text = f"requests are refused: {reasons} in a second"
                self._log.add(Event("shedding_began", text, severity="warning", data={"reasons": dict(refused)}))
            self._shedding = now
        elif self._shedding is not None and now - self._shedding >= CALM:
            self._shedding = None
            self._log.add(Event("shedding_ended", f"no request was refused for {CALM:.0f} s"))

    async def _diagnose(self, now: float, state: GatewayState) -> None:
        entries, seconds = self._recent(now)
        sheet = FactSheet(now, seconds, state)
        for number, entry in enumerate(entries, 1):
            sheet.add(entry)
            if number % _STEP == 0:
                await asyncio.sleep(0)
        sources = self._sources
        looks = [look for look in self._looks if look[0] >= now - seconds]
        facts = sheet.facts(looks, sources.curves, sources.clients.counts(), sources.loop_lag(), sources.canaries())
        self.findings.take(diagnose(facts), unknown(facts), seconds)

    def _recent(self, now: float) -> tuple[Sequence[Entry], float]:
        """The requests of the last while, the youngest first, and how many seconds that is: fewer of very many."""
        entries = self._sources.window.entries()
        first = bisect_left(entries, now - self._seconds, key=attrgetter("finished_at"))
        beyond = len(entries) - MOST - 1
        if beyond < first:
            return entries[first:][::-1], self._seconds
        return entries[beyond + 1 :][::-1], max(1.0, now - entries[beyond].finished_at)
