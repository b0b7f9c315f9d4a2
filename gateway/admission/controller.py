"""The admission controller: one synchronous, pure object that decides everything and waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.admission.config import AdmissionConfig
from gateway.model import Backend, GatewayState, Health, Hints, Outcome, Permit, Ticket, Usage, Verdict


class AdmissionController:
    """Told what happens and when; returns verdicts. All changes of one call happen before it returns.

    ``now`` is in seconds and never decreases. ``uniform(a, b)`` is the only chance in it (jitter of Retry-After).
    """

    def __init__(
        self, config: AdmissionConfig, backends: Sequence[Backend], uniform: Callable[[float, float], float]
    ) -> None:
        """Start with empty books."""
        raise NotImplementedError

    def offer(self, ticket: Ticket, now: float) -> list[Verdict]:
        """Take a request: its own verdict may be among those returned, or come later."""
        raise NotImplementedError

    def withdraw(self, ticket_id: int, now: float) -> list[Verdict]:
        """Forget a queued ticket whose client left; unknown ids are ignored."""
        raise NotImplementedError

    def settle(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        """Take a permit back, exactly once, with what became of it.

        Raises:
            KeyError: the permit is unknown or was settled before (a programmer's error).
        """
        raise NotImplementedError

    def note_health(self, backend: str, health: Health, now: float) -> list[Verdict]:
        """Take the prober's finding."""
        raise NotImplementedError

    def note_hints(self, backend: str, hints: Hints, now: float) -> list[Verdict]:
        """Take an engine's own gauges; they only ever lower a limit, and lapse when they grow old."""
        raise NotImplementedError

    def drain(self, now: float) -> list[Verdict]:
        """Refuse what arrives from now on; what is queued or running goes on."""
        raise NotImplementedError

    def tick(self, now: float) -> list[Verdict]:
        """Do what is due by ``now``: expire, sample, decide."""
        raise NotImplementedError

    def next_wakeup(self) -> float | None:
        """When ``tick`` must next be called; None: not before something else happens."""
        raise NotImplementedError

    def lane(self, ticket: Ticket) -> str:
        """Name of the lane this ticket belongs to."""
        raise NotImplementedError

    def state(self, now: float) -> GatewayState:
        """Everything, for /state and the metrics."""
        raise NotImplementedError
