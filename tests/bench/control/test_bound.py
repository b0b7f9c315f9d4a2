"""The bound that nobody can beat, where it can be worked out by hand, and above what is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.emulator.engine import Profile
from gateway.simulator.setup import Load, Machine, Objectives, Setup
from gateway.simulator.workload import Arrival
from tests.bench.control.bound import bound

# Ten slots, 0.1 s a step whatever it holds: 100 tokens a second.
TEN = Profile(name="ten", base=0.1, max_num_seqs=10, max_num_batched_tokens=100, kv_tokens=16_384, max_model_len=4096)


def _setup(arrivals: list[Arrival], profile: Profile = TEN, **objectives: float) -> Setup:
    load = Load(trace=tuple(arrivals))
    return Setup(horizon=100.0, fleet=(Machine("a", profile),), load=(load,), objectives=Objectives(**objectives))


def _every_second(count: int, output: int) -> list[Arrival]:
    return [Arrival(float(at), 4, output) for at in range(100) for _ in range(count)]


def test_what_the_slots_give_is_all_there_is() -> None:
    asked = _every_second(10, 101)  # ten times a hundred steps a second, where there are a hundred
    assert bound(_setup(asked)) == pytest.approx(102.0, rel=0.03)  # a first token and a prompt come with each hundred


def test_less_load_than_that_is_served_whole() -> None:
    assert bound(_setup(_every_second(1, 51))) == pytest.approx(52.0, rel=0.03)


def test_an_objective_of_pace_leaves_slots_empty() -> None:
    slower = replace(TEN, per_sequence=0.01)  # 0.2 s a step with all ten
    asked = _every_second(10, 101)
    free, held = bound(_setup(asked, slower)), bound(_setup(asked, slower, tpot=0.15))
    assert free == pytest.approx(51.0, rel=0.04)
    assert held == pytest.approx(51.0 * 0.02 / 0.03, rel=0.04)  # five: 0.03 s a token, and not 0.02


def test_a_burst_has_only_its_own_time() -> None:
    burst = [Arrival(50.0, 4, 101)] * 1000
    within = bound(_setup(burst, ttft_short=2.0, tpot=0.1))  # 2 s and 101 steps
    assert within == pytest.approx(102.0 * 12.1 / 100.0, rel=0.3)  # stretched to the edges of its bins
    assert within < 0.2 * bound(_setup(_every_second(10, 101)))


def test_of_too_many_those_are_taken_that_give_the_most_for_their_time() -> None:
    dear = replace(TEN, per_prefill_token=0.05)
    mixed = [*_every_second(10, 101), *(Arrival(float(at), 100, 101) for at in range(100) for _ in range(10))]
    alone = bound(_setup(_every_second(20, 101), dear))
    assert bound(_setup(mixed, dear)) == pytest.approx(alone, rel=0.03)  # ten of the short ones a second are enough
