"""Names, labels and buckets are an interface: dashboards and alerts of other people hang on them."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.model import Outcome, Reason
from gateway.telemetry import definitions
from gateway.telemetry.definitions import DEFINITIONS, SECTIONS, Definition, Kind
from gateway.telemetry.events import EventLog
from gateway.telemetry.metrics import process_registry
from gateway.telemetry.metrics_doc import render
from gateway.telemetry.share import ShareLog
from tests.telemetry.helpers import metrics, record, refused, scrape

EXPECTED = {
    "gateway_requests_total": ("counter", {"model", "route", "code", "outcome"}),
    "gateway_backend_requests_total": ("counter", {"backend", "outcome"}),
    "gateway_client_requests_total": ("counter", {"client", "outcome"}),
    "gateway_priority_requests_total": ("counter", {"priority", "outcome"}),
    "gateway_request_duration_seconds": ("histogram", {"model", "outcome"}),
    "gateway_time_to_first_token_seconds": ("histogram", {"model", "class"}),
    "gateway_backend_time_to_first_token_seconds": ("histogram", {"backend"}),
    "gateway_inter_token_latency_seconds": ("histogram", {"model"}),
    "gateway_time_per_output_token_seconds": ("histogram", {"model"}),
    "gateway_queue_wait_seconds": ("histogram", {"class", "outcome"}),
    "gateway_overhead_seconds": ("histogram", set()),
    "gateway_shed_total": ("counter", {"reason"}),
    "gateway_retry_attempts_total": ("counter", set()),
    "gateway_retry_after_seconds": ("histogram", set()),
    "gateway_retry_arrivals_total": ("counter", {"kept"}),
    "gateway_prompt_tokens_total": ("counter", {"model", "source"}),
    "gateway_output_tokens_total": ("counter", {"model", "source"}),
    "gateway_estimate_error_ratio": ("histogram", {"tokens"}),
    "gateway_inflight_requests": ("gauge", {"backend"}),
    "gateway_inflight_tokens": ("gauge", {"backend"}),
    "gateway_unstarted_requests": ("gauge", {"backend"}),
    "gateway_concurrency_limit": ("gauge", {"backend"}),
    "gateway_concurrency_limit_minimum": ("gauge", {"backend"}),
    "gateway_token_limit": ("gauge", {"backend"}),
    "gateway_concurrency_limit_changes_total": ("counter", {"backend", "direction", "reason"}),
    "gateway_backend_choices_total": ("counter", {"backend", "choice"}),
    "gateway_prefix_cache_tokens_total": ("counter", {"backend", "found"}),
    "gateway_pace_seconds": ("gauge", {"backend"}),
    "gateway_latency_baseline_seconds": ("gauge", {"backend"}),
    "gateway_pace_target_seconds": ("gauge", {"backend"}),
    "gateway_backend_up": ("gauge", {"backend"}),
    "gateway_backend_drained": ("gauge", {"backend"}),
    "gateway_backend_silence_seconds": ("gauge", {"backend"}),
    "gateway_backend_kv_usage_ratio": ("gauge", {"backend"}),
    "gateway_backend_scrape_age_seconds": ("gauge", {"backend"}),
    "gateway_queue_depth": ("gauge", {"class"}),
    "gateway_queue_priority_depth": ("gauge", {"priority"}),
    "gateway_queue_tokens": ("gauge", {"class"}),
    "gateway_queue_oldest_wait_seconds": ("gauge", {"class"}),
    "gateway_queue_max_wait_seconds": ("gauge", {"class"}),
    "gateway_finding": ("gauge", {"cause", "backend"}),
    "gateway_canary_failures_total": ("counter", {"backend"}),
    "gateway_overloaded": ("gauge", set()),
    "gateway_draining": ("gauge", set()),
    "gateway_event_loop_lag_seconds": ("gauge", set()),
    "gateway_workers": ("gauge", set()),
    "gateway_access_log_dropped_total": ("counter", set()),
    "gateway_records_dropped_total": ("counter", set()),
    "gateway_untold_requests_total": ("counter", set()),
    "gateway_connections_refused_total": ("counter", set()),
    "gateway_share_up": ("gauge", set()),
    "gateway_share_gateways": ("gauge", set()),
    "gateway_share_decisions_total": ("counter", {"way"}),
    "gateway_share_claims_total": ("counter", set()),
    "gateway_share_failures_total": ("counter", {"reason"}),
    "gateway_share_round_trip_seconds": ("histogram", set()),
    "gateway_build_info": ("gauge", {"version"}),
    "gateway_config_info": ("gauge", {"hash"}),
}

EDGES = {
    "gateway_time_to_first_token_seconds": (
        ".005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160"  # to 160 s: overload goes past 10
    ),
    "gateway_backend_time_to_first_token_seconds": ".005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160",
    "gateway_inter_token_latency_seconds": ".001 .005 .01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5",
    "gateway_time_per_output_token_seconds": ".001 .005 .01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5",
    "gateway_request_duration_seconds": ".1 .3 .5 1 2.5 5 10 15 20 30 40 60 120 240 480 960 1920",
    "gateway_queue_wait_seconds": ".0005 .001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 20 30 60 120",
    "gateway_overhead_seconds": ".0001 .00025 .0005 .001 .0025 .005 .01 .025 .05 .1",
    "gateway_estimate_error_ratio": ".02 .05 .1 .2 .3 .5 1 2 5",
    "gateway_share_round_trip_seconds": ".0001 .00025 .0005 .001 .0025 .005 .01 .025 .05 .1",
    "gateway_retry_after_seconds": "1 2 3 5 8 10 15 20 30 45 60",
}


def test_names_types_and_labels() -> None:
    assert {each.name: (each.kind.value, set(each.labels)) for each in DEFINITIONS} == EXPECTED
    assert len(DEFINITIONS) == len(EXPECTED)


def test_buckets() -> None:
    shipped = {each.name: each.edges for each in DEFINITIONS if each.kind is Kind.HISTOGRAM}
    assert shipped == {name: tuple(map(float, edges.split())) for name, edges in EDGES.items()}


@pytest.mark.parametrize("each", DEFINITIONS, ids=lambda each: each.name)
def test_the_conventions_of_prometheus(each: Definition) -> None:
    assert re.fullmatch(r"gateway_[a-z][a-z_]*[a-z]", each.name)
    assert each.name.endswith("_total") == (each.kind is Kind.COUNTER)
    assert each.name.endswith(("_seconds", "_ratio")) or each.kind is not Kind.HISTOGRAM
    assert bool(each.edges) == (each.kind is Kind.HISTOGRAM)
    assert all(low < high for low, high in pairwise(each.edges))
    assert not any(
        label in each.name.split("_") for label in each.labels if label not in {"backend", "client", "priority"}
    )
    assert each.meaning.endswith(".")
    assert each.action.endswith(".")


def test_every_definition_is_in_a_section() -> None:
    defined = {value.name for value in vars(definitions).values() if isinstance(value, Definition)}
    assert defined == {each.name for _, section in SECTIONS for each in section}


def test_what_is_exposed_is_what_is_defined() -> None:
    found = (("kv_bound", "gpu1"),)
    dropped: dict[str, Any] = {"log_dropped": lambda: 3, "records_dropped": lambda: 4, "untold": lambda: 5}
    dropped["connections_refused"] = lambda: 6
    process: dict[str, Any] = {"loop_lag": lambda: 0.002, "workers": lambda: 1}
    share = ShareLog(EventLog()).collect
    source = metrics(findings=lambda: found, canary_failures={"gpu1": 1}, more=(share,), **process, **dropped)
    source.observe(record())
    source.observe(refused(reason=Reason.QUEUE_FULL, retry_after=2.0))
    types = {}
    for family in text_string_to_metric_families(generate_latest(source.registry).decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        types[name] = (family.type, labels)
    assert types == EXPECTED


def test_every_help_text_is_the_meaning() -> None:
    share = ShareLog(EventLog()).collect
    dropped: dict[str, Any] = {"log_dropped": lambda: 0, "records_dropped": lambda: 0, "untold": lambda: 0}
    dropped["connections_refused"] = lambda: 0
    source = metrics(loop_lag=lambda: 0.0, workers=lambda: 1, more=(share,), **dropped)
    text = generate_latest(source.registry).decode()
    told = dict(line.removeprefix("# HELP ").split(" ", 1) for line in text.splitlines() if line.startswith("# HELP "))
    assert told == {each.name: each.meaning for each in DEFINITIONS}


def test_the_process_has_the_usual_figures() -> None:
    text = generate_latest(process_registry()).decode()
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_gc_collections_total", "python_info"):
        assert f"\n# TYPE {name} " in text


def test_every_reason_for_shedding_exists_from_the_start() -> None:
    assert scrape(metrics())["gateway_shed_total"] == {frozenset({("reason", each.value)}): 0.0 for each in Reason}


def test_the_texts_name_only_what_exists() -> None:
    known = set(EXPECTED)
    outcomes = {each.value for each in Outcome}
    for each in DEFINITIONS:
        for name in re.findall(r"gateway_[a-z_]+", each.meaning + each.action):
            assert name in known, f"{each.name} speaks of {name}"
        for word in re.findall(r"\b(?:backend|client)_(?:busy|error|lost|silent|gone)\b", each.meaning + each.action):
            assert word in outcomes, f"{each.name} speaks of {word}"


def test_the_document_is_written_from_the_definitions() -> None:
    path = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert path.read_text(encoding="utf-8") == render(), (
        "run: python -m gateway.telemetry.metrics_doc > docs/metrics.md"
    )


def test_the_command_that_writes_the_document() -> None:
    command = [sys.executable, "-m", "gateway.telemetry.metrics_doc"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)  # noqa: S603 - our own module
    assert done.stdout == render()


def test_the_document_tells_everything_of_every_metric() -> None:
    text = render()
    for each in DEFINITIONS:
        _, _, entry = text.partition(f"### `{each.name}")
        entry = entry.partition("\n### ")[0]
        for part in (each.meaning, each.action, each.kind.value.capitalize(), *each.labels):
            assert part in entry
