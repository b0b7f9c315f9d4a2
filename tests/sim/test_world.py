from __future__ import annotations

import math

from gateway.simulator.world import Alarm, World


def test_actions_run_in_order_of_time_and_equal_times_in_order_of_asking() -> None:
    world, seen = World(), []
    for name, at in (("b", 2.0), ("a", 1.0), ("c", 2.0)):
        world.at(at, lambda name=name: seen.append((name, world.now)))  # type: ignore[misc]
    world.run(10.0)
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert world.now == 10.0


def test_nothing_runs_after_the_end_and_the_past_is_now() -> None:
    world, seen = World(), []
    world.at(3.0, lambda: world.at(1.0, lambda: seen.append(world.now)))
    world.at(5.0, lambda: seen.append(5.0))
    world.at(math.inf, lambda: seen.append(math.inf))
    world.run(4.0)
    assert seen == [3.0]


def test_an_alarm_rings_only_at_the_time_it_was_last_set_to() -> None:
    world, rung = World(), []
    alarm = Alarm(world, lambda: rung.append(world.now))
    alarm.set(5.0)
    alarm.set(2.0)
    alarm.set(5.0)
    world.run(3.0)
    alarm.set(None)
    world.run(6.0)
    alarm.set(7.0)
    alarm.set(7.0)
    world.run(9.0)
    assert rung == [7.0]
