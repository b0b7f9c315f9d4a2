"""The rules of the diagnosis at their edges, on facts made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.telemetry.causes import Cause, Severity
from gateway.telemetry.clients import ClientCounts
from gateway.telemetry.diagnosis import diagnose, unknown
from gateway.telemetry.facts import BackendFacts, Beside, Facts, Gauges, Stalls
from gateway.telemetry.wear import Slowdown
from tests.telemetry.helpers import backend_state

GAUGES = Gauges(running=20.0, waiting=0.0, kv_usage=0.4, preemptions=0.0, inflight=20.0)
CROWDED: dict[str, Any] = {"received": 100, "crowded": 20}


def one(**changes: Any) -> BackendFacts:
    """A busy engine in order; names of its state's fields change that."""
    fields = BackendFacts.__dataclass_fields__
    state = {name: changes.pop(name) for name in list(changes) if name not in fields}
    made = BackendFacts(
        state=backend_state(**{"limit": 30.0, "limit_min": 1.0, "pace_base": 0.01, **state}),
        running=20.0,
        unstarted=0.5,
        full=0.0,
        held=0.0,
        growth=1.0,
        moves=3,
        cuts=1,
        standing=0,
        pace=0.03,
        unheard=0.0,
        longest_silence=1.0,
        gauges=GAUGES,
        answers=300,
        failures=0,
        prompt_rate=1000.0,
        output_rate=1000.0,
        ttft=0.1,
        ttft_alone=0.05,
        stalls=Stalls(0, 0.0, 0.0),
        beside=None,
        slowdown=None,
    )
    return replace(made, **changes)


def causes(*backends: BackendFacts, **changes: Any) -> list[Cause]:
    return [found.cause for found in diagnose(facts(*backends, **changes))]


def facts(*backends: BackendFacts, **changes: Any) -> Facts:
    return replace(Facts(seconds=60.0, looked=59.0, backends=backends or (one(),)), **changes)


FULL: dict[str, Any] = {"full": 0.9, "pace": 0.045}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, []),
        ({"received": 100, "crowded": 1}, []),  # one refusal is no complaint
        ({"received": 1000, "crowded": 19}, []),
        ({"received": 1000, "crowded": 20}, [Cause.AT_CAPACITY]),
        ({"queued": 0.9}, []),
        ({"queued": 1.0}, [Cause.AT_CAPACITY]),
        ({"late": 0.09}, []),
        ({"late": 0.1}, [Cause.AT_CAPACITY]),
        ({"queued": 1.0, "looked": 29.0}, []),  # the limit is still being found
    ],
)
def test_a_full_engine_is_a_bottleneck_where_somebody_complains(changes: dict[str, Any], wanted: list[Cause]) -> None:
    assert causes(one(**FULL), **changes) == wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({**FULL, "growth": 1.5, "cuts": 0}, []),  # the limit is still being found
        ({**FULL, "growth": 1.5, "cuts": 1}, [Cause.AT_CAPACITY]),
        ({**FULL, "growth": 1.4, "cuts": 0}, [Cause.AT_CAPACITY]),
        ({"full": 0.2}, []),  # others are refused: another engine's, or another model's
        ({**FULL, "prompt_rate": 3001.0}, [Cause.PREFILL_BOUND]),
        ({**FULL, "prompt_rate": 3000.0}, [Cause.AT_CAPACITY]),
        ({**FULL, "prompt_rate": 3001.0, "output_rate": 0.0}, [Cause.AT_CAPACITY]),  # embeddings
        ({"held": 0.3, "full": 0.0}, [Cause.KV_BOUND]),
        ({"held": 0.29, "full": 0.0}, []),
        ({"full": 0.8, "moves": 0, "pace": 0.025}, [Cause.LIMIT_TOO_LOW]),
        ({"full": 0.8, "moves": 0, "pace": 0.026}, [Cause.AT_CAPACITY]),
        ({"full": 0.8, "moves": 1, "pace": 0.025}, [Cause.AT_CAPACITY]),  # it is about to rise
        ({"full": 0.79, "moves": 0, "pace": 0.025}, [Cause.AT_CAPACITY]),
        ({"full": 0.8, "moves": 0, "pace": 0.025, "pace_base": None}, [Cause.AT_CAPACITY]),
        ({"full": 0.8, "moves": 0, "pace": None}, [Cause.AT_CAPACITY]),
    ],
)
def test_which_bottleneck_a_complaint_is_about(changes: dict[str, Any], wanted: list[Cause]) -> None:
    assert causes(one(token_limit=9000.0, **changes), **CROWDED) == wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"limit_min": None, "pace": 0.061}, [Cause.LIMIT_TOO_HIGH]),
        ({"limit_min": None, "pace": 0.059}, []),
        ({"limit_min": 1.0, "pace": 0.5}, []),  # it falls by itself
        ({"limit_min": 30.0, "pace": 0.5}, [Cause.LIMIT_TOO_HIGH]),  # it would, were it allowed
        ({"limit_min": None, "pace": 0.5, "running": 1.5}, []),
        ({"limit_min": None, "pace": 0.5, "pace_base": None}, []),
        ({"limit_min": None, "pace": None}, []),
    ],
)
def test_a_limit_that_is_too_high_needs_no_complaint(changes: dict[str, Any], wanted: list[Cause]) -> None:
    assert causes(one(**changes)) == wanted


def test_the_objective_counts_where_there_is_one() -> None:
    fast = one(limit_min=None, pace=0.05)
    assert causes(fast, tpot_objective=0.04) == [Cause.LIMIT_TOO_HIGH]
    assert causes(fast, tpot_objective=0.06) == []
    (found,) = diagnose(facts(fast, tpot_objective=0.04))
    assert "the objective of 40.0 ms less its headroom" in found.evidence[1]
    assert "is fixed" in found.evidence[0]
    (found,) = diagnose(facts(one(limit_min=30.0, pace=1.5)))
    assert found.evidence[0].endswith("the limit of 30 is at its minimum.")
    assert found.evidence[1].startswith("An output token takes 1.5 s; wanted are 50.0 ms, 5 times the 10.0 ms")


def gauges(**changes: Any) -> Gauges:
    return replace(GAUGES, **changes)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"gauges": gauges(running=13.0), "ttft": 0.5}, [Cause.FRONT_END_BOUND]),  # 7 of 20 are nowhere
        ({"gauges": gauges(running=15.0), "ttft": 0.5}, []),
        ({"gauges": gauges(running=10.0, waiting=8.0), "ttft": 0.5}, []),  # they wait in its scheduler
        ({"gauges": gauges(running=13.0), "ttft": 0.07}, []),  # and nobody waits for it
        ({"gauges": gauges(running=13.0), "ttft": 0.5, "pace": 0.03, "pace_base": 0.005}, []),  # it is slow as well
        ({"gauges": gauges(running=13.0), "ttft": 0.5, "pace": None}, [Cause.FRONT_END_BOUND]),
        ({"gauges": gauges(running=13.0), "ttft": 0.5, "pace": 0.02, "pace_base": None}, [Cause.FRONT_END_BOUND]),
        ({"gauges": gauges(running=13.0), "ttft": None}, []),
        ({"gauges": gauges(running=13.0), "ttft": 0.5, "ttft_alone": None}, []),
        ({"gauges": gauges(running=None), "ttft": 0.5}, []),
        ({"gauges": None, "ttft": 0.5}, []),
        ({"gauges": gauges(running=9.0, waiting=None, inflight=20.0), "ttft": 0.5}, [Cause.FRONT_END_BOUND]),
        ({"gauges": gauges(running=20.0, contradicted=True), "ttft": 0.5}, [Cause.FRONT_END_BOUND]),
    ],
)
def test_a_front_end_that_holds_requests(changes: dict[str, Any], wanted: list[Cause]) -> None:
    assert causes(one(**{"pace": 0.02, **changes})) == wanted


@pytest.mark.parametrize(
    ("changes", "complaint", "wanted"),
    [
        ({"standing": 2}, CROWDED, Cause.FRONT_END_BOUND),
        ({"standing": 1}, CROWDED, Cause.AT_CAPACITY),
        ({"standing": 2, "gauges": gauges(waiting=1.0)}, CROWDED, Cause.AT_CAPACITY),
        ({"standing": 2, "gauges": gauges(waiting=None)}, CROWDED, Cause.FRONT_END_BOUND),
        ({"standing": 2}, {}, None),
    ],
)
def test_a_limit_that_a_front_end_holds_down(
    changes: dict[str, Any], complaint: dict[str, Any], wanted: Cause | None
) -> None:
    found = causes(one(**{"pace": 0.02, "ttft": 0.08, "full": 0.9, **changes}), **complaint)
    assert found == ([] if wanted is None else [wanted])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"gauges": gauges(preemptions=200.0)}, True),  # in 2000 steps
        ({"gauges": gauges(preemptions=199.0)}, False),
        ({"gauges": gauges(preemptions=500.0), "pace": None}, False),
        ({"gauges": gauges(preemptions=None)}, False),
        ({"gauges": gauges(kv_usage=0.9, waiting=2.0)}, True),
        ({"gauges": gauges(kv_usage=0.9, waiting=1.9)}, False),
        ({"gauges": gauges(kv_usage=0.89, waiting=9.0)}, False),
        ({"gauges": gauges(kv_usage=0.99, waiting=None)}, False),
        ({"gauges": gauges(kv_usage=None, preemptions=300.0)}, True),
    ],
)
def test_a_full_kv_cache(changes: dict[str, Any], found: bool) -> None:
    assert causes(one(**changes)) == ([Cause.KV_BOUND] if found else [])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"beside": Beside(1.0, 0.3, 10, 0.5, 30_000)}, [Cause.LONG_STARVES_SHORT]),
        ({"beside": Beside(0.9, 0.1, 10, 0.5, 30_000)}, []),
        ({"beside": Beside(2.0, 0.7, 10, 0.5, 30_000)}, []),
        ({"beside": Beside(0.9, 0.9, 10, 0.5, 30_000, 10, 0.5, 0.1)}, [Cause.LONG_STARVES_SHORT]),
        ({"beside": Beside(0.9, 0.9, 10, 0.5, 30_000, 9, 0.47, 0.0)}, []),
        ({"beside": Beside(0.9, 0.9, 10, 0.5, 30_000, 40, 0.8, 0.3)}, []),
        ({"stalls": Stalls(2, 2.0, 1.0)}, [Cause.STALLS]),
        ({"stalls": Stalls(1, 2.9, 2.9)}, []),
        ({"stalls": Stalls(1, 3.0, 3.0)}, [Cause.STALLS]),
        ({"slowdown": Slowdown(1.3, 0.1, 0.13)}, [Cause.SLOWING_DOWN]),
        ({"slowdown": Slowdown(1.29, 0.1, 0.129)}, []),
        ({"stalls": Stalls(2, 2.0, 1.0), "slowdown": Slowdown(1.5, 0.1, 0.15)}, [Cause.STALLS, Cause.SLOWING_DOWN]),
    ],
)
def test_ailing_engines(changes: dict[str, Any], wanted: list[Cause]) -> None:
    assert causes(one(**changes)) == wanted
    assert causes(one(**changes), queued=5.0, looked=59.0) == wanted  # and then no bottleneck is named beside


def test_a_ttft_objective_says_what_short_requests_bear() -> None:
    met = one(beside=Beside(0.9, 0.1, 10, 0.5, 30_000))
    assert causes(met, short_ttft_objective=0.5) == [Cause.LONG_STARVES_SHORT]
    assert causes(one(beside=Beside(1.5, 0.1, 10, 0.5, 30_000)), short_ttft_objective=2.0) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"unheard": 15.0}, True),
        ({"unheard": 14.9}, False),
        ({"unheard": 90.0, "longest_silence": 50.0}, False),  # long answers in one piece
        ({"unheard": 100.0, "longest_silence": 50.0}, True),
        ({"unheard": 30.0, "longest_silence": None}, True),
        ({"unheard": 29.0, "longest_silence": None}, False),
    ],
)
def test_a_hung_engine(changes: dict[str, Any], found: bool) -> None:
    assert causes(one(**changes)) == ([Cause.BACKEND_HUNG] if found else [])


@pytest.mark.parametrize("health", ["down", "open", "half_open"])
def test_an_engine_that_is_out(health: str) -> None:
    out = one(health=health, failures=7, answers=3)
    (found,) = diagnose(facts(out, one(name="gpu2")))
    assert (found.cause, found.severity, found.backend) == (Cause.BACKEND_DOWN, Severity.CRITICAL, "gpu1")
    assert found.evidence[1] == "In 60 s it answered 3 requests and spoilt 7."


def test_a_drained_engine_is_no_dead_one() -> None:
    assert causes(one(health="drained", running=0.0)) == []


STORM: dict[str, Any] = {"received": 100, "first_attempts": 60, "retried": 40, "completed": 30}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"early": 15}, True),
        ({"early": 14, "kept": 26}, False),  # they obey
        ({"gone": 20}, True),
        ({"gone": 19}, False),
        ({"early": 15, "retried": 29}, False),
        ({"early": 15, "kept": 15, "retried": 0}, True),  # clients that do not count are recognised
        ({"early": 9, "received": 19}, False),
    ],
)
def test_a_storm(changes: dict[str, Any], found: bool) -> None:
    assert causes(**{**STORM, **changes}) == ([Cause.RETRY_STORM] if found else [])


def test_a_storm_is_named_alone_and_a_dead_engine_before_it() -> None:
    storm: dict[str, Any] = {**STORM, "early": 30, "crowded": 60}
    assert causes(one(**FULL), **storm) == [Cause.RETRY_STORM]
    assert causes(one(**FULL, slowdown=Slowdown(2.0, 0.1, 0.2)), **storm) == [Cause.RETRY_STORM, Cause.SLOWING_DOWN]
    assert causes(one(unheard=60.0), **storm) == [Cause.BACKEND_HUNG]


def client(name: str, **counts: Any) -> ClientCounts:
    return ClientCounts(name, **{"ended": 100, "completed": 100, "held": 100.0, **counts})


@pytest.mark.parametrize(
    ("one_client", "other", "wanted"),
    [
        ({"errors": 30, "gone": 20}, {"errors": 10}, [Cause.CLIENT_FAILING]),
        ({"errors": 30, "gone": 19}, {}, []),
        ({"errors": 50}, {"gone": 11}, []),  # so fare the others
        ({"errors": 15, "ended": 19}, {}, []),
        ({"errors": 50}, {"ended": 0, "held": 0.0}, []),  # there are no others
        ({"paused": 20.0}, {"paused": 5.0}, [Cause.CLIENT_SLOW]),
        ({"paused": 19.0}, {}, []),
        ({"paused": 20.0}, {"paused": 6.0}, []),
        ({"paused": 0.9, "held": 1.0}, {}, []),
    ],
)
def test_one_client_apart_from_the_others(one_client: Any, other: Any, wanted: list[Cause]) -> None:
    assert causes(clients=(client("key:1f2e", **one_client), client("key:9a0b", **other))) == wanted


def test_a_client_alone_may_be_slow_but_not_worse_than_others() -> None:
    assert causes(clients=(client("key:1f2e", paused=50.0),)) == [Cause.CLIENT_SLOW]
    assert causes(clients=(client("key:1f2e", errors=100),)) == []


def test_the_gateway_s_own_lateness() -> None:
    assert causes(loop_lag=0.19) == []
    (found,) = diagnose(facts(loop_lag=1.5))
    assert (found.cause, found.evidence) == (Cause.GATEWAY_BUSY, ("Its event loop ran up to 1.5 s late.",))


def test_the_gravest_comes_first() -> None:
    worst = facts(
        one(**FULL), one(name="gpu2", unheard=60.0), clients=(client("a", paused=50.0), client("b")), **CROWDED
    )
    assert [found.severity for found in diagnose(worst)] == [Severity.CRITICAL, Severity.WARNING, Severity.INFO]


def test_what_cannot_be_judged_is_told() -> None:
    told = unknown(facts(one(), one(name="gpu2", gauges=None), one(name="gpu3", gauges=gauges(contradicted=True))))
    assert told == [
        "gpu2 tells no gauges: its KV cache, preemptions and own queue cannot be seen",
        "gpu3: its gauges tell of far fewer requests than are in flight, so the limit heeds them not",
    ]
