"""The window: what is kept, for how long, and the runs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.telemetry.entry import Entry
from gateway.telemetry.selection import Selection
from gateway.telemetry.window import RUNS_MAX, Run, Window, selection_of
from tests.telemetry.entries import entry


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def filled(window: Window, clock: Clock, *received: float, **changes: Any) -> list[Entry]:
    """Requests of 0.7 s, one after the other."""
    entries = [entry(at, **changes) for at in received]
    for each in entries:
        clock.now = max(clock.now, each.received + 0.701)
        window.take(each)
    return entries


def window(clock: Clock, age: float = 60.0, memory: int = 1_000_000) -> Window:
    return Window(age, memory, clock, lambda: clock.now + 5e8)


def test_entries_are_kept_in_the_order_of_their_end_until_they_are_too_old() -> None:
    clock = Clock()
    kept = window(clock)
    first, second, third = filled(kept, clock, 1_000.0, 1_010.0, 1_020.0)
    assert kept.entries() == (first, second, third)
    assert kept.lost is None
    clock.now = 1_000.0 + 0.701 + 60.0
    assert kept.entries() == (first, second, third)
    clock.now += 1.0
    assert kept.entries() == (second, third)
    assert kept.lost == pytest.approx(1_000.701)
    clock.now += 100.0
    assert kept.lost == pytest.approx(1_020.701)
    assert kept.entries() == ()


def test_the_oldest_go_where_memory_is_too_little() -> None:
    clock = Clock()
    size = entry().size
    kept = window(clock, memory=3 * size)
    entries = filled(kept, clock, *(1_000.0 + number for number in range(10)))
    assert list(kept.entries()) == entries[-3:]
    assert kept.lost == pytest.approx(1_006.701)


def test_whatever_comes_the_memory_is_bounded() -> None:
    clock = Clock()
    kept = window(clock, memory=50_000)
    for number in range(300):
        kept.take(entry(1_000.0, stamps=range(0, number * 1_000, 1_000)))
        assert sum(each.size for each in kept.entries()) <= 50_000
    kept.take(entry(1_000.0, stamps=range(20_000)))
    assert kept.entries() == ()


def test_memory_of_nothing_keeps_nothing() -> None:
    clock = Clock()
    kept = window(clock, memory=0)
    filled(kept, clock, 1_000.0)
    assert kept.entries() == ()


def test_the_clock_of_the_wall_may_step() -> None:
    clock, wall = Clock(1_000.0), Clock(5_000.0)
    kept = Window(60.0, 1_000, clock, wall)
    assert (kept.now, kept.wall_offset) == (1_000.0, 4_000.0)
    wall.now += 30.0
    assert kept.wall_offset == 4_030.0


# ------------------------------------------------------------------------------------------------------------- runs


def test_a_run_is_what_came_between_its_start_and_its_stop() -> None:
    clock = Clock()
    kept = window(clock)
    assert kept.runs() == ()
    assert kept.start("before-the-fix") == Run("before-the-fix", 1_000.0)
    assert selection_of(kept.run("before-the-fix")) == Selection(1_000.0, None)
    clock.now = 1_030.0
    assert kept.stop("before-the-fix") == Run("before-the-fix", 1_000.0, 1_030.0)
    assert selection_of(kept.run("before-the-fix")) == Selection(1_000.0, 1_030.0)


def test_a_name_may_be_used_again_after_its_run() -> None:
    clock = Clock()
    kept = window(clock)
    kept.start("a")
    kept.start("b")
    kept.stop("a")
    clock.now += 1.0
    kept.start("a")
    assert kept.runs() == (Run("b", 1_000.0), Run("a", 1_001.0))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "a\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a name of 1 to 64 letters"):
        window(Clock()).start(name)


def test_runs_are_started_and_stopped_once() -> None:
    kept = window(Clock())
    with pytest.raises(ValueError, match=r"got 'a', expected the name of a run that was started \(known: none\)"):
        kept.stop("a")
    kept.start("a")
    with pytest.raises(ValueError, match="run 'a' goes on already: stop it first"):
        kept.start("a")
    kept.stop("a")
    with pytest.raises(ValueError, match="run 'a' has ended already"):
        kept.stop("a")
    with pytest.raises(ValueError, match=r"known: a\)"):
        kept.run("b")


def test_runs_of_vllm_bench_are_found_by_their_prefix() -> None:
    clock = Clock()
    kept = window(clock)
    filled(kept, clock, 1_002.0, 1_000.0, 1_001.0, request_id="bench-0a1b2c3d-17")
    filled(kept, clock, 1_005.0, request_id="bench-ffffffff-0")
    filled(kept, clock, 1_006.0, request_id="bench-mine-0")
    assert [(run.name, run.since) for run in kept.benches()] == [
        ("bench-0a1b2c3d-", 1_000.0),
        ("bench-ffffffff-", 1_005.0),
    ]
    assert [run.until for run in kept.benches()] == pytest.approx([1_002.701, 1_005.701])


def test_the_number_of_runs_is_bounded() -> None:
    clock = Clock()
    kept = window(clock)
    for number in range(RUNS_MAX + 5):
        kept.start(f"run-{number}")
        filled(kept, clock, 1_000.0, request_id=f"bench-{number:08x}-0")
    assert [run.name for run in kept.runs()] == [f"run-{number}" for number in range(5, RUNS_MAX + 5)]
    assert [run.name for run in kept.benches()] == [f"bench-{number:08x}-" for number in range(5, RUNS_MAX + 5)]
