from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.emulator.engine import Engine
from gateway.emulator.profiles import PROFILES
from gateway.simulator.fleet import Node
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
