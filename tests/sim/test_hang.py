"""An engine that hangs is taken out, however soon its clients give up on it."""

from __future__ import annotations

from gateway.emulator.profiles import QWEN3_8B_910B
from gateway.simulator.clients import Habits
from gateway.simulator.run import Result, gateway
from gateway.simulator.setup import Load, Machine, Setup

HANGS = 60.0
SILENCE = 120.0  # the default
HUNG = Machine("a", QWEN3_8B_910B, speeds=((HANGS, 0.0),))
IMPATIENT = Habits(timeout=20.0, retries=0)


def opened(result: Result) -> float:
    """When the breaker of the hung one opened."""
    return next(at for at, (hung, *_) in result.trace if hung.health == "open")


def test_what_clients_wait_for_one_after_another_adds_up() -> None:
    load = Load("sharegpt", rates=((0.0, 0.03),), habits=IMPATIENT)
    result = gateway(Setup(horizon=900.0, fleet=(HUNG,), load=(load,)))
    assert any(not hung.running for at, (hung,) in result.trace if HANGS < at < opened(result)), "not always one waits"
    assert HANGS + SILENCE < opened(result) < 600.0


def test_the_others_serve_what_it_does_not() -> None:
    load = Load("sharegpt", rates=((0.0, 2.0),), habits=IMPATIENT)
    result = gateway(Setup(horizon=400.0, fleet=(HUNG, Machine("b", QWEN3_8B_910B)), load=(load,)))
    assert HANGS + SILENCE - 1.0 < opened(result) < 240.0
    assert {other.health for _, (_, other) in result.trace} == {"unknown"}
    late = [decision.what for decision in result.decisions if decision.at > opened(result) + 1.0]
    assert late.count("a") <= 0.2 * len(late), "but for a trial now and then"
