"""Knee and best level, and how a curve is printed."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from gateway.telemetry.curve import Level, Objectives
from gateway.telemetry.curve_table import Curve, Marks, csv_table, curve, marks, objectives_of, result, text_table
from gateway.telemetry.spread import spread
from tests.telemetry.helpers import backend_state, gateway_state


def level(at: int, rate: float = 0.0, high: int | None = None, **changes: Any) -> Level:
    """A level with evidence enough; a request has ten tokens."""
    made = Level(
        low=at,
        high=high or at,
        level=float(at),
        held=60.0,
        seen=2.5,
        requests=500,
        latency=spread([0.1 * at, 0.1 * at, 0.2 * at], (95.0, 99.0)),
        ttft=spread([0.02, 0.04], (95.0, 99.0)),
        tpot=spread([0.01], (95.0, 99.0)),
        requests_rate=rate,
        tokens_rate=10.0 * rate,
        in_objective=None,
    )
    return replace(made, **changes)


SATURATING = [level(1, 10.0), level(4, 25.0), level(8, 29.0), level(16, 31.0), level(32, 30.0)]


def test_the_knee_is_the_lowest_level_with_nine_tenths_of_the_best_throughput() -> None:
    assert marks(SATURATING) == Marks(knee=8, best=8)


def test_tokens_count_where_there_are_any_and_requests_else() -> None:
    lengths = [replace(each, tokens_rate=rate) for each, rate in zip(SATURATING, (10, 20, 30, 90, 100), strict=True)]
    assert marks(lengths).knee == 16
    embeddings = [replace(each, tokens_rate=0.0) for each in SATURATING]
    assert marks(embeddings).knee == 8


def test_where_throughput_still_rises_there_is_no_knee() -> None:
    rising = [level(at, float(at)) for at in (1, 2, 4, 8)]
    assert marks(rising) == Marks(None, None, "throughput still rises at 8, the highest level with evidence enough")


def test_thin_evidence_marks_nothing() -> None:
    thin = [replace(each, requests=10) for each in SATURATING[:3]] + SATURATING[3:]
    found = marks(thin)
    assert (found.knee, found.best) == (None, None)
    assert found.note == "fewer than 3 levels have evidence enough (30 requests and 5 s each)"
    assert marks([replace(each, held=1.0) for each in SATURATING]).knee is None


def test_with_objectives_the_best_level_serves_most_requests_in_time() -> None:
    shares = (1.0, 1.0, 0.99, 0.7, 0.1)
    found = marks([replace(each, in_objective=share) for each, share in zip(SATURATING, shares, strict=True)])
    assert found == Marks(knee=8, best=8)
    loose = marks([replace(each, in_objective=1.0) for each in SATURATING])
    assert loose.best == 16
    tight = marks([replace(each, in_objective=float(each.low < 4)) for each in SATURATING])
    assert tight.best == 1
    rising = marks([replace(level(at, float(at)), in_objective=1.0) for at in (1, 2, 4, 8)])
    assert rising == Marks(None, 8, "throughput still rises at 8, the highest level with evidence enough")


def test_where_no_level_is_in_time_none_is_best() -> None:
    found = marks([replace(each, in_objective=0.0) for each in SATURATING])
    assert found == Marks(8, None, "no level meets the objectives")


def test_an_engine_that_answers_nothing_has_no_knee() -> None:
    assert marks([level(at, 0.0) for at in (1, 2, 4)]) == Marks(None, None)


def test_a_curve_knows_what_its_backend_does_now() -> None:
    state = gateway_state(backend_state("gpu1", limit=12.5, running=7))
    found = curve("gpu1", None, SATURATING, state)
    assert (found.limit, found.running) == (12.5, 7)
    assert found.unseen == [(2, 3), (5, 7), (9, 15), (17, 31)]
    gone = curve("gpu9", None, SATURATING, state)
    assert (gone.limit, gone.running) == (None, 0)


def test_objectives_are_those_of_now() -> None:
    state = gateway_state()
    assert not objectives_of(state)
    short, long = state.lanes
    told = replace(state, lanes=(replace(short, ttft_objective=0.5), long), tpot_objective=0.1)
    assert objectives_of(told) == Objectives({"short": 0.5}, 0.1)


def shown(*levels: Level, **changes: Any) -> Curve:
    made = Curve("gpu1", None, 12.5, 7, levels, marks(levels))
    return replace(made, **changes)


def test_the_json_has_every_figure() -> None:
    told = result([shown(replace(SATURATING[0], in_objective=0.98761))], Objectives({"short": 1.0}, 0.1))
    (found,) = told["curves"]
    assert told["objectives"] == {"ttft": {"short": 1.0}, "tpot": 0.1}
    assert (found["backend"], found["model"], found["limit"], found["running"]) == ("gpu1", None, 12.5, 7)
    assert found["levels"] == [
        {
            "low": 1,
            "high": 1,
            "level": 1.0,
            "held_seconds": 60.0,
            "seen_seconds_ago": 2.5,
            "requests": 500,
            "latency": {"mean": 0.133333, "p95": 0.19, "p99": 0.198},
            "ttft": {"mean": 0.03, "p95": 0.039, "p99": 0.0398},
            "tpot": {"mean": 0.01, "p95": 0.01, "p99": 0.01},
            "requests_per_second": 10.0,
            "tokens_per_second": 100.0,
            "in_objective": 0.9876,
            "enough": True,
        }
    ]


def test_what_is_not_known_is_null_in_json() -> None:
    bare = replace(SATURATING[0], latency=None, ttft=None, tpot=None)
    told = result([shown(bare, limit=None)], Objectives())
    (found,) = told["curves"]
    assert (told["objectives"], found["limit"], found["knee"], found["best"]) == (None, None, None, None)
    (only,) = found["levels"]
    assert (only["latency"], only["ttft"], only["tpot"], only["in_objective"]) == (None, None, None, None)


def test_csv_has_a_line_for_each_level_of_each_curve() -> None:
    bare = replace(SATURATING[0], ttft=None)
    text = csv_table([shown(*SATURATING), shown(bare, model="qwen")])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["model"], row["low"], row["knee"], row["best"]) for row in rows] == [
        ("", "1", "False", "False"),
        ("", "4", "False", "False"),
        ("", "8", "True", "True"),
        ("", "16", "False", "False"),
        ("", "32", "False", "False"),
        ("qwen", "1", "False", "False"),
    ]
    assert rows[2]["latency_mean"] == "1.066667"
    assert (rows[0]["ttft_p99"], rows[5]["ttft_p99"]) == ("0.0398", "")


def test_the_table_is_the_one_that_people_make_by_hand() -> None:
    levels = [level(1, 10.0), replace(level(4, 25.0), requests=12), level(8, 29.0, high=9), level(12, 30.0, high=13)]
    text = text_table([shown(*levels, level(20, 31.0, high=23))])
    head, columns, *rows, summary = text.splitlines()
    assert head == "gpu1, all requests (limit 12.5, 7 in flight now)"
    assert columns.split() == [
        *("in", "flight", "held", "s", "requests", "mean", "ms", "P95", "ms", "P99", "ms"),
        *("TTFT", "ms", "P99", "TPOT", "ms", "P99", "req/s", "tok/s", "in", "obj."),
    ]
    assert [row.split()[0] for row in rows] == ["1", "2-3", "4", "5-7", "8-9", "10-11", "12-13", "14-19", "20-23"]
    assert rows[0].split() == [
        *("1", "60", "500", "133.3", "190.0", "198.0", "30.0", "39.8", "10.0", "10.0", "10.00", "100", "-"),
    ]
    assert rows[1].split() == ["2-3", "never"]
    assert rows[2].endswith("thin")
    assert rows[4].endswith("knee, best")
    assert rows[6].endswith("limit")
    assert summary == "Knee at 8: beyond it, less than a tenth of throughput is to be had."


@pytest.mark.parametrize(
    ("found", "title", "summary"),
    [
        (
            shown(*[replace(each, in_objective=1.0) for each in SATURATING], model="qwen"),
            "gpu1, qwen (limit 12.5, 7 in flight now)",
            "Knee at 8: beyond it, less than a tenth of throughput is to be had. Best for the objectives: 16.",
        ),
        (
            shown(replace(SATURATING[0], latency=None, ttft=None, tpot=None), model="", limit=None),
            "gpu1, no model named (gone)",
            "Fewer than 3 levels have evidence enough (30 requests and 5 s each).",
        ),
    ],
)
def test_titles_and_summaries(found: Curve, title: str, summary: str) -> None:
    lines = text_table([found]).splitlines()
    assert (lines[0], lines[-1]) == (title, summary)


def test_a_share_in_time_is_printed_as_per_cent() -> None:
    text = text_table([shown(replace(SATURATING[0], in_objective=0.987))])
    assert "98.7%" in text


def test_without_traffic_the_table_says_so() -> None:
    assert text_table([]) == "No request has been answered yet: nothing is known of any level.\n"
