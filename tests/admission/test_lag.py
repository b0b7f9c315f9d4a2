"""An engine that is suddenly far slower than it was: told in a moment, and not of what is slow for a reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from gateway.admission.lag import Lag
from gateway.admission.window import TICK, Streaming, Window
from tests.admission.helpers import ticket

PERMITS = count(1)
READING = 1e-4  # seconds per token of a prompt


class Engine:
    """Streams in step: each gains a token every ``pace`` seconds, and time passes in ticks."""

    def __init__(self, streams: int = 20, *, reads: bool = True) -> None:
        self.window, self.lag, self.now = Window(), Lag(), 0.0
        if reads:
            self.window.reading_pace.recall(READING)
        self.streams = [self.start() for _ in range(streams)]

    def start(self, prompt: int = 100) -> Streaming:
        running = self.send(prompt)
        running.output(1, self.now)
        return running

    def send(self, prompt: int) -> Streaming:
        running = Streaming(next(PERMITS), ticket(prompt), self.window, self.now, None)
        self.window.enter(running)
        return running

    def run(self, seconds: float, pace: float | None) -> float | None:
        """Go on; after how long it was first seen to be behind. ``pace``: None where it says nothing."""
        due, began, found = self.now + (pace or 0.0), self.now, None
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            while pace is not None and due <= self.now:
                for running in self.streams:
                    running.output(1, due)
                due += pace
            self.lag.tick(self.window, len(self.streams))
            if self.lag.behind and found is None:
                found = self.now - began
        return found


@pytest.mark.parametrize(("pace", "within"), [(0.2, 1.5), (0.1, 2.5), (None, 1.0)])
def test_one_that_turns_slow_is_behind_within_seconds(pace: float | None, within: float) -> None:
    engine = Engine()
    assert engine.run(30.0, 0.02) is None
    found = engine.run(10.0, pace)
    assert found is not None
    assert found <= within


def test_one_that_is_twice_as_slow_is_not_behind() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    assert engine.run(30.0, 0.04) is None


def test_one_that_recovers_is_behind_for_a_moment_more() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    engine.run(10.0, 0.2)
    engine.run(1.0, 0.02)
    assert not engine.lag.behind


def test_what_it_does_for_a_minute_is_what_it_does() -> None:
    engine = Engine()
    engine.run(60.0, 0.02)
    engine.run(60.0, 0.2)
    assert not engine.lag.behind, "the law has had its time"


def test_an_engine_that_was_never_faster_is_not_behind() -> None:
    assert Engine(8).run(60.0, 0.7) is None


def test_more_streams_may_each_take_as_much_longer() -> None:
    engine = Engine(4)
    engine.run(30.0, 0.02)
    engine.streams += [engine.start() for _ in range(36)]
    assert engine.run(5.0, 0.15) is None


def test_a_few_streams_may_be_silent_of_their_own() -> None:
    engine = Engine(3)
    engine.run(30.0, 0.02)
    assert engine.run(10.0, None) is None


def test_the_last_few_of_one_that_is_behind_do_not_hide_it() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    engine.run(5.0, 0.2)
    del engine.streams[3:]
    engine.run(10.0, 0.2)
    assert engine.lag.behind
    engine.run(2.0, 0.02)
    assert not engine.lag.behind, "they go as fast as before"


def test_nobody_is_behind_for_long_once_its_streams_are_through() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    engine.run(5.0, None)
    assert engine.lag.behind
    engine.streams.clear()
    engine.run(1.0, None)
    assert not engine.lag.behind, "nothing would tell any more that it recovered"


@pytest.mark.parametrize("reads", [True, False])
def test_one_that_reads_a_long_prompt_is_not_behind(reads: bool) -> None:
    engine = Engine(reads=reads)
    engine.run(30.0, 0.02)
    long = engine.send(30_000)
    assert engine.run(5.0, 1.0) is None, "its steps last a second each"
    long.output(1, engine.now)
    assert engine.run(5.0, 0.02) is None


def test_prompts_one_after_the_other_are_reasons_too() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    for _ in range(10):
        running = engine.send(5_000)
        assert engine.run(0.6, 0.3) is None
        running.output(1, engine.now)
        engine.streams.append(running)


def test_one_that_hangs_over_a_prompt_is_behind_when_that_is_overdue() -> None:
    engine = Engine()
    engine.run(30.0, 0.02)
    engine.send(10_000)
    found = engine.run(20.0, None)
    assert found is not None
    assert 2.5 < found < 5.0


def test_a_cold_start_has_nothing_to_be_behind() -> None:
    engine = Engine(4)
    pace: Callable[[int], float] = lambda streams: 0.01 + 0.001 * streams  # noqa: E731
    for streams in (4, 8, 16, 32, 64, 128, 256):
        engine.streams += [engine.start() for _ in range(streams - len(engine.streams))]
        assert engine.run(0.5, pace(streams)) is None
