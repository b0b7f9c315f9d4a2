"""What can befall a run: another gateway takes over, others use the engine too, it refuses inside a stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gateway.admission.controller import AdmissionController
from gateway.emulator.profiles import FLAT, QWEN3_8B_910B
from gateway.simulator.clients import Ending, Habits
from gateway.simulator.run import direct, gateway
from gateway.simulator.setup import Load, Machine, Restart, Setup
from gateway.simulator.workload import WORKLOADS, Arrival, recorded

CHATS = Load("sharegpt", rates=((0.0, 4.0),), habits=Habits(retries=0))
ONE = Setup(horizon=30.0, fleet=(Machine("a", QWEN3_8B_910B),), load=(CHATS,))


def _endings(setup: Setup) -> Counter[Ending | None]:
    return Counter(call.ending for call in gateway(setup).calls)


def test_a_graceful_restart_loses_nobody_and_a_crash_those_inside() -> None:
    roomy = replace(ONE, fleet=(replace(ONE.fleet[0], limit=64),))
    assert set(_endings(replace(roomy, restart=Restart(15.0)))) == {Ending.ANSWERED}
    assert _endings(replace(roomy, restart=Restart(15.0, graceful=False)))[Ending.FAILED] >= 1


def test_the_second_gateway_decides_after_the_restart_and_can_be_told_what_the_first_knew() -> None:
    met: list[tuple[AdmissionController, AdmissionController]] = []
    result = gateway(replace(ONE, restart=Restart(15.0)), inherit=lambda *both: met.append(both))
    [(first, second)] = met
    assert first is not second
    before, after = (
        [states[0].limit for at, states in result.trace if low < at < high]
        for low, high in ((14.0, 15.0), (15.0, 16.0))
    )
    assert min(before) > after[0], "it begins anew"


def test_those_who_go_around_the_gateway_load_the_engine_and_are_not_counted() -> None:
    others = replace(CHATS, label="others", around=True)
    alone, beside = gateway(ONE), gateway(replace(ONE, load=(CHATS, others)))
    assert {call.label for call in beside.calls} == {"all"}
    assert beside.figures["tpot_p50"] > alone.figures["tpot_p50"]


@pytest.mark.parametrize("run", [gateway, direct])
def test_a_refusal_inside_a_stream_is_an_error_that_no_client_retries(run: object) -> None:
    assert callable(run)
    fleet = (Machine("a", replace(FLAT, max_num_queued_reqs=2), limit=8, refuses_inside=True),)
    calls = run(replace(ONE, fleet=fleet)).calls
    endings = Counter(call.ending for call in calls)
    assert endings[Ending.FAILED] > 0
    assert endings[Ending.SHED] == 0
    assert all(call.attempts == 1 for call in calls)


def test_a_trace_is_followed_to_the_instant_and_the_token() -> None:
    trace = (Arrival(1.5, 10, 3), Arrival(2.25, 20, 5), Arrival(40.0, 1, 1))
    calls = gateway(replace(ONE, load=(Load(trace=trace),))).calls
    assert [(c.arrived, c.want.prompt_tokens, c.want.output_tokens) for c in calls] == [(1.5, 10, 3), (2.25, 20, 5)]


def test_recorded_arrivals_keep_their_bursts_at_any_rate_and_leave_out_what_does_not_fit() -> None:
    slow, fast = list(recorded("code", 1.0, 2000.0)), list(recorded("code", 4.0, 500.0))
    assert [row[1:] for row in slow] == [row[1:] for row in fast]
    assert len(slow) == pytest.approx(2000, rel=0.15)
    assert fast[-1].at == pytest.approx(slow[-1].at / 4.0)
    assert {p + o for p, o in WORKLOADS["long-context"]() if p + o > 32_768}
    assert max(row.prompt_tokens + row.output_tokens for row in recorded("long-context", 1.0, 400.0, 32_768)) <= 32_768
