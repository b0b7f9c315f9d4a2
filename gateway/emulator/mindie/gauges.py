"""What the emulated MindIE tells of itself: names and buckets of MindIE-LLM 3.0.0, prometheus_metrics.cpp.

A collector samples the gauges once a second, so they are up to a second old, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from gateway.emulator.engine import Engine

SAMPLED: Final = 1.0  # seconds between two looks of the collector
# fmt: off
_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)
_GAP: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_E2E: Final = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
# fmt: on


class MindIEGauges:
    """Counts and gauges of one engine. Times are engine seconds; ``now`` tells the present one."""

    def __init__(self, engine: Engine, model: str, now: Callable[[], float]) -> None:
        """Start with everything at 0."""
        self._engine = engine
        self._model = model
        self._now = now
        self._sampled_at = float("-inf")
        self._registry = CollectorRegistry()
        self._received = self._counter("request_received", "Count of received requests.")
        self._success = self._counter("request_success", "Count of successfully processed requests.")
        self._failed = self._counter("request_failed", "Count of failed requests.")
        self._prompts = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._generated = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self._running = self._gauge("num_requests_running", "Number of requests currently running on GPU.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._gauge("num_requests_swapped", "Number of requests swapped to CPU.")
        self._cache = self._gauge("npu_cache_usage_perc", "NPU KV-cache usage. 1 means 100 percent usage.")
        self._gauge("cpu_cache_usage_perc", "CPU KV-cache usage. 1 means 100 percent usage.")
        self._ttft = self._histogram("time_to_first_token_seconds", "Histogram of time to first token.", _TTFT)
        self._gap = self._histogram("time_per_output_token_seconds", "Histogram of time per output token.", _GAP)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Histogram of end to end request latency.", _E2E)
        self._preempted = 0
        self.gap = self._gap.observe
        self.generated = self._generated.inc
        self.received = self._received.inc

    def first(self, prompt_tokens: int, ttft: float) -> None:
        """A request had its first token."""
        self._prompts.inc(prompt_tokens)
        self._ttft.observe(ttft)

    def finished(self, _reason: str, latency: float) -> None:
        """A request ended by itself."""
        self._success.inc()
        self._e2e.observe(latency)

    def aborted(self, requests: int) -> None:
        """Requests were stopped."""
        self._failed.inc(requests)

    def text(self) -> bytes:
        """The exposition, with gauges as they were sampled last."""
        if self._now() - self._sampled_at >= SAMPLED:
            self._sample()
        return generate_latest(self._registry)

    def _sample(self) -> None:
        engine = self._engine
        self._sampled_at = self._now()
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._cache.set(engine.kv_tokens / (engine.profile.kv_blocks * engine.profile.block_size))
        self._preemptions.inc(engine.preemptions - self._preempted)
        self._preempted = engine.preemptions

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model_name",), registry=self._registry).labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ("model_name",), registry=self._registry, buckets=buckets)
        return histogram.labels(self._model)
