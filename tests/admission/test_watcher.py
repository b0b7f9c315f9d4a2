"""Whoever watches is told of every permit, once when it begins and once when it ends."""

from __future__ import annotations

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Outcome, Permit
from tests.admission.helpers import fixed, ticket


class Seen:
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def granted(self, permit: Permit, outputs: int) -> None:
        self.told.append(("granted", permit.ticket.id, outputs))

    def settled(self, permit: Permit, outcome: Outcome, outputs: int, now: float) -> None:
        self.told.append((f"{outcome.value} at {now:g}", permit.ticket.id, outputs))


def test_each_permit_is_told_with_the_output_of_its_backend_so_far() -> None:
    seen = Seen()
    admission = AdmissionController(AdmissionConfig(), [fixed(1)], lambda low, _high: low, watcher=seen)
    first, second = ticket(), ticket()
    (permit,) = admission.offer(first, 0.0)
    assert isinstance(permit, Permit)
    assert admission.offer(second, 0.1) == []  # waits
    permit.progress.output(1, 0.2)
    permit.progress.output(3, 0.3)
    (following,) = admission.settle(permit, Outcome.COMPLETED, None, 0.4)
    assert isinstance(following, Permit)
    admission.settle(following, Outcome.CLIENT_GONE, None, 0.5)
    assert seen.told == [
        ("granted", first.id, 0),
        ("completed at 0.4", first.id, 4),
        ("granted", second.id, 4),  # after the place was given back
        ("client_gone at 0.5", second.id, 4),
    ]
