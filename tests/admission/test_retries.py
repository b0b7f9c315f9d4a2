from __future__ import annotations

import pytest

from gateway.admission import retries
from gateway.admission.retries import Ledger, RetryBudget


def test_a_refused_call_that_comes_back_is_known_and_whether_it_waited() -> None:
    ledger = Ledger()
    ledger.refuse(7, due=10.0, first=0.0)
    assert ledger.arrive(7, 4.0) is not None
    ledger.refuse(7, due=20.0, first=0.0)
    assert ledger.arrive(7, 19.995) is not None  # a millisecond lost on the wire is no haste
    assert ledger.seen == {True: 1, False: 1}


def test_each_refusal_is_redeemed_once() -> None:
    ledger = Ledger()
    ledger.refuse(7, due=1.0, first=0.0)
    assert ledger.arrive(7, 2.0) is not None
    assert ledger.arrive(7, 2.0) is None
    assert len(ledger) == 0


def test_without_a_fingerprint_nobody_is_recognised() -> None:
    ledger = Ledger()
    ledger.refuse(0, due=1.0, first=0.0)
    assert ledger.arrive(0, 2.0) is None
    assert len(ledger) == 0


def test_old_refusals_are_forgotten() -> None:
    ledger = Ledger()
    ledger.refuse(7, due=10.0, first=0.0)
    ledger.refuse(8, due=60.0, first=0.0)
    assert ledger.arrive(7, 130.0) is None
    assert len(ledger) == 1
    assert ledger.arrive(8, 130.0) is not None


def test_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REMEMBERED", 3)
    ledger = Ledger()
    for fingerprint in (1, 2, 3, 1, 4):
        ledger.refuse(fingerprint, due=1.0, first=0.0)
    assert len(ledger) == 3
    assert [f for f in (1, 2, 3, 4) if ledger.arrive(f, 0.0) is not None] == [1, 3, 4]


def test_the_budget_is_a_share_of_arrivals() -> None:
    budget = RetryBudget(0.1)
    for _ in range(100):
        budget.arrive(retry=False, now=0.0)
    for _ in range(11):
        budget.arrive(retry=True, now=0.0)
    assert not budget.exceeded
    budget.arrive(retry=True, now=0.0)
    assert budget.exceeded


def test_a_few_retries_are_no_storm() -> None:
    budget = RetryBudget(0.1)
    for _ in range(3):
        budget.arrive(retry=True, now=0.0)
    assert not budget.exceeded
    budget.arrive(retry=True, now=0.0)
    assert budget.exceeded


def test_what_came_long_ago_fades() -> None:
    budget = RetryBudget(0.1)
    for _ in range(50):
        budget.arrive(retry=True, now=0.0)
    budget.arrive(retry=False, now=30.0)
    assert not budget.exceeded
