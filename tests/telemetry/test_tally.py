"""The figures of a report, worked out by hand. (tests/real compares them with vLLM's own code.)"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Entry, Rule
from gateway.telemetry.tally import Figures, Tally, tallied
from tests.telemetry.entries import ended, entry, refused


def figures(*entries: Entry, **options: Any) -> Figures:
    return tallied(entries, Tally(**options))


def test_figures_of_two_streams() -> None:
    found = figures(
        entry(100.0, (200_000, 300_000, 500_000), finished=600_000),
        entry(100.5, (100_000, 400_000), prompt_tokens=10, finished=1_500_000),
        percents=(50.0, 99.0),
    )
    assert (found.completed, found.failed, found.received) == (2, 0, 2)
    assert found.began == 100.0
    assert found.duration == pytest.approx(2.0)
    assert (found.input_tokens, found.output_tokens) == (50, 5)
    assert found.rate(found.output_tokens) == pytest.approx(2.5)
    assert [found.ttft.mean, found.ttft.median] == pytest.approx([0.15, 0.15])
    assert [found.tpot.count, found.tpot.mean] == pytest.approx([2, (0.15 + 0.3) / 2])
    assert [found.itl.count, found.itl.mean, found.itl.median] == pytest.approx([3, 0.2, 0.2])
    assert [found.e2el.mean, found.e2el.percentiles[99.0]] == pytest.approx([0.45, 0.499])
    assert (found.peak_output, found.peak_concurrency, found.peak_concurrency_exact) == (5, 2, 1)
    assert found.queue_wait.mean == pytest.approx(0.1)
    assert found.engine_ttft.mean == pytest.approx(0.15 - 0.103)
    assert found.first_output.mean == pytest.approx(0.15)
    assert found.models == ("qwen3-8b",)
    assert found.good is None


def test_entries_may_come_in_the_order_of_their_ends() -> None:
    early, late = entry(100.0, (100_000, 3_000_000)), entry(101.0, (100_000, 200_000))
    assert figures(late, early) == figures(early, late)
    assert figures(late, early).began == 100.0


def test_the_rules_differ_in_role_chunks_and_reasoning_content() -> None:
    stream = entry(100.0, (300_000, 400_000, 500_000, 600_000), output_tokens=4, finished=900_000)
    stream.blanks = array("I", [100_000, 700_000])
    stream.unheard = array("I", [300_000, 400_000])
    by_rule = {rule: figures(stream, rule=rule) for rule in Rule}
    assert [by_rule[rule].ttft.mean for rule in (Rule.ANY, Rule.V33, Rule.V32)] == pytest.approx([0.3, 0.5, 0.1])
    assert [by_rule[rule].e2el.mean for rule in (Rule.ANY, Rule.V33, Rule.V32)] == pytest.approx([0.6, 0.6, 0.7])
    assert [by_rule[rule].tpot.mean for rule in (Rule.ANY, Rule.V33, Rule.V32)] == pytest.approx([0.1, 0.1 / 3, 0.2])
    assert [by_rule[rule].itl.count for rule in (Rule.ANY, Rule.V33, Rule.V32)] == [3, 1, 5]
    assert [by_rule[rule].peak_output for rule in (Rule.ANY, Rule.V33, Rule.V32)] == [4, 2, 6]
    assert [by_rule[rule].first_output.mean for rule in Rule] == pytest.approx([0.3] * 3)


def test_a_stream_without_a_chunk_that_counts_has_failed_as_for_vllm() -> None:
    thought = replace(entry(stamps=(300_000, 400_000)), unheard=array("I", [300_000, 400_000]))
    found = figures(thought, replace(entry(stamps=()), blanks=array("I", [10])))
    assert (found.completed, found.failed, found.silent) == (0, 2, 2)
    assert found.first_output.count == 1
    assert figures(thought, rule=Rule.ANY).completed == 1


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    found = figures(entry(stamps=(100_000,)), objectives={"tpot": 0.001})
    assert (found.tpot.count, found.itl.count, found.good) == (0, 0, 1)


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({}, None),
        ({"ttft": 0.2}, 1),
        ({"ttft": 0.1}, 0),
        ({"ttft": 0.2, "tpot": 0.3, "e2el": 0.8}, 1),
        ({"ttft": 0.2, "tpot": 0.29, "e2el": 0.8}, 0),
        ({"ttft": 0.2, "tpot": 0.3, "e2el": 0.79}, 0),
    ],
)
def test_goodput_wants_every_objective_met(objectives: dict[str, float], good: int | None) -> None:
    assert figures(entry(stamps=(200_000, 500_000, 800_000)), objectives=objectives).good == good


def test_an_answer_that_is_not_streamed_has_an_end_and_tokens_alone() -> None:
    whole = entry(100.0, (), stream=False, output_tokens=30, finished=3_000_000)
    found = figures(whole, objectives={"ttft": 3.0, "tpot": 0.001, "e2el": 3.0})
    assert (found.completed, found.whole, found.output_tokens, found.good) == (1, 1, 30, 1)
    assert (found.ttft.count, found.tpot.count, found.itl.count, found.engine_ttft.count) == (0, 0, 0, 0)
    assert found.e2el.mean == pytest.approx(3.0)
    assert (found.peak_output, found.peak_concurrency) == (0, 1)
    assert figures(whole, objectives={"ttft": 2.9}).good == 0


def test_tokens_without_usage_are_chunks_or_estimates_and_said_to_be() -> None:
    unsaid: dict[str, Any] = {"prompt_tokens": None, "output_tokens": None}
    found = figures(entry(**unsaid), entry(stamps=(), stream=False, **unsaid), entry(output_tokens=None))
    assert (found.input_tokens, found.output_tokens) == (50 + 50 + 40, 3 + 60 + 3)
    assert (found.estimated_prompts, found.estimated_outputs, found.chunks_for_tokens) == (2, 1, 2)
    assert found.tpot.mean == pytest.approx(0.1)


def test_refusals_failures_and_aborts_are_told_apart() -> None:
    found = figures(
        entry(),
        refused(reason=Reason.DEADLINE),
        refused(reason=Reason.DEADLINE, retry=1),
        refused(reason=Reason.QUEUE_TIMEOUT, admitted=None),
        ended(Outcome.BACKEND_LOST),
        ended(Outcome.CLIENT_ERROR),
        ended(Outcome.CLIENT_ERROR),
        ended(Outcome.CLIENT_GONE, attempts=2),
    )
    assert (found.received, found.completed, found.failed, found.aborted) == (8, 1, 6, 1)
    assert found.refused == {"deadline": 2, "queue_timeout": 1}
    assert list(found.failures.items()) == [("client_error", 2), ("backend_lost", 1)]
    assert (found.first_attempts, found.engine_attempts) == (7, 6)
    assert found.ttft.count == found.e2el.count == 1
    assert found.queue_wait.count == 5


def test_what_generates_nothing_is_only_counted() -> None:
    found = figures(entry(90.0, generates=False), entry(100.0))
    assert (found.received, found.others, found.completed, found.began) == (1, 1, 1, 100.0)


def test_a_report_on_nothing_is_all_zero() -> None:
    found = figures()
    assert (found.completed, found.duration, found.rate(1), found.peak_output) == (0, 0.0, 0.0, 0)
    assert found.models == ()


def test_an_answer_may_name_no_model_and_an_engine_that_was_not_noted() -> None:
    found = figures(entry(model=None, sent=None, offered=None))
    assert (found.models, found.engine_ttft.count, found.queue_wait.count) == ((), 0, 0)
