from __future__ import annotations

from collections import deque
from itertools import count
from math import inf

import pytest

from gateway.admission.window import Running, Streaming, Window
from gateway.model import Ticket, Usage
from tests.admission.helpers import ticket

PERMITS = count(1)


def stream(
    window: Window, request: Ticket | None = None, now: float = 0.0, objective: float | None = None
) -> Streaming:
    running = Streaming(next(PERMITS), request or ticket(), window, now, objective)
    window.enter(running)
    return running


def whole(window: Window, request: Ticket | None = None, now: float = 0.0) -> Running:
    running = Running(next(PERMITS), request or ticket(stream=False), window, now)
    window.enter(running)
    return running


def tokens(running: Streaming, times: int, gap: float, start: float = 1.0) -> float:
    for i in range(times):
        running.output(1, start + i * gap)
    return start + (times - 1) * gap


# ------------------------------------------------------------------------------------------------------ streams


def test_the_pace_is_the_gaps_between_outputs_and_not_the_time_to_the_first() -> None:
    window = Window()
    running = stream(window)
    tokens(running, 11, 0.02, start=5.0)
    assert window.new_seconds == pytest.approx(0.2)
    assert window.new_tokens == 10
    window.restart()
    assert (window.new_seconds, window.new_tokens) == (0.0, 0)


def test_several_sequences_in_one_stream_share_its_time() -> None:
    window = Window()
    running = stream(window, ticket(choices=4))
    running.output(4, 1.0)
    running.output(4, 1.1)
    assert window.new_seconds / window.new_tokens == pytest.approx(0.1)


def test_a_request_is_unstarted_until_its_first_token_or_its_end() -> None:
    window = Window()
    one, other = stream(window), stream(window)
    assert window.unstarted == 2
    one.output(1, 1.0)
    assert (window.unstarted, one.started, other.started) == (1, True, False)
    window.leave(other.id)
    window.leave(one.id)
    assert (window.unstarted, window.inflight, window.tokens) == (0, 0, 0)


def test_output_after_the_end_changes_nothing() -> None:
    window = Window()
    late = stream(window)
    window.leave(late.id)
    late.output(1, 1.0)
    assert window.unstarted == 0
    assert not late.started


@pytest.mark.parametrize(("prompt", "counts"), [(2_047, (0, 0, 0)), (2_048, (1, 0, 0)), (8_192, (1, 1, 0))])
def test_long_prompts_are_counted_until_they_are_read(prompt: int, counts: tuple[int, int, int]) -> None:
    window = Window()
    running = stream(window, ticket(prompt))
    assert (window.reading, window.long, window.huge) == counts
    running.output(1, 1.0)
    assert (window.reading, window.long, window.huge) == (0, 0, 0)
    window.leave(running.id)
    assert (window.reading, window.long, window.huge) == (0, 0, 0)


@pytest.mark.parametrize(("output", "after_first"), [(300, 1), (5_000, 0)])
def test_a_huge_prompt_with_a_short_answer_counts_as_long_to_its_end(output: int, after_first: int) -> None:
    window = Window()
    running = stream(window, ticket(120_000, output))
    assert (window.long, window.huge) == (1, 1)
    running.output(1, 1.0)
    assert (window.long, window.huge) == (after_first, 0)
    window.leave(running.id)
    assert window.long == 0


def test_one_that_leaves_before_its_first_token_clears_every_count() -> None:
    window = Window()
    running = stream(window, ticket(120_000, 300))
    window.leave(running.id)
    assert (window.reading, window.long, window.huge, window.unstarted) == (0, 0, 0, 0)


def test_ttft_is_sampled_against_its_objective_and_only_for_what_was_sent_after_the_cut() -> None:
    window = Window()
    stream(window, now=1.0, objective=2.0).output(1, 2.0)
    window.cut_at = 3.0
    stream(window, now=3.0, objective=2.0).output(1, 9.0)
    stream(window, now=3.5).output(1, 9.0)  # no objective
    stream(window, now=4.0, objective=0.5).output(1, 5.0)
    assert list(window.ttft) == [(2.0, 0.5), (5.0, 2.0)]


# ------------------------------------------------------------------------------------------- the unloaded pace


def test_the_unloaded_pace_is_learned_from_few_in_flight_only() -> None:
    window = Window()
    running = [stream(window) for _ in range(5)]
    for each in running:
        tokens(each, 10, 0.5)
    assert window.base_stream.value is None
    window.leave(running.pop().id)
    for each in running:
        tokens(each, 60, 0.02, start=20.0)
    assert window.base_stream.value == pytest.approx(0.02)


def test_a_stream_that_lived_through_a_crowd_tells_the_unloaded_pace_soon() -> None:
    window = Window()
    running = [stream(window) for _ in range(5)]
    for each in running:
        tokens(each, 100, 1.0)
    window.leave(running.pop().id)
    tokens(running[0], 40, 0.02, start=200.0)
    assert window.base_stream.value == pytest.approx(0.02)


def test_tokens_that_come_in_bursts_are_one_sample() -> None:
    window = Window()
    running = stream(window)
    now = 0.0
    for _ in range(40):
        now += 0.08
        for i in range(4):
            running.output(1, now + i * 1e-5)
    assert window.base_stream.value == pytest.approx(0.02, rel=0.01)


def test_several_events_at_once_are_one_sample() -> None:
    window = Window()
    running = stream(window)
    for i in range(20):
        running.output(4, 0.08 * i)
    assert window.base_stream.value == pytest.approx(0.02)


def test_the_unloaded_ttft_is_learned_from_prompts_that_are_read_at_once() -> None:
    window = Window()
    for i in range(5):
        for prompt, ttft in ((100, 0.3), (4_000, 2.0)):
            running = stream(window, ticket(prompt), now=10.0 * i)
            running.output(1, 10.0 * i + ttft)
            window.leave(running.id)
    assert window.base_ttft.value == pytest.approx(0.3)


# ------------------------------------------------------------------------------------------ answers in one piece


def test_the_pace_of_a_whole_answer_is_its_time_over_the_reported_tokens() -> None:
    window = Window()
    window.whole_answer(whole(window), Usage(completion_tokens=50), 5.0)
    assert (window.whole_seconds, window.whole_tokens) == (5.0, 50.0)


@pytest.mark.parametrize(
    ("request_", "usage", "expected"),
    [
        (ticket(output=40, stream=False), None, 40.0),  # as predicted
        (ticket(output=40, stream=False), Usage(prompt_tokens=9), 40.0),
        (ticket(output=40, stream=False), Usage(completion_tokens=0), 1.0),
        (ticket(stream=False, choices=4), Usage(completion_tokens=200), 50.0),
        (ticket(stream=False, generates=False), None, 1.0),  # an embedding is one token
    ],
)
def test_the_tokens_of_a_whole_answer(request_: Ticket, usage: Usage | None, expected: float) -> None:
    window = Window()
    window.whole_answer(whole(window, request_), usage, 5.0)
    assert window.whole_tokens == expected


def test_a_request_of_which_nothing_was_read_teaches_only_with_usage() -> None:
    window = Window()
    unknown = ticket(prompt=0, stream=False)
    window.whole_answer(whole(window, unknown), None, 0.001)
    assert (window.whole_tokens, window.whole_answers) == (0.0, 1)
    window.whole_answer(whole(window, unknown), Usage(completion_tokens=7), 1.0)
    assert window.whole_tokens == 7.0


def test_answers_to_what_was_sent_before_the_last_step_are_not_counted() -> None:
    window = Window()
    early, late = whole(window), whole(window, now=2.0)
    window.cut_at = 1.0
    window.whole_answer(early, None, 3.0)
    window.whole_answer(late, None, 3.0)
    assert window.whole_seconds == 1.0
    assert window.whole_answers == 2
    assert window.e2e == pytest.approx(3.0 - 0.05 * 2.0)


def test_the_unloaded_pace_of_whole_answers_needs_few_in_flight_at_both_ends() -> None:
    window = Window()
    running = [whole(window) for _ in range(6)]
    for each in running[:4]:
        window.whole_answer(each, Usage(completion_tokens=10), 1.0)  # six in flight
    for each in running[:4]:
        window.leave(each.id)
    window.whole_answer(running[5], Usage(completion_tokens=10), 2.0)  # it was the sixth
    for _ in range(5):
        each = whole(window, now=2.0)
        window.whole_answer(each, Usage(completion_tokens=10), 3.0)
        window.leave(each.id)
    assert window.base_whole.value == pytest.approx(0.1)


def test_a_whole_answer_gives_only_signs_of_life() -> None:
    window = Window()
    running = whole(window)
    running.output(3, 7.0)
    running.check_silence(9.0)
    assert (window.last_byte, window.new_tokens, window.stalls, running.started) == (7.0, 0, 0, False)
    assert (window.unstarted, window.whole) == (0, 1)
    window.leave(running.id)
    assert window.whole == 0


# ---------------------------------------------------------------------------------------------------- stalls


def test_a_stream_that_is_silent_while_the_others_go_on_is_stalled_once() -> None:
    window = Window()
    silent, busy = stream(window), stream(window)
    silent.output(1, 1.0)
    end = tokens(busy, 40, 0.05)
    window.count_silent(end)
    window.count_silent(end)
    assert window.stalls == 1
    silent.output(1, end + 0.01)  # it goes on: the same stall
    assert window.stalls == 1
    end = tokens(busy, 40, 0.05, start=end + 0.05)
    window.tick()
    silent.output(1, end)
    assert window.stalls == 2


def test_where_all_are_silent_nobody_is_stalled() -> None:
    window = Window()
    running = [stream(window) for _ in range(3)]
    for i in range(10):
        for each in running:
            each.output(1, 1.0 + 0.05 * i)
    for each in running:  # two seconds of somebody's prefill
        each.output(1, 4.0)
    window.count_silent(4.1)
    assert window.stalls == 0


def test_bursts_after_a_hiccup_are_no_stalls() -> None:
    window = Window()
    running = [stream(window) for _ in range(10)]
    for each in running:
        each.output(1, 1.0)
    window.tick()
    for each in running:  # two seconds of everybody's tokens, one socket after the other
        each.output(200, 3.0)
    window.count_silent(3.1)
    assert window.stalls == 0


def test_one_without_a_first_token_is_not_stalled() -> None:
    window = Window()
    stream(window)
    tokens(stream(window), 100, 0.05)
    window.count_silent(10.0)
    assert window.stalls == 0


# ---------------------------------------------------------------------------------------------------- samples


def test_what_stands_is_the_least_of_the_window() -> None:
    window = Window()
    window.tick()
    assert window.standing == 0
    window.restart()
    running = [stream(window) for _ in range(3)]
    window.tick()
    assert window.standing == 3
    running[0].output(1, 1.0)
    window.tick()
    stream(window)
    window.tick()
    assert window.standing == 2


def test_a_prompt_that_is_being_read_is_not_standing() -> None:
    window = Window()
    stream(window, ticket(4_000))
    stream(window, ticket(4_000))
    window.tick()
    assert window.standing == 1


def test_while_a_huge_prompt_is_read_nothing_is_said_of_standing() -> None:
    window = Window()
    huge = stream(window, ticket(100_000))
    window.tick()
    assert window.standing == inf
    assert window.blameless
    huge.output(1, 1.0)
    window.tick()
    window.tick()
    assert window.standing == 0
    assert not window.blameless


def test_a_window_counts_busy_time_and_held_ticks() -> None:
    window = Window()
    stream(window)
    whole(window)
    window.held = True
    window.tick()
    window.tick()
    assert window.age == pytest.approx(0.2)
    assert (window.busy_sum, window.busy_whole, window.held_ticks) == (4, 2, 1)


# ------------------------------------------------------------------------------------------------------- starting


def test_the_start_rate_counts_the_time_in_which_somebody_waited_for_a_first_token() -> None:
    window = Window()
    streams = [stream(window) for _ in range(5)]
    assert window.start_rate is None
    for started in (0, 2, 2):
        for running in streams[:started]:
            running.output(1, 1.0)
        del streams[:started]
        window.tick()
    assert window.start_rate == pytest.approx(4 / 0.3, rel=0.15)
    before = window.start_rate
    streams.pop().output(1, 1.0)
    window.tick()
    after = window.start_rate
    for _ in range(20):
        window.tick()  # nobody waits: these say nothing
    assert window.start_rate == after != before


def test_the_tightest_objective_of_what_was_sent_is_kept() -> None:
    window = Window()
    assert window.objective == inf
    for objective in (None, 4.0, 1.0, 2.0):
        stream(window, objective=objective)
    assert window.objective == 1.0


def test_arrivals_while_it_is_narrowed_say_nothing_of_the_limit() -> None:
    window = Window()
    window.arrivals, window.full = 3, 1
    window.tick()
    window.narrow = True
    window.arrivals, window.full = 9, 7
    window.tick()
    assert (window.arrivals, window.full) == (3, 1)
    window.narrow = False
    window.arrivals, window.full = 5, 2
    window.tick()
    window.restart()
    window.narrow = True
    window.tick()
    assert (window.arrivals, window.full) == (0, 0)


# ---------------------------------------------------------------------------------------------------- own paces


def test_a_stream_s_own_pace_is_from_its_first_token_to_its_last() -> None:
    window = Window()
    running = stream(window)
    tokens(running, 21, 0.02, start=5.0)
    window.stream_answer(running, Usage(10, 41))  # chunks of two
    window.stream_answer(running, None)
    window.stream_answer(running, Usage(10, 9))  # too short to say anything
    window.stream_answer(stream(window), Usage(10, 41))  # nothing of it was seen
    window.stream_answer(stream(window, ticket(choices=2)), Usage(10, 41))
    window.stream_answer(whole(window), Usage(10, 41))
    assert window.own == deque([pytest.approx((0.01, 1.0, 5.0, 41))])
    assert window.stream_answers == 6


def test_few_answers_say_nothing_of_their_spread() -> None:
    window = Window()
    window.inflight = 1
    window.own.extend([(0.05, 1.0, 0.0, 100)] * 19)
    assert window.evenness is None
    window.own.append((0.05, 1.0, 0.0, 100))
    assert window.evenness == pytest.approx(1.0)
    window.own.clear()
    window.own.extend([(0.0, 1.0, 0.0, 10)] * 20)
    assert window.evenness is None


def test_a_stream_counts_how_many_went_on_beside_it() -> None:
    window = Window()
    others = [stream(window) for _ in range(3)]
    running = stream(window)
    for at in range(21):
        for each in (*others, running):
            each.output(1, 5.0 + 0.02 * at)
    window.stream_answer(running, Usage(10, 21))
    assert window.own[0] == pytest.approx((0.02, 4.0, 5.0, 21), rel=0.03)


def test_streams_from_before_a_climb_are_as_even_as_those_after_it() -> None:
    window = Window()
    for _ in range(30):
        window.base_stream.add(0.02)
    window.inflight = 100
    window.own.extend((0.02 + 0.0005 * beside, beside, 0.0, 100) for beside in range(20, 84))
    assert window.evenness == pytest.approx(1.0)
    window.own.extend((0.02 + 0.0005 * beside * (1 + beside % 2), beside, 0.0, 100) for beside in range(20, 84))
    assert window.evenness == pytest.approx((0.07 + 0.12) / 2 / 0.12)


def test_a_climb_makes_nobody_uneven_until_twenty_streams_that_began_after_it_have_ended() -> None:
    window = Window()
    window.inflight = 20

    def end(began: float, count: int, slowest: float) -> None:
        window.own.extend(
            [(0.05, 20.0, began, 100)] * (count - count // 10) + [(slowest, 20.0, began, 100)] * (count // 10)
        )

    end(0.0, 64, 0.05)
    window.note_climb(10.0)
    end(5.0, 30, 0.2)  # in the climb
    assert window.evenness == pytest.approx(1.0)
    window.note_climb(12.0)  # it goes on
    end(13.0, 19, 0.1)
    assert window.evenness == pytest.approx(1.0)
    end(13.0, 1, 0.1)
    assert window.evenness == pytest.approx(1.0)  # one in twenty
    end(13.0, 20, 0.1)
    assert window.evenness == pytest.approx((37 * 0.05 + 3 * 0.1) / 40 / 0.1)


def test_a_climb_before_anything_is_known_of_their_spread_holds_nothing() -> None:
    window = Window()
    window.inflight = 20
    window.note_climb(10.0)
    assert window.evenness is None
    window.own.extend([(0.05, 20.0, 0.0, 100), (0.1, 20.0, 0.0, 100)] * 32)
    assert window.evenness == pytest.approx(0.75)


# ---------------------------------------------------------------------------------------------- what was sent, and left


@pytest.mark.parametrize(
    ("before", "starts", "now", "climbs", "refilled"),
    [
        (50, 25, 64, False, 1.0),  # five is what chance brings, three times as much is no chance
        (50, 25, 66, True, 1.0),
        (50, 10, 40, False, 0.5),
        (50, 0, 40, False, 0.01),
        (50, 0, 50, False, 1.0),
    ],
)
def test_whether_the_load_climbs_or_drains(before: int, starts: int, now: int, climbs: bool, refilled: float) -> None:
    window = Window()
    window.mark_inflight, window.starts, window.inflight = before, starts, now
    assert window.climbs is climbs
    assert window.refilled == pytest.approx(refilled)


@pytest.mark.parametrize("disturbed", [{}, {"starts": 1}, {"unstarted": 1}, {"read": 10.0}])
def test_a_window_only_decodes_where_no_prompt_was_sent_waits_or_was_read(disturbed: dict[str, float]) -> None:
    window = Window()
    for name, value in disturbed.items():
        setattr(window, name, value)
    assert window.decodes is not bool(disturbed)
    window.unstarted = 0
    window.restart()
    assert window.decodes


def test_those_without_a_first_token_are_held_up_by_one_prompt_for_as_long_as_it_takes() -> None:
    window = Window()
    assert not window.held_up(0.0)  # nobody waits
    large = Streaming(1, ticket(20_000), window, 0.0, None)
    window.enter(large)
    assert not window.held_up(0.0)  # how fast it is read is not known
    window.reading_pace.recall(1e-4)  # two seconds alone
    window.enter(Streaming(2, ticket(4_000), window, 3.0, None))
    assert window.held_up(6.4)
    assert not window.held_up(6.6)
    window.enter(Streaming(3, ticket(2_000), window, 3.0, None))
    assert not window.held_up(3.0)  # the others take longer than a moment


def test_what_comes_in_one_piece_is_no_prompt_that_anybody_sees_being_read() -> None:
    window = Window()
    window.reading_pace.recall(1e-4)
    window.ticks = 20
    window.enter(Running(1, ticket(50_000, stream=False), window, 0.0))
    before = window.reads
    window.enter(Streaming(2, ticket(20_000), window, 5.0, None))
    assert (before, window.reads, window.held_up(6.0)) == (False, True, True)
