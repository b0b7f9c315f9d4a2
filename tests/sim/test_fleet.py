from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.emulator.engine import Engine
from gateway.emulator.profiles import PROFILES
from gateway.simulator.clients import Ending, Habits
from gateway.simulator.fleet import Node, refined
from gateway.simulator.run import gateway
from gateway.simulator.setup import Hinting, Load, Machine, Setup
from gateway.simulator.workload import BLOCK_TOKENS
from gateway.simulator.world import World

FLAT = PROFILES["flat"]  # a step takes 10 ms, whatever is in it


def _key(key: int | None) -> int:
    assert key is not None
    return key


def _ends(speeds: list[tuple[float, float]], until: float = 10.0) -> list[float]:
    """When the output of one request of a hundred tokens arrives."""
    world = World()
    node = Node(world, "a", Engine(FLAT), speeds)
    seen: list[float] = []
    key = node.submit(10, 100, lambda: seen.append(world.now))
    node.listen(_key(key), lambda _events, now: seen.append(now))
    world.run(until)
    return seen


def test_output_arrives_step_by_step() -> None:
    seen = _ends([])
    assert len(seen) == 100
    assert seen[-1] - seen[0] == pytest.approx(0.99)


def test_at_half_speed_the_same_output_takes_twice_as_long() -> None:
    seen = _ends([(0.0, 0.5)])
    assert len(seen) == 100
    assert seen[-1] - seen[0] == pytest.approx(1.98)


def test_a_change_of_speed_in_the_middle_of_a_step_holds_for_its_rest() -> None:
    plain, slowed = _ends([]), _ends([(0.505, 0.5)])
    assert slowed[:50] == plain[:50]
    assert slowed[-1] == pytest.approx(0.505 + (plain[-1] - 0.505) * 2)


def test_an_engine_that_hangs_says_nothing_and_goes_on_afterwards() -> None:
    seen = _ends([(0.5, 0.0), (3.0, 1.0)])
    assert not [at for at in seen if 0.51 < at < 3.0]
    assert len(seen) == 100


def test_a_request_hung_up_upon_gives_no_more_output_and_leaves_the_engine() -> None:
    world = World()
    node = Node(world, "a", Engine(FLAT))
    seen: list[float] = []
    key = node.submit(10, 100, lambda: seen.append(world.now))
    node.listen(_key(key), lambda _events, now: seen.append(now))
    world.at(0.5, lambda: node.abort(_key(key)))
    world.run(10.0)
    assert seen
    assert max(seen) <= 0.51
    assert (node.engine.running, node.engine.waiting) == (0, 0)


def test_who_stops_listening_hears_of_the_end_alone() -> None:
    world = World()
    node = Node(world, "a", Engine(FLAT))
    ended: list[float] = []
    heard: list[float] = []
    key = node.submit(10, 100, lambda: ended.append(world.now))

    def once(_events: int, now: float) -> None:
        heard.append(now)
        node.listen(_key(key), None)

    node.listen(_key(key), once)
    world.run(10.0)
    assert (len(heard), len(ended)) == (1, 1)


def test_a_full_engine_refuses() -> None:
    node = Node(World(), "a", Engine(replace(FLAT, max_num_queued_reqs=1)))
    assert node.submit(10, 10, lambda: None) is not None
    assert node.submit(10, 10, lambda: None) is None


def test_one_that_dies_loses_what_it_has_and_is_dead() -> None:
    world = World()
    node = Node(world, "a", Engine(FLAT), dies=0.5)
    seen: list[str] = []
    for tokens in (10, 100):
        node.submit(10, tokens, lambda: seen.append("ended"), lost=lambda: seen.append("lost"))
    world.run(0.4)
    assert (seen, node.dead) == (["ended"], False)
    world.run(10.0)
    assert (seen, node.dead) == (["ended", "lost"], True)
    assert node.engine.running == 0


def test_blocks_are_made_the_engines_own() -> None:
    assert refined((1, 2), BLOCK_TOKENS) == (1, 2)
    parts = refined((1, 2), 32)
    assert len(set(parts)) == 8
    assert refined((1, 3), 32)[:4] == parts[:4]
    with pytest.raises(ValueError, match=r"^block_size: 100 given, a divisor of 128 expected$"):
        refined((1,), 100)


def _pair(first: Machine, **more: Any) -> Setup:
    flat = replace(FLAT, max_model_len=4096)
    load = Load("constant", rates=((0.0, 5.0),), habits=Habits(timeout=5.0))
    return Setup(horizon=30.0, fleet=(replace(first, profile=flat), Machine("b", flat)), load=(load,), **more)


def test_a_request_whose_engine_is_not_there_is_tried_on_another() -> None:
    result = gateway(_pair(Machine("a", FLAT, dies=10.0)))
    assert result.figures["answered"] > 0.97  # but for those that were in it
    assert 1.0 < result.figures["sent"] < 1.2
    assert {decision.what for decision in result.decisions if decision.at > 17.0} == {"b"}


def test_what_ran_on_an_engine_that_dies_has_failed() -> None:
    result = gateway(_pair(Machine("a", FLAT, dies=10.0)))
    failed = [call.ended_at for call in result.calls if call.ending is Ending.FAILED]
    assert failed
    assert set(failed) == {10.0}


def test_one_that_joins_is_sent_requests_from_then_on() -> None:
    result = gateway(_pair(Machine("a", FLAT, joins=10.0), hints=Hinting(every=1.0)))
    first = {what: min(d.at for d in result.decisions if d.what == what) for what in ("a", "b")}
    assert first["b"] < 1.0
    assert 10.0 <= first["a"] < 12.0
