"""AdmissionController <-> event loop: one dict of futures by ticket id, one timer."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.admission.controller import AdmissionController
from gateway.model import GatewayState, Health, Hints, Outcome, Permit, Rejection, Ticket, Usage


class Gate:
    """The one caller of the controller. ``clock`` gives monotonic seconds."""

    def __init__(self, controller: AdmissionController, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nobody waiting."""
        raise NotImplementedError

    async def enter(self, ticket: Ticket) -> Permit | Rejection:
        """Wait for the verdict on ``ticket``. A permit must be given to ``leave``; cancelling gives it back itself."""
        raise NotImplementedError

    def leave(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        """Give a permit back, exactly once, with what became of it."""
        raise NotImplementedError

    def note_health(self, backend: str, health: Health) -> None:
        """Pass on the prober's finding."""
        raise NotImplementedError

    def note_hints(self, backend: str, hints: Hints) -> None:
        """Pass on an engine's own gauges."""
        raise NotImplementedError

    def drain(self) -> None:
        """Refuse what arrives from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the timer."""
        raise NotImplementedError

    def lane(self, ticket: Ticket) -> str:
        """Name of the ticket's lane."""
        raise NotImplementedError

    def state(self) -> GatewayState:
        """Everything, now."""
        raise NotImplementedError
