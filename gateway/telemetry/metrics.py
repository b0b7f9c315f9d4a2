"""The Prometheus side: counts finished requests, and shows admission's state as it is at each scrape.

What the metrics are is said in ``definitions``; this file says when they move. Measured from the request's head, time
to first token takes in the gateway's own queue; only completed streams count in the figures of speed, as in the
benchmark clients, and an answer that is not streamed has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.model import (
    Access,
    BackendState,
    GatewayState,
    LaneState,
    Outcome,
    Reason,
    Record,
    Ticket,
    Usage,
)
from gateway.telemetry import definitions as names
from gateway.telemetry.series import Bounded, Counters, Histograms, clean

NONE: Final = "none"  # label of a request that names no model, or that never came to a lane or backend
_ROUTES: Final = 100
_BACKENDS: Final = 1000
_MOST_TOKENS: Final = 1_000_000_000  # of one request; more is nonsense, and could overflow a sum

_BACKEND_GAUGES: Final[tuple[tuple[names.Definition, Callable[[BackendState], float | None]], ...]] = (
    (names.INFLIGHT_REQUESTS, lambda backend: backend.running),
    (names.INFLIGHT_TOKENS, lambda backend: backend.tokens),
    (names.UNSTARTED_REQUESTS, lambda backend: backend.unstarted),
    (names.CONCURRENCY_LIMIT, lambda backend: backend.limit),
    (names.LIMIT_MINIMUM, lambda backend: backend.limit_min),
    (names.TOKEN_LIMIT, lambda backend: backend.token_limit),
    (names.PACE, lambda backend: backend.pace),
    (names.LATENCY_BASELINE, lambda backend: backend.pace_base),
    (names.PACE_TARGET, lambda backend: backend.pace_target),
    (names.BACKEND_UP, lambda backend: float(backend.health in {"up", "unknown"})),
    (names.BACKEND_DRAINED, lambda backend: float(backend.health == "drained")),
    (names.BACKEND_SILENCE, lambda backend: backend.silence),
    (names.KV_USAGE, lambda backend: backend.hints.kv_usage),
    (names.SCRAPE_AGE, lambda backend: backend.hints_age),
)
_LANE_GAUGES: Final[tuple[tuple[names.Definition, Callable[[LaneState], float]], ...]] = (
    (names.QUEUE_DEPTH, lambda lane: lane.depth),
    (names.QUEUE_TOKENS, lambda lane: lane.cost),
    (names.QUEUE_OLDEST, lambda lane: lane.oldest_wait),
    (names.QUEUE_MAX_WAIT, lambda lane: lane.max_wait),
)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Bounds and edges.

    ``max_models`` and ``max_clients`` bound the values of the labels ``model`` and ``client``; what comes beyond is
    counted as ``other``. No client is named by default, as /metrics is open to all. ``models`` are names of the
    configuration: they have a place of their own. ``buckets`` replaces edges by metric name: seconds, rising.
    """

    max_models: int = 20
    max_clients: int = 0
    models: tuple[str, ...] = ()
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the edges.

        Raises:
            ValueError: ``buckets`` names no histogram, or its edges do not rise.
        """
        histograms = {each.name for each in names.DEFINITIONS if each.kind is names.Kind.HISTOGRAM}
        for name, edges in self.buckets.items():
            if name not in histograms:
                raise ValueError(f"buckets: {name!r} is no histogram, expected one of {', '.join(sorted(histograms))}")
            if not edges or not all(map(isfinite, edges)) or any(low >= high for low, high in pairwise(edges)):
                raise ValueError(f"buckets of {name}: {edges!r} given, expected rising numbers of seconds")


class Metrics:
    """Counts finished requests and shows admission's state at each scrape of ``registry``.

    One event loop calls ``observe`` and scrapes ``registry``. What the operating system knows of the process is in
    ``process_registry()``, because reading it may block.
    """

    def __init__(
        self,
        state: Callable[[], GatewayState],
        *,
        version: str,
        config_hash: str,
        config: MetricsConfig | None = None,
        loop_lag: Callable[[], float] | None = None,
        workers: Callable[[], int] | None = None,
        log_dropped: Callable[[], int] | None = None,
        records_dropped: Callable[[], int] | None = None,
        untold: Callable[[], int] | None = None,
        connections_refused: Callable[[], int] | None = None,
        findings: Callable[[], Iterable[tuple[str, str | None]]] = tuple,
        canary_failures: Mapping[str, int] | None = None,
        more: Iterable[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        """``loop_lag`` gives seconds (LoopLag), ``workers`` the processes that relay.

        The dropped are lines lost (AccessLog.dropped, RecordFile.dropped), ``untold`` requests of which no process that
        relays could tell, ``connections_refused`` clients that were turned away before they asked.
        ``findings`` gives the cause and the backend of each finding of the diagnosis, ``canary_failures`` counts them
        by backend and is read at each scrape. ``more`` give families of their own.
        """
        config = config or MetricsConfig()
        self._state = state
        self._version = version
        self.configured(config_hash)
        self._loop_lag = loop_lag
        self._workers = workers
        self._findings = findings
        self._canary_failures = {} if canary_failures is None else canary_failures
        self._more = tuple(more)
        self._dropped = (
            (names.LOG_DROPPED, log_dropped),
            (names.RECORDS_DROPPED, records_dropped),
            (names.UNTOLD, untold),
            (names.CONNECTIONS_REFUSED, connections_refused),
        )
        self._models = Bounded(config.max_models, config.models)
        self._clients = Bounded(config.max_clients)
        self._routes = Bounded(_ROUTES)
        self._backends = Bounded(_BACKENDS)
        self._series: dict[str, Counters | Histograms] = {}

        self._requests = self._counters(names.REQUESTS)
        self._backend_requests = self._counters(names.BACKEND_REQUESTS)
        self._client_requests = self._counters(names.CLIENT_REQUESTS)
        self._priority_requests = self._counters(names.PRIORITY_REQUESTS)
        self._shed = self._counters(names.SHED)
        self._retry_attempts = self._counters(names.RETRY_ATTEMPTS)
        self._prompt_tokens = self._counters(names.PROMPT_TOKENS)
        self._output_tokens = self._counters(names.OUTPUT_TOKENS)
        self._estimate_error = self._histograms(names.ESTIMATE_ERROR, config)
        self._duration = self._histograms(names.DURATION, config)
        self._ttft = self._histograms(names.TTFT, config)
        self._backend_ttft = self._histograms(names.BACKEND_TTFT, config)
        self._itl = self._histograms(names.ITL, config)
        self._tpot = self._histograms(names.TPOT, config)
        self._queue_wait = self._histograms(names.QUEUE_WAIT, config)
        self._overhead = self._histograms(names.OVERHEAD, config)
        self._retry_after = self._histograms(names.RETRY_AFTER, config)

        for reason in Reason:  # a rate() needs the zero before the first refusal
            self._shed.add(reason.value, by=0)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def _counters(self, definition: names.Definition) -> Counters:
        self._series[definition.name] = series = Counters(definition)
        return series

    def _histograms(self, definition: names.Definition, config: MetricsConfig) -> Histograms:
        self._series[definition.name] = series = Histograms(definition, config.buckets.get(definition.name))
        return series

    # ----------------------------------------------------------------------------------------------------------
    # Requests
    # ----------------------------------------------------------------------------------------------------------

    def configured(self, config_hash: str) -> None:
        """Take the short name of the settings that are in effect from now on."""
        self._info = ((names.BUILD_INFO, self._version), (names.CONFIG_INFO, config_hash))

    def observe(self, record: Record) -> None:
        """Take one finished request."""
        ticket, outcome = record.ticket, record.outcome.value
        completed = record.outcome is Outcome.COMPLETED
        name = ticket.shape.model if ticket is not None else None
        model = self._models.label(name, earned=completed) if name else NONE
        self._requests.add(model, self._routes.label(record.route.label), _code(record.status), outcome)
        if record.reason is not None:
            self._shed.add(record.reason.value)
        if record.retry_after is not None:
            self._retry_after.of().add(record.retry_after)
        if record.backend is not None:
            self._backend_requests.add(self._backends.label(record.backend), outcome)
            self._observe_overhead(record)
        if record.route.access is Access.ADMIT and record.timeline.finished is not None:
            self._duration.of(model, outcome).add(record.timeline.finished - record.timeline.received)
        if ticket is not None:
            self._observe_ticket(record, ticket, model)

    def _observe_ticket(self, record: Record, ticket: Ticket, model: str) -> None:
        completed = record.outcome is Outcome.COMPLETED
        self._client_requests.add(self._clients.label(ticket.client, earned=completed), record.outcome.value)
        self._priority_requests.add(ticket.priority.label, record.outcome.value)
        if ticket.attempt > 0:
            self._retry_attempts.add()
        self._observe_wait(record)
        self._count_tokens(record, ticket, model)
        if completed and ticket.shape.stream and record.timeline.first_output is not None:
            self._observe_speed(record, model, record.timeline.first_output)

    def _observe_wait(self, record: Record) -> None:
        timeline = record.timeline
        began = timeline.received if timeline.offered is None else timeline.offered
        if timeline.admitted is not None:
            ended, how = timeline.admitted, "admitted"
        elif timeline.finished is not None and record.reason is Reason.QUEUE_TIMEOUT:
            ended, how = timeline.finished, record.reason.value
        elif timeline.finished is not None and record.outcome is Outcome.CLIENT_GONE:
            ended, how = timeline.finished, record.outcome.value
        else:
            return
        self._queue_wait.of(_lane(record), how).add(ended - began)

    def _observe_overhead(self, record: Record) -> None:
        timeline = record.timeline
        if timeline.sent is None:
            return
        read = timeline.received if timeline.read is None else timeline.read
        queued = 0.0
        if timeline.offered is not None and timeline.admitted is not None:
            queued = timeline.admitted - timeline.offered
        self._overhead.of().add(max(0.0, timeline.sent - read - queued))

    def _observe_speed(self, record: Record, model: str, first: float) -> None:
        timeline = record.timeline
        self._ttft.of(model, _lane(record)).add(first - timeline.received)
        if timeline.sent is not None and record.backend is not None:
            self._backend_ttft.of(self._backends.label(record.backend)).add(first - timeline.sent)
        self._itl.of(model).add_gaps(timeline.gaps)
        _, tokens = _reported(record.usage)
        if tokens is None:
            tokens = timeline.output_events
        if tokens > 1 and timeline.last_output is not None:
            self._tpot.of(model).add((timeline.last_output - first) / (tokens - 1))

    def _count_tokens(self, record: Record, ticket: Ticket, model: str) -> None:
        """The backend's own counts win; what it did not say is counted or estimated, and marked so."""
        shape, work = ticket.shape, ticket.work
        prompt, output = _reported(record.usage)
        answered = record.outcome is Outcome.COMPLETED or record.timeline.first_output is not None
        if prompt is not None:
            self._prompt_tokens.add(model, "usage", by=prompt)
        elif answered:
            self._prompt_tokens.add(model, "estimate", by=work.prompt_tokens)
        if output is not None:
            self._output_tokens.add(model, "usage", by=output)
        elif answered and shape.stream:
            self._output_tokens.add(model, "chunks", by=record.timeline.output_events)
        elif answered and shape.generates:
            self._output_tokens.add(model, "estimate", by=work.output_tokens)
        if record.outcome is Outcome.COMPLETED:
            self._observe_estimate("prompt", work.prompt_tokens, prompt)
            self._observe_estimate("output", work.output_tokens, output)

    def _observe_estimate(self, tokens: str, expected: int, reported: int | None) -> None:
        if reported:
            self._estimate_error.of(tokens).add(abs(expected - reported) / reported)

    # ----------------------------------------------------------------------------------------------------------
    # The scrape
    # ----------------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Give one family after the other, each whole in itself; the caller may pause between them."""
        state = self._state()
        for series in tuple(self._series.values()):
            yield series.family()
        yield from _of_backends(state)
        yield from _of_lanes(state)
        yield from self._of_process(state)
        for each in self._more:
            yield from each()

    def _of_process(self, state: GatewayState) -> Iterator[Metric]:
        arrivals = _family(names.RETRY_ARRIVALS)
        for kept in (True, False):
            arrivals.add_metric((str(kept).lower(),), state.retries_seen.get(kept, 0))
        yield arrivals
        found = _family(names.FINDING)
        for cause, backend in dict.fromkeys(self._findings()):
            found.add_metric((cause, NONE if backend is None else clean(backend)), 1)
        yield found
        failures = _family(names.CANARY_FAILURES)
        for backend, count in self._canary_failures.items():
            failures.add_metric((clean(backend),), count)
        yield failures
        yield _single(names.OVERLOADED, state.overloaded)
        yield _single(names.DRAINING, state.draining)
        if self._loop_lag is not None:
            yield _single(names.LOOP_LAG, self._loop_lag())
        if self._workers is not None:
            yield _single(names.WORKERS, float(self._workers()))
        for definition, dropped in self._dropped:
            if dropped is not None:
                yield _single(definition, dropped())
        for definition, value in self._info:
            yield _single(definition, 1, clean(value))


def process_registry() -> CollectorRegistry:
    """Memory, CPU, file descriptors, garbage collection and the Python of this process.

    Collecting reads /proc, and lists every open file there: do it in a thread.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _family(definition: names.Definition) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if definition.kind is names.Kind.COUNTER else GaugeMetricFamily
    return family(definition.name, definition.meaning, labels=definition.labels)


def _single(definition: names.Definition, value: float, *labels: str) -> Metric:
    family = _family(definition)
    family.add_metric(labels, float(value))
    return family


def _of_backends(state: GatewayState) -> Iterator[Metric]:
    for definition, read in _BACKEND_GAUGES:
        family = _family(definition)
        for backend in state.backends:
            value = read(backend)
            if value is not None:
                family.add_metric((clean(backend.name),), value)
        yield family
    changes = _family(names.LIMIT_CHANGES)
    for backend in state.backends:
        for (direction, reason), count in backend.limit_changes.items():
            changes.add_metric((clean(backend.name), direction, reason), count)
    yield changes


def _of_lanes(state: GatewayState) -> Iterator[Metric]:
    for definition, read in _LANE_GAUGES:
        family = _family(definition)
        for lane in state.lanes:
            family.add_metric((clean(lane.name),), read(lane))
        yield family
    waiting = _family(names.QUEUE_PRIORITY)
    for priority in state.priorities:
        waiting.add_metric((priority.name,), priority.depth)
    yield waiting


def _reported(usage: Usage | None) -> tuple[int | None, int | None]:
    """Prompt and output tokens as the backend counted them; None for what it did not say or what cannot be."""
    if usage is None:
        return None, None
    counts = (usage.prompt_tokens, usage.completion_tokens)
    prompt, output = (count if count is not None and 0 <= count <= _MOST_TOKENS else None for count in counts)
    return prompt, output


def _code(status: int) -> str:
    return str(status) if status == 0 or 100 <= status <= 599 else "other"  # noqa: PLR2004 - the range of HTTP


def _lane(record: Record) -> str:
    return NONE if record.lane is None else record.lane
