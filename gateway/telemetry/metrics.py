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
    Shape,
    Ticket,
    Timeline,
    Usage,
)
from gateway.telemetry import definitions as names
from gateway.telemetry.series import Bounded, Counter, Counters, Histogram, Histograms, clean

NONE: Final = "none"  # label of a request that names no model, or that never came to a lane or backend
_ROUTES: Final = 100
_BACKENDS: Final = 1000
_ALIKE: Final = 1024  # kinds of requests whose series are remembered
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


class _Alike:
    """The series that requests with the same labels move; None where they move none."""

    __slots__ = (
        "backend_ttft", "counters", "duration", "itl", "model", "output_error", "output_tokens", "overhead",
        "prompt_error", "prompt_tokens", "ttft", "wait",
    )  # fmt: skip

    def __init__(self, counters: list[Counter], model: str) -> None:
        self.counters = counters  # those that count the request
        self.model = model
        self.overhead: Histogram | None = None
        self.duration: Histogram | None = None
        self.wait: Histogram | None = None
        self.prompt_tokens: Counter | None = None
        self.output_tokens: Counter | None = None
        self.prompt_error: Histogram | None = None
        self.output_error: Histogram | None = None
        self.ttft: Histogram | None = None
        self.backend_ttft: Histogram | None = None
        self.itl: Histogram | None = None


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
        self._named = config.max_clients > 0  # clients have labels of their own
        self._alike: dict[tuple[object, ...], _Alike] = {}
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
            self._shed.of(reason.value)
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
        timeline, ticket = record.timeline, record.ticket
        prompt, output = _reported(record.usage)
        found = self._series_of(record, ticket, prompt is None, output is None)
        for counter in found.counters:
            counter.value += 1.0
        received, finished = timeline.received, timeline.finished
        if record.retry_after is not None:
            self._retry_after.of().add(record.retry_after)
        if found.overhead is not None and timeline.sent is not None:
            found.overhead.add(_overhead(timeline, timeline.sent))
        if found.duration is not None and finished is not None:
            found.duration.add(finished - received)
        if ticket is None:
            return
        ended = finished if timeline.admitted is None else timeline.admitted
        if found.wait is not None and ended is not None:
            found.wait.add(ended - (received if timeline.offered is None else timeline.offered))
        self._count_tokens(found, record, ticket, prompt, output)
        if found.ttft is not None and timeline.first_output is not None:
            self._observe_speed(found, timeline, timeline.first_output, output)

    def _series_of(self, record: Record, ticket: Ticket | None, no_prompt: bool, no_output: bool) -> _Alike:
        """What a request moves: looked up by name once for all that are alike."""
        timeline, shape = record.timeline, None if ticket is None else ticket.shape
        key = (
            None if shape is None else shape.model,
            shape is not None and shape.stream,
            shape is not None and shape.generates,
            None if ticket is None else ticket.priority,
            ticket is not None and ticket.attempt > 0,
            ticket.client if ticket is not None and self._named else "",
            record.route.label,
            record.route.access,
            record.status,
            record.outcome,
            record.reason,
            record.backend,
            record.lane,
            timeline.admitted is None,
            timeline.sent is None,
            timeline.first_output is None,
            no_prompt,
            no_output,
        )
        found = self._alike.get(key)
        if found is None:
            found = self._resolve(record, ticket, no_prompt, no_output)
            name = None if shape is None else shape.model
            if (not name or self._models.settled(name)) and (ticket is None or self._clients.settled(ticket.client)):
                if len(self._alike) >= _ALIKE:
                    self._alike.clear()
                self._alike[key] = found
        return found

    def _resolve(self, record: Record, ticket: Ticket | None, no_prompt: bool, no_output: bool) -> _Alike:
        outcome, completed = record.outcome.value, record.outcome is Outcome.COMPLETED
        name = ticket.shape.model if ticket is not None else None
        model = self._models.label(name, earned=completed) if name else NONE
        counters = [self._requests.of(model, self._routes.label(record.route.label), _code(record.status), outcome)]
        found = _Alike(counters, model)
        if record.reason is not None:
            counters.append(self._shed.of(record.reason.value))
        if record.backend is not None:
            counters.append(self._backend_requests.of(self._backends.label(record.backend), outcome))
            found.overhead = self._overhead.of()
        if record.route.access is Access.ADMIT:
            found.duration = self._duration.of(model, outcome)
        if ticket is not None:
            client = self._clients.label(ticket.client, earned=completed)
            counters.append(self._client_requests.of(client, outcome))
            counters.append(self._priority_requests.of(ticket.priority.label, outcome))
            if ticket.attempt > 0:
                counters.append(self._retry_attempts.of())
            if (how := _left(record)) is not None:
                found.wait = self._queue_wait.of(_lane(record), how)
            self._resolve_tokens(found, record, ticket.shape, no_prompt, no_output)
            if completed and ticket.shape.stream and record.timeline.first_output is not None:
                self._resolve_speed(found, record)
        return found

    def _resolve_tokens(self, found: _Alike, record: Record, shape: Shape, no_prompt: bool, no_output: bool) -> None:
        """The backend's own counts win; what it did not say is counted or estimated, and marked so."""
        answered = record.outcome is Outcome.COMPLETED or record.timeline.first_output is not None
        if not no_prompt:
            found.prompt_tokens = self._prompt_tokens.of(found.model, "usage")
        elif answered:
            found.prompt_tokens = self._prompt_tokens.of(found.model, "estimate")
        if not no_output:
            found.output_tokens = self._output_tokens.of(found.model, "usage")
        elif answered and (shape.stream or shape.generates):
            found.output_tokens = self._output_tokens.of(found.model, "chunks" if shape.stream else "estimate")

    def _resolve_speed(self, found: _Alike, record: Record) -> None:
        found.ttft = self._ttft.of(found.model, _lane(record))
        found.itl = self._itl.of(found.model)
        if record.backend is not None and record.timeline.sent is not None:
            found.backend_ttft = self._backend_ttft.of(self._backends.label(record.backend))

    def _count_tokens(
        self, found: _Alike, record: Record, ticket: Ticket, prompt: int | None, output: int | None
    ) -> None:
        work = ticket.work
        if found.prompt_tokens is not None:
            found.prompt_tokens.value += work.prompt_tokens if prompt is None else prompt
        if found.output_tokens is not None:
            counted = record.timeline.output_events if ticket.shape.stream else work.output_tokens
            found.output_tokens.value += counted if output is None else output
        if record.outcome is Outcome.COMPLETED:
            if prompt:
                found.prompt_error = found.prompt_error or self._estimate_error.of("prompt")
                found.prompt_error.add(abs(work.prompt_tokens - prompt) / prompt)
            if output:
                found.output_error = found.output_error or self._estimate_error.of("output")
                found.output_error.add(abs(work.output_tokens - output) / output)

    def _observe_speed(self, found: _Alike, timeline: Timeline, first: float, output: int | None) -> None:
        if found.ttft is not None:
            found.ttft.add(first - timeline.received)
        if timeline.sent is not None and found.backend_ttft is not None:
            found.backend_ttft.add(first - timeline.sent)
        if found.itl is not None:
            found.itl.add_gaps(timeline.gaps)
        tokens = timeline.output_events if output is None else output
        if tokens > 1 and timeline.last_output is not None:
            self._tpot.of(found.model).add((timeline.last_output - first) / (tokens - 1))

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
    choices, cache = _family(names.CHOICES), _family(names.CACHE_TOKENS)
    for backend in state.backends:
        for choice, count in backend.choices.items():
            choices.add_metric((clean(backend.name), choice), count)
        if backend.prompt_tokens:
            missed = max(0, backend.prompt_tokens - backend.cached_tokens)
            cache.add_metric((clean(backend.name), "true"), backend.cached_tokens)
            cache.add_metric((clean(backend.name), "false"), missed)
    yield choices
    yield cache


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
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    return (
        prompt if prompt is not None and 0 <= prompt <= _MOST_TOKENS else None,
        output if output is not None and 0 <= output <= _MOST_TOKENS else None,
    )


def _code(status: int) -> str:
    return str(status) if status == 0 or 100 <= status <= 599 else "other"  # noqa: PLR2004 - the range of HTTP


def _left(record: Record) -> str | None:
    """How a request left the queue; None where it never was in it, or that says nothing of its wait."""
    if record.timeline.admitted is not None:
        return "admitted"
    if record.timeline.finished is None:
        return None
    if record.reason is Reason.QUEUE_TIMEOUT:
        return Reason.QUEUE_TIMEOUT.value
    return Outcome.CLIENT_GONE.value if record.outcome is Outcome.CLIENT_GONE else None


def _overhead(timeline: Timeline, sent: float) -> float:
    """Seconds that the gateway itself took, from the whole request to its first byte at the backend."""
    read = timeline.received if timeline.read is None else timeline.read
    queued = 0.0
    if timeline.offered is not None and timeline.admitted is not None:
        queued = timeline.admitted - timeline.offered
    return max(0.0, sent - read - queued)


def _lane(record: Record) -> str:
    return NONE if record.lane is None else record.lane
