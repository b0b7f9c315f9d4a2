"""A controller with hands: keeps the time, ticks at every wake-up, sorts the verdicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.admission.config import (
    AdmissionConfig,
    BreakerConfig,
    LaneConfig,
    LimitConfig,
    QueueConfig,
    ShedConfig,
)
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.admission.pool import Pool
from gateway.admission.spot import Keen, Spot
from gateway.model import (
    Access,
    Backend,
    BackendState,
    Outcome,
    Permit,
    Rejection,
    Route,
    Shape,
    Ticket,
    Usage,
    Verdict,
    WorkEstimate,
)

CHAT = Route("chat", Access.ADMIT)
IDS = itertools.count(1)
SHORT = LaneConfig("short", 1000, 2.0, None, 1.0)
LONG = LaneConfig("long", None, 1.0, None, 4.0)


def ticket(prompt: int = 100, output: int = 100, *, stream: bool = True, **changes: Any) -> Ticket:
    """A request of so many predicted tokens; ``model``, ``choices`` and ``generates`` are of its shape."""
    of_shape = {name: changes.pop(name) for name in ("model", "choices", "generates", "route") if name in changes}
    shape = replace(Shape(CHAT, stream=stream, prompt_bytes=4 * prompt), **of_shape)
    return replace(Ticket(next(IDS), shape, WorkEstimate(prompt, output, prompt / 4 + output)), **changes)


def fixed(limit: int, name: str = "a", **fields: Any) -> Backend:
    """A backend whose limit is set by hand."""
    return Backend(name, f"http://{name}", limit=limit, **fields)


def adaptive(name: str = "a", **fields: Any) -> Backend:
    """A backend whose limit is learned."""
    return Backend(name, f"http://{name}", **fields)


def config(
    *,
    lanes: Sequence[LaneConfig] = (SHORT, LONG),
    limit: LimitConfig | None = None,
    shed: ShedConfig | None = None,
    breaker: BreakerConfig | None = None,
    **queue: Any,
) -> AdmissionConfig:
    """The defaults, changed where said."""
    return AdmissionConfig(
        limit=limit or LimitConfig(),
        queue=QueueConfig(lanes=tuple(lanes), **queue),
        shed=shed or ShedConfig(),
        breaker=breaker or BreakerConfig(),
    )


class Driver:
    """Drives one controller. Jitter is at its least, so that waits can be stated."""

    def __init__(
        self, *backends: Backend, admission: AdmissionConfig | None = None, estimator: Estimator | None = None
    ) -> None:
        self.now = 0.0
        self.admission = AdmissionController(
            admission or AdmissionConfig(), backends, lambda low, _high: low, estimator
        )
        self.permits: dict[int, Permit] = {}  # running, by ticket
        self.order: list[int] = []  # tickets in the order of their permits
        self.rejections: dict[int, Rejection] = {}

    def take(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        for verdict in verdicts:
            if isinstance(verdict, Permit):
                self.permits[verdict.ticket.id] = verdict
                self.order.append(verdict.ticket.id)
            else:
                self.rejections[verdict.ticket.id] = verdict
        return list(verdicts)

    def offer(self, request: Ticket) -> Verdict | None:
        """Its own verdict, where it was given at once."""
        self.take(self.admission.offer(request, self.now))
        return self.permits.get(request.id) or self.rejections.get(request.id)

    def permit(self, request: Ticket) -> Permit:
        """Offer what must be let in at once."""
        verdict = self.offer(request)
        assert isinstance(verdict, Permit)
        return verdict

    def refused(self, request: Ticket) -> Rejection:
        """Offer what must be refused at once."""
        verdict = self.offer(request)
        assert isinstance(verdict, Rejection)
        return verdict

    def queue(self, request: Ticket) -> Ticket:
        """Offer what must wait."""
        assert self.offer(request) is None
        return request

    def settle(self, permit: Permit, outcome: Outcome = Outcome.COMPLETED, usage: Usage | None = None) -> list[Verdict]:
        del self.permits[permit.ticket.id]
        return self.take(self.admission.settle(permit, outcome, usage, self.now))

    def withdraw(self, request: Ticket) -> list[Verdict]:
        return self.take(self.admission.withdraw(request.id, self.now))

    def run(self, seconds: float) -> None:
        """Let time pass, ticking exactly when asked to."""
        end = self.now + seconds
        while (due := self.admission.next_wakeup()) is not None and due <= end:
            self.now = max(self.now, due)
            self.take(self.admission.tick(self.now))
        self.now = end

    def backend(self, name: str = "a") -> BackendState:
        return next(state for state in self.admission.state(self.now).backends if state.name == name)

    def depth(self) -> int:
        return sum(lane.depth for lane in self.admission.state(self.now).lanes)


class Plant:
    """An engine for the driver: a step lasts ``pace(n)`` seconds and gives each of n streams a token.

    ``run`` keeps ``crowd`` requests in the gateway's queue, so that the limit and nothing else decides what runs.
    """

    def __init__(
        self, driver: Driver, pace: Callable[[int], float], *, length: int = 40, stream: bool = True, crowd: int = 3
    ) -> None:
        self.driver = driver
        self.pace = pace
        self.length = length
        self.stream = stream
        self.crowd = crowd
        self.done: dict[int, int] = {}  # tokens so far, by ticket
        self.finished = 0

    def run(self, seconds: float) -> None:
        driver = self.driver
        end = driver.now + seconds
        while driver.now < end:
            self.arrive()
            driver.run(self.pace(len(driver.permits)))
            for permit in list(driver.permits.values()):
                self.step(permit)

    def arrive(self) -> None:
        waiting = len(self.driver.admission._backlog)
        for _ in range(self.crowd - waiting):
            self.driver.offer(ticket(100, self.length, stream=self.stream))

    def step(self, permit: Permit) -> None:
        number = permit.ticket.id
        self.done[number] = self.done.get(number, 0) + 1
        if self.stream:
            permit.progress.output(1, self.driver.now)
        if self.done[number] == self.length:
            del self.done[number]
            self.finished += 1
            self.driver.settle(permit, usage=Usage(100, self.length))


def spot(keen: Keen = Keen.KEEN) -> Spot:
    """A place that was found, wherever."""
    return Spot(Pool((fixed(1),), AdmissionConfig()).books[0], more=True, keen=keen)


HERE = spot()
