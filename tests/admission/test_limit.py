"""The law, window by window: what each signal does, and what it must not do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.config import LimitConfig
from gateway.admission.limit import AdaptiveLimit, FixedLimit
from gateway.admission.pace import LowBase
from gateway.admission.window import Streaming, Window
from tests.admission.helpers import ticket

BASE = 0.02  # unloaded seconds a token
FIVE = 5.0 / 0.85  # a tolerance with which the mean is held at five times as much, while no answer was seen


class Law:
    """An adaptive limit and the window that feeds it. Each ``see`` is one window of two seconds."""

    def __init__(self, value: float = 20.0, *, slow: bool = False, **config: Any) -> None:
        self.config = LimitConfig(**{"tolerance": FIVE} | config)
        self.limit = AdaptiveLimit(self.config)
        self.limit.value = value
        self.limit._slow = slow
        self.window = Window()
        self.now = 0.0
        for base in (self.window.base_stream, self.window.base_whole):
            for _ in range(30):
                base.add(BASE)

    @property
    def value(self) -> float:
        return self.limit.value

    def see(
        self,
        pace: float = 0.0,
        *,
        tokens: int = 1000,
        n: float | None = None,
        full: bool = True,
        inflight: int | None = None,
        standing: float = 0.0,
        ticks: int = 20,
        kv_usage: float | None = None,
        **counters: Any,
    ) -> float:
        """One window: a pace of so many seconds a token at ``n`` in flight (as many as the limit, if not said)."""
        window = self.window
        running = self.value if n is None else n
        if pace:
            window.stream_seconds += pace * tokens
            window.stream_tokens += tokens
        window.ticks = ticks
        window.busy_sum = round(running * ticks)
        window.inflight = round(running) if inflight is None else inflight
        window.arrivals, window.full = (10, 10) if full else (10, 0)
        window.standing = standing
        for name, count in counters.items():
            setattr(window, name, count)
        self.now += ticks * 0.1
        self.limit.tick(window, kv_usage, self.now)
        return self.value


# ------------------------------------------------------------------------------------------------- when it decides


def test_a_decision_needs_time_and_tokens() -> None:
    law = Law()
    assert law.see(0.04, ticks=19) == 20.0
    law.window.restart()
    assert law.see(0.04, tokens=99) == 20.0
    law.window.restart()
    assert law.see(0.04) > 20.0


def test_after_five_windows_it_decides_on_what_there_is() -> None:
    law = Law()
    assert law.see(0.04, tokens=50, ticks=100) == 20.0
    law.window.restart()
    assert law.see(0.04, tokens=50, ticks=101) > 20.0


def test_the_more_even_the_answers_are_the_closer_the_mean_may_come_to_the_objective() -> None:
    law = Law(tpot_objective=0.06)
    law.window.own.extend([(0.05, 20, 0.0, 100)] * 18 + [(0.055, 20, 0.0, 100)] * 2)
    law.see(0.04)
    assert law.limit.target == pytest.approx(0.06 * 0.0505 / 0.055)
    law.window.own.extend([(0.05, 20, 0.0, 100)] * 64)
    law.see(0.04)
    assert law.limit.target == pytest.approx(0.06 * 0.97)  # never quite
    law.window.own.extend([(0.05, 20, 0.0, 100), (0.2, 20, 0.0, 100)] * 32)
    law.see(0.04)
    assert law.limit.target == pytest.approx(0.06 * 0.85)  # as configured, however far they spread


def test_without_an_unloaded_pace_nothing_moves() -> None:
    law = Law()
    law.window.base_stream = LowBase()
    assert law.see(3.0) == 20.0
    assert law.limit.target is None


# ------------------------------------------------------------------------------------- what has no first token yet


class Starter:
    """A limit of 100 before an engine that starts so many streams a second, with so many that run and that wait."""

    def __init__(self, rate: float | None, *, running: int = 20, unstarted: int = 0) -> None:
        self.limit = AdaptiveLimit(LimitConfig())
        self.limit.value = 100.0
        self.window = window = Window()
        window.starts = window.inflight = running + unstarted
        window.unstarted = unstarted
        if rate is not None:
            window.ticked_firsts = 10
            window.starting.add(1.0, rate)

    @property
    def cap(self) -> int:
        return self.limit.cap(self.window)


def test_as_many_may_be_unstarted_as_the_engine_starts_in_half_a_second() -> None:
    assert Starter(30.0).cap == 20 + 15
    assert Starter(30.0, unstarted=6).cap == 26 + 9
    assert Starter(30.0, running=90).cap == 100  # the limit


def test_beyond_that_fewer_are_taken_in_than_let_out() -> None:
    assert Starter(30.0, unstarted=40).cap == 20 + 15
    assert Starter(0.0, running=0, unstarted=9).cap == 2  # an engine that starts nothing still gets two to try


def test_a_few_may_be_unstarted_before_anything_is_known_of_the_engine() -> None:
    assert Starter(None, running=0).cap == 4
    assert Starter(None, running=0, unstarted=3).cap == 4


def test_a_ttft_objective_leaves_a_quarter_of_it_for_the_start_inside_the_engine() -> None:
    starter = Starter(30.0)
    starter.window.objective = 1.0
    assert starter.cap == 20 + 7
    starter.window.objective = 10.0
    assert starter.cap == 20 + 15


def test_an_engine_that_takes_long_to_start_one_has_several_to_start_at_once() -> None:
    starter = Starter(4.0)
    for _ in range(30):
        starter.window.base_ttft.add(1.0)
    assert starter.cap == 20 + 12


def test_one_prompt_that_takes_several_steps_to_read_does_not_count() -> None:
    starter = Starter(4.0, unstarted=3)
    assert starter.cap == 22
    starter.window.reading = 2
    assert starter.cap == 23


def test_answers_in_one_piece_are_never_seen_to_start_and_are_not_held_for_it() -> None:
    starter = Starter(None)
    starter.window.starts, starter.window.whole = 0, 20
    assert starter.cap == 100
    starter.window.starts = 1
    assert starter.cap == 24


def test_a_limit_set_by_hand_holds_whatever_starts() -> None:
    window = Window()
    window.inflight = window.unstarted = 40
    assert FixedLimit(64, LimitConfig(), Counter()).cap(window) == 64
    assert FixedLimit(0, LimitConfig(), Counter()).cap(window) == 1


# --------------------------------------------------------------------------------------------------------- pace


def test_the_target_is_a_multiple_of_the_unloaded_pace() -> None:
    law = Law()
    assert law.see(0.1) == pytest.approx(20.0)
    assert law.limit.target == pytest.approx(0.1)
    assert law.see(0.1) == pytest.approx(20.0)
    assert Law().see(0.12) == pytest.approx(16.0)  # 0.02 unloaded and 0.005 for each: 0.1 at sixteen


@pytest.mark.parametrize(
    ("base", "target"),
    [
        (0.01, 0.06),  # six times the unloaded pace
        (0.05, 0.25),  # but nobody reads slower than that,
        (0.1, 0.4),  # where the engine is not that slow itself
    ],
)
def test_what_nobody_set_an_objective_for_is_read(base: float, target: float) -> None:
    law = Law(tolerance=6.0)
    law.window.base_stream.recall(base)
    law.see(0.06)
    assert law.limit.target == pytest.approx(0.85 * target)  # 19 answers in 20 stay below it
    law.window.own.extend([(0.05, 20, 0.0, 100)] * 64)
    law.see(0.06)
    assert law.limit.target == pytest.approx(0.97 * target)


def test_an_objective_is_the_target_less_some_headroom() -> None:
    law = Law(tpot_objective=0.06)
    assert law.see(0.06) == pytest.approx(15.5)  # 0.02 unloaded and 0.002 for each: 0.85 of the objective
    assert law.limit.target == pytest.approx(0.051)


def test_a_loose_objective_stops_at_ten_times_the_unloaded_pace() -> None:
    law = Law(tpot_objective=5.0)
    law.see(0.1)
    assert law.limit.target == pytest.approx(0.2)


def test_an_objective_counts_before_the_unloaded_pace_is_known() -> None:
    law = Law(tpot_objective=0.06)
    law.window.base_stream = LowBase()
    assert law.see(0.1) == pytest.approx(14.0)


def test_tokens_that_all_come_at_one_instant_say_nothing_of_the_pace() -> None:
    law = Law(tpot_objective=0.1)
    law.window.base_stream = LowBase()
    law.window.stream_tokens = 1000
    assert law.see() == 20.0


def test_a_cut_is_as_deep_as_the_overshoot_and_never_deeper_than_three_tenths() -> None:
    assert Law().see(0.125) == pytest.approx(15.24, rel=0.001)
    assert Law().see(5.0) == pytest.approx(14.0)
    assert Law().see(0.101) == pytest.approx(19.75, rel=0.001)


def test_one_cut_a_drain() -> None:
    law = Law()
    assert law.see(0.04, drops=3) == pytest.approx(14.0)
    assert law.see(0.04, drops=3, inflight=19) == pytest.approx(14.0)  # still draining
    assert law.see(0.04, drops=3, inflight=15) == pytest.approx(14.0)
    assert law.see(0.04, drops=3, inflight=14) == pytest.approx(14.0)  # drained: the next window decides
    assert law.see(0.04, drops=3, inflight=14) == pytest.approx(9.8)


def test_what_drains_after_a_cut_by_pace_cuts_no_deeper() -> None:
    law = Law()
    cut = law.see(0.125)
    for n in (19, 18, 17, 16, 15):  # 0.02 unloaded and 0.00525 for each
        assert law.see(0.02 + 0.00525 * n, n=n) == pytest.approx(cut)


def test_one_stretched_window_moves_a_settled_limit_little() -> None:
    law = Law()
    for _ in range(30):
        law.see(0.06)
    settled = law.value
    assert law.see(0.3, tokens=200) > 0.9 * settled


def test_a_stretched_window_with_few_tokens_does_not_cut() -> None:
    law = Law()
    for _ in range(8):
        law.see(0.04, full=False, n=5)
    before = law.value
    assert law.see(0.5, tokens=110, full=False, n=5) == before


def test_while_a_huge_prompt_is_read_a_slow_pace_is_nobody_s_fault() -> None:
    law = Law()
    assert law.see(0.5, huge_ticks=15) == 20.0
    assert law.see(0.04, huge_ticks=15) > 20.0


# -------------------------------------------------------------------------------------------------------- growth


def test_slow_start_doubles_and_slows_down_near_the_target() -> None:
    assert Law(slow=True).see(0.04) == 40.0
    assert Law(slow=True).see(0.07) == pytest.approx(24.0)
    assert Law(slow=True).see(0.09) == pytest.approx(21.0)


def test_after_a_doubling_the_burst_is_read_before_it_is_judged() -> None:
    law = Law(slow=True)
    law.see(0.04)
    assert law.see(0.5, unstarted=20) == 40.0  # the burst's prefill stretches every gap
    assert law.see(0.5, unstarted=0) == 40.0  # it has been read: the next window decides
    assert law.see(0.045) == 80.0


def test_slow_start_is_decided_in_half_of_a_window() -> None:
    law = Law(slow=True)
    assert law.see(0.04, ticks=9) == 20.0
    law.window.restart()
    assert law.see(0.04, ticks=10) == 40.0


def test_while_it_climbs_to_a_doubled_limit_its_pace_is_not_judged() -> None:
    law = Law(slow=True)
    law.see(0.04)
    law.window.narrow = True
    assert law.see(0.5, ticks=99) == 40.0  # more prompts are read than at rest
    law.window.narrow = False
    assert law.see(0.5) == 40.0  # it has arrived: the next window decides
    assert law.see(0.045) == 80.0
    law.window.narrow = True
    assert law.see(0.04, ticks=100, standing=20, inflight=80) == 80.0  # or it never arrives
    assert law.see(0.04, standing=20, inflight=80) < 80.0


def test_a_burst_that_does_not_end_is_a_queue() -> None:
    law = Law(slow=True)
    law.see(0.04)
    law.see(0.04, unstarted=20, standing=20, ticks=40)  # two windows are enough
    assert law.see(0.04, unstarted=20, standing=20, inflight=40) == pytest.approx(20.0)


def test_without_arrivals_that_find_it_full_it_stays_near_what_runs() -> None:
    assert Law(slow=True).see(0.03, n=9, full=False) == pytest.approx(40.0)
    assert Law(200.0, slow=True).see(0.025, n=100, full=False) == pytest.approx(280.0)


def test_a_limit_that_floats_above_what_runs_lets_no_burst_in_and_keeps_what_it_knows_of_the_pace() -> None:
    law = Law(slow=True)
    assert law.see(0.03, n=9, full=False) == pytest.approx(40.0)
    law.window.narrow = True  # as it is while few run: no more may start at once than the engine reads
    assert law.see(0.03, n=18, full=False) > 40.0  # judged at once
    assert law.limit.pace.value == pytest.approx(0.03)


@pytest.mark.parametrize("up_to", [140, 200])
@pytest.mark.parametrize(("climbs", "cut"), [(False, True), (True, False)])
def test_while_the_load_climbs_its_prompts_do_not_cut(climbs: bool, cut: bool, up_to: int) -> None:
    law = Law(200.0)
    for _ in range(10):
        law.see(0.03, n=50, full=False)
    for n in (up_to - 60, up_to - 30, up_to):  # more is read than at rest, and every gap is long
        law.window.mark_inflight = n - 30 if climbs else n
        law.see(0.14, n=n, full=False, starts=30)
    assert (law.value < 200.0) is cut


def test_what_is_far_above_the_target_is_heeded_in_a_climb_as_well() -> None:
    law = Law(200.0)
    for _ in range(10):
        law.see(0.03, n=50, full=False)
    law.window.mark_inflight = 50
    assert law.see(0.4, n=70, inflight=90, full=False, starts=40) < 200.0


def test_slots_that_the_engine_tells_of_are_left_alone_for_long() -> None:
    looked = {}
    for slots in (None, 8):
        law = Law(10.0)
        law.window.slots = slots
        law.see(0.03, standing=2, inflight=10)  # eight do not stand
        law.see(0.03, inflight=8)
        looked[slots] = next(number for number in range(1000) if law.see(0.03, inflight=8, stream_answers=10) > 8.0)
    assert looked[None] < 10
    assert looked[8] > 100


def test_slots_that_do_not_fit_what_is_seen_are_nothing() -> None:
    law = Law(40.0)
    law.window.slots = 8
    law.see(0.03, standing=2, inflight=40)
    law.see(0.03, inflight=38)
    assert any(law.see(0.03, inflight=38, stream_answers=10) > 38.0 for _ in range(10))


def test_the_first_cut_ends_slow_start() -> None:
    law = Law(slow=True)
    assert law.see(0.2) == pytest.approx(14.0)
    assert law.see(0.03) < 17.0  # a fifth at most


@pytest.mark.parametrize(
    ("pace", "grown"),
    [
        (0.021, 150.0),  # far away: a half at most
        (0.0644, 115.8),  # a quarter of the way to where it is predicted to end, as a factor
        (0.075, 109.8),
        (0.1, 100.0),  # it is there
    ],
)
def test_growth_follows_the_predicted_pace(pace: float, grown: float) -> None:
    law = Law(100.0)
    law.limit._near = True
    assert law.see(pace) == pytest.approx(grown, rel=0.01)


def test_before_it_was_ever_there_it_goes_half_of_the_way() -> None:
    law = Law(100.0)
    assert law.see(0.075) == pytest.approx(120.0, rel=0.01)  # it is predicted to end at 145
    law.see(0.099)
    there = law.see(0.099)
    assert law.see(0.075) < 1.05 * there  # a quarter


def test_growth_is_one_request_at_least_where_there_is_room_for_one() -> None:
    assert Law(2.0).see(0.05) == 3.0
    assert Law(2.0).see(0.09) == pytest.approx(2.286, rel=0.001)


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    assert Law().see(0.03, n=7, full=False) == 20.0


def test_a_limit_that_is_half_used_grows_where_the_pace_leaves_room_for_it() -> None:
    assert Law().see(0.03, n=10, full=False) > 20.0
    assert Law().see(0.06, n=10, full=False) == 20.0  # at the limit it would be 0.1


def test_three_arrivals_in_ten_that_find_it_full_say_that_it_binds() -> None:
    law = Law()
    assert law.see(0.04, n=1, arrivals=10, full=False) == 20.0
    law = Law()
    law.window.arrivals, law.window.full = 10, 3
    law.window.ticks, law.window.busy_sum, law.window.stream_tokens, law.window.stream_seconds = 20, 400, 1000, 40.0
    law.limit.tick(law.window, None, 2.0)
    assert law.value > 20.0


def test_it_stays_within_its_bounds() -> None:
    assert Law(1000.0, slow=True).see(0.03) == 1024.0
    assert Law(1.2).see(9.0) == 1.0
    assert Law(6.0, minimum=5).see(9.0) == 5.0
    assert AdaptiveLimit(LimitConfig(initial=50, maximum=8)).value == 8.0


# ----------------------------------------------------------------------------------------------------- standing


def test_a_queue_that_stands_in_the_engine_is_cut_away() -> None:
    law = Law()
    assert law.see(0.04, standing=2) == pytest.approx(18.0)
    assert law.limit.changes == Counter({("down", "standing"): 1})


def test_a_deep_queue_counts_from_what_runs_and_not_from_a_limit_far_above_it() -> None:
    assert Law(200.0).see(0.04, standing=40, inflight=100) == pytest.approx(60.0)


def test_a_few_that_stand_do_not_bring_down_a_limit_far_above_what_runs() -> None:
    assert Law(100.0).see(0.04, standing=3, inflight=18) == pytest.approx(100.0 * 15 / 18)


def test_where_what_has_no_first_token_bounds_what_runs_the_limit_comes_down_to_it() -> None:
    law = Law(100.0)
    law.window.narrow = True
    assert law.see(0.04, standing=3, inflight=18) == 18.0


def test_nothing_is_said_of_standing_in_a_window_in_which_a_huge_prompt_was_read() -> None:
    assert Law().see(0.04, standing=9, huge_ticks=1) > 20.0


def _reader(law: Law, prompt: int, number: int = 0) -> None:
    """A stream without a first token, on an engine that reads ten thousand tokens a second."""
    window = law.window
    window.reading_pace.recall(1e-4)
    window.enter(Streaming(number, ticket(prompt), window, law.now, None))


@pytest.mark.parametrize(("prompt", "cut"), [(9_000, True), (11_000, False)])  # of ten thousand that are half a window
def test_those_who_wait_for_a_long_prompt_to_be_read_do_not_stand(prompt: int, cut: bool) -> None:
    law = Law()
    _reader(law, prompt)
    assert (law.see(0.04, standing=2, n=10) < 20.0) is cut


@pytest.mark.parametrize("n", [10, 20])
def test_those_who_wait_for_one_prompt_hold_the_limit_where_it_is(n: int) -> None:
    law = Law()
    _reader(law, 20_000)
    _reader(law, 100, 1)
    for _ in range(3):  # two seconds alone, and three times as long beside streams
        assert law.see(0.04, standing=2, n=n) == 20.0


def test_a_first_climb_goes_on_beside_a_prompt_that_is_read() -> None:
    law = Law(slow=True)
    _reader(law, 20_000)
    assert law.see(0.04, standing=2) > 20.0


def test_one_that_is_not_read_in_all_that_time_stands_and_so_do_those_behind_it() -> None:
    law = Law()
    _reader(law, 20_000)
    for _ in range(3):
        law.see(0.04, standing=2)
    assert law.see(0.04, standing=2) == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("second", "cut"), [(4_900, False), (5_100, True)]
)  # of five thousand that are read in a moment
def test_two_prompts_are_a_queue_unless_the_other_is_read_in_a_moment(second: int, cut: bool) -> None:
    law = Law()
    _reader(law, 20_000)
    _reader(law, second, 1)
    assert (law.see(0.04, standing=2) < 20.0) is cut


def test_where_the_limit_is_far_off_several_are_an_excuse_for_two_windows() -> None:
    law = Law()
    for number in range(3):
        _reader(law, 20_000, number)
    assert law.see(0.04, standing=2, n=10) == 20.0
    assert law.see(0.04, standing=2, n=10) == 20.0
    assert law.see(0.04, standing=2, n=10) < 20.0
    law = Law()
    for number in range(3):
        _reader(law, 20_000, number)
    assert law.see(0.04, standing=2, n=16) < 20.0


def test_nor_do_those_who_wait_for_many_prompts_but_a_crowd_that_is_not_read_does() -> None:
    law = Law()
    _reader(law, 100)
    assert law.see(0.04, standing=2, read=11_000.0, n=10) == 20.0
    law = Law()
    for number in range(200):
        _reader(law, 100, number)
    assert law.see(0.04, standing=2, starts=0, n=10) < 20.0


def test_where_everything_stands_the_cut_is_as_deep_as_it_may_be() -> None:
    assert Law().see(standing=20, ticks=101) == pytest.approx(14.0)


def test_those_who_wait_for_the_step_under_way_do_not_stand() -> None:
    # 50 starts a second at 40 ms a step: four are always between being sent and their first token.
    assert Law().see(0.04, standing=3, starts=100) > 20.0
    assert Law().see(0.04, standing=4, starts=100) < 20.0


def test_an_engine_that_is_slow_to_begin_is_not_queueing() -> None:
    law = Law()
    for _ in range(30):
        law.window.base_ttft.add(0.3)
    grown = law.see(0.04, standing=5, starts=20)  # ten a second, 0.3 s stretched twofold: six
    assert grown > 20.0
    assert law.see(0.04, standing=8, starts=20) < grown


def test_beyond_a_known_queue_it_probes_gently_and_then_faster() -> None:
    law = Law(100.0)
    law.see(0.04, standing=10, inflight=100)
    law.see(0.04, inflight=90)
    grown = [law.see(0.04, inflight=90, stream_answers=100) - 90.0 for _ in range(8)]
    assert grown[:5] == pytest.approx([0.0, 0.125, 0.375, 0.875, 1.875])
    assert grown[-1] > 7.0


def test_a_bound_that_is_found_again_and_again_is_left_alone_for_longer() -> None:
    law = Law(100.0)
    waits = []
    for _ in range(7):
        law.limit._settling = False
        law.see(0.04, standing=20, inflight=120)
        law.limit.value, law.limit._settling = 100.0, False
        windows = 0
        while law.see(0.04, inflight=100, stream_answers=100) == 100.0:
            windows += 1
        waits.append(windows)
    assert waits == [1, 2, 4, 8, 16, 16, 16]
    law.limit._settling = False
    law.see(0.04, standing=20, inflight=220)  # it has moved
    law.limit.value, law.limit._settling = 200.0, False
    assert law.see(0.04, n=200, inflight=200, stream_answers=100) == 200.0
    assert law.see(0.04, n=200, inflight=200, stream_answers=100) > 200.0


def test_a_bound_is_left_alone_for_some_answers_too_for_a_look_beyond_it_costs_one() -> None:
    law = Law(9.0)
    assert law.see(0.04, standing=1, inflight=9) == pytest.approx(8.0)
    law.see(0.04, inflight=8)
    assert [law.see(0.04, inflight=8, stream_answers=2) for _ in range(3)] == [8.0] * 3
    assert law.see(0.04, inflight=8, stream_answers=2) > 8.0


def test_the_next_step_beyond_it_waits_until_the_last_one_was_tried() -> None:
    law = Law(9.5)
    law.limit._known = 8.0
    assert law.see(0.04, n=8.0) == 9.5
    assert law.see(0.04, n=9.0) > 9.5


def test_what_did_not_stand_had_room() -> None:
    law = Law(9.9)
    assert law.see(0.04, standing=1, inflight=9) == pytest.approx(8.8)
    law = Law(8.1)
    assert law.see(0.04, standing=1, inflight=9) == pytest.approx(8.0)  # and not 7.2: eight are served at once
    assert law.see(0.04, standing=1, inflight=9) == pytest.approx(8.0)  # that one stands until one of them is through


def test_room_alone_does_not_carry_it_beyond_a_known_queue() -> None:
    law = Law(100.0)
    law.see(0.04, standing=10, inflight=100)
    law.see(0.03, inflight=90)
    assert law.see(0.03, n=80, full=False) == pytest.approx(90.0)


# ---------------------------------------------------------------------------------------------------------- TTFT


def _ttft(law: Law, ratio: float, count: int = 10) -> None:
    for _ in range(count):
        law.window.ttft.append((law.now + 2.0, ratio))


def test_a_missed_ttft_objective_cuts_by_a_tenth_at_most() -> None:
    law = Law()
    _ttft(law, 3.0)
    assert law.see(0.04) == pytest.approx(20.0 / 1.1)
    assert law.limit.changes == Counter({("down", "ttft"): 1})
    assert not law.window.ttft  # samples from before the cut are forgotten


def test_a_kept_ttft_objective_lets_it_grow() -> None:
    law = Law()
    _ttft(law, 0.9)
    assert law.see(0.04) > 20.0


def test_fewer_than_ten_samples_or_older_ones_than_ten_seconds_do_not_count() -> None:
    law = Law()
    _ttft(law, 3.0, count=9)
    assert law.see(0.04) > 20.0
    law = Law()
    _ttft(law, 3.0)
    law.now += 11.0
    assert law.see(0.04) > 20.0


# --------------------------------------------------------------------------------------------- drops and refusals


def test_refusals_and_failures_cut_whatever_the_pace() -> None:
    law = Law()
    assert law.see(drops=3) == pytest.approx(14.0)
    assert law.limit.changes == Counter({("down", "drops"): 1})


def test_a_few_failures_among_many_answers_do_not() -> None:
    assert Law().see(0.04, drops=3, stream_answers=40) > 20.0
    assert Law().see(0.04, drops=2) > 20.0


def test_a_refusal_says_what_the_engine_holds() -> None:
    law = Law(105.0)
    law.limit.refuse(100)
    assert law.value == 100.0
    assert law.see(0.04, stream_answers=100) == 100.0
    assert law.see(0.04, stream_answers=100) == pytest.approx(100.125)
    law.limit.refuse(0)
    assert law.value == 1.0


def test_a_backend_that_lives_again_grows_fast_again() -> None:
    law = Law(2.0)
    law.limit.refuse(2)
    law.limit.reopen()
    assert law.see(0.03) == 4.0


# -------------------------------------------------------------------------------------------------- whole answers


def _whole(law: Law, pace: float, answers: int = 20, tokens: int = 50) -> None:
    law.window.whole_answers += answers
    law.window.whole_seconds += pace * answers * tokens
    law.window.whole_tokens += answers * tokens
    law.window.e2e = pace * tokens


def test_where_most_answers_come_in_one_piece_their_pace_counts() -> None:
    law = Law()
    _whole(law, 0.1, answers=50, tokens=20)
    assert law.see() == pytest.approx(20.0 * 0.085 / 0.1)
    assert law.limit.target == pytest.approx(4.25 * BASE)


def _lines(law: Law, wait: float, pace: float) -> None:
    """Answers of 20 to 100 tokens, some of them unloaded: a tenth of a second to the first token, BASE for each."""
    for tokens in (20, 40, 60, 80, 100):
        law.window.line_low.add(tokens, 0.1 + BASE * tokens)
        law.window.line.add(tokens, 0.1 + wait + pace * tokens)
    _whole(law, pace + (0.1 + wait) / 60, answers=20, tokens=60)


def test_the_line_through_whole_answers_gives_their_pace_and_not_their_wait() -> None:
    law = Law()
    _lines(law, 0.2, 0.04)
    assert law.see() > 20.0
    assert law.limit.target == pytest.approx(5.0 * BASE)
    law = Law()
    _lines(law, 0.0, 0.12)
    assert law.see(ticks=40) == pytest.approx(20.0 / 1.2)


def test_the_line_through_whole_answers_shows_who_stood_in_the_engine() -> None:
    law = Law(100.0)
    _lines(law, 5.08 + 0.1, 0.04)  # beyond two steps and the unloaded TTFT stretched twofold: five seconds
    assert law.see(ticks=40, whole_answers=40) == pytest.approx(50.0)  # ten a second: fifty of a hundred
    assert law.limit.changes["down", "standing"] == 1


def test_a_few_whole_answers_that_stand_are_noise() -> None:
    law = Law(100.0)
    _lines(law, 0.18 + 0.3, 0.04)
    assert law.see(whole_answers=20) > 100.0


def test_whole_answers_of_one_length_are_judged_by_their_whole_time() -> None:
    law = Law()
    for _ in range(20):
        law.window.line.add(20, 4.0)
        law.window.line_low.add(20, 0.5)
    _whole(law, 0.2, answers=20, tokens=20)
    assert law.see() == pytest.approx(14.0)
    assert law.limit.target == pytest.approx(4.25 * BASE)


def test_whole_answers_wait_for_an_unloaded_pace_even_where_an_objective_is_told() -> None:
    law = Law(4.0, slow=True, tpot_objective=1.0)
    law.window.base_whole = LowBase()
    _whole(law, 0.04)
    assert law.see() == 4.0


def test_a_step_of_whole_answers_is_half_of_the_way_for_its_effect_is_seen_late() -> None:
    law = Law(100.0, slow=True)
    _lines(law, 0.0, 0.06)  # 0.02 unloaded and 0.0004 for each: 0.85 of 0.1 at 162
    assert law.see() == pytest.approx(127.5, rel=0.001)


def test_a_line_that_may_be_flat_by_chance_raises_no_further_than_its_doubt_allows() -> None:
    law, sure = Law(100.0, slow=True), Law(100.0, slow=True)
    for each in (law, sure):
        _lines(each, 0.0, 0.03)
    for late in (1.5, -1.5):
        law.window.line.add(100, 3.0 + late)
    assert law.see() < sure.see() - 10.0


def test_streams_with_tokens_enough_go_before() -> None:
    law = Law()
    _whole(law, 9.0)
    assert law.see(0.04) > 20.0


def test_a_change_of_measure_forgets_the_pace() -> None:
    law = Law()
    law.see(0.04)
    _whole(law, 0.08)
    law.see()
    assert law.limit.pace.value == pytest.approx(0.08)


def test_long_answers_are_judged_over_half_of_their_time() -> None:
    law = Law()
    _whole(law, 0.08, tokens=100)  # eight seconds each
    assert law.see(ticks=39) == 20.0
    assert law.see(ticks=40) > 20.0


def test_after_a_step_only_answers_to_what_was_sent_since_count() -> None:
    law = Law(slow=True)
    _whole(law, 0.03)
    assert law.see() == pytest.approx(45.7, rel=0.01)
    assert law.window.cut_at == law.now + 2.0  # and not the burst that is let in now


def test_in_silence_a_whole_crowd_is_too_many() -> None:
    law = Law()
    _whole(law, 0.04)
    law.see()
    before = law.value
    assert law.see(ticks=100, busy_whole=2000) == before
    assert law.see(ticks=101, busy_whole=2020) == pytest.approx(0.7 * before)
    assert law.limit.changes["down", "silence"] == 1


def test_answers_to_what_was_sent_before_the_step_say_that_it_lives() -> None:
    law = Law()
    _whole(law, 0.04)
    before = law.see()
    assert law.see(ticks=101, busy_whole=2020, whole_answers=3) == before


def test_silence_without_anybody_in_flight_says_nothing() -> None:
    law = Law()
    _whole(law, 0.04)
    before = law.see()
    assert law.see(ticks=101, n=0.2, busy_whole=20) == before


# -------------------------------------------------------------------------------------------------- stale baseline


def test_a_baseline_under_which_even_two_are_too_many_is_learned_anew() -> None:
    law = Law(2.0)
    _lines(law, 0.0, 0.04)
    for _ in range(12):
        law.see(0.5)
    assert law.value == 1.0
    assert law.window.base_stream.value is None
    assert law.window.line_low.value is None
    for _ in range(5):
        law.window.base_stream.add(0.4)
    law.see(0.5)  # the last cut has drained
    assert law.see(0.5) > 1.0


def test_with_an_objective_the_baseline_is_not_to_blame() -> None:
    law = Law(1.0, tpot_objective=0.03)
    for _ in range(12):
        law.see(0.5)
    assert law.window.base_stream.value == BASE


# --------------------------------------------------------------------------------------------------------- tokens


def test_the_token_bound_moves_with_the_windows() -> None:
    law = Law()
    law.limit.learn_capacity(100_000)
    assert law.limit.tokens == 90_000
    law.see(0.04, tokens=1000, preemptions=5)
    assert law.limit.changes["down", "kv"] == 1
    assert law.limit.tokens == 2000.0


def test_streams_that_are_silent_at_the_decision_are_counted() -> None:
    law = Law()
    silent = [Streaming(i, ticket(), law.window, 0.0, None) for i in range(3)]
    for each in silent:
        law.window.enter(each)
        each.output(1, 0.1)
    law.see(0.04, inflight=20)
    assert law.limit.changes["down", "kv"] == 1


# ------------------------------------------------------------------------------------------------------ any input


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e3),
            st.integers(0, 100_000),
            st.floats(0.0, 2000.0),
            st.booleans(),
            st.integers(0, 500),
            st.integers(0, 50),
        ),
        max_size=30,
    )
)
def test_whatever_it_sees_the_limit_is_a_number_within_its_bounds(
    windows: list[tuple[float, int, float, bool, int, int]],
) -> None:
    law = Law(4.0, slow=True)
    for pace, tokens, n, full, standing, drops in windows:
        law.see(pace, tokens=tokens, n=n, full=full, standing=standing, drops=drops, ticks=101)
        assert 1.0 <= law.value <= 1024.0
        assert isfinite(law.value)


# ---------------------------------------------------------------------------------------------------- fixed limits


def test_a_fixed_limit_only_measures() -> None:
    window = Window()
    changes: Counter[tuple[str, str]] = Counter()
    limit = FixedLimit(7, LimitConfig(token_limit=500), changes)
    limit.refuse(1)
    limit.learn_capacity(10)
    limit.reopen()
    window.stream_seconds, window.stream_tokens, window.ticks = 10.0, 100, 19
    limit.tick(window, None, 2.0)
    assert limit.pace.value is None
    window.ticks = 20
    limit.tick(window, None, 2.0)
    assert limit.pace.value == pytest.approx(0.1)
    window.ticks, window.whole_seconds, window.whole_tokens = 20, 40.0, 100.0
    limit.tick(window, None, 4.0)
    assert limit.pace.value == pytest.approx((0.75 * 0.25 * 10 + 0.25 * 40) / (0.75 * 0.25 * 100 + 0.25 * 100))
    window.ticks = 20
    limit.tick(window, None, 6.0)
    assert window.age == 0.0
    assert (limit.value, limit.tokens, limit.changes) == (7.0, 500.0, Counter())
    assert FixedLimit(7, LimitConfig(), changes).tokens == inf


def test_settings_may_change_under_way() -> None:
    law = Law()
    law.limit.retune(replace(law.config, tpot_objective=0.02))
    assert law.see(0.04) < 20.0
