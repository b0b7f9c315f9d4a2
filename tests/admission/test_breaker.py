from __future__ import annotations

import pytest

from gateway.admission.breaker import ENDS, Breaker, Signal
from gateway.admission.config import BreakerConfig
from gateway.model import Outcome


def breaker(**config: float) -> Breaker:
    return Breaker(BreakerConfig(**{"failures": 2, "cooldown": 5.0, "cooldown_max": 15.0, **config}))  # type: ignore[arg-type]


def test_every_outcome_has_its_signal_and_its_word_on_life() -> None:
    assert ENDS.keys() == set(Outcome)


def test_only_answers_are_samples_and_no_client_moves_anything() -> None:
    assert [o for o in Outcome if ENDS[o][0] is Signal.SAMPLE] == [Outcome.COMPLETED]
    for outcome in (Outcome.CLIENT_GONE, Outcome.INTERNAL_ERROR, Outcome.REFUSED):
        assert ENDS[outcome] == (Signal.IGNORE, None)


def test_backpressure_is_congestion_and_a_sign_of_life() -> None:
    assert ENDS[Outcome.BACKEND_BUSY] == (Signal.DROP, True)


def test_a_caller_s_fault_shows_that_the_backend_lives() -> None:
    assert ENDS[Outcome.CLIENT_ERROR] == (Signal.IGNORE, True)


def test_failures_in_a_row_open_it_and_an_answer_between_starts_anew() -> None:
    own = breaker()
    own.note(False, 1, 0.0)
    own.note(True, 2, 0.0)
    own.note(None, 3, 0.0)
    own.note(False, 4, 0.0)
    assert own.state(0.0) is None
    assert own.ready(0.0)
    own.note(None, 5, 0.0)
    own.note(False, 6, 1.0)
    assert own.state(1.0) == "open"
    assert not own.ready(5.9)


def test_after_the_cooldown_one_trial_decides() -> None:
    own = breaker(failures=1)
    own.note(False, 1, 0.0)
    assert own.state(5.0) == "half_open"
    assert own.ready(5.0)
    own.trial = 7
    assert not own.ready(5.0)
    assert not own.note(False, 8, 5.0)  # an older request that ends now
    assert own.trial == 7
    assert own.note(True, 7, 6.0)
    assert own.state(6.0) is None
    assert own.ready(6.0)


def test_each_failed_trial_doubles_the_cooldown_up_to_its_most() -> None:
    own = breaker(failures=1)
    now = 0.0
    own.note(False, 0, now)
    for cooldown in (5.0, 10.0, 15.0, 15.0):
        assert own.until == now + cooldown
        now = own.until
        own.trial = 1
        own.note(False, 1, now)


def test_a_trial_whose_client_left_is_tried_again() -> None:
    own = breaker(failures=1)
    own.note(False, 1, 0.0)
    own.trial = 7
    own.note(None, 7, 6.0)
    assert own.ready(6.0)
    assert own.state(6.0) == "half_open"


def test_failures_while_it_is_open_do_not_prolong_it() -> None:
    own = breaker(failures=1)
    own.note(False, 1, 0.0)
    own.note(False, 2, 4.0)
    assert own.until == 5.0


def test_any_answer_closes_it_and_the_next_cooldown_is_short_again() -> None:
    own = breaker(failures=1)
    own.note(False, 1, 0.0)
    own.trip(6.0)
    assert own.note(True, 3, 7.0)
    assert not own.note(True, 4, 7.0)
    own.trip(8.0)
    assert own.until == pytest.approx(13.0)
