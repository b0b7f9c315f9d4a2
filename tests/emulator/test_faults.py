"""An engine that misbehaves: a slow front end, stalls, wear, silence."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gateway.emulator.engine import Engine
from gateway.emulator.profiles import FLAT


def engine(**faults: Any) -> Engine:
    """A step takes a second."""
    return Engine(replace(FLAT, base=1.0, **faults))


def played(faulty: Engine, until: float = 1000.0) -> list[tuple[int, float]]:
    """(key, at) of every token."""
    seen = []
    while (due := faulty.next_event()) is not None and due <= until:
        seen += [(emission.key, emission.at) for emission in faulty.advance(due)]
    return seen


def test_the_front_end_takes_one_request_at_a_time() -> None:
    slow = engine(per_request=0.4)
    for key in (1, 2, 3):
        slow.submit(key, 1, 2, 0.0)
    assert (slow.running, slow.waiting) == (0, 0)
    assert slow.next_event() == pytest.approx(0.4)
    assert [(key, round(at, 6)) for key, at in played(slow)] == [
        (1, 1.4), (1, 2.4), (2, 2.4), (3, 2.4), (2, 3.4), (3, 3.4),
    ]  # fmt: skip
    assert slow.finished == 3


def test_an_idle_front_end_starts_when_the_request_comes() -> None:
    slow = engine(per_request=0.5)
    slow.submit(1, 1, 1, 0.0)
    slow.advance(10.0)
    slow.submit(2, 1, 1, 10.0)
    assert played(slow) == [(2, 11.5)]


def test_a_request_in_the_front_end_is_inside_and_can_be_aborted() -> None:
    slow = engine(per_request=0.5)
    for key in (1, 2):
        slow.submit(key, 1, 1, 0.0)
    with pytest.raises(ValueError, match="key 2 given"):
        slow.submit(2, 1, 1, 0.0)
    slow.abort(1, 0.1)
    slow.abort(9, 0.1)
    assert slow.aborted == 1
    assert played(slow) == [(2, 2.0)]


def test_now_and_then_a_step_stalls() -> None:
    stalling = engine(stall=5.0, stall_every=10.0)
    stalling.submit(1, 1, 20, 0.0)
    ends = [at for _, at in played(stalling)]
    gaps = [round(late - early, 6) for early, late in pairwise(ends)]
    assert gaps == [1.0] * 9 + [6.0] + [1.0] * 4 + [6.0] + [1.0] * 4  # the steps that start at 10 and at 20 s


def test_steps_grow_longer_minute_by_minute() -> None:
    worn = engine(wear=0.5)
    worn.submit(1, 1, 1, 0.0)
    worn.submit(2, 1, 1, 60.0)
    worn.submit(3, 1, 1, 120.0)
    assert played(worn) == [(1, 1.0), (2, 61.5), (3, 122.0)]


def test_a_hung_engine_says_nothing_more_and_can_be_left() -> None:
    hung = engine(hangs_at=2.0)
    hung.submit(1, 1, 9, 0.0)
    assert played(hung) == [(1, 1.0), (1, 2.0)]
    hung.submit(2, 1, 1, 3.0)
    assert hung.next_event() is None
    assert hung.advance(500.0) == []
    assert (hung.running, hung.waiting) == (1, 1)
    for key in (1, 2):
        hung.abort(key, 501.0)
    assert (hung.running, hung.waiting, hung.aborted) == (0, 0, 2)
