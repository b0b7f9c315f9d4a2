"""When each metric moves, and that the number of series is bounded whatever callers send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.model import (
    Access,
    GatewayState,
    Hints,
    Outcome,
    Priority,
    PriorityState,
    Reason,
    Record,
    Route,
    Timeline,
    Usage,
)
from gateway.telemetry.metrics import Metrics, MetricsConfig
from tests.telemetry.helpers import (
    MODELS,
    asked,
    backend_state,
    bounded,
    buckets,
    gateway_state,
    metrics,
    record,
    refused,
    scrape,
    ticket,
    timeline,
    value,
)


def series(source: Metrics) -> int:
    return sum(map(len, scrape(source).values()))


def observed(*records: Record, **options: Any) -> Metrics:
    source = metrics(**options)
    for each in records:
        source.observe(each)
    return source


# --------------------------------------------------------------------------------------------------------------
# Bounds
# --------------------------------------------------------------------------------------------------------------


def test_M01_ten_thousand_clients_add_no_series() -> None:
    source = bounded(max_clients=5)
    for number in range(5):
        source.observe(record(ticket=asked(client=f"key:{number}")))
    source.observe(record(ticket=asked(client="one too many")))
    before = series(source)
    for number in range(10_000):
        source.observe(record(ticket=asked(client=f"user-{number}", user=f"user-{number}")))
    assert series(source) == before
    assert value(source, "gateway_client_requests_total", client="other", outcome="completed") == 10_001
    assert value(source, "gateway_client_requests_total", client="key:3", outcome="completed") == 1


def test_M01_no_client_is_named_unless_the_operator_allows_it() -> None:
    source = observed(record(), record(ticket=asked(client="someone@example.org")))
    assert value(source, "gateway_client_requests_total", client="other", outcome="completed") == 2
    assert len(scrape(source)["gateway_client_requests_total"]) == 1


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ERROR, Outcome.REFUSED, Outcome.CLIENT_GONE, Outcome.BACKEND_ERROR])
def test_M02_ten_thousand_mistyped_models_are_one_series(outcome: Outcome) -> None:
    source = observed(record(), record(ticket=asked("mistyped"), outcome=outcome, status=404, usage=None))
    before = series(source)
    for number in range(10_000):
        source.observe(record(ticket=asked(f"qwen3-{number}"), outcome=outcome, status=404, usage=None))
    assert series(source) == before
    labels = {"model": "other", "route": "chat", "code": "404", "outcome": outcome.value}
    assert value(source, "gateway_requests_total", **labels) == 10_001


def test_M02_made_up_models_do_not_take_the_place_of_real_ones() -> None:
    source = bounded(max_models=2)
    for number in range(100):
        source.observe(record(ticket=asked(f"typo-{number}"), outcome=Outcome.CLIENT_ERROR, status=404))
    source.observe(record(ticket=asked("real")))
    source.observe(refused(ticket=asked("real"), reason=Reason.DEADLINE))
    assert value(source, "gateway_requests_total", model="real", route="chat", code="200", outcome="completed") == 1
    assert value(source, "gateway_requests_total", model="real", route="chat", code="429", outcome="refused") == 1


def test_M02_an_engine_that_serves_any_name_is_bounded_by_the_cap() -> None:
    source = bounded(max_models=3, models=("configured",))
    for number in range(1000):
        source.observe(record(ticket=asked(f"alias-{number}")))
    source.observe(record(ticket=asked("configured"), outcome=Outcome.BACKEND_ERROR, status=500))
    models = {dict(labels)["model"] for labels in scrape(source)["gateway_requests_total"]}
    assert models == {"alias-0", "alias-1", "alias-2", "configured", "other"}
    assert value(source, "gateway_output_tokens_total", model="other", source="usage") == 997 * 11


ODD = {
    "long": "x" * 5000,
    "line feeds": "a\nb\r\nc",
    "quotes": 'say "hi" \\ back',
    "control": "\x00\x1b[31m",
    "lone surrogate": "qwen\udcff",
    "bidi": "a\u202eb",
    "exposition": 'x"} 1\ngateway_fake_total 9',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_M04_odd_values_are_cut_and_cleaned_and_the_text_still_parses(odd: str) -> None:
    source = bounded(max_clients=9)
    source.observe(record(ticket=asked(odd, client=odd), lane="short"))
    samples = scrape(source)
    assert "gateway_fake_total" not in samples
    (model,) = {dict(labels)["model"] for labels in samples["gateway_requests_total"]}
    (client,) = {dict(labels)["client"] for labels in samples["gateway_client_requests_total"]}
    assert model == client
    assert model.isprintable()
    assert 0 < len(model) <= 100


def test_M04_no_header_reaches_a_label_and_everything_varied_at_once_stays_bounded() -> None:
    source = bounded(max_models=4, max_clients=4)

    def storm(numbers: range) -> None:
        for number in numbers:
            made = asked(f"model-{number}", client=f"tenant-{number}", user=f"user-{number}", max_output=number)
            route = Route(f"route-{number}", Access.ADMIT)
            source.observe(record(ticket=replace(made, attempt=number), route=route, path=f"/v1/{number}"))

    storm(range(500))
    before = series(source)
    storm(range(500, 3000))
    assert series(source) == before


def test_M04_a_status_outside_http_is_other() -> None:
    source = observed(record(status=999), record(status=0), record(status=599))
    codes = {dict(labels)["code"] for labels in scrape(source)["gateway_requests_total"]}
    assert codes == {"other", "0", "599"}


# --------------------------------------------------------------------------------------------------------------
# Speed
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["chat", "completions", "responses", "messages"])
def test_M06_time_to_first_token_is_not_the_duration_on_any_route(label: str) -> None:
    source = observed(record(route=Route(label, Access.ADMIT), timeline=timeline(backend_ttft=0.3, gap=1.0, events=11)))
    first = value(source, "gateway_time_to_first_token_seconds_sum", model="qwen3-8b", class_="short")
    whole = value(source, "gateway_request_duration_seconds_sum", model="qwen3-8b", outcome="completed")
    assert first == pytest.approx(0.303)
    assert whole == pytest.approx(10.304)


def test_M06_an_answer_that_is_not_streamed_has_no_figures_of_speed() -> None:
    source = observed(record(ticket=asked(stream=False), timeline=timeline(events=1)))
    samples = scrape(source)
    for name in ("time_to_first_token", "backend_time_to_first_token", "inter_token_latency", "time_per_output_token"):
        assert f"gateway_{name}_seconds_count" not in samples
    assert value(source, "gateway_request_duration_seconds_count", model="qwen3-8b", outcome="completed") == 1


def test_M07_queue_and_backend_and_client_each_have_their_figure() -> None:
    source = observed(record(lane="long", timeline=timeline(queued=30.0, backend_ttft=1.0)))
    assert value(source, "gateway_queue_wait_seconds_sum", class_="long", outcome="admitted") == pytest.approx(30.0)
    assert value(source, "gateway_backend_time_to_first_token_seconds_sum", backend="gpu1") == pytest.approx(1.0)
    client = value(source, "gateway_time_to_first_token_seconds_sum", model="qwen3-8b", class_="long")
    assert client == pytest.approx(31.003)


def test_M17_percentiles_and_the_split_tell_what_a_falling_mean_hides() -> None:
    ttft = "gateway_time_to_first_token_seconds"
    light = observed(*(record(timeline=timeline(backend_ttft=0.2)) for _ in range(100)))
    quick = [record(timeline=timeline(backend_ttft=0.02)) for _ in range(90)]
    stuck = [record(timeline=timeline(queued=1.3, backend_ttft=0.1)) for _ in range(10)]
    loaded = observed(*quick, *stuck)

    def mean(source: Metrics) -> float:
        labels = {"model": "qwen3-8b", "class_": "short"}
        return value(source, f"{ttft}_sum", **labels) / value(source, f"{ttft}_count", **labels)

    assert mean(loaded) < mean(light)
    assert buckets(light, ttft)["0.25"] == 100
    assert buckets(loaded, ttft)["1.0"] == 90  # so P95 is above a second
    assert buckets(loaded, "gateway_queue_wait_seconds", outcome="admitted")["1.0"] == 90  # where they waited
    assert buckets(loaded, "gateway_backend_time_to_first_token_seconds")["0.25"] == 100  # and where they did not


def test_M12_waits_of_a_few_milliseconds_can_be_told_apart() -> None:
    waits = (0.0004, 0.0008, 0.004, 0.009, 0.02, 0.04)
    source = observed(*(record(timeline=timeline(queued=wait)) for wait in waits))
    counts = buckets(source, "gateway_queue_wait_seconds", class_="short", outcome="admitted")
    assert [counts[le] for le in ("0.0005", "0.001", "0.005", "0.01", "0.025", "0.05")] == [1, 2, 3, 4, 5, 6]


def test_M12_buckets_are_settable() -> None:
    name = "gateway_time_to_first_token_seconds"
    source = bounded(buckets={name: (0.2, 0.4)})
    source.observe(record(timeline=timeline(backend_ttft=0.3)))
    assert buckets(source, name) == {"0.2": 0, "0.4": 1, "+Inf": 1}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"gateway_shed_total": (1.0,)}, "gateway_shed_total' is no histogram"),
        ({"ttft": (1.0,)}, "expected one of .*gateway_time_to_first_token_seconds"),
        ({"gateway_overhead_seconds": ()}, "gateway_overhead_seconds: .* expected rising"),
        ({"gateway_overhead_seconds": (1.0, 1.0)}, r"\(1.0, 1.0\) given"),
        ({"gateway_overhead_seconds": (0.1, float("nan"))}, "expected rising"),
        ({"gateway_overhead_seconds": (0.1, float("inf"))}, "expected rising"),
    ],
)
def test_M12_wrong_buckets_are_refused_by_name(wrong: dict[str, tuple[float, ...]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        MetricsConfig(buckets=wrong)


def test_gaps_are_counted_in_one_batch_with_their_exact_sum() -> None:
    line = timeline(events=1)
    now = line.last_output or 0.0
    for gap, times in ((0.0005, 3), (0.02, 100), (0.6, 2), (9.0, 1)):
        for _ in range(times):
            now += gap
            line.output(1, now)
    source = observed(record(timeline=line), record(timeline=line))
    counts = buckets(source, "gateway_inter_token_latency_seconds", model="qwen3-8b")
    assert counts["0.001"] == 6
    assert counts["0.01"] == 6
    assert counts["0.025"] == 206
    assert counts["0.5"] == 206
    assert counts["0.75"] == 210
    assert counts["5.0"] == 210
    assert counts["+Inf"] == 212
    total = value(source, "gateway_inter_token_latency_seconds_sum", model="qwen3-8b")
    assert total == pytest.approx(2 * (3 * 0.0005 + 2.0 + 1.2 + 9.0))


def test_time_per_output_token_uses_the_backends_count() -> None:
    line = timeline(gap=0.05, events=11)  # chunks of two tokens: 0.5 s for 20 tokens after the first
    source = observed(record(timeline=line, usage=Usage(57, 21)))
    assert value(source, "gateway_time_per_output_token_seconds_sum", model="qwen3-8b") == pytest.approx(0.025)


@pytest.mark.parametrize(("usage", "expected"), [(None, 0.05), (Usage(57, None), 0.05), (Usage(57, 1), None)])
def test_time_per_output_token_without_a_count(usage: Usage | None, expected: float | None) -> None:
    source = observed(record(timeline=timeline(gap=0.05), usage=usage))
    name = "gateway_time_per_output_token_seconds"
    assert value(source, f"{name}_count", model="qwen3-8b") == (0 if expected is None else 1)
    assert value(source, f"{name}_sum", model="qwen3-8b") == pytest.approx(expected or 0.0)


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.COMPLETED])
def test_only_completed_streams_count_as_speed(outcome: Outcome) -> None:
    source = observed(record(outcome=outcome, status=200))
    samples = scrape(source)
    assert "gateway_time_to_first_token_seconds_count" not in samples
    assert "gateway_inter_token_latency_seconds_count" not in samples
    assert value(source, "gateway_request_duration_seconds_count", model="other", outcome=outcome.value) == 1


def test_a_stream_whose_sending_was_not_marked_has_no_backend_figure() -> None:
    source = observed(record(timeline=replace(timeline(), sent=None)))
    samples = scrape(source)
    assert "gateway_backend_time_to_first_token_seconds_count" not in samples
    assert "gateway_time_to_first_token_seconds_count" in samples


def test_a_completed_stream_without_output_has_no_first_token() -> None:
    line = replace(timeline(), first_output=None, last_output=None, output_events=0)
    source = observed(record(timeline=line))
    assert "gateway_time_to_first_token_seconds_count" not in scrape(source)


# --------------------------------------------------------------------------------------------------------------
# Queue, refusals, retries
# --------------------------------------------------------------------------------------------------------------


def test_a_slow_upload_is_neither_queueing_nor_overhead() -> None:
    line = Timeline(received=100.0, read=109.0, offered=109.001, admitted=109.501, sent=109.503, finished=111.0)
    source = observed(record(timeline=line))
    assert value(source, "gateway_queue_wait_seconds_sum", class_="short", outcome="admitted") == pytest.approx(0.5)
    assert value(source, "gateway_overhead_seconds_sum") == pytest.approx(0.003)


def test_what_was_not_marked_is_counted_from_the_head() -> None:
    source = observed(record(timeline=Timeline(received=100.0, admitted=100.2, sent=100.25, finished=101.0)))
    assert value(source, "gateway_queue_wait_seconds_sum", class_="short", outcome="admitted") == pytest.approx(0.2)


def test_where_nothing_was_sent_there_is_no_overhead() -> None:
    line = Timeline(received=100.0, read=100.0, offered=100.0, admitted=100.0, finished=100.1)
    source = observed(record(timeline=line, outcome=Outcome.CONNECT_FAILED, status=502, usage=None))
    assert value(source, "gateway_overhead_seconds_count") == 0
    assert value(source, "gateway_backend_requests_total", backend="gpu1", outcome="connect_failed") == 1


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"reason": Reason.QUEUE_TIMEOUT}, "queue_timeout"),
        ({"outcome": Outcome.CLIENT_GONE, "status": 0}, "client_gone"),
    ],
)
def test_a_wait_that_ended_without_a_permit(change: dict[str, Any], label: str) -> None:
    line = Timeline(received=100.0, read=100.0, offered=100.1, finished=101.1)
    source = observed(refused(timeline=line, lane="long", **change))
    assert value(source, "gateway_queue_wait_seconds_sum", class_="long", outcome=label) == pytest.approx(1.0)


def test_who_is_refused_at_the_door_does_not_wait() -> None:
    source = observed(refused(reason=Reason.QUEUE_FULL), refused(reason=Reason.DEADLINE))
    assert "gateway_queue_wait_seconds_count" not in scrape(source)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_is_counted_with_its_reason_and_its_wait(reason: Reason) -> None:
    source = observed(refused(reason=reason, retry_after=4.0))
    assert value(source, "gateway_shed_total", reason=reason.value) == 1
    assert sum(scrape(source)["gateway_shed_total"].values()) == 1
    assert buckets(source, "gateway_retry_after_seconds")["3.0"] == 0
    assert buckets(source, "gateway_retry_after_seconds")["5.0"] == 1


def test_the_clients_own_retries_are_counted() -> None:
    source = observed(record(), record(ticket=ticket(attempt=1)), refused(ticket=ticket(attempt=2)))
    assert value(source, "gateway_retry_attempts_total") == 2


# --------------------------------------------------------------------------------------------------------------
# Requests and tokens
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_counted(outcome: Outcome) -> None:
    source = bounded(models=("qwen3-8b",))
    source.observe(record(outcome=outcome, status=502))
    labels = {"model": "qwen3-8b", "route": "chat", "code": "502", "outcome": outcome.value}
    assert value(source, "gateway_requests_total", **labels) == 1
    assert value(source, "gateway_backend_requests_total", backend="gpu1", outcome=outcome.value) == 1


def test_a_cheap_route_is_counted_but_is_no_work() -> None:
    line = Timeline(received=100.0, read=100.0, sent=100.001, headers=100.004, finished=100.005)
    source = observed(record(ticket=None, route=MODELS, timeline=line, lane=None, usage=None))
    assert value(source, "gateway_requests_total", model="none", route="models", code="200", outcome="completed") == 1
    assert value(source, "gateway_overhead_seconds_sum") == pytest.approx(0.001)
    samples = scrape(source)
    for name in ("gateway_request_duration_seconds_count", "gateway_client_requests_total"):
        assert name not in samples


def test_a_request_that_names_no_model() -> None:
    source = observed(record(ticket=asked(None)))
    assert value(source, "gateway_output_tokens_total", model="none", source="usage") == 11


def test_M10_the_backends_own_counts_win_over_the_estimate() -> None:
    source = observed(record(usage=Usage(3263, 15)))
    assert value(source, "gateway_prompt_tokens_total", model="qwen3-8b", source="usage") == 3263
    assert value(source, "gateway_output_tokens_total", model="qwen3-8b", source="usage") == 15
    samples = scrape(source)
    assert len(samples["gateway_prompt_tokens_total"]) == len(samples["gateway_output_tokens_total"]) == 1


def test_the_error_of_the_estimate_is_told_where_the_backend_says_what_it_was() -> None:
    source = observed(
        record(usage=Usage(400, 160)), record(usage=None), record(usage=Usage(3, 1), outcome=Outcome.CLIENT_GONE)
    )
    assert value(source, "gateway_estimate_error_ratio_count", tokens="prompt") == 1
    assert value(source, "gateway_estimate_error_ratio_sum", tokens="prompt") == pytest.approx(abs(100 - 400) / 400)
    assert value(source, "gateway_estimate_error_ratio_sum", tokens="output") == pytest.approx(abs(200 - 160) / 160)


def test_M10_without_usage_the_fallback_is_marked() -> None:
    source = observed(
        record(usage=None),
        record(usage=None, ticket=asked(stream=False)),
        record(usage=None, ticket=asked(stream=False, generates=False)),
    )
    assert value(source, "gateway_prompt_tokens_total", model="qwen3-8b", source="estimate") == 300
    assert value(source, "gateway_output_tokens_total", model="qwen3-8b", source="chunks") == 11
    assert value(source, "gateway_output_tokens_total", model="qwen3-8b", source="estimate") == 200


def test_M10_what_was_never_answered_has_no_tokens() -> None:
    source = observed(refused(reason=Reason.QUEUE_FULL))
    assert "gateway_prompt_tokens_total" not in scrape(source)
    assert "gateway_output_tokens_total" not in scrape(source)


def test_M10_what_a_client_did_not_wait_for_was_still_put_out() -> None:
    source = observed(record(), record(outcome=Outcome.CLIENT_GONE, usage=None))
    assert value(source, "gateway_output_tokens_total", model="qwen3-8b", source="chunks") == 11


@pytest.mark.parametrize("nonsense", [-1, 10**400], ids=["negative", "huge"])
def test_M10_a_count_that_cannot_be_is_not_believed(nonsense: int) -> None:
    source = observed(record(usage=Usage(nonsense, nonsense)))
    assert value(source, "gateway_prompt_tokens_total", model="qwen3-8b", source="estimate") == 100
    assert value(source, "gateway_output_tokens_total", model="qwen3-8b", source="chunks") == 11
    assert value(source, "gateway_time_per_output_token_seconds_sum", model="qwen3-8b") == pytest.approx(0.02)


def test_M18_when_traffic_stops_everything_stands_still() -> None:
    source = observed(record(), refused(reason=Reason.QUEUE_FULL, retry_after=2.0))
    first, second = scrape(source), scrape(source)
    assert first == second
    assert not any("per_second" in name or name.endswith("_rate") for name in first)


# --------------------------------------------------------------------------------------------------------------
# Gauges
# --------------------------------------------------------------------------------------------------------------


def test_the_state_is_read_at_each_scrape() -> None:
    states: Iterator[GatewayState] = iter([gateway_state(backend_state(running=running)) for running in (7, 0)])
    source = Metrics(lambda: next(states), version="1", config_hash="x")
    assert [value(source, "gateway_inflight_requests", backend="gpu1") for _ in range(2)] == [7, 0]


def test_priorities_are_counted_and_shown() -> None:
    state = gateway_state(priorities=(PriorityState("critical", 1), PriorityState("sheddable", 9)))
    source = metrics(state)
    source.observe(record())
    source.observe(refused(ticket=ticket(priority=Priority.SHEDDABLE)))
    assert value(source, "gateway_priority_requests_total", priority="standard", outcome="completed") == 1
    assert value(source, "gateway_priority_requests_total", priority="sheddable", outcome="refused") == 1
    assert value(source, "gateway_queue_priority_depth", priority="critical") == 1
    assert value(source, "gateway_queue_priority_depth", priority="sheddable") == 9


def test_every_gauge_shows_its_own_figure() -> None:
    own = {"loop_lag": lambda: 0.25, "log_dropped": lambda: 8, "records_dropped": lambda: 6, "untold": lambda: 3}
    own |= {"connections_refused": lambda: 9}
    source = metrics(gateway_state(overloaded=True, draining=True), **own)
    backend = {
        "gateway_inflight_requests": 7,
        "gateway_inflight_tokens": 4200,
        "gateway_unstarted_requests": 1,
        "gateway_concurrency_limit": 12.5,
        "gateway_concurrency_limit_minimum": 1,
        "gateway_token_limit": 90_000,
        "gateway_pace_seconds": 0.031,
        "gateway_latency_baseline_seconds": 0.012,
        "gateway_pace_target_seconds": 0.06,
        "gateway_backend_up": 1,
        "gateway_backend_drained": 0,
        "gateway_backend_silence_seconds": 0.2,
        "gateway_backend_kv_usage_ratio": 0.42,
        "gateway_backend_scrape_age_seconds": 1.5,
    }
    assert {name: value(source, name, backend="gpu1") for name in backend} == backend
    lane = {
        "gateway_queue_depth": 2,
        "gateway_queue_tokens": 9000,
        "gateway_queue_oldest_wait_seconds": 2.5,
        "gateway_queue_max_wait_seconds": 4,
    }
    assert {name: value(source, name, class_="long") for name in lane} == lane
    plain = {
        "gateway_overloaded": 1,
        "gateway_draining": 1,
        "gateway_event_loop_lag_seconds": 0.25,
        "gateway_access_log_dropped_total": 8,
        "gateway_records_dropped_total": 6,
        "gateway_untold_requests_total": 3,
        "gateway_connections_refused_total": 9,
    }
    assert {name: value(source, name) for name in plain} == plain
    changes = "gateway_concurrency_limit_changes_total"
    assert value(source, changes, backend="gpu1", direction="up", reason="pace") == 9
    assert value(source, changes, backend="gpu1", direction="down", reason="queue") == 2
    assert value(source, "gateway_retry_arrivals_total", kept="true") == 5
    assert value(source, "gateway_retry_arrivals_total", kept="false") == 11


@pytest.mark.parametrize(
    ("health", "up"), [("up", 1), ("unknown", 1), ("down", 0), ("open", 0), ("half_open", 0), ("drained", 0)]
)
def test_a_backend_is_up_while_requests_may_go_there(health: str, up: int) -> None:
    assert scrape(metrics(gateway_state(backend_state(health=health))))["gateway_backend_up"] == {
        frozenset({("backend", "gpu1")}): up
    }


def test_what_is_not_known_yet_is_absent_and_not_zero() -> None:
    unknown = ("token_limit", "pace", "pace_base", "pace_target", "hints_age", "limit_min")
    changes: dict[str, Any] = dict.fromkeys(unknown)
    fresh = replace(backend_state(hints=Hints()), **changes)
    samples = scrape(metrics(gateway_state(fresh)))
    for name in (
        *("token_limit", "concurrency_limit_minimum", "pace_seconds", "latency_baseline_seconds"),
        *("backend_scrape_age_seconds", "backend_kv_usage_ratio"),
    ):
        assert f"gateway_{name}" not in samples


def test_a_drained_backend_says_so() -> None:
    assert (
        value(metrics(gateway_state(backend_state(health="drained"))), "gateway_backend_drained", backend="gpu1") == 1
    )


def test_findings_are_there_while_they_are_found() -> None:
    found: list[tuple[str, str | None]] = [("kv_bound", "gpu1"), ("retry_storm", None), ("retry_storm", None)]
    source = metrics(findings=lambda: found)
    assert value(source, "gateway_finding", cause="kv_bound", backend="gpu1") == 1
    assert value(source, "gateway_finding", cause="retry_storm", backend="none") == 1
    found.clear()
    assert "gateway_finding" not in scrape(source)


def test_several_backends_each_have_their_series() -> None:
    samples = scrape(metrics(gateway_state(backend_state("a", running=1), backend_state("b\n", running=2))))
    assert samples["gateway_inflight_requests"] == {frozenset({("backend", "a")}): 1, frozenset({("backend", "b_")}): 2}


def test_M04_names_of_the_configuration_are_cut_too() -> None:
    samples = scrape(metrics(gateway_state(backend_state("g" * 5000))))
    assert samples["gateway_inflight_requests"] == {frozenset({("backend", "g" * 100)}): 7}


def test_retries_that_were_never_seen_exist_at_zero() -> None:
    source = metrics(gateway_state(retries_seen={}))
    assert set(scrape(source)["gateway_retry_arrivals_total"].values()) == {0.0}
    assert len(scrape(source)["gateway_retry_arrivals_total"]) == 2


def test_C04_the_effective_limits_and_the_configuration_can_be_seen() -> None:
    source = metrics(gateway_state(backend_state(limit=32.0)))
    assert value(source, "gateway_config_info", hash="c0ffee") == 1
    assert value(source, "gateway_build_info", version="1.2.3") == 1
    assert value(source, "gateway_concurrency_limit", backend="gpu1") == 32
    assert value(source, "gateway_queue_max_wait_seconds", class_="short") == 1


def test_without_a_lag_or_a_log_their_metrics_are_absent() -> None:
    samples = scrape(metrics())
    assert "gateway_event_loop_lag_seconds" not in samples
    assert "gateway_access_log_dropped_total" not in samples
    assert "gateway_records_dropped_total" not in samples
