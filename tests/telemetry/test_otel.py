"""Traces and metrics as a real OTLP receiver gets them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.model import Access, Outcome, Reason, Record, Route, Usage
from gateway.telemetry.otel import OpenTelemetry
from tests.telemetry.collector import Collector, values
from tests.telemetry.helpers import MODELS, asked, record, refused, ticket, timeline

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def sent(collector: Collector, *records: Record) -> OpenTelemetry:
    otel = OpenTelemetry(collector.url, "1.2.3", {"gpu1": "vllm"}, lambda: 100.0)
    for each in records:
        otel.observe(each)
    otel.stop()
    return otel


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


# --------------------------------------------------------------------------------------------------------------
# Traces
# --------------------------------------------------------------------------------------------------------------


def test_a_request_is_a_span_with_its_wait_and_the_engines_part_below(collector: Collector) -> None:
    now = time.time()
    sent(collector, record(timeline=timeline(queued=0.25)))
    spans = by_name(collector.spans())
    assert set(spans) == {"chat qwen3-8b", "queue", "engine"}
    request, queue, engine = spans["chat qwen3-8b"], spans["queue"], spans["engine"]
    assert (request.kind, engine.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert queue.parent_span_id == engine.parent_span_id == request.span_id
    assert queue.trace_id == engine.trace_id == request.trace_id
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == pytest.approx(0.25e9, rel=1e-3)
    assert request.start_time_unix_nano / 1e9 == pytest.approx(now, abs=60.0)  # by the clock on the wall
    (event,) = engine.events
    assert (event.name, event.time_unix_nano - engine.start_time_unix_nano) == (
        "first token",
        pytest.approx(0.5e9, rel=1e-3),
    )
    found = values(request.attributes)
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "vllm"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (57, 11)
    assert (found["http.response.status_code"], found["gateway.lane"], found["gateway.request_id"]) == (
        200,
        "short",
        "req-1",
    )
    assert values(queue.attributes) == {"gateway.lane": "short"}
    assert values(engine.attributes) == {"gateway.backend": "gpu1"}
    assert collector.resource()["service.name"] == "inference-gateway"
    assert collector.resource()["service.version"] == "1.2.3"


def test_a_trace_that_the_client_began_goes_on(collector: Collector) -> None:
    sent(collector, record(traceparent=TRACEPARENT))
    request = by_name(collector.spans())["chat qwen3-8b"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)


@pytest.mark.parametrize("nonsense", ["", "00-xyz", "x" * 5000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_traceparent_that_cannot_be_read_begins_a_trace(collector: Collector, nonsense: str) -> None:
    sent(collector, record(traceparent=nonsense))
    assert not by_name(collector.spans())["chat qwen3-8b"].parent_span_id


def test_a_refusal_is_an_error_that_never_reached_an_engine(collector: Collector) -> None:
    sent(collector, refused(reason=Reason.DEADLINE, retry_after=4.0, ticket=ticket(attempt=2)))
    spans = by_name(collector.spans())
    assert set(spans) == {"chat qwen3-8b", "queue"}
    request = spans["chat qwen3-8b"]
    assert request.status.code == Status.STATUS_CODE_ERROR
    found = values(request.attributes)
    assert (found["error.type"], found["gateway.retry_after"], found["http.request.resend_count"]) == (
        "deadline",
        4.0,
        2,
    )
    assert found["gen_ai.provider.name"] == "_OTHER"


def test_a_client_that_left_is_no_error(collector: Collector) -> None:
    sent(collector, record(outcome=Outcome.CLIENT_GONE, status=0))
    assert by_name(collector.spans())["chat qwen3-8b"].status.code == Status.STATUS_CODE_UNSET


def test_what_is_no_work_for_an_engine_is_left_out(collector: Collector) -> None:
    sent(collector, record(route=MODELS, ticket=None))
    assert not collector.spans()


def test_a_request_that_never_became_a_ticket(collector: Collector) -> None:
    line = replace(timeline(), offered=None, admitted=None, sent=None)
    sent(
        collector, record(ticket=None, lane=None, backend=None, usage=None, outcome=Outcome.CLIENT_ERROR, timeline=line)
    )
    assert set(by_name(collector.spans())) == {"chat"}


@pytest.mark.parametrize(
    ("label", "operation"),
    [("completions", "text_completion"), ("messages", "chat"), ("responses", "chat"), ("embeddings", "embeddings")],
)
def test_operations_are_those_of_the_conventions(collector: Collector, label: str, operation: str) -> None:
    sent(collector, record(route=Route(label, Access.ADMIT)))
    assert f"{operation} qwen3-8b" in by_name(collector.spans())


# --------------------------------------------------------------------------------------------------------------
# Metrics
# --------------------------------------------------------------------------------------------------------------


def test_the_four_metrics_have_the_conventions_names_units_and_buckets(collector: Collector) -> None:
    sent(collector, record(), record())
    found = collector.metrics()
    assert {name: metric.unit for name, metric in found.items()} == {
        "gen_ai.server.request.duration": "s",
        "gen_ai.server.time_to_first_token": "s",
        "gen_ai.server.time_per_output_token": "s",
        "gen_ai.client.token.usage": "{token}",
    }
    points = {name: list(metric.histogram.data_points) for name, metric in found.items()}
    common = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "qwen3-8b"}
    (duration,) = points["gen_ai.server.request.duration"]
    assert values(duration.attributes) == common
    assert (duration.count, duration.sum) == (2, pytest.approx(2 * 0.704))
    assert 81.92 in duration.explicit_bounds
    (ttft,) = points["gen_ai.server.time_to_first_token"]
    assert (ttft.count, ttft.sum) == (2, pytest.approx(2 * 0.503))
    assert {10.0, 20.0, 160.0} <= set(ttft.explicit_bounds)
    (tpot,) = points["gen_ai.server.time_per_output_token"]
    assert (tpot.count, tpot.sum) == (2, pytest.approx(2 * 0.02))
    usage = {values(point.attributes)["gen_ai.token.type"]: point.sum for point in points["gen_ai.client.token.usage"]}
    assert usage == {"input": 2 * 57.0, "output": 2 * 11.0}


def test_only_completed_streams_have_a_speed(collector: Collector) -> None:
    whole = asked(stream=False)
    failed = record(outcome=Outcome.BACKEND_LOST, status=502, error="connection lost")
    sent(collector, record(ticket=whole, usage=None), failed, record(usage=Usage(5, 1)))
    found = collector.metrics()
    assert {
        values(point.attributes).get("error.type")
        for point in found["gen_ai.server.request.duration"].histogram.data_points
    } == {None, "backend_lost"}
    (ttft,) = found["gen_ai.server.time_to_first_token"].histogram.data_points
    assert ttft.count == 1
    assert "gen_ai.server.time_per_output_token" not in found  # of one token there is no pace


def test_M02_made_up_model_names_make_no_series(collector: Collector) -> None:
    made_up = [
        record(ticket=asked(f"no-such-{number}"), outcome=Outcome.CLIENT_ERROR, status=404) for number in range(50)
    ]
    sent(collector, *made_up, record())
    points = collector.metrics()["gen_ai.server.request.duration"].histogram.data_points
    assert {values(point.attributes)["gen_ai.request.model"] for point in points} == {"other", "qwen3-8b"}


# --------------------------------------------------------------------------------------------------------------
# The collector
# --------------------------------------------------------------------------------------------------------------


def test_without_a_collector_nothing_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "opentelemetry")
    otel = OpenTelemetry("http://127.0.0.1:9", "1.2.3", {})
    began = time.monotonic()
    for _ in range(100):
        otel.observe(record())
    assert time.monotonic() - began < 30.0  # a guard: a blocking export would take minutes
    otel.stop()
