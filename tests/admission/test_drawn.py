"""Where requests go that belong somewhere: to their home, within its fair share, or else to the next best."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.balancer import PASSES
from gateway.admission.config import AdmissionConfig, Affinity, BalanceConfig, LaneConfig
from gateway.admission.pool import ALIKE, MET_LAPSE
from gateway.model import (
    BLOCK_BYTES,
    Backend,
    Choice,
    Health,
    Hints,
    Outcome,
    Permit,
    Priority,
    Reason,
    Rejection,
    Ticket,
    Usage,
)
from tests.admission.helpers import Driver, adaptive, config, fixed, ticket

BLOCKS = 8
TOKENS = BLOCKS * BLOCK_BYTES // 4


def prompt(name: str, blocks: int = BLOCKS, **changes: Any) -> Ticket:
    """A prompt of so many blocks, which shares them with all others of this name."""
    asked = ticket(blocks * BLOCK_BYTES // 4, 50, **changes)
    chained = tuple(hash((name, place)) for place in range(blocks))
    return replace(asked, shape=replace(asked.shape, blocks=chained))


def drawn(affinity: Affinity = Affinity.PREFIX, **balance: Any) -> AdmissionConfig:
    return replace(config(), balance=BalanceConfig(affinity, **balance))


def driver(*backends: Backend, settings: AdmissionConfig | None = None) -> Driver:
    return Driver(*backends, admission=settings or drawn())


def served(driver: Driver, request: Ticket, cached: int | None = None) -> Permit:
    """Let it in, and end it at once."""
    permit = driver.permit(request)
    driver.settle(permit, usage=Usage(request.work.prompt_tokens, 50, cached))
    return permit


def fill(driver: Driver, backend: str, count: int) -> list[Permit]:
    others = frozenset(state.name for state in driver.admission.state(0.0).backends) - {backend}
    return [driver.permit(ticket(avoid=others)) for _ in range(count)]


# --------------------------------------------------------------------------------------------------------- prefixes


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    world = driver(*(fixed(8, name) for name in "abcd"))
    homes = {name: served(world, prompt(name)).backend for name in ("x", "y", "z")}
    for _ in range(3):
        for name, home in homes.items():
            permit = served(world, prompt(name, BLOCKS + 2))
            assert (permit.backend, permit.choice) == (home, Choice.PREFIX)


def test_without_affinity_it_goes_to_the_emptiest() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"), settings=drawn(Affinity.NONE))
    assert [served(world, prompt("x")).backend for _ in range(4)] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("affinity", "known"), [(Affinity.PREFIX, BLOCKS), (Affinity.NONE, 0)])
def test_what_nobody_asks_for_is_not_remembered(affinity: Affinity, known: int) -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"), settings=drawn(affinity))
    served(world, prompt("x", session="s"))
    books, caches = world.admission._pool.books[0], world.admission._pool.caches
    assert (len(books.cache.blocks), bool(caches.home("s"))) == (known, known > 0)


def test_what_everybody_has_draws_nobody() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    for name in "ab":
        served(world, prompt("x", avoid=frozenset("ab") - {name}))
    permits = [world.permit(prompt("x")) for _ in range(4)]
    assert Counter(permit.backend for permit in permits) == {"a": 2, "b": 2}
    assert {permit.choice for permit in permits} == {Choice.HEADROOM}


def test_one_off_requests_go_to_the_emptiest() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    permits = [world.permit(prompt(str(number))) for number in range(6)]
    assert Counter(permit.backend for permit in permits) == {"a": 3, "b": 3}


def test_a_popular_prefix_makes_no_hot_spot() -> None:
    world = driver(*(fixed(64, name) for name in "abcd"))
    served(world, prompt("x"))
    permits = [world.permit(prompt("x")) for _ in range(160)]
    load = Counter(permit.backend for permit in permits)
    assert max(load.values()) <= 1.25 * 160 / 4 + sqrt(160 / 4) + 1
    assert Counter(permit.choice for permit in permits)[Choice.SPILL] > 0


@given(st.lists(st.integers(0, 5), min_size=30, max_size=120), st.sampled_from([0.1, 0.25, 1.0]))
def test_no_backend_has_more_than_its_bound(names: list[int], bound: float) -> None:
    world = driver(*(fixed(200, name) for name in "abc"), settings=drawn(bound=bound))
    load: Counter[str] = Counter()
    for done, name in enumerate(names, 1):
        permit = world.permit(prompt(str(name)))
        load[permit.backend] += 1
        assert load[permit.backend] <= max(4, (1.0 + bound) * done / 3 + sqrt(done / 3) + 1)


@given(st.lists(st.integers(0, 3), min_size=30, max_size=120))
def test_the_share_is_by_what_each_can_hold(names: list[int]) -> None:
    world = driver(fixed(100, "large"), fixed(25, "small"))
    world.run(0.2)
    load: Counter[str] = Counter()
    for done, name in enumerate(names, 1):
        world.run(0.1)
        load[world.permit(prompt(str(name))).backend] += 1
        assert load["small"] <= max(4, 1.25 * done / 5 + sqrt(done / 5) + 1)


def test_a_limit_that_is_not_met_is_no_measure_of_an_engine() -> None:
    world = driver(adaptive("high"), adaptive("low"))
    high, low = (world.admission._pool.by_name[name] for name in ("high", "low"))
    high.limit.value, low.limit.value = 40.0, 4.0
    low.limit.changes["down", "pace"] += 1
    met = fill(world, "low", 3)
    world.run(0.2)
    assert (high.share, low.share) == (40.0, 4.0)
    for permit in met:
        world.settle(permit)
    fill(world, "low", 1)
    world.run(MET_LAPSE + 1.0)
    assert (high.share, low.share) == (40.0, 40.0)


def test_an_engine_of_another_kind_is_no_measure() -> None:
    world = driver(adaptive("fast"), adaptive("slow"))
    fast, slow = (world.admission._pool.by_name[name] for name in ("fast", "slow"))
    fast.window.base_stream.recall(0.01)
    slow.window.base_stream.recall(0.01 * ALIKE + 0.01)
    fast.limit.value, slow.limit.value = 40.0, 10.0
    fill(world, "fast", 1)
    world.run(0.2)
    assert (fast.share, slow.share) == (40.0, 10.0)


def test_where_much_is_to_be_read_is_no_empty_place() -> None:
    world = driver(fixed(40, "a"), fixed(40, "b"))
    books = world.admission._pool.by_name
    reader = fill(world, "a", 1)[0]
    fill(world, "b", 3)
    assert world.permit(ticket()).backend == "a"
    world.settle(reader)
    books["a"].reading = books["b"].reading = 1e-4 / 10.0  # a token's share of a request's stay
    others = frozenset("b")
    world.permit(ticket(20_000, avoid=others))
    assert world.permit(ticket()).backend == "b"


def test_what_several_have_alike_goes_where_its_session_went_last() -> None:
    world = driver(*(fixed(40, name) for name in "abc"))
    for name in "abc":
        served(world, prompt("x", 4, avoid=frozenset("abc") - {name}))
    served(world, prompt("x", 4, avoid=frozenset("ac"), session="s"))
    served(world, prompt("y", 8, avoid=frozenset("bc")))
    served(world, prompt("y", 8, avoid=frozenset("ac"), session="t"))
    served(world, prompt("y", 8, avoid=frozenset("ac")))
    for _ in range(3):
        permit = served(world, prompt("y", 8, session="t"))
        assert (permit.backend, permit.choice) == ("b", Choice.PREFIX)


def test_where_home_is_over_its_share_the_next_best_has_some_of_it() -> None:
    world = driver(*(fixed(40, name) for name in "abc"))
    for name, blocks in (("a", 8), ("b", 4)):
        served(world, prompt("x", blocks, avoid=frozenset("abc") - {name}))
    fill(world, "a", 20)
    fill(world, "b", 5)
    fill(world, "c", 4)
    permit = world.permit(prompt("x"))
    assert (permit.backend, permit.choice) == ("b", Choice.SPILL)


def test_a_backend_that_died_has_lost_its_cache() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    home = served(world, prompt("x")).backend
    world.take(world.admission.note_health(home, Health.DOWN, world.now))
    other = served(world, prompt("x"))
    assert other.backend != home
    world.take(world.admission.note_health(home, Health.UP, world.now))
    world.run(15.0)
    assert served(world, prompt("x")).backend == other.backend


def test_engines_that_cache_nothing_draw_nobody_in_the_end() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    choices = [served(world, prompt("x"), cached=0).choice for _ in range(80)]
    assert choices[1] is Choice.PREFIX
    assert set(choices[-10:]) == {Choice.HEADROOM}
    assert world.backend().cached_tokens == 0
    assert world.backend().prompt_tokens > 0


def test_how_much_an_engine_holds_bounds_what_is_thought_to_be_there() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    for name in "ab":
        world.take(world.admission.note_hints(name, Hints(kv_capacity_tokens=100 * BLOCK_BYTES // 4), world.now))
    home = served(world, prompt("x")).backend
    for number in range(12):
        served(world, prompt(f"other-{number}", 16, avoid=frozenset("ab") - {home}))
    assert served(world, prompt("x")).choice is Choice.HEADROOM


# --------------------------------------------------------------------------------------------------------- sessions


def test_a_session_stays_where_it_is_and_sessions_spread() -> None:
    world = driver(*(fixed(64, name) for name in "abcd"), settings=drawn(Affinity.SESSION))
    homes = {f"s{number}": served(world, ticket(session=f"s{number}")).backend for number in range(60)}
    assert len(set(homes.values())) == 4
    for session, home in homes.items():
        permit = served(world, ticket(session=session))
        assert (permit.backend, permit.choice) == (home, Choice.SESSION)
    assert world.permit(ticket()).choice is Choice.HEADROOM


def test_gateways_that_share_engines_agree_on_a_prompt_that_is_nowhere() -> None:
    settings = drawn()
    alone, shared = settings, replace(settings, limit=replace(settings.limit, replicas=2))
    homes: list[str] = []
    for world in (driver(*(fixed(64, name) for name in "abcd"), settings=shared) for _ in range(2)):
        for number in range(5):
            served(world, prompt(f"other {number + len(homes)}"))
        permit = served(world, prompt("x", session="s"))
        assert permit.choice is Choice.SESSION
        assert served(world, prompt("x", 12, session="s")).choice is Choice.PREFIX
        homes.append(permit.backend)
    assert homes[0] == homes[1]
    world = driver(*(fixed(64, name) for name in "abcd"), settings=alone)
    assert served(world, prompt("x", session="s")).choice is Choice.HEADROOM


def test_faster_engines_get_more_sessions() -> None:
    world = driver(fixed(60, "fast"), fixed(20, "slow"), settings=drawn(Affinity.SESSION))
    world.permit(ticket())
    world.run(0.2)
    found = Counter(served(world, ticket(session=str(number))).backend for number in range(400))
    assert found["fast"] / 400 == pytest.approx(0.75, abs=0.08)


# --------------------------------------------------------------------------------------------------------- the queue


def busy(settings: AdmissionConfig | None = None) -> tuple[Driver, dict[str, list[Permit]]]:
    """Two full backends; x is cached at a, y at b; how fast they read is known."""
    patient = (LaneConfig("short", 2000, 2.0, None, 8.0), LaneConfig("long", None, 1.0, None, 8.0))
    settings = replace(settings or drawn(), queue=replace(config().queue, lanes=patient))
    world = driver(fixed(4, "a"), fixed(4, "b"), settings=settings)
    for name, backend in (("x", "a"), ("y", "b")):
        for _ in range(6):
            permit = world.permit(prompt(f"{name}{world.now}", avoid=frozenset("ab") - {backend}))
            world.run(0.5)
            permit.progress.output(1, world.now)
            world.settle(permit)
        served(world, prompt(name, avoid=frozenset("ab") - {backend}))
    return world, {name: fill(world, name, 4) for name in "ab"}


def test_a_place_goes_to_who_is_drawn_to_it() -> None:
    world, running = busy()
    first, second = world.queue(prompt("y")), world.queue(prompt("x"))
    world.settle(running["a"][0])
    assert world.permits[second.id].backend == "a"
    assert world.permits[second.id].choice is Choice.PREFIX
    world.settle(running["b"][0])
    assert world.permits[first.id].backend == "b"


def test_who_must_be_read_lets_those_go_first_who_are_cached() -> None:
    world, running = busy()
    new, known = world.queue(prompt("new")), world.queue(prompt("x"))
    world.settle(running["a"].pop())
    assert (known.id in world.permits, new.id in world.permits) == (True, False)
    world.settle(running["a"].pop())
    assert (world.permits[new.id].backend, world.permits[new.id].choice) == ("a", Choice.HEADROOM)


def test_of_those_who_must_be_read_the_one_goes_first_of_whom_most_is_cached() -> None:
    world, running = busy()
    waiting = [world.queue(prompt("x", blocks)) for blocks in (5 * BLOCKS, 2 * BLOCKS, 3 * BLOCKS)]
    order: list[int] = []
    for _ in waiting:
        world.settle(running["a"].pop())
        order += [place for place, each in enumerate(waiting) if each.id in world.permits and place not in order]
    assert order == [1, 2, 0]


def test_a_new_session_waits_for_its_home_while_others_wait() -> None:
    world, running = busy()
    waiting = [world.queue(prompt(f"new {number}", session=str(number))) for number in range(12)]
    for name in "ab":
        world.settle(running[name].pop())
    homes = {
        world.permits[each.id].backend: world.permits[each.id].choice for each in waiting if each.id in world.permits
    }
    assert homes == {"a": Choice.SESSION, "b": Choice.SESSION}


def test_one_of_whom_nobody_can_tell_is_not_passed_over() -> None:
    world, running = busy()
    first, second = world.queue(ticket()), world.queue(prompt("x"))
    world.settle(running["a"].pop())
    assert (first.id in world.permits, second.id in world.permits) == (True, False)


def test_who_must_be_read_is_not_passed_over_for_ever() -> None:
    world, running = busy()
    new = world.queue(prompt("new"))
    passed, free = 0, running["a"].pop()
    while new.id not in world.permits:
        known = world.queue(prompt("x"))
        world.settle(free)
        if known.id in world.permits:
            free = world.permits[known.id]
            passed += 1
        else:
            world.withdraw(known)
    assert passed == 2 * PASSES


def test_nobody_is_passed_over_for_ever() -> None:
    world, running = busy()
    stubborn = world.queue(prompt("y"))
    passed = 0
    free = running["a"].pop()
    while stubborn.id not in world.permits:
        other = world.queue(prompt("x"))
        world.settle(free)
        if other.id in world.permits:
            free = world.permits[other.id]
            passed += 1
        else:
            world.withdraw(other)
    assert passed == 2 * PASSES
    assert world.permits[stubborn.id].backend == "a"
    assert world.permits[stubborn.id].choice is Choice.SPILL


def test_it_waits_a_moment_for_its_home_and_no_longer() -> None:
    world, running = busy()
    request = world.queue(prompt("y"))
    world.settle(running["a"][0])
    assert request.id not in world.permits  # a place is free, but what is cached at b is worth the wait
    world.run(1.2)  # reading it again would take the engine half a second, and it has three others
    assert request.id not in world.permits
    world.run(0.5)
    assert world.permits[request.id].backend == "a"


def test_its_home_may_come_free_while_it_waits() -> None:
    world, running = busy()
    request = world.queue(prompt("y"))
    world.settle(running["a"][0])
    world.settle(running["b"][0])
    assert world.permits[request.id].backend == "b"


def test_whoever_behind_it_gains_little_by_waiting_takes_the_place() -> None:
    world, running = busy()
    patient, other = world.queue(prompt("y")), world.queue(prompt("y", 1))
    world.settle(running["a"][0])
    assert patient.id not in world.permits
    assert world.permits[other.id].backend == "a"


def test_a_place_that_nobody_is_drawn_to_goes_to_the_next_in_turn() -> None:
    world, running = busy(drawn(patience=0.0))
    first, second = world.queue(prompt("y")), world.queue(prompt("y"))
    world.settle(running["a"][0])
    assert world.permits[first.id].choice is Choice.SPILL
    assert second.id not in world.permits


def test_a_session_is_taken_to_have_all_of_its_prompt_at_home() -> None:
    world, running = busy(drawn(Affinity.SESSION))
    sessions = [ticket(1_000, session=str(number)) for number in range(6)]
    for asked in sessions:
        world.queue(asked)
    world.settle(running["a"][0])
    world.settle(running["b"][0])
    placed = [world.permits[asked.id] for asked in sessions if asked.id in world.permits]
    assert [permit.choice for permit in placed] == [Choice.SESSION] * 2


def test_without_patience_it_takes_what_there_is() -> None:
    world, running = busy(drawn(patience=0.0))
    request = world.queue(prompt("y"))
    world.settle(running["a"][0])
    assert world.permits[request.id].backend == "a"


def test_who_may_not_wait_takes_another_place_at_once() -> None:
    world, running = busy()
    world.settle(running["a"][0])
    assert world.offer(prompt("y")) is None  # it waits for b
    nobody = replace(world.admission._config, queue=replace(world.admission._config.queue, max_requests=0))
    world.admission._shedder.retune(nobody)
    world.withdraw(next(iter(ticket_ for ticket_, _ in world.admission._backlog.waiting())))
    permit = world.permit(prompt("y"))
    assert (permit.backend, permit.choice) == ("a", Choice.SPILL)


# ------------------------------------------------------------------------------------------------ tiers, rest, failover


def test_a_higher_tier_is_used_while_the_lower_one_has_no_room() -> None:
    world = driver(fixed(2, "far", tier=1), fixed(2, "near"), settings=config())
    permits = [world.permit(ticket()) for _ in range(4)]
    assert [permit.backend for permit in permits] == ["near", "near", "far", "far"]
    assert [permit.choice for permit in permits][1:3] == [Choice.HEADROOM, Choice.SPILL]
    world.settle(permits[0])
    assert world.permit(ticket()).backend == "near"


def test_tokens_count_in_every_tier() -> None:
    world = driver(fixed(9, "near"), fixed(9, "far", tier=1), settings=drawn())
    for name in ("near", "far"):
        world.admission._pool.by_name[name].limit.tokens = 500.0
    fill(world, "near", 2)
    assert world.permit(ticket(200, 100)).backend == "far"
    assert world.offer(ticket(300, 100)) is None


def test_tokens_elsewhere_hold_one_whose_home_has_no_room_either() -> None:
    world = driver(fixed(2, "a"), fixed(9, "b"))
    served(world, prompt("x", avoid=frozenset("b")))
    fill(world, "a", 2)
    fill(world, "b", 2)
    world.admission._pool.by_name["b"].limit.tokens = 500.0
    assert world.offer(prompt("x")) is None
    assert world.admission._pool.by_name["b"].window.held


def test_home_is_taken_beyond_its_share_where_nowhere_else_is_room() -> None:
    world = driver(fixed(100, "a"), fixed(40, "b"))
    served(world, prompt("x", avoid=frozenset("b")))
    fill(world, "b", 40)
    fill(world, "a", 95)
    world.admission._pool.by_name["a"].share = 10.0
    permit = world.permit(prompt("x"))
    assert (permit.backend, permit.choice) == ("a", Choice.PREFIX)


def test_affinity_stays_within_the_tier() -> None:
    world = driver(fixed(3, "near"), fixed(3, "other"), fixed(3, "far", tier=1))
    served(world, prompt("x", avoid=frozenset({"near", "other"})))
    assert served(world, prompt("x")).backend != "far"


def test_an_engine_s_retry_after_is_heeded_while_others_serve() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"), settings=config())
    world.admission.rest("a", 3.0, world.now)
    assert [served(world, ticket()).backend for _ in range(4)] == ["b"] * 4
    world.permit(ticket())
    world.run(3.2)
    assert served(world, ticket()).backend == "a"


def test_the_only_engine_is_asked_all_the_same() -> None:
    world = driver(fixed(8, "a"), settings=config())
    world.admission.rest("a", 3.0, world.now)
    assert world.permit(ticket()).backend == "a"


def test_one_that_comes_back_is_filled_little_by_little() -> None:
    world = driver(fixed(100, "a"), settings=config())
    world.take(world.admission.note_health("a", Health.DOWN, world.now))
    world.take(world.admission.note_health("a", Health.UP, world.now))
    running = 0
    for _ in range(3):
        while isinstance(world.offer(ticket()), Permit):
            running += 1
        world.run(3.0)
    assert 4 < running < 80
    world.run(6.0)
    while isinstance(world.offer(ticket()), Permit):
        running += 1
    assert len(world.permits) == 100


def test_one_that_joins_gets_its_share() -> None:
    world = driver(fixed(50, "a"), settings=config())
    world.take(world.admission.add_backend(fixed(50, "b"), world.now))
    assert {served(world, ticket()).backend for _ in range(4)} == {"a", "b"}


def test_failovers_have_one_budget() -> None:
    world = driver(fixed(500, "a"), fixed(500, "b"), settings=config())
    refused = 0
    for _ in range(100):
        served(world, ticket())
        again = world.offer(ticket(avoid=frozenset("b"), tried=1))
        if isinstance(again, Rejection):
            assert again.reason is Reason.RETRY_BUDGET
            refused += 1
        else:
            assert isinstance(again, Permit)
            assert again.choice is Choice.FAILOVER
            world.settle(again)
    assert 100 - refused <= 12


def test_who_was_refused_elsewhere_goes_only_where_there_is_room_at_once() -> None:
    world = driver(fixed(1, "a"), fixed(1, "b"), settings=config())
    assert world.permit(ticket(avoid=frozenset("a"), tried=1, refused=True)).choice is Choice.FAILOVER
    fill(world, "a", 1)
    assert world.refused(ticket(avoid=frozenset("b"), tried=1, refused=True)).reason is Reason.RETRY_BUDGET


# ---------------------------------------------------------------------------------------------------- what is told


def test_choices_and_cached_tokens_are_counted() -> None:
    world = driver(fixed(8, "a"), fixed(8, "b"))
    served(world, prompt("x"), cached=0)
    served(world, prompt("x"), cached=TOKENS)
    home = world.backend()
    assert home.choices == {"headroom": 1, "prefix": 1}
    assert (home.prompt_tokens, home.cached_tokens) == (2 * TOKENS, TOKENS)


def test_critical_requests_and_sessions_find_their_home_too() -> None:
    world = driver(adaptive("a"), adaptive("b"), settings=drawn(Affinity.SESSION))
    home = served(world, ticket(session="s", priority=Priority.CRITICAL)).backend
    assert served(world, ticket(session="s", stream=False)).backend == home
    permit = world.permit(ticket(session="s"))
    world.settle(permit, Outcome.BACKEND_LOST)
