"""Slow engines: nothing in the gateway takes an Ascend 310P at 2.5 tokens a second for a dead or a hung one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.emulator.profiles import DUO_310P, LLAMA3_8B_A100_NO_FLAG, QWEN3_8B_910B
from gateway.model import BackendState
from gateway.simulator.clients import Ending, Habits
from gateway.simulator.figures import Trace
from gateway.simulator.setup import Load, Machine, Setup
from tests.sim import run

PATIENT = Habits(timeout=36_000.0)
ROOMY = replace(DUO_310P, max_model_len=32_768, kv_tokens=262_144)


def scenario(*fleet: Machine, horizon: float, load: tuple[Load, ...]) -> Setup:
    return Setup(horizon=horizon, fleet=fleet, load=load, measure_from=horizon / 3)


def of(trace: Trace, name: str, since: float = 0.0) -> list[BackendState]:
    return [state for at, states in trace for state in states if state.name == name and at >= since]


@pytest.mark.parametrize(
    ("workload", "streamed", "rate"),
    [("sharegpt-history", 0.0, 0.05), ("documents", 1.0, 0.03), ("documents", 0.0, 0.03), ("sharegpt", 0.5, 0.1)],
)
def test_a_310p_is_never_taken_for_hung_however_long_it_reads_or_writes(
    workload: str, streamed: float, rate: float
) -> None:
    load = Load(workload, rates=((0.0, rate),), streamed=streamed, habits=PATIENT)
    result = run.gateway(scenario(Machine("a", ROOMY), horizon=3000.0, load=(load,)))
    states = of(result.trace, "a")
    assert {state.health for state in states} == {"unknown"}, "its breaker never opened"
    if streamed == 0.0:
        assert max(state.silence for state in states) > 120.0, "and it was silent for long"
    endings = {call.ending for call in result.calls}
    assert Ending.ANSWERED in endings
    assert endings <= {Ending.ANSWERED, Ending.SHED}, "nobody waited in vain"


def test_a_310p_beside_a_fast_engine_takes_what_it_can_and_no_more() -> None:
    load = Load("sharegpt", rates=((0.0, 25.0),), habits=PATIENT)
    fleet = (Machine("gpu", QWEN3_8B_910B), Machine("npu", DUO_310P))
    result = run.gateway(scenario(*fleet, horizon=240.0, load=(load,)))
    gpu, npu = of(result.trace, "gpu", 120.0), of(result.trace, "npu", 120.0)
    assert all(4 <= state.running <= 13 for state in npu), "eight slots"
    assert all(200 <= state.running <= 290 for state in gpu), "256 slots"
    assert {state.health for state in gpu + npu} == {"unknown"}
    alone = run.gateway(scenario(fleet[0], horizon=240.0, load=(load,)))
    assert result.figures["goodput_tokens"] >= 0.98 * alone.figures["goodput_tokens"], "the slow one costs nothing"
    assert result.figures["ttft_p95"] <= 1.2 * alone.figures["ttft_p95"]


SLOWS = 30.0


def sent(slow: tuple[str, ...], *, fleet: str = "abc") -> dict[str, int]:
    """Requests that each engine is sent from two to ten seconds after some turn ten times slower."""
    profile = LLAMA3_8B_A100_NO_FLAG
    machines = [Machine(name, profile, speeds=((SLOWS, 0.1),) if name in slow else ()) for name in fleet]
    load = Load("sharegpt", rates=((0.0, 5.0 * len(fleet)),), habits=PATIENT)
    result = run.gateway(scenario(*machines, horizon=SLOWS + 10.0, load=(load,)))
    return {name: sum(d.what == name and d.at > SLOWS + 2.0 for d in result.decisions) for name in fleet}


def test_one_that_turns_ten_times_slower_is_sent_nothing_after_two_seconds() -> None:
    found = sent(("b",))
    assert found["b"] == 0
    assert min(found["a"], found["c"]) > 30


def test_what_befalls_all_of_them_keeps_nobody_from_being_served() -> None:
    """However their limits fall."""
    assert min(sent(("a", "b", "c")).values()) > 0
