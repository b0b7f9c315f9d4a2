"""The production admission in front of emulated engines in simulated time, with records for the observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import cast

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.model import (
    Backend,
    Observer,
    Outcome,
    Permit,
    Progress,
    Record,
    Rejection,
    Ticket,
    Timeline,
    Usage,
    Verdict,
    Watcher,
)
from gateway.simulator.clients import Attempt
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import ROUTE, Gateway
from gateway.simulator.world import World


class _Both:
    """Progress as the relay reports it: to admission and to the request's timeline."""

    def __init__(self, progress: Progress, timeline: Timeline) -> None:
        self._progress = progress
        self._timeline = timeline

    def output(self, events: int, now: float) -> None:
        self._timeline.output(events, now)
        self._progress.output(events, now)


class Observed(Gateway):
    """A gateway that tells ``observers`` of every request as the proxy's handler does, and ``watcher`` of permits."""

    def __init__(
        self,
        world: World,
        nodes: Sequence[Node],
        backends: Sequence[Backend],
        observers: Sequence[Observer],
        watcher: Watcher | None = None,
        config: AdmissionConfig | None = None,
        seed: str = "0",
        lingering: Mapping[str, float] | None = None,
    ) -> None:
        """``lingering``: by client, how much longer it takes its answers than they last, as a share."""
        config = config or AdmissionConfig()
        super().__init__(world, nodes, backends, config, seed)
        chance = Random(f"gateway/{seed}").uniform
        self.controller = AdmissionController(config, backends, chance, self._estimator, watcher)
        self._observers = observers
        self._records: dict[Attempt, Record] = {}
        self._lingering = lingering or {}

    def _ticket(self, attempt: Attempt) -> Ticket:
        ticket = super()._ticket(attempt)
        ticket = replace(ticket, shape=replace(ticket.shape, model=attempt.call.label or None))
        now = self._world.now
        line = Timeline(now, read=now, offered=now)
        self._records[attempt] = Record(
            f"req-{ticket.id}", ticket, ROUTE, "POST", "/", line, Outcome.REFUSED, 0, self.controller.lane(ticket)
        )
        return ticket

    def _take(self, verdict: Verdict) -> None:
        attempt = self._queued[verdict.ticket.id][0]
        record = self._records[attempt]
        if isinstance(verdict, Rejection):
            record.status, record.reason, record.retry_after = 429, verdict.reason, verdict.retry_after
            self._tell(attempt, Outcome.REFUSED)
        else:
            record.backend, record.attempts, record.status = verdict.backend, 1, 200
            record.timeline.admitted = record.timeline.sent = verdict.granted_at
        super()._take(verdict)

    def _start(self, attempt: Attempt, permit: Permit) -> None:
        line = self._records[attempt].timeline
        super()._start(attempt, replace(permit, progress=cast("Progress", _Both(permit.progress, line))))

    def leave(self, attempt: Attempt) -> None:
        waits = attempt in self._tickets
        super().leave(attempt)
        if waits:
            self._tell(attempt, Outcome.CLIENT_GONE)

    def _end(self, attempt: Attempt, outcome: Outcome, usage: Usage | None) -> None:
        record = self._records[attempt]
        share = self._lingering.get(attempt.call.want.client, 0.0)
        line = record.timeline
        if share and not line.paused and outcome is Outcome.COMPLETED:
            line.paused = share * (self._world.now - (line.admitted or 0.0))
            self._world.after(line.paused, lambda: self._end(attempt, outcome, usage))
            return
        super()._end(attempt, outcome, usage)
        record.usage = usage
        if outcome is not Outcome.COMPLETED:
            record.status = 429 if outcome is Outcome.BACKEND_BUSY else 0
        self._tell(attempt, outcome)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        record = self._records.pop(attempt)
        record.outcome = outcome
        record.timeline.finished = self._world.now
        for observer in self._observers:
            observer.observe(record)
