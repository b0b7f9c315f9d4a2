from __future__ import annotations

from math import inf
from typing import Any

import pytest

from gateway.admission.tokens import TokenGuard
from gateway.admission.window import Window


def window(tokens: int = 100_000, inflight: int = 100, **counters: Any) -> Window:
    seen = Window()
    seen.tokens, seen.inflight, seen.ticks = tokens, inflight, 20
    for name, count in counters.items():
        setattr(seen, name, count)
    return seen


def test_without_a_sign_there_is_no_bound() -> None:
    guard = TokenGuard(None)
    assert guard.decide(window(), None) is None
    assert guard.value == inf


@pytest.mark.parametrize("sign", ["stalls", "preemptions"])
def test_thrash_bounds_the_tokens_at_three_quarters_of_what_was_held(sign: str) -> None:
    guard = TokenGuard(None)
    assert guard.decide(window(**{sign: 3}), None) is None  # three in a hundred are healthy
    assert guard.decide(window(**{sign: 4}), None) == ("down", "kv")
    assert guard.value == 75_000


def test_stalls_are_no_sign_where_the_cache_cannot_be_full() -> None:
    guard = TokenGuard(None)
    guard.learn_capacity(400_000)
    assert guard.decide(window(tokens=10_000, stalls=50), 0.02) is None
    assert guard.value == 360_000
    assert guard.decide(window(tokens=200_000, stalls=50), 0.02) == ("down", "kv")
    assert guard.decide(window(tokens=10_000, preemptions=50), 0.02) == ("down", "kv")  # the engine itself says so


def test_a_bound_that_has_not_drained_is_not_lowered_again() -> None:
    guard = TokenGuard(None)
    guard.decide(window(stalls=9), None)
    assert guard.decide(window(tokens=90_000, stalls=9), None) is None
    assert guard.decide(window(tokens=75_000, stalls=9), None) == ("down", "kv")
    assert guard.value == 56_250


def test_the_bound_has_a_floor() -> None:
    guard = TokenGuard(None)
    guard.decide(window(tokens=500, stalls=9), None)
    assert guard.value == 2000


def test_it_rises_slowly_where_it_held_requests_back_and_slower_near_where_it_went_wrong() -> None:
    guard = TokenGuard(None)
    guard.decide(window(stalls=9), None)
    assert guard.decide(window(tokens=10, held_ticks=5), None) is None
    assert guard.decide(window(tokens=10, held_ticks=6), None) == ("up", "kv")
    assert guard.value == pytest.approx(75_750)
    for _ in range(40):
        guard.decide(window(tokens=10, held_ticks=20), None)
    near = guard.value
    assert near > 90_000
    guard.decide(window(tokens=10, held_ticks=20), None)
    assert guard.value == pytest.approx(near * 1.002)


def test_a_known_capacity_bounds_from_the_start() -> None:
    guard = TokenGuard(None)
    guard.learn_capacity(0)
    assert guard.value == inf
    guard.learn_capacity(100_000)
    assert guard.value == 90_000


def test_a_gauge_that_says_full_lowers_and_then_lets_go() -> None:
    guard = TokenGuard(None)
    guard.learn_capacity(200_000)
    assert guard.decide(window(tokens=160_000), 0.99) == ("down", "kv")
    assert guard.value == 120_000
    assert guard.decide(window(tokens=160_000), 0.99) is None  # not drained yet
    assert guard.decide(window(tokens=120_000), 0.5) == ("up", "kv")
    assert guard.value == pytest.approx(126_000)


def test_a_gauge_that_is_heard_no_more_is_forgotten() -> None:
    guard = TokenGuard(None)
    guard.learn_capacity(200_000)
    guard.decide(window(tokens=160_000), 0.99)
    assert guard.decide(window(), None) == ("up", "kv")
    assert guard.value == 180_000


def test_a_gauge_is_not_believed_where_we_cannot_have_filled_the_cache() -> None:
    guard = TokenGuard(None)
    assert guard.decide(window(), 1.0) is None  # nothing known of the capacity
    guard.learn_capacity(400_000)
    assert guard.decide(window(tokens=199_999), 1.0) is None
    assert guard.value == 360_000


def test_a_fixed_bound_stays() -> None:
    guard = TokenGuard(5000)
    guard.learn_capacity(100)
    assert guard.decide(window(stalls=50), 1.0) is None
    assert guard.value == 5000
