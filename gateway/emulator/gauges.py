"""The emulated engine's /metrics: the names, labels and buckets of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from gateway.emulator.engine import Engine

# fmt: off
_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)
_GAP: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_E2E: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)
# fmt: on
_LABELS: Final = ("engine", "model_name")


class Gauges:
    """What the engine tells of itself. Times are engine seconds."""

    def __init__(self, engine: Engine, model: str) -> None:
        """Read the gauges off ``engine`` whenever somebody asks."""
        self._registry = CollectorRegistry()
        self._labels = ("0", model)
        profile = engine.profile
        capacity = profile.kv_blocks * profile.block_size
        self._gauge("num_requests_running", "Number of requests in model execution batches.", lambda: engine.running)
        self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda: engine.waiting)
        self._gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda: engine.kv_tokens / capacity
        )
        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            ("block_size", "enable_prefix_caching", "num_gpu_blocks", "engine"),
            registry=self._registry,
        )
        info.labels(str(profile.block_size), str(profile.prefix_cache), str(profile.kv_blocks), "0").set(1)
        self._engine = engine
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self._queried = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._cached = self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        self._told = (0, 0, 0)  # of each of the three, so much
        self._prompts = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._generated = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(*self._labels, reason)
        self._ttft = self._histogram("time_to_first_token_seconds", "Histogram of time to first token.", _TTFT)
        self._gap = self._histogram("inter_token_latency_seconds", "Histogram of inter-token latency.", _GAP)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Histogram of e2e request latency.", _E2E)
        self.gap = self._gap.observe  # on the path of every token
        self.generated = self._generated.inc

    def first(self, prompt_tokens: int, ttft: float) -> None:
        """A request had its first token."""
        self._prompts.inc(prompt_tokens)
        self._ttft.observe(ttft)

    def finished(self, reason: str, latency: float) -> None:
        """A request ended by itself."""
        self._success.labels(*self._labels, reason).inc()
        self._e2e.observe(latency)

    def aborted(self, requests: int) -> None:
        """Requests ended because their client left."""
        self._success.labels(*self._labels, "abort").inc(requests)

    def text(self) -> bytes:
        """The exposition."""
        now = (self._engine.preemptions, self._engine.queried_tokens, self._engine.cached_tokens)
        for counter, total, told in zip((self._preemptions, self._queried, self._cached), now, self._told, strict=True):
            counter.inc(total - told)
        self._told = now
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(*self._labels).set_function(read)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(*self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, _LABELS, registry=self._registry, buckets=buckets)
        return histogram.labels(*self._labels)
