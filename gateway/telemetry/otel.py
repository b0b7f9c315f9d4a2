"""OpenTelemetry over OTLP/HTTP: a trace of each request, and the four ``gen_ai`` metrics. An optional extra.

Names are those of OpenTelemetry's GenAI conventions (semantic-conventions-genai, status Development). Time to first
token goes on to 160 s, as in ``definitions``; the conventions stop at ten. Everything but the endpoint is set by the
SDK's own variables: OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME.

Spans and figures are handed to the SDK's threads, which drop them where the collector is slow: serving never waits.
A trace goes on where the client began one: ``traceparent`` reaches the engine as it came.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.model import Access, Outcome, Record
from gateway.telemetry.definitions import TTFT_EDGES
from gateway.telemetry.series import Bounded

_DURATION_EDGES: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
    163.84,
)
_TPOT_EDGES: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKEN_EDGES: Final = tuple(float(4**power) for power in range(14))
_OPERATIONS: Final = {"chat": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion"}
_FINE: Final = frozenset({Outcome.COMPLETED, Outcome.CLIENT_GONE})
_STOP: Final = 3.0  # seconds that the last export may take
_MODELS: Final = 100

_Attributes = dict[str, str | int | float | bool]


class OpenTelemetry:
    """An observer. ``kinds`` are the engine families of the backends, by name: the ``gen_ai.provider.name``."""

    def __init__(
        self, endpoint: str, version: str, kinds: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``endpoint`` is the collector's root, such as http://collector:4318; ``clock`` is that of the requests."""
        plain = Resource({"service.name": "inference-gateway", "service.version": version})
        resource = plain.merge(OTELResourceDetector().detect())
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"))
        self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer("gateway", version)
        self._kinds = kinds
        self._offset = time.time() - clock()
        self._models = Bounded(_MODELS)
        self._parents = TraceContextTextMapPropagator()
        self._duration = self._histogram("gen_ai.server.request.duration", "s", _DURATION_EDGES)
        self._ttft = self._histogram("gen_ai.server.time_to_first_token", "s", TTFT_EDGES)
        self._tpot = self._histogram("gen_ai.server.time_per_output_token", "s", _TPOT_EDGES)
        self._usage = self._histogram("gen_ai.client.token.usage", "{token}", _TOKEN_EDGES)

    def _histogram(self, name: str, unit: str, edges: tuple[float, ...]) -> Histogram:
        meter = self._meters.get_meter("gateway")
        return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(edges))

    def observe(self, record: Record) -> None:
        """Take one finished request; what is no work for an engine is left out."""
        if record.route.access is not Access.ADMIT or record.timeline.finished is None:
            return
        self._trace(record, record.timeline.finished)
        self._count(record, record.timeline.finished)

    def stop(self) -> None:
        """Send what is left, for at most three seconds; what takes longer is left behind."""
        sender = threading.Thread(target=self._shutdown, name="OpenTelemetry shutdown", daemon=True)
        sender.start()
        sender.join(_STOP)

    def _shutdown(self) -> None:
        self._tracers.shutdown()
        self._meters.shutdown(timeout_millis=_STOP * 1000.0)

    # ----------------------------------------------------------------------------------------------------------
    # Traces
    # ----------------------------------------------------------------------------------------------------------

    def _trace(self, record: Record, finished: float) -> None:
        """One span for the request; below it the wait in the queue and the engine's part."""
        carrier = {} if record.traceparent is None else {"traceparent": record.traceparent}
        span = self._tracer.start_span(
            f"{_operation(record)} {_model(record) or ''}".rstrip(),
            self._parents.extract(carrier),
            SpanKind.SERVER,
            self._attributes(record) | _details(record),
            start_time=self._nanoseconds(record.timeline.received),
        )
        if record.outcome not in _FINE:
            span.set_status(Status(StatusCode.ERROR, record.error or record.outcome.value))
        self._parts(span, record, finished)
        span.end(self._nanoseconds(finished))

    def _parts(self, span: Span, record: Record, finished: float) -> None:
        line = record.timeline
        below = set_span_in_context(span)
        if line.offered is not None:
            begun = self._nanoseconds(line.offered)
            queue = self._tracer.start_span(
                "queue", below, attributes={"gateway.lane": record.lane or ""}, start_time=begun
            )
            queue.end(self._nanoseconds(line.admitted if line.admitted is not None else finished))
        if line.sent is not None and record.backend is not None:
            begun = self._nanoseconds(line.sent)
            name = {"gateway.backend": record.backend}
            engine = self._tracer.start_span("engine", below, SpanKind.CLIENT, name, start_time=begun)
            if line.first_output is not None:
                engine.add_event("first token", timestamp=self._nanoseconds(line.first_output))
            engine.end(self._nanoseconds(finished))

    def _nanoseconds(self, moment: float) -> int:
        return int((moment + self._offset) * 1e9)

    # ----------------------------------------------------------------------------------------------------------
    # Metrics
    # ----------------------------------------------------------------------------------------------------------

    def _count(self, record: Record, finished: float) -> None:
        attributes = self._attributes(record)
        line = record.timeline
        self._duration.record(finished - line.received, attributes)
        if record.outcome is not Outcome.COMPLETED or record.ticket is None:
            return
        reported = record.usage
        prompt, output = (None, None) if reported is None else (reported.prompt_tokens, reported.completion_tokens)
        for kind, tokens in (("input", prompt), ("output", output)):
            if tokens is not None and tokens >= 0:
                self._usage.record(tokens, attributes | {"gen_ai.token.type": kind})
        if record.ticket.shape.stream and line.first_output is not None and line.last_output is not None:
            self._ttft.record(line.first_output - line.received, attributes)
            tokens = line.output_events if output is None else output
            if tokens > 1:
                self._tpot.record((line.last_output - line.first_output) / (tokens - 1), attributes)

    def _attributes(self, record: Record) -> _Attributes:
        """Those of the metrics: few values each."""
        found: _Attributes = {
            "gen_ai.operation.name": _operation(record),
            "gen_ai.provider.name": self._kinds.get(record.backend or "", "_OTHER"),
        }
        if model := _model(record):
            found["gen_ai.request.model"] = self._models.label(model, earned=record.outcome is Outcome.COMPLETED)
        if record.outcome is not Outcome.COMPLETED:
            found["error.type"] = record.reason.value if record.reason is not None else record.outcome.value
        return found


def _operation(record: Record) -> str:
    return _OPERATIONS.get(record.route.label, record.route.label)


def _model(record: Record) -> str | None:
    return record.ticket.shape.model if record.ticket is not None else None


def _details(record: Record) -> _Attributes:
    """What only the span tells."""
    found: _Attributes = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "gateway.request_id": record.request_id,
    }
    if record.lane is not None:
        found["gateway.lane"] = record.lane
    if record.retry_after is not None:
        found["gateway.retry_after"] = record.retry_after
    if record.ticket is not None and record.ticket.attempt:
        found["http.request.resend_count"] = record.ticket.attempt
    if record.usage is not None and record.usage.prompt_tokens is not None:
        found["gen_ai.usage.input_tokens"] = record.usage.prompt_tokens
    if record.usage is not None and record.usage.completion_tokens is not None:
        found["gen_ai.usage.output_tokens"] = record.usage.completion_tokens
    return found
