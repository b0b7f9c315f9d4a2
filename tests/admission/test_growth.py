"""How the pace grows with what is in flight: the slope that is remembered, and an engine that becomes slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from gateway.admission.growth import Growth
from gateway.admission.window import Window

BASE, SLOPE = 0.02, 1e-4  # seconds a token, and for each in flight
PROMPTS = 1.3  # times the pace where prompts are read beside


class Engine:
    """Windows of two seconds, as an engine would give them."""

    def __init__(self) -> None:
        self.growth = Growth()
        self.window = Window()
        self.base = BASE

    def see(self, inflight: float, pace: float, *, starts: int = 0, climbs: bool = False, read: float = 0.0) -> float:
        """One window; without ``starts`` ten leave in it. The base that is reckoned with after it."""
        window = self.window
        window.restart()
        window.ticks, window.starts, window.mark_inflight = 20, starts, 0 if starts else 10
        window.stream_seconds += pace * 1000
        window.stream_tokens += 1000
        window.read += read
        return self.growth.add(window, inflight, self.base, climbs=climbs, drains=not starts)

    def load(self, inflight: float, pace: float, windows: int = 30) -> float:
        """As many for so long, prompts read beside: the base that is reckoned with in the end."""
        return [self.see(inflight, PROMPTS * pace, starts=20) for _ in range(windows)][-1]

    def drain(self, counts: Iterable[float], pace: Callable[[float], float]) -> list[float]:
        return [self.see(count, pace(count)) for count in counts]

    def slope(self, base: float) -> float:
        return self.growth.beyond(base)


def fresh(times: float = 1.0) -> Callable[[float], float]:
    """The pace of an engine that takes so many times as long for everything."""
    return lambda inflight: times * (BASE + SLOPE * inflight)


def usual(inflight: float = 200.0) -> Engine:
    engine = Engine()
    assert engine.load(inflight, fresh()(inflight)) == BASE
    return engine


def test_an_engine_that_becomes_slower_shows_its_base_when_it_drains() -> None:
    engine = usual()
    before = engine.slope(BASE)
    bases = engine.drain((200, 190, 180, 170, 160), fresh(2.0))
    assert bases[:3] == [BASE] * 3  # through fewer goes any line
    assert bases[-1] == pytest.approx(2.0 * BASE)
    # Prompts take it twice as long as well, though none was read since.
    assert engine.slope(bases[-1]) == pytest.approx(2.0 * before, rel=0.05)


def test_it_goes_on_from_there_with_what_the_next_windows_say() -> None:
    engine = usual()
    slowed = engine.drain((200, 190, 180, 170, 160), fresh(2.0))[-1]
    steep = engine.slope(slowed)
    engine.drain((150, 140, 130, 120), fresh(2.0))
    assert engine.slope(slowed) == pytest.approx(steep, rel=0.02)  # without prompts a drain says little of the slope
    assert engine.load(80.0, 2.0 * fresh()(80.0), 1) == slowed
    assert engine.slope(slowed) > steep  # prompts weigh more where fewer run


def test_when_it_is_as_fast_again_its_old_base_and_slope_hold() -> None:
    engine = usual()
    before = engine.slope(BASE)
    engine.drain((200, 190, 180, 170, 160), fresh(2.0))
    assert engine.see(80, 1.5 * BASE, starts=20) == BASE  # below what it takes alone, when it is slow
    assert engine.slope(BASE) == pytest.approx(before, rel=0.1)


def test_a_base_that_was_learned_anew_takes_the_place_of_what_a_drain_showed() -> None:
    engine = usual()
    slowed = engine.drain((200, 190, 180, 170, 160), fresh(2.0))[-1]
    steep = engine.slope(slowed)
    engine.base = 2.1 * BASE
    assert engine.see(200, fresh(2.0)(200), starts=20) == 2.1 * BASE
    assert engine.slope(engine.base) == pytest.approx(steep, rel=0.2)


def test_where_the_base_is_forgotten_the_one_of_the_drain_stands_for_it() -> None:
    engine = usual()
    slowed = engine.drain((200, 190, 180, 170, 160), fresh(2.0))[-1]
    engine.base = 0.0  # it kept the limit at its floor
    assert engine.see(100, fresh(2.0)(100), starts=20) == slowed
    assert engine.see(100, 0.5 * slowed, starts=20) == slowed
    assert engine.slope(slowed) > 0.0


def test_a_drain_of_an_engine_that_is_as_fast_as_ever_says_nothing() -> None:
    engine = usual()
    assert engine.drain(range(200, 100, -10), fresh()) == [BASE] * 10


def test_contexts_that_grow_while_it_drains_do_not_make_a_base() -> None:
    # Fewer run and each has more to attend to: the pace is nearly flat, and the line begins far above the base.
    engine = usual()
    flat = fresh()(200)
    assert engine.drain(range(200, 100, -10), lambda n: flat - (200 - n) * 1e-6) == [BASE] * 10


@pytest.mark.parametrize("disturbed", [{"starts": 3}, {"read": 500.0}])
def test_a_window_in_which_prompts_were_sent_or_read_is_no_part_of_a_drain(disturbed: dict[str, float]) -> None:
    engine = usual()
    engine.drain((200, 190, 180), fresh(2.0))
    engine.see(175, fresh(2.0)(175), **disturbed)  # type: ignore[arg-type]
    assert engine.drain((170, 160, 150), fresh(2.0)) == [BASE] * 3
    assert engine.drain((140,), fresh(2.0))[-1] == pytest.approx(2.0 * BASE)


def test_counts_that_hardly_differ_make_no_line() -> None:
    engine = usual()
    assert engine.drain((200, 199, 198, 197, 196), fresh(2.0)) == [BASE] * 5


def test_without_a_base_or_any_window_before_a_drain_says_nothing() -> None:
    engine = Engine()
    assert engine.drain((200, 190, 180), fresh(2.0)) == [BASE] * 3
    engine = Engine()
    engine.base = 0.0
    engine.load(200.0, fresh()(200.0))
    assert engine.drain((200, 190, 180, 170, 160), fresh(2.0)) == [0.0] * 5


def test_a_slower_engine_may_become_slower_still() -> None:
    engine = usual()
    engine.drain((200, 190, 180, 170, 160), fresh(2.0))
    engine.load(160.0, fresh(2.0)(160.0))
    assert engine.drain((160, 150, 140, 130, 120), fresh(4.0))[-1] == pytest.approx(4.0 * BASE)


def test_what_is_in_flight_may_come_to_stand_for_another_count() -> None:
    engine = usual()
    before = engine.slope(BASE)
    engine.growth.rescale(0.5)
    assert engine.slope(BASE) == pytest.approx(2.0 * before)


def test_after_forgetting_only_the_next_windows_count() -> None:
    engine = usual()
    engine.growth.forget()
    engine.see(100, fresh(1.5)(100), starts=20)
    assert engine.slope(BASE) == pytest.approx((fresh(1.5)(100) - BASE) / 100)
