"""What a diagnosis rests on: directed cases, beside the scenarios of test_diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.model import EngineState, GatewayState, Hints, HintsUse, LaneState, Outcome, Reason
from gateway.telemetry.curve import Curves
from gateway.telemetry.entry import Entry
from gateway.telemetry.facts import BackendFacts, Beside, Facts, FactSheet, Stalls
from tests.telemetry.entries import ended, entry, refused
from tests.telemetry.helpers import backend_state, gateway_state

NOW = 200.0


def gathered(entries: Sequence[Entry] = (), *states: GatewayState, shown: GatewayState | None = None) -> Facts:
    looks = states or (shown or gateway_state(),)
    sheet = FactSheet(NOW, 60.0, looks[-1])
    for each in entries:
        sheet.add(each)
    begin = NOW - len(looks) + 1
    return sheet.facts([(begin + number, state) for number, state in enumerate(looks)], Curves(3600.0))


def backend(entries: Sequence[Entry] = (), *states: GatewayState) -> BackendFacts:
    (found,) = gathered(entries, *states).backends
    return found


def stream(began: float, *outputs: float, **changes: Any) -> Entry:
    """A request sent at once at ``began``, with outputs at these instants."""
    return entry(began, [round(1e6 * (at - began)) for at in outputs], **{"offered": 0, "sent": 0, **changes})


def steady(began: float, until: float, *, without: tuple[float, float] = (0.0, 0.0), **changes: Any) -> Entry:
    """An output every 0.1 s, but none inside ``without``."""
    instants = [began + 0.1 * number for number in range(1, round(10 * (until - began)) + 1)]
    return stream(began, *(at for at in instants if not without[0] < at < without[1] - 1e-6), **changes)


# -------------------------------------------------------------------------------------------------------------- counts


def test_requests_are_counted_by_how_they_ended() -> None:
    found = gathered([
        entry(),
        entry(retry=1),
        ended(Outcome.CLIENT_GONE),
        ended(Outcome.BACKEND_LOST),
        refused(reason=Reason.DEADLINE),
        refused(reason=Reason.QUEUE_TIMEOUT),
        refused(reason=Reason.NO_BACKEND),
    ])  # fmt: skip
    assert (found.received, found.first_attempts, found.retried) == (7, 6, 1)
    assert (found.completed, found.gone, found.crowded) == (2, 1, 2)
    assert found.backends[0].failures == 1


def test_clients_that_came_back_are_those_since_the_first_look() -> None:
    before, after = gateway_state(), gateway_state(retries_seen={True: 8, False: 31})
    found = gathered((), before, after)
    assert (found.kept, found.early) == (3, 20)
    assert found.looked == 1.0


def test_rates_leave_out_what_the_cache_had() -> None:
    found = backend([entry(prompt_tokens=700, cached_tokens=100, output_tokens=60)])
    assert (found.answers, found.prompt_rate, found.output_rate) == (1, 10.0, 1.0)


def test_answers_that_do_not_tell_what_the_cache_had_fare_as_those_that_do() -> None:
    told = entry(prompt_tokens=600, cached_tokens=540, output_tokens=60)
    untold = entry(prompt_tokens=None, cached_tokens=None, estimated_prompt_tokens=1800)
    assert backend([told, untold]).prompt_rate == pytest.approx(4.0)
    assert backend([untold]).prompt_rate == 30.0


def test_counts_that_were_not_reported_are_estimated_or_counted() -> None:
    found = backend([entry(prompt_tokens=None, output_tokens=None, estimated_prompt_tokens=600)])
    assert (found.prompt_rate, found.output_rate) == (10.0, 0.05)


def test_the_queue_is_a_mean_over_the_looks() -> None:
    empty = gateway_state(lanes=(LaneState("short", 0, 0.0, 0.0, 1.0),))
    assert gathered((), gateway_state(), empty).queued == 2.5
    assert gathered((), gateway_state(lanes=())).short_ttft_objective is None


def told(ttft: float | None = None, tpot: float | None = None) -> GatewayState:
    return gateway_state(lanes=(LaneState("short", 0, 0.0, 0.0, 1.0, ttft_objective=ttft),), tpot_objective=tpot)


@pytest.mark.parametrize(
    ("state", "late"),
    [
        (told(), None),
        (told(ttft=0.5), 0.0),
        (told(ttft=0.49), 1.0),
        (told(tpot=0.1), 0.0),
        (told(tpot=0.09), 1.0),
        (told(ttft=0.5, tpot=0.09), 1.0),
    ],
)
def test_answers_that_missed_an_objective(state: GatewayState, late: float | None) -> None:
    """The first output after 0.5 s, two more 0.1 s apart."""
    assert gathered([entry()], shown=state).late == late


def test_an_answer_of_one_token_has_no_pace_and_a_whole_one_nothing_to_miss() -> None:
    assert gathered([entry(stamps=[400_000])], shown=told(ttft=0.5, tpot=0.01)).late == 0.0
    assert gathered([entry(stamps=(), stream=False)], shown=told(ttft=0.5, tpot=0.01)).late is None


# --------------------------------------------------------------------------------------------------------------- looks


def test_shares_and_means_are_over_the_looks() -> None:
    changes: list[dict[str, Any]] = [
        {"running": 12, "unstarted": 0, "pace": 0.02, "limit_changes": {("down", "pace"): 3}},
        {"running": 4, "unstarted": 2, "pace": None, "limit_changes": {("down", "pace"): 3}},
        {"running": 2, "unstarted": 4, "tokens": 72_000, "pace": 0.04, "limit_changes": {("down", "standing"): 2}},
        {
            "running": 2,
            "unstarted": 2,
            "pace": 0.06,
            "tokens": 72_000,
            "limit_changes": {("down", "pace"): 4, ("down", "standing"): 2},
        },
    ]
    found = backend((), *(gateway_state(backend_state(**each)) for each in changes))
    assert (found.running, found.unstarted, found.full, found.held) == (5.0, 2.0, 0.25, 0.5)
    assert found.pace == pytest.approx(0.04)
    assert (found.moves, found.cuts, found.standing, found.growth) == (3, 3, 2, 1.0)


def test_changes_of_the_limit_are_told_apart_by_their_direction() -> None:
    before = backend_state(limit=10.0, limit_changes={("up", "room"): 1, ("down", "pace"): 1})
    after = backend_state(limit=15.0, limit_changes={("up", "room"): 4, ("down", "pace"): 2})
    found = backend((), gateway_state(before), gateway_state(after))
    assert (found.moves, found.cuts, found.standing, found.growth) == (4, 1, 0, 1.5)


def test_a_backend_that_is_new_counts_from_when_it_came() -> None:
    states = gateway_state(backend_state("gpu1")), gateway_state(backend_state("gpu1"), backend_state("gpu2"))
    found = gathered((), *states).backends
    assert [each.state.name for each in found] == ["gpu1", "gpu2"]
    assert found[1].running == 7.0


def test_gauges_are_means_of_the_fresh_ones() -> None:
    def state(age: float | None, preemptions: float | None, running: int = 7, **hints: Any) -> GatewayState:
        return gateway_state(
            backend_state(hints_age=age, running=running, hints=Hints(preemptions_total=preemptions, **hints))
        )

    found = backend(
        (),
        state(20.0, 1.0, running=100, kv_usage=0.1),  # too old
        state(1.0, 10.0, running=8, waiting=2.0, kv_usage=0.5),
        state(2.0, 16.0, running=10, kv_usage=0.7),
    ).gauges
    assert found is not None
    assert (found.running, found.waiting, found.kv_usage, found.preemptions) == (None, 2.0, 0.6, 6.0)
    assert (found.inflight, found.contradicted) == (9.0, False)
    assert backend((), state(20.0, 1.0)).gauges is None
    assert backend((), state(None, None)).gauges is None


def test_gauges_that_tell_of_another_engine_are_told_so() -> None:
    engine = EngineState("vllm", hints_use=HintsUse.CONTRADICTED)
    found = backend((), gateway_state(backend_state(engine=engine, hints_age=99.0))).gauges
    assert found is not None
    assert (found.contradicted, found.inflight, found.preemptions) == (True, 7.0, None)


# -------------------------------------------------------------------------------------------------------------- stalls

PAUSE = (110.0, 112.0)


def stalls(*entries: Entry) -> Stalls:
    return backend(entries, gateway_state(backend_state(pace=0.05))).stalls


def test_when_all_stand_still_at_once_that_is_a_stall() -> None:
    found = stalls(*(steady(100.0, 120.0, without=PAUSE) for _ in range(4)))
    assert found.count == 1
    assert found.longest == pytest.approx(2.0)


def test_two_stalls_are_two() -> None:
    twice = [
        stream(100.0, *(100.0 + 0.1 * n for n in range(1, 100)), 112.0, 112.1, 114.0, 114.1) for _ in range(3)
    ]  # fmt: skip
    found = stalls(*twice)
    assert found.count == 2
    assert found.total == pytest.approx(2.1 + 1.9)


@pytest.mark.parametrize(
    "others",
    [
        [steady(100.0, 120.0)] * 3,  # they went on: it was thrown out and came back
        [],  # alone it may have been anything
        [steady(100.0, 120.0, without=PAUSE), steady(110.5, 120.0, without=(110.5, 111.0))],  # one began meanwhile
        [steady(100.0, 120.0, without=PAUSE), stream(109.9, 111.9, 112.0, prompt_tokens=9000)],  # a prompt was read
    ],
)
def test_these_are_no_stalls(others: list[Entry]) -> None:
    assert stalls(steady(100.0, 120.0, without=PAUSE), *others) == Stalls(0, 0, 0.0)


def test_gaps_that_are_usual_for_the_engine_are_no_stalls() -> None:
    slow = [steady(100.0, 120.0, without=PAUSE) for _ in range(4)]
    assert backend(slow, gateway_state(backend_state(pace=0.3))).stalls.count == 0
    assert backend(slow, gateway_state(backend_state(pace=None))).stalls.count == 1


def test_short_gaps_are_no_stalls() -> None:
    assert stalls(*(steady(100.0, 120.0, without=(110.0, 110.6)) for _ in range(4))).count == 0


# ------------------------------------------------------------------------------------------------- long beside short


def shorts(count: int, began: float, ttft: float) -> list[Entry]:
    return [stream(began + 0.1 * number, began + 0.1 * number + ttft) for number in range(count)]


BOOK = stream(110.0, 120.0, 121.0, lane="long", prompt_tokens=9000)


def test_short_requests_beside_a_long_prompt_and_alone() -> None:
    found = backend([*shorts(6, 111.0, 3.0), *shorts(12, 130.0, 0.1), BOOK]).beside
    assert found is not None
    assert found == Beside(found.beside, found.alone, 6, 6 / 18, 9000)
    assert (round(found.beside, 3), round(found.alone, 3)) == (3.0, 0.1)


def test_the_wait_in_the_gateway_counts_and_so_do_those_that_it_refused() -> None:
    """Where nothing starts in the engine, little is sent to it."""
    held = [replace(entry, sent=2_900_000) for entry in shorts(1, 111.0, 3.0)]
    turned = [replace(each, received=115.0, reason=Reason.DEADLINE, backend=None) for each in shorts(4, 111.0, 3.0)]
    early = replace(turned[0], received=105.0)
    long = replace(turned[0], lane="long")
    found = backend([*held, *shorts(9, 130.0, 0.1), BOOK, *turned, early, long]).beside
    assert found is not None
    assert round(found.beside, 3) == 3.0
    assert (found.requests, found.refused, found.refused_share, found.refused_alone) == (1, 4, 0.8, 0.1)


@pytest.mark.parametrize(
    "entries",
    [
        [*shorts(4, 111.0, 3.0), *shorts(12, 130.0, 0.1), BOOK],
        [*shorts(6, 111.0, 3.0), *shorts(4, 130.0, 0.1), BOOK],
        [*shorts(6, 111.0, 3.0), *shorts(12, 130.0, 0.1)],
    ],
)
def test_few_meetings_tell_nothing(entries: list[Entry]) -> None:
    assert backend(entries).beside is None


def test_without_lanes_nobody_is_short() -> None:
    assert backend([*shorts(6, 111.0, 3.0), *shorts(12, 130.0, 0.1), BOOK], gateway_state(lanes=())).beside is None


def test_of_very_many_streams_the_first_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.telemetry.facts.STREAMS", 4)
    paused = [steady(100.0, 120.0, without=PAUSE) for _ in range(4)]
    found = backend([*paused, *(steady(100.0, 120.0) for _ in range(10))])
    assert (found.stalls.count, found.answers) == (1, 14)


def test_a_request_that_never_reached_an_engine_says_nothing_of_it() -> None:
    lost = replace(ended(Outcome.CONNECT_FAILED), sent=None)
    found = backend([lost, refused()])
    assert (found.ttft, found.failures) == (None, 1)
