"""Where sessions belong, and what is known of engines' caches."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.affinity import HELD_LEAST, HELD_MOST, Cache, CacheMap, digest, rendezvous

SESSIONS = [digest(f"session-{number}") for number in range(4_000)]
BACKENDS = [digest(f"gpu{number}") for number in range(8)]


def homes(places: list[tuple[int, float]], sessions: list[int] = SESSIONS) -> list[int]:
    names, weights = zip(*places, strict=True)
    return [names[rendezvous(session, names, weights)] for session in sessions]


# ------------------------------------------------------------------------------------------------------ sessions


@given(st.sets(st.integers(0, 2**63 - 1), min_size=2, max_size=12), st.data())
def test_only_what_was_on_a_backend_that_leaves_moves(names: set[int], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    before = [(name, 1.0) for name in sorted(names)]
    after = [place for place in before if place[0] != gone]
    for was, now in zip(homes(before, SESSIONS[:200]), homes(after, SESSIONS[:200]), strict=True):
        assert was in {now, gone}


@given(st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=12), st.integers(0, 2**63 - 1))
def test_only_to_a_backend_that_joins_anything_moves(names: set[int], new: int) -> None:
    before = [(name, 1.0) for name in sorted(names - {new})] or [(new ^ 1, 1.0)]
    for was, now in zip(homes(before, SESSIONS[:200]), homes([*before, (new, 1.0)], SESSIONS[:200]), strict=True):
        assert now in {was, new}


@given(st.integers(0, 7), st.floats(0.25, 4.0))
def test_a_weight_that_changes_moves_sessions_only_to_or_from_that_backend(which: int, weight: float) -> None:
    before = [(name, 1.0) for name in BACKENDS]
    after = [(name, weight if place == which else 1.0) for place, name in enumerate(BACKENDS)]
    for was, now in zip(homes(before, SESSIONS[:200]), homes(after, SESSIONS[:200]), strict=True):
        assert was == now or BACKENDS[which] in {was, now}


def test_shares_are_by_weight() -> None:
    weights = [1.0, 1.0, 2.0, 4.0]
    found = Counter(homes(list(zip(BACKENDS, weights, strict=False))))
    for name, weight in zip(BACKENDS, weights, strict=False):
        assert found[name] / len(SESSIONS) == pytest.approx(weight / 8.0, rel=0.15)


def test_nowhere_is_no_home() -> None:
    with pytest.raises(ValueError, match="empty"):
        rendezvous(1, [], [])


# --------------------------------------------------------------------------------------------------------- caches


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 6)),
        max_size=60,
    )
)
def test_the_longest_match_is_that_of_a_walk(sent: list[tuple[int, int, int]]) -> None:
    caches = CacheMap()
    engines = [caches.join() for _ in range(4)]
    held: list[set[int]] = [set() for _ in engines]

    def prompt(kind: int, length: int) -> list[int]:
        return [hash((kind if place else 0, place)) for place in range(length)]

    for engine, kind, length in sent:
        caches.note(engines[engine], prompt(kind, length))
        held[engine] |= set(prompt(kind, length))
    for kind in range(6):
        blocks = prompt(kind, 6)
        depths = [next((n for n, block in enumerate(blocks) if block not in had), 6) for had in held]
        depth, bits = caches.longest(blocks, 0b1111)
        assert depth == max(depths)
        assert [engine.bit & bits > 0 for engine in engines] == [each == depth for each in depths]
        assert [caches.longest(blocks, engine.bit)[0] for engine in engines] == depths


def test_only_those_that_are_asked_about_are_found() -> None:
    caches = CacheMap()
    one, two = caches.join(), caches.join()
    caches.note(one, [1, 2, 3])
    caches.note(two, [1, 2])
    assert caches.longest([1, 2, 3], one.bit | two.bit) == (3, one.bit)
    assert caches.longest([1, 2, 3], two.bit) == (2, two.bit)
    assert caches.longest([], two.bit) == (0, two.bit)


def full(caches: CacheMap, capacity: int = HELD_LEAST) -> Cache:
    cache = caches.join()
    caches.hold(cache, capacity)
    caches.note(cache, range(capacity))
    return cache


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    caches = CacheMap()
    cache = full(caches)
    caches.note(cache, [0, 1])  # used again
    caches.note(cache, [1000, 1001])
    assert len(cache.blocks) == HELD_LEAST
    assert caches.longest(range(HELD_LEAST), cache.bit)[0] == HELD_LEAST - 2
    assert caches.longest([1000, 1001], cache.bit)[0] == 2


def test_a_picture_is_no_larger_than_the_cache_nor_than_a_bound() -> None:
    caches = CacheMap()
    cache = caches.join()
    caches.hold(cache, 10 * HELD_MOST)
    assert cache.capacity == HELD_MOST
    caches.note(cache, range(300))
    caches.hold(cache, 100)
    assert len(cache.blocks) == 100
    caches.hold(cache, 1)
    assert len(cache.blocks) == HELD_LEAST


def test_an_engine_that_has_less_than_was_thought_has_dropped_more() -> None:
    caches = CacheMap()
    cache = full(caches, 100)
    caches.correct(cache, expected=1000, reported=100)
    assert len(cache.blocks) == 90
    caches.correct(cache, expected=1000, reported=1000)
    assert 90 < cache.capacity <= 100
    for _ in range(100):
        caches.correct(cache, expected=0, reported=500)  # nobody knew of it
    assert cache.capacity == 100
    caches.correct(cache, expected=0, reported=0)
    assert cache.capacity == 100


def test_where_the_engine_does_not_say_how_much_it_holds_the_picture_grows_to_its_bound() -> None:
    caches = CacheMap()
    cache = caches.join()
    for _ in range(200):
        caches.correct(cache, expected=10, reported=10)
    assert cache.capacity == HELD_MOST


def test_an_engine_that_never_has_anything_is_doubted_until_it_does() -> None:
    caches = CacheMap()
    cache, other = full(caches), full(caches)
    for _ in range(30):
        caches.correct(cache, expected=1000, reported=0)
    assert caches.doubted == cache.bit
    for _ in range(3):
        caches.correct(cache, expected=1000, reported=1000)
    assert caches.doubted == 0
    for _ in range(30):
        caches.correct(other, expected=1000, reported=0)
    caches.leave(other)
    assert caches.doubted == 0


def test_an_engine_that_died_or_left_has_nothing_and_its_place_is_used_again() -> None:
    caches = CacheMap()
    one, two = full(caches), full(caches)
    caches.clear(one)
    assert caches.longest([0, 1], one.bit | two.bit) == (2, two.bit)
    bit = two.bit
    caches.leave(two)
    assert caches.longest([0, 1], one.bit | bit)[0] == 0
    assert not caches._holders
    assert caches.join().bit == bit
