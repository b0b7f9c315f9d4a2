"""Each cause has a scenario on the emulated engine in which it, and only it, is named; healthy traffic names none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.admission.config import AdmissionConfig, LaneConfig, LimitConfig, QueueConfig
from gateway.emulator.profiles import C550_ASR, LLAMA3_8B_A100_NO_FLAG, MINDIE_910B, QWEN3_8B_910B
from gateway.simulator.clients import Habits
from gateway.simulator.setup import Load
from gateway.telemetry.causes import MEANINGS, Cause
from tests.telemetry.clinic import Case, Engineered

QWEN, ASR, LLAMA = Engineered(QWEN3_8B_910B), Engineered(C550_ASR), Engineered(LLAMA3_8B_A100_NO_FLAG)
DYING = replace(QWEN, sick_from=65.0, speeds=((65.0, 0.0),))
SMALL_KV = replace(LLAMA3_8B_A100_NO_FLAG, kv_tokens=50_000, max_model_len=32_768)
IMPATIENT = Habits(timeout=3.0, obeys=False, retries=4)
GIVES_UP = Habits(timeout=1.0, obeys=False, retries=3)
LEAVES = Habits(patience=0.05)


def load(workload: str, rate: float, **changes: Any) -> Load:
    """A quiet start, in which the unloaded pace is learned, then ``rate`` requests a second."""
    made = Load(workload, rates=((0.0, min(rate, 0.5)), (20.0, rate)))
    return replace(made, **changes)


def faulty(profile: Any = QWEN3_8B_910B, **faults: float) -> Engineered:
    return Engineered(replace(profile, **faults))


def told(*, tpot: float | None = None, ttft: float | None = None) -> AdmissionConfig:
    lanes = (LaneConfig("short", 1000, 2.0, ttft, 1.0), LaneConfig("long", None, 1.0, None, 4.0))
    return AdmissionConfig(limit=LimitConfig(tpot_objective=tpot), queue=QueueConfig(lanes=lanes))


HEALTHY = {
    "speech": Case([ASR], [load("asr", 12)]),
    "chats": Case([QWEN], [load("sharegpt", 5)]),
    "chats with their history": Case([LLAMA], [load("sharegpt-history", 1)]),
    "answers in one piece": Case([QWEN], [load("sharegpt", 5, streamed=0.0)]),
    "two engines": Case([QWEN, ASR], [load("sharegpt", 6)]),
    "code": Case([LLAMA], [load("code", 2)]),
    "prompts go first": Case([Engineered(MINDIE_910B)], [load("sharegpt", 4)]),
    "nothing at all": Case([QWEN], []),
    "within objectives": Case([QWEN], [load("sharegpt", 5)], config=told(tpot=0.15, ttft=2.0)),
    "a load that comes and goes": Case(
        [QWEN], [Load("sharegpt", rates=tuple((30.0 * n, 2.0 + 4.0 * (n % 2)) for n in range(14)))], until=420.0
    ),
    "without gauges": Case([replace(QWEN, gauges=False)], [load("sharegpt", 5)]),
    "long prompts in pieces": Case(
        [faulty(LLAMA3_8B_A100_NO_FLAG, long_prefill_threshold=32)],
        [load("sharegpt", 4), load("128k", 0.005, label="books")],
        until=250.0,
    ),
}

CASES: dict[str, tuple[Case, Cause, str | None]] = {
    "more prompts than it can read": (Case([LLAMA], [load("code", 12)]), Cause.PREFILL_BOUND, "a"),
    "requests held back for want of KV": (
        Case([Engineered(SMALL_KV)], [load("sharegpt-history", 5)]), Cause.KV_BOUND, "a",
    ),
    "KV that overflows under a fixed limit": (
        Case([Engineered(replace(SMALL_KV, kv_tokens=140_000), 120)], [load("sharegpt-history", 5)]),
        Cause.KV_BOUND, "a",
    ),
    "a book read in one go": (
        Case([LLAMA], [load("sharegpt", 4), Load("128k", "books", users=((70.0, 1.0),), think=1000.0)], until=130.0),
        Cause.LONG_STARVES_SHORT, "a",
    ),
    "a slow front end": (Case([faulty(per_request=0.25)], [load("sharegpt", 6)]), Cause.FRONT_END_BOUND, "a"),
    "a slow front end under a fixed limit": (
        Case([replace(faulty(per_request=0.25), limit=200)], [load("sharegpt", 6)]), Cause.FRONT_END_BOUND, "a",
    ),
    "a limit of 6": (Case([replace(ASR, limit=6)], [load("asr", 60)]), Cause.LIMIT_TOO_LOW, "a"),
    "a limit of 8 for a loose objective": (
        Case([replace(QWEN, limit=8)], [load("sharegpt", 20)], config=told(tpot=0.2)), Cause.LIMIT_TOO_LOW, "a",
    ),
    "a limit of 250": (Case([replace(ASR, limit=250)], [load("asr", 60)]), Cause.LIMIT_TOO_HIGH, "a"),
    "a limit of 400 for a tight objective": (
        Case([replace(QWEN, limit=400)], [load("sharegpt", 30)], config=told(tpot=0.06)), Cause.LIMIT_TOO_HIGH, "a",
    ),
    "stalls": (Case([faulty(stall=2.0, stall_every=15.0)], [load("sharegpt", 5)]), Cause.STALLS, "a"),
    "one long stall": (Case([faulty(stall=8.0, stall_every=70.0)], [load("sharegpt", 5)]), Cause.STALLS, "a"),
    "wear": (Case([faulty(wear=0.25)], [load("sharegpt", 4)], until=420.0), Cause.SLOWING_DOWN, "a"),
    "throttling": (
        Case([replace(QWEN, speeds=((280.0, 0.6),))], [load("sharegpt", 5)], until=420.0), Cause.SLOWING_DOWN, "a",
    ),
    "retries that obey nothing": (Case([ASR], [load("asr", 50, habits=IMPATIENT)]), Cause.RETRY_STORM, None),
    "retries of clients that give up": (
        Case([replace(ASR, limit=60)], [load("asr", 40, habits=GIVES_UP)]), Cause.RETRY_STORM, None,
    ),
    "an engine that hangs": (Case([faulty(hangs_at=65.0)], [load("sharegpt", 5)]), Cause.BACKEND_HUNG, "a"),
    "one of two hangs": (Case([QWEN, faulty(hangs_at=65.0)], [load("sharegpt", 8)]), Cause.BACKEND_HUNG, "b"),
    "an engine that hangs for so long that its breaker opens": (
        Case([faulty(hangs_at=60.0)], [load("sharegpt", 5, habits=Habits(patience=20.0))], until=250.0),
        Cause.BACKEND_HUNG, "a",
    ),
    "an engine that dies": (Case([DYING], [load("sharegpt", 5)]), Cause.BACKEND_DOWN, "a"),
    "one of two dies": (Case([QWEN, DYING], [load("sharegpt", 5)]), Cause.BACKEND_DOWN, "b"),
    "a client that leaves at once": (
        Case([QWEN], [load("sharegpt", 4), load("sharegpt", 2, label="bad", clients=1, habits=LEAVES)]),
        Cause.CLIENT_FAILING, None,
    ),
    "a client that takes its time": (
        Case([QWEN], [load("sharegpt", 4), load("sharegpt", 1, label="slow", clients=1)], lingering={"slow-0": 1.0}),
        Cause.CLIENT_SLOW, None,
    ),
    "a gateway without CPU": (Case([QWEN], [load("sharegpt", 5)], loop_lag=0.4), Cause.GATEWAY_BUSY, None),
    "an engine that talks nonsense": (
        Case([QWEN], [load("sharegpt", 5)], canaries=[("a", "Prompt 1 was answered otherwise.")]),
        Cause.CANARY_FAILED, "a",
    ),
    "three times what it can serve": (Case([QWEN], [load("sharegpt", 30)]), Cause.AT_CAPACITY, "a"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTHY.values(), ids=HEALTHY.keys())
def test_healthy_traffic_names_nothing(case: Case) -> None:
    assert [(finding.cause, finding.evidence) for finding in case.findings()] == []


@pytest.mark.parametrize(("case", "cause", "backend"), CASES.values(), ids=CASES.keys())
def test_it_and_only_it_is_named(case: Case, cause: Cause, backend: str | None) -> None:
    (found,) = case.findings()
    assert (found.cause, found.backend) == (cause, backend), found.evidence
    assert any(any(letter.isdigit() for letter in sentence) for sentence in found.evidence)
    assert found.advice
    assert "{" not in found.title + "".join(found.advice)


def test_every_cause_has_a_scenario_and_a_meaning() -> None:
    assert {cause for _, cause, _ in CASES.values()} == set(Cause) == set(MEANINGS)
