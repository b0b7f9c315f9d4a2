"""Ten times the load, of three priorities: each gets what it is promised."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.emulator.profiles import QWEN3_8B_910B
from gateway.model import Priority
from gateway.simulator.clients import Ending, Habits
from gateway.simulator.run import gateway
from gateway.simulator.setup import Load, Machine, Objectives, Setup

OBJECTIVES = Objectives(2.0, 8.0, 0.15)


def kind(priority: Priority, rate: float) -> Load:
    habits = Habits(timeout=60.0)
    return Load("sharegpt", priority.label, rates=((0.0, rate),), priority=priority, habits=habits)


def served(seed: int, **rates: float) -> dict[str, float]:
    """Each priority's share of the work that was served."""
    load = tuple(kind(Priority[name.upper()], rate) for name, rate in rates.items())
    fleet = (Machine("a", QWEN3_8B_910B),)
    setup = Setup(horizon=120.0, measure_from=40.0, fleet=fleet, load=load, objectives=OBJECTIVES, seed=seed)
    work: Counter[str] = Counter()
    for call in gateway(setup, config=OBJECTIVES.told()).calls:
        if call.ending is Ending.ANSWERED:
            work[call.label] += call.want.prompt_tokens // 4 + call.want.output_tokens
    return {label: work[label] / work.total() for label in rates}


@pytest.mark.parametrize("seed", [0, 1])
def test_while_others_never_end_sheddable_work_gets_its_floor_and_no_more(seed: int) -> None:
    shares = served(seed, critical=5.0, standard=40.0, sheddable=45.0)
    assert 0.035 <= shares["sheddable"] <= 0.08, shares  # configured: 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_sheddable_work_gets_what_the_others_leave(seed: int) -> None:
    shares = served(seed, critical=2.0, standard=2.0, sheddable=45.0)
    assert shares["sheddable"] >= 0.45, shares  # nine a second are served
