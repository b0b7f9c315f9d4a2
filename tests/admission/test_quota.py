"""What a key may do: rates whose waits are exact, requests at once, models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.quota import Account, Gcra, KeyTerms, Shortage, Standing, used_tokens
from gateway.model import Reason, Usage


def test_a_minutes_worth_may_be_taken_at_once_and_the_wait_for_more_is_exact() -> None:
    bucket = Gcra(60)
    for _ in range(60):
        assert bucket.wait(1, 100.0) == 0.0
        bucket.take(1, 100.0)
    assert bucket.wait(1, 100.0) == pytest.approx(1.0)
    assert bucket.wait(3, 100.0) == pytest.approx(3.0)
    assert bucket.wait(1, 100.9) == pytest.approx(0.1)
    assert bucket.wait(1, 101.0) == 0.0


@given(
    limit=st.integers(1, 1_000_000),
    asks=st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(0, 2_000_000)), min_size=1, max_size=30),
)
def test_who_comes_back_when_told_is_served_and_no_rate_is_passed(limit: int, asks: list[tuple[float, int]]) -> None:
    bucket = Gcra(limit)
    begin = now = 1_000.0
    taken = 0.0
    for pause, units in asks:
        now += pause
        wait = bucket.wait(units, now)
        if wait > 0.0:
            assert bucket.wait(units, now + wait * 0.999 - 1e-5) > 0.0
            now += wait
        assert bucket.wait(units, now) == 0.0
        # More than a minute's worth at once leaves a debt, which is paid before the next one.
        assert taken <= limit + (now - begin) * limit / 60.0 + 1e-3 * limit
        bucket.take(units, now)
        taken += min(units, limit)


def test_more_than_a_minutes_worth_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    bucket = Gcra(100)
    assert bucket.wait(250, 0.0) == 0.0
    bucket.take(250, 0.0)
    assert bucket.wait(1, 0.0) == pytest.approx(90.6)
    assert bucket.standing("tokens", 0.0) == Standing("tokens", 100, 0, 150.0)


def test_a_standing_tells_what_is_left_and_when_all_of_it_is_there_again() -> None:
    bucket = Gcra(60)
    assert bucket.standing("requests", 5.0) == Standing("requests", 60, 60, 0.0)
    bucket.take(15, 5.0)
    assert bucket.standing("requests", 5.0) == Standing("requests", 60, 45, 15.0)
    assert bucket.standing("requests", 30.0) == Standing("requests", 60, 60, 0.0)


def account(**terms: int) -> Account:
    return Account(KeyTerms("a", **terms))  # type: ignore[arg-type]


def test_each_bound_has_its_reason() -> None:
    assert account(requests_per_minute=1).enter(5, 0.0) is None
    one = account(requests_per_minute=1)
    one.enter(5, 0.0)
    assert one.enter(5, 0.0) == Shortage(Reason.KEY_REQUESTS, 60.0)
    few = account(tokens_per_minute=10)
    few.enter(8, 0.0)
    short = few.enter(4, 0.0)
    assert short is not None
    assert short.reason is Reason.KEY_TOKENS
    assert short.wait == pytest.approx(12.0)
    alone = account(max_in_flight=1)
    alone.enter(1, 0.0)
    assert alone.enter(1, 0.0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0)
    alone.leave(1, 1, 9.0)
    assert alone.enter(1, 9.0) is None


def test_a_refusal_takes_nothing() -> None:
    holder = account(requests_per_minute=60, tokens_per_minute=10)
    assert holder.enter(10, 0.0) is None
    assert holder.enter(10, 0.0) is not None
    assert [standing.remaining for standing in holder.standings(0.0)] == [59, 0]
    assert holder.in_flight == 1


def test_tokens_are_put_right_at_the_end() -> None:
    holder = account(tokens_per_minute=1_000)
    holder.enter(900, 0.0)
    holder.leave(900, 100, 0.0)
    assert next(holder.standings(0.0)).remaining == 900
    holder.enter(100, 0.0)
    holder.leave(100, 900, 0.0)
    assert next(holder.standings(0.0)).remaining == 0


def test_what_was_refused_after_all_is_given_back() -> None:
    holder = account(requests_per_minute=10, tokens_per_minute=1_000)
    holder.enter(500, 0.0)
    holder.leave(500, 500, 0.0, refused=True)
    assert [standing.remaining for standing in holder.standings(0.0)] == [10, 1_000]


def test_other_terms_keep_what_was_counted_under_the_same_bound() -> None:
    holder = account(requests_per_minute=10, tokens_per_minute=1_000)
    holder.enter(500, 0.0)
    holder.retune(KeyTerms("a", requests_per_minute=10, tokens_per_minute=2_000, max_in_flight=1))
    assert [standing.remaining for standing in holder.standings(0.0)] == [9, 2_000]
    assert holder.enter(1, 0.0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0)
    holder.retune(KeyTerms("a", requests_per_minute=20, tokens_per_minute=2_000))
    assert [standing.remaining for standing in holder.standings(0.0)] == [20, 2_000]
    holder.retune(KeyTerms("a"))
    assert list(holder.standings(0.0)) == []
    assert holder.enter(1, 0.0) is None


def test_a_key_for_some_models_is_for_none_that_cannot_be_read() -> None:
    assert account().may_use(None)
    some = Account(KeyTerms("a", models=frozenset({"m"})))
    assert some.may_use("m")
    assert not some.may_use("n")
    assert not some.may_use(None)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (Usage(prompt_tokens=7, completion_tokens=5), 12),
        (Usage(prompt_tokens=7), 7),
        (Usage(completion_tokens=5), 30),
        (None, 30),
    ],
)
def test_the_engines_count_comes_before_the_estimate(usage: Usage | None, tokens: int) -> None:
    assert used_tokens(usage, 20, 30) == tokens
