"""A stall of the loop shows, for long enough to be scraped, and then goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.telemetry.loop_lag import LoopLag


class FakeLoop:
    """A loop whose time the test sets; it has one timer."""

    def __init__(self) -> None:
        self.now = 50.0
        self.due = 0.0
        self.call: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> FakeLoop:
        self.due = self.now + delay
        self.call = lambda: callback(*args)
        return self

    def cancel(self) -> None:
        self.call = None

    def run(self, seconds: float, late: float = 0.0) -> None:
        """Run what falls due within ``seconds``, each so much too late."""
        end = self.now + seconds
        while self.call is not None and self.due + late <= end:
            self.now = self.due + late
            self.call()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    made = FakeLoop()
    monkeypatch.setattr("gateway.telemetry.loop_lag.asyncio.get_running_loop", lambda: cast("Any", made))
    return made


def test_an_idle_loop_is_on_time(loop: FakeLoop) -> None:
    lag = LoopLag()
    assert lag() == 0
    lag.start()
    loop.run(60.0)
    assert lag() == pytest.approx(0.0)


def test_a_stall_shows_for_at_least_one_scrape_interval_and_at_most_two(loop: FakeLoop) -> None:
    lag = LoopLag()
    lag.start()
    loop.run(10.0)
    loop.run(0.8, late=0.5)
    assert lag() == pytest.approx(0.5)
    loop.run(15.0)
    assert lag() == pytest.approx(0.5)
    loop.run(15.0)
    assert lag() == pytest.approx(0.0)


def test_stop_ends_the_timer(loop: FakeLoop) -> None:
    lag = LoopLag()
    lag.start()
    lag.stop()
    lag.stop()
    assert loop.call is None


async def test_on_a_real_loop() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0.3)
    lag.stop()
    assert lag() >= 0.0
    assert lag._looks >= 1
