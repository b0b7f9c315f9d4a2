"""The machine passes on the controller as it is, and finds each fault that is planted in it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.admission.backlog import Backlog
from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.queue import Entry, Lane, LaneQueue, PriorityQueue
from gateway.admission.tuning import Tuning
from gateway.admission.window import Running, Window
from gateway.model import Outcome, Permit, Usage, Verdict
from tests.admission.machine import BACKENDS, AdmissionMachine

pytestmark = pytest.mark.timeout(300)  # how long a search takes is a matter of luck


def test_whatever_happens_the_books_balance() -> None:
    run_state_machine_as_test(
        AdmissionMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


# ---------------------------------------------------------------------------------------------- planted faults


class KeepsThePermitOfWhoLeftEarly(AdmissionController):
    def settle(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        assert isinstance(permit.progress, Running)
        if outcome is Outcome.CLIENT_GONE and not permit.progress.started:
            return []
        return super().settle(permit, outcome, usage, now)


class HandsPermitsToTheWithdrawn(AdmissionController):
    def withdraw(self, ticket_id: int, now: float) -> list[Verdict]:
        del ticket_id, now
        return []


class ForgetsToWakeForDeadlines(AdmissionController):
    def next_wakeup(self) -> float | None:
        return self._sample_at


class SleepsWhileRequestsRun(AdmissionController):
    def next_wakeup(self) -> float | None:
        return super().next_wakeup() if len(self._backlog) else None


class DispatchesOnlyOnArrival(AdmissionController):
    def _reopen(self, now: float) -> list[Verdict]:
        return self._expire(now)


class GivesOnePermitTwice(AdmissionController):
    def settle(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        verdicts = super().settle(permit, outcome, usage, now)
        return [*verdicts, *verdicts[:1]]


class ForgetsWhoWaitsWhenRetuned(AdmissionController):
    def retune(self, tuning: Tuning, now: float) -> list[Verdict]:
        super().retune(tuning, now)
        return []


def _finds(kind: type[AdmissionController]) -> None:
    class Machine(AdmissionMachine):
        @staticmethod
        def make(config: AdmissionConfig) -> AdmissionController:
            return kind(config, BACKENDS, lambda low, _high: low)

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=20_000,  # it stops at the first it finds; most take a dozen, wrong orders a thousand
                stateful_step_count=40,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize(
    "kind",
    [
        KeepsThePermitOfWhoLeftEarly,
        HandsPermitsToTheWithdrawn,
        ForgetsToWakeForDeadlines,
        SleepsWhileRequestsRun,
        DispatchesOnlyOnArrival,
        GivesOnePermitTwice,
        ForgetsWhoWaitsWhenRetuned,
    ],
)
def test_it_finds_a_controller_that(kind: type[AdmissionController]) -> None:
    _finds(kind)


def test_it_finds_wrong_token_books(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Window.leave

    def leave(self: Window, permit_id: int) -> None:
        self.tokens += self.running[permit_id].ticket.work.output_tokens
        right(self, permit_id)

    monkeypatch.setattr(Window, "leave", leave)
    _finds(AdmissionController)


def test_it_finds_an_unstarted_count_that_only_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admission.window.Streaming.end", lambda _self: None)
    _finds(AdmissionController)


def test_it_finds_credit_kept_by_an_idle_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    right, left = Lane._reset, LaneQueue._left

    def reset(self: Lane) -> None:
        credit = self.credit
        right(self)
        self.credit = credit

    def keep(self: LaneQueue) -> None:
        kept = [lane.credit for lane in self.lanes]
        left(self)
        for lane, credit in zip(self.lanes, kept, strict=True):
            lane.credit = credit

    monkeypatch.setattr(Lane, "_reset", reset)
    monkeypatch.setattr(LaneQueue, "_left", keep)
    _finds(AdmissionController)


def test_it_finds_priorities_served_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PriorityQueue._in_turn
    monkeypatch.setattr(PriorityQueue, "_in_turn", lambda self: list(reversed(right(self))))
    _finds(AdmissionController)


def test_it_finds_a_queue_that_stays_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backlog, "reopen", lambda _self: None)
    _finds(AdmissionController)


def test_it_finds_bytes_that_never_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Backlog.left

    def left(self: Backlog, entry: Entry) -> None:
        right(self, entry)
        self.size += entry.size

    monkeypatch.setattr(Backlog, "left", left)
    _finds(AdmissionController)
