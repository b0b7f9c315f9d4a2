"""How a report is printed, and the options it is asked for with."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from typing import Any

import pytest

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Entry, Rule
from gateway.telemetry.report import (
    Heading,
    bench_report,
    csv_report,
    objectives_of,
    percents_of,
    result,
    rule_of,
    text_report,
)
from gateway.telemetry.tally import Figures, Tally, tallied
from tests.telemetry.entries import ended, entry, refused

BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     2         
Failed requests:                         3         
Benchmark duration (s):                  2.00      
Total input tokens:                      80        
Total generated tokens:                  5         
Request throughput (req/s):              1.00      
Request goodput (req/s):                 0.50      
Output token throughput (tok/s):         2.50      
Peak output token throughput (tok/s):    5.00      
Peak concurrent requests:                2.00      
Total token throughput (tok/s):          42.50     
---------------Time to First Token----------------
Mean TTFT (ms):                          150.00    
Median TTFT (ms):                        150.00    
P50 TTFT (ms):                           150.00    
P99.5 TTFT (ms):                         199.50    
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          225.00    
Median TPOT (ms):                        225.00    
P50 TPOT (ms):                           225.00    
P99.5 TPOT (ms):                         299.25    
---------------Inter-token Latency----------------
Mean ITL (ms):                           200.00    
Median ITL (ms):                         200.00    
P50 ITL (ms):                            200.00    
P99.5 ITL (ms):                          299.00    
----------------End-to-end Latency----------------
Mean E2EL (ms):                          450.00    
Median E2EL (ms):                        450.00    
P50 E2EL (ms):                           450.00    
P99.5 E2EL (ms):                         499.50    
==================================================
"""  # noqa: W291 - vLLM pads its values

OWN = """\
============== Seen by the Gateway ===============
Requests received:                       6         
First attempts of clients:               5         
Retries of clients:                      1         
Attempts at engines:                     4         
Given up by their client:                1         
Refused:                                 2         
  deadline:                              2         
Failed otherwise:                        1         
  backend_lost:                          1         
Answers not streamed:                    0         
Peak concurrent requests, exact:         1         
-----------Wait in the Gateway's Queue------------
Mean queue wait (ms):                    100.00    
Median queue wait (ms):                  100.00    
P50 queue wait (ms):                     100.00    
P99.5 queue wait (ms):                   100.00    
--------Time to First Token at the Engine---------
Mean engine TTFT (ms):                   47.00     
Median engine TTFT (ms):                 47.00     
P50 engine TTFT (ms):                    47.00     
P99.5 engine TTFT (ms):                  96.50     
-------------First Output of Any Kind-------------
Mean first output (ms):                  150.00    
Median first output (ms):                150.00    
P50 first output (ms):                   150.00    
P99.5 first output (ms):                 199.50    
==================================================
Definitions: as vllm bench serve 0.33 counts; time starts when a request reaches the gateway.
"""  # noqa: W291 - the same

TRAFFIC = (
    entry(100.0, (200_000, 300_000, 500_000), finished=600_000),
    entry(100.5, (100_000, 400_000), finished=1_500_000),
    refused(100.6),
    refused(100.7, retry=1),
    ended(Outcome.BACKEND_LOST, 100.8),
    ended(Outcome.CLIENT_GONE, 100.9),
)


def figures(*entries: Entry, **options: Any) -> Figures:
    return tallied(entries, Tally(**options))


def lines(*entries: Entry, heading: Heading | None = None, **options: Any) -> list[str]:
    return text_report(figures(*entries, **options), heading or Heading()).splitlines()


def test_the_block_is_vllms_to_the_letter_and_the_gateways_own_stands_below() -> None:
    found = figures(*TRAFFIC, objectives={"ttft": 0.15}, percents=(50.0, 99.5))
    assert text_report(found, Heading()) == BLOCK + OWN
    assert bench_report(found) == BLOCK


def test_goodput_is_printed_where_objectives_are_given() -> None:
    assert not any("goodput" in line for line in lines(*TRAFFIC))


def test_what_a_reader_must_know_is_said_below() -> None:
    unsaid: dict[str, Any] = {"prompt_tokens": None, "output_tokens": None}
    notes = "\n".join(
        lines(
            entry(**unsaid),
            entry(stamps=(), stream=False, **unsaid),
            entry(stamps=(), blanks=None),
            entry(generates=False),
            heading=Heading(lost=1_796_042_131.0),
            rule=Rule.V32,
        )[-6:]
    )
    assert "Definitions: as vllm bench serve 0.32 counts; time starts" in notes
    assert "1 streams ended well without a chunk that counts so: --compat any counts all output." in notes
    assert "1 streams came without usage: their output tokens are counts of chunks" in notes
    assert "Estimated, as no usage came: the prompt tokens of 2 answers, the output tokens of 1." in notes
    assert "1 requests generate nothing" in notes
    here = datetime.fromtimestamp(1_796_042_131).astimezone().isoformat(timespec="seconds")
    assert f"What finished up to {here} is no longer kept" in notes


def test_streams_without_output_are_among_the_failures() -> None:
    assert "  no output that counts:                 1         " in lines(entry(stamps=(), blanks=None))
    any_output = lines(entry(stamps=(), blanks=None), rule=Rule.ANY)
    assert "  no output that counts:                 1         " in any_output
    assert any_output[-1] == (
        "Definitions: chunks of any output count; time starts when a request reaches the gateway."
    )


# ----------------------------------------------------------------------------------------------------- for programs


def test_the_result_has_vllms_keys() -> None:
    found = result(figures(*TRAFFIC, objectives={"ttft": 0.15}), Heading("run", "m", offset=1_796_042_031.0))
    assert found["date"] == "20261130-123531"
    assert (found["label"], found["model_id"], found["num_prompts"]) == ("run", "m", 5)
    assert (found["completed"], found["failed"], found["duration"]) == (2, 3, pytest.approx(2.0))
    assert found["request_goodput"] == pytest.approx(0.5)
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (5.0, 2)
    assert found["mean_ttft_ms"] == pytest.approx(150.0)
    assert found["std_ttft_ms"] == pytest.approx(50.0)
    assert found["p99_e2el_ms"] == pytest.approx(499.0)
    assert json.loads(json.dumps(found)) == found


def test_the_rest_is_under_a_key_of_the_gateways_own_and_its_keys_are_always_there() -> None:
    found = result(figures(*TRAFFIC), Heading())
    own = found["gateway"]
    assert own["refused"] == {reason.value: 2 * (reason is Reason.DEADLINE) for reason in Reason}
    assert own["failures"]["backend_lost"] == 1
    assert own["failures"].keys() == {o.value for o in Outcome} - {"completed", "refused", "client_gone"}
    assert own["mean_queue_wait_ms"] == pytest.approx(100.0)
    assert own.keys() == result(figures(), Heading())["gateway"].keys()
    assert found.keys() == result(figures(), Heading()).keys()
    assert found["request_goodput"] is None


def test_the_model_is_named_where_there_is_one() -> None:
    one, other = entry(model="a"), entry(model="b")
    assert result(figures(one), Heading())["model_id"] == "a"
    assert result(figures(one, other), Heading())["model_id"] is None
    assert result(figures(one, other), Heading())["gateway"]["models"] == ["a", "b"]


def test_csv_has_a_line_of_names_and_one_of_values() -> None:
    found = figures(*TRAFFIC, entry(model="b"))
    names, values = csv.reader(csv_report(found, Heading("a, b")).splitlines())
    row = dict(zip(names, values, strict=True))
    assert row["label"] == "a, b"
    assert row["completed"] == "3"
    assert row["gateway.refused.deadline"] == "2"
    assert row["gateway.models"] == "qwen3-8b b"
    assert row["request_goodput"] == ""
    assert float(row["mean_ttft_ms"]) == result(found, Heading())["mean_ttft_ms"]


# ---------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "rule"),
    [("0.33", Rule.V33), ("0.33.0", Rule.V33), ("0.32", Rule.V32), ("0.32.1", Rule.V32), ("any", Rule.ANY)],
)
def test_versions_of_vllm(text: str, rule: Rule) -> None:
    assert rule_of(text) is rule


@pytest.mark.parametrize("text", ["", "0.3", "0.331", "any.1", "1.0"])
def test_another_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version of vllm bench serve, 0\.33 or 0\.32, or any"):
        rule_of(text)


def test_objectives_are_spelt_as_vllm_takes_them() -> None:
    assert objectives_of(["ttft:500", "tpot:50.5", "e2el:9000"]) == {"ttft": 0.5, "tpot": 0.0505, "e2el": 9.0}
    assert objectives_of([]) == {}


@pytest.mark.parametrize("text", ["ttft", "ttft:", "itl:5", "ttft:-5", "ttft:5s", ":5", "ttft:٣"])
def test_an_objective_of_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected ttft:MILLISECONDS, tpot:MILLISECONDS, e2el:MILLISECONDS"):
        objectives_of([text])


def test_percentiles_are_numbers_up_to_a_hundred() -> None:
    assert percents_of("50,99.9,100") == (50.0, 99.9, 100.0)


@pytest.mark.parametrize("text", ["", "50,", "p50", "-1", "100.1", "1.2.3"])
def test_other_percentiles_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected percentiles from 0 to 100"):
        percents_of(text)
