"""The comparison's own parts: what the rules choose, the last line, and a small fleet held to bands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from gateway.emulator.profiles import DUO_310P
from gateway.simulator.workload import BLOCK_TOKENS, Want
from tests.bench.fleet.__main__ import Job, Work, report_of
from tests.bench.fleet.compare import AFTER, FOR, GUARDED, OPENLY, OURS, POLICIES, Figures, figures, run
from tests.bench.fleet.rivals import RIVALS, CacheAware, Rule, Split
from tests.bench.fleet.rows import CHATS, EVENTS, MOONCAKE, Row, machines, mixed
from tests.bench.fleet.tables import Cell, Report, everything, verdict


def want(number: int, blocks: Sequence[int] = (), session: str = "") -> Want:
    return Want(number, max(1, len(blocks)) * BLOCK_TOKENS, 10, True, "c", tuple(blocks), session)


def chosen(rule: Rule, loads: Sequence[int], count: int) -> list[int]:
    return [rule.choose(loads, want(number)) for number in range(count)]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    assert chosen(RIVALS["round robin"](Random(1)), (9, 0, 0), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_least_load_takes_any_of_the_emptiest() -> None:
    assert set(chosen(RIVALS["least load"](Random(1)), (3, 1, 2, 1), 50)) == {1, 3}


def test_random_of_two_never_takes_the_fullest() -> None:
    assert set(chosen(RIVALS["random of two"](Random(1)), (3, 1, 2), 50)) == {1, 2}


def test_affinity_is_to_the_conversation_and_spreads_them() -> None:
    rule = RIVALS["prefix affinity"](Random(1))
    places = [rule.choose((0,) * 4, want(number, (), f"trace-{number}")) for number in range(400)]
    assert places == [rule.choose((9, 0, 0, 0), want(0, (), f"trace-{number}")) for number in range(400)]
    assert min(places.count(place) for place in range(4)) > 60


def test_cache_aware_follows_the_tree_unless_the_load_is_uneven() -> None:
    rule = CacheAware(Random(1))
    assert rule.choose((0, 0), want(1, (1, 2, 3, 4))) == 0
    assert rule.choose((0, 0), want(2, (5, 6))) == 1  # its tree is smaller
    assert rule.choose((60, 0), want(3, (1, 2, 9))) == 0  # two thirds of it are there
    assert rule.choose((65, 0), want(4, (1, 2))) == 1  # 65 more, and over 1.5 times as many
    assert rule.choose((0, 0), want(5, (1, 7, 8, 9))) == 1  # a quarter is too little: the smaller tree


def test_a_split_keeps_to_its_shares() -> None:
    places = chosen(Split((0.7, 0.2, 0.1)), (0, 0, 0), 100)
    assert [places.count(place) for place in range(3)] == [70, 20, 10]


def figures_of(goodput: float, hits: float, **more: float) -> Figures:
    keys = (
        "in_objective", "shed", "skew", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p90", "sent", "amplification",
    )  # fmt: skip
    return dict.fromkeys(keys, 1.0) | {"goodput_tokens": goodput, "asked_tokens": 110.0, "hit_rate": hits} | more


def test_the_last_line_names_the_worst_of_each_kind() -> None:
    rivals = {name: [figures_of(100.0, 0.5)] * 3 for name in RIVALS}
    rivals["prefix affinity"] = [figures_of(90.0, 0.8)] * 3
    rivals |= {name: [figures_of(80.0, 0.5)] * 3 for name in OPENLY}
    ours = [figures_of(value, 0.78, skew=1.1) for value in (90.0, 106.0, 120.0)]
    cells = [
        Cell("a", 4, 1.2, rivals | {OURS: ours}),
        Cell("b", 4, 1.2, rivals | {OURS: [figures_of(110.0, 0.72)] * 3}),
    ]
    splits: dict[float, dict[float | None, list[Figures]]] = {
        1.2: {None: [figures_of(97.0, 0.1)], 0.0: [figures_of(90.0, 0.1)], 0.1: [figures_of(100.0, 0.1)]}
    }
    events = {"dies": [{"recovery": 0.96, "sent": 1.01, "amplification": 1.02}]}
    report = Report(cells, splits, events)
    assert verdict(report) == (
        "fleet: goodput over the best rival 1.2x 1.32 (a/4/1.2x), over what can be won of 1.05 1.26 (a/4/1.2x); the "
        "same where its engines have this admission 1.2x 1.06 (a/4/1.2x), 1.01 (a/4/1.2x); hits over affinity's 0.90 "
        "(b/4/1.2x); most loaded over the mean 1.10 (a/4/1.2x); mixed over the oracle 0.97 "
        "(1.2x); after events 0.96 (dies), sent 1.01 (dies)"
    )
    lines = list(everything(report))
    assert lines[-1] == verdict(report)
    assert any(re.match(r"\| \*\*gateway\*\* +\| 1\.32 +\| 1\.38 +\| 1\.06 +\| 1\.10 +\| 106 ", line) for line in lines)
    assert any(re.match(r"\| 1\.2x +\| 0\.97 +\| 97 +\| 100 +\| 0\.100", line) for line in lines)


def test_a_row_in_which_little_can_be_won_is_judged_by_that() -> None:
    rivals = {name: [figures_of(108.0, 0.5)] * 3 for name in RIVALS}
    cell = Cell("a", 4, 0.7, rivals | {OURS: [figures_of(109.0, 0.5)] * 3})
    assert cell.bound(GUARDED) == pytest.approx(110.0 / 108.0)
    assert cell.short(GUARDED) == pytest.approx(109.0 / 110.0)


def test_engines_that_are_open_take_in_whatever_comes() -> None:
    brief = replace(CHATS, horizon=70.0, measure_from=40.0)
    setup = brief.setup(machines(4), 2.0, 20)
    guarded, bare = (figures(setup, run(setup, policy)) for policy in ("round robin", "round robin, open"))
    assert guarded["shed"] > 0.0
    assert bare["shed"] == 0.0
    assert bare["goodput_tokens"] < 0.9 * guarded["goodput_tokens"]
    assert 1.0 <= bare["skew"] < 1.3


def test_a_bench_that_is_ended_early_compares_the_seeds_that_all_had() -> None:
    jobs: dict[Job, Work] = {
        ("cell", ("a", 4, 1.2), policy, seed): dict for policy in POLICIES for seed in (20, 21, 22)
    }
    found = {job: figures_of(100.0 + job[3], 0.5) for job in jobs}
    del found["cell", ("a", 4, 1.2), OURS, 20], found["cell", ("a", 4, 1.2), "cache_aware", 22]
    [cell] = report_of(found, jobs).cells
    assert {len(runs) for runs in cell.runs.values()} == {1}
    assert cell.over(OURS, "cache_aware") == 1.0
    assert not report_of({}, jobs).cells


def test_the_fleets_are_what_they_are_called() -> None:
    assert [machine.profile is DUO_310P for machine in mixed()] == [False] + [True] * 7
    for event in EVENTS:
        assert CHATS.setup(event.fleet, event.load, 1).horizon >= event.at + AFTER + FOR


@pytest.mark.parametrize(
    ("row", "load", "hits", "over"), [(CHATS, 0.4, (0.8, 1.0), (1.1, 2.0)), (MOONCAKE, 1.2, (0.12, 0.4), (1.3, 4.0))]
)
def test_affinity_finds_in_the_caches_what_turns_about_does_not(
    row: Row, load: float, hits: tuple[float, float], over: tuple[float, float]
) -> None:
    brief = replace(row, horizon=row.horizon / 2, measure_from=row.measure_from / 2)
    setup = brief.setup(machines(4), load, 20)
    ours, turns = (figures(setup, run(setup, policy)) for policy in (OURS, "round robin"))
    assert hits[0] < ours["hit_rate"] < hits[1]
    assert over[0] < ours["hit_rate"] / turns["hit_rate"] < over[1]
    assert ours["goodput_tokens"] > turns["goodput_tokens"]
    assert ours["skew"] < 1.6  # few are in flight in so short a run
    assert ours["sent"] < 1.01
