from __future__ import annotations

from random import Random
from unittest.mock import Mock

import pytest

from gateway.admission.config import AdmissionConfig
from gateway.emulator.engine import Engine
from gateway.emulator.profiles import FLAT
from gateway.model import Backend, Priority
from gateway.simulator.clients import Attempt, Call, Ending, Habits
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Gateway
from gateway.simulator.workload import Want
from gateway.simulator.world import World


class Scripted:
    """Answers each attempt as the script says: None not at all, else the arguments of a refusal, or "yes"."""

    def __init__(self, world: World, *script: tuple[float | None, bool | None] | str | None) -> None:
        self.sent: list[float] = []
        self.left: list[float] = []
        self._world = world
        self._script = iter(script)

    def send(self, attempt: Attempt) -> None:
        self.sent.append(self._world.now)
        answer = next(self._script)
        if isinstance(answer, str):
            self._world.after(0.1, attempt.begun)
            self._world.after(0.2, attempt.complete)
        elif answer is not None:
            self._world.after(0.0, lambda: attempt.refused(*answer))

    def leave(self, attempt: Attempt) -> None:
        del attempt
        self.left.append(self._world.now)


def _call(
    habits: Habits, *script: tuple[float | None, bool | None] | str | None, stream: bool = True
) -> tuple[Call, Scripted]:
    world = World()
    front = Scripted(world, *script)
    ended: list[Call] = []
    call = Call(world, front, Want(0, 10, 10, stream, "c"), habits, Random(1), ended.append)
    world.run(1000.0)
    assert ended == [call]
    return call, front


def test_an_answer_ends_the_call_and_the_first_token_is_noted() -> None:
    call, _ = _call(Habits(), "yes")
    assert call.ending is Ending.ANSWERED
    assert (call.first_output, call.ended_at) == pytest.approx((0.1, 0.2))


def test_retry_after_is_waited_for_exactly() -> None:
    call, front = _call(Habits(), (7.25, None), (3.0, None), "yes")
    assert front.sent == [0.0, 7.25, 10.25]
    assert call.attempts == 3
    assert call.first_output == pytest.approx(10.35)


def test_without_retry_after_it_backs_off_twice_as_long_each_time_less_up_to_a_quarter() -> None:
    _, front = _call(Habits(), (None, None), (None, None), (None, None))
    first, second = front.sent[1] - front.sent[0], front.sent[2] - front.sent[1]
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1.0
    assert len(front.sent) == 3


@pytest.mark.parametrize("refusal", [(1.0, False), (121.0, None)])
def test_told_not_to_retry_or_to_wait_too_long_it_gives_up(refusal: tuple[float, bool | None]) -> None:
    call, front = _call(Habits(), refusal)
    assert (call.ending, len(front.sent)) == (Ending.SHED, 1)


def test_a_client_that_obeys_nothing_comes_back_by_its_own_clock() -> None:
    _, front = _call(Habits(obeys=False), (60.0, False), (60.0, False), (60.0, False))
    assert len(front.sent) == 3
    assert front.sent[-1] < 1.6


def test_a_timeout_hangs_up_and_tries_again() -> None:
    call, front = _call(Habits(timeout=5.0), None, "yes")
    assert front.left == [5.0]
    assert 5.0 < front.sent[1] <= 5.5
    assert call.ending is Ending.ANSWERED


def test_the_timeout_runs_to_the_first_token_of_a_stream_and_to_the_end_of_any_other_answer() -> None:
    streamed, _ = _call(Habits(timeout=0.15), "yes")
    whole, front = _call(Habits(timeout=0.15, retries=0), "yes", stream=False)
    assert streamed.ending is Ending.ANSWERED
    assert (whole.ending, front.left) == (Ending.TIMED_OUT, [0.15])


def test_a_user_without_patience_leaves_whatever_happens() -> None:
    call, front = _call(Habits(patience=3.0), (2.9, None), None)
    assert (call.ending, call.ended_at, front.left) == (Ending.ABANDONED, 3.0, [3.0])
    waiting, front = _call(Habits(patience=3.0), (50.0, None))
    assert (waiting.ending, front.sent) == (Ending.ABANDONED, [0.0])


def test_who_hangs_up_at_the_instant_its_time_is_up_is_answered_by_nobody() -> None:
    world = World()
    front = Gateway(
        world, [Node(world, "a", Engine(FLAT))], [Backend("a", "http://a", limit=1)], AdmissionConfig(), "0"
    )
    front._arm = lambda: None  # type: ignore[method-assign] # the client is faster than the timer
    want = Want(0, 100, 10_000, stream=True, client="")
    running, waiting = (
        Mock(number=0, prefix=None, call=Mock(want=want, habits=Habits(), priority=Priority.STANDARD)) for _ in range(2)
    )
    front.send(running)
    front.send(waiting)
    world.at(30.0, lambda: front.leave(waiting))
    world.run(31.0)
    waiting.refused.assert_not_called()
    assert front.deepest == 1
    assert not front._queued
