"""What the prober asks of each kind of engine, and how its gauges are named."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.dialects.base import Probe
from gateway.model import Hints

# Newest name first; the first that has a sample wins, because engines export old and new side by side for a while.
# vLLM: docs usage/metrics and PRs 18354, 29330; SGLang, LMDeploy, TGI, llama.cpp: their /metrics; MindIE-LLM 3.0.0:
# prometheus_metrics.cpp, names without a prefix.
_RUNNING: Final = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "lmdeploy:num_requests_running",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
    "num_requests_running",
)
_WAITING: Final = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "lmdeploy:num_requests_waiting",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
    "num_requests_waiting",
)
_KV_USAGE: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "lmdeploy:gpu_cache_usage_perc",
    "llamacpp:kv_cache_usage_ratio",
    "npu_cache_usage_perc",
)
_PREEMPTIONS: Final = ("vllm:num_preemptions_total", "vllm:num_preemptions", "num_preemptions_total")
_KV_CAPACITY: Final = ("sglang:max_total_num_tokens",)
_KV_BLOCKS: Final = ("vllm:cache_config_info", "vllm:cache_config")
_NUM_BLOCKS: Final = re.compile(r'\bnum_gpu_blocks="(\d{1,12})"')
_BLOCK_SIZE: Final = re.compile(r'(?:^|,)block_size="(\d{1,9})"')
_METRICS: Final = Probe("/metrics")


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of engine. The names of gauges do not collide, so all kinds read all of them."""

    kind: str
    health: Probe
    metrics: Probe | None = _METRICS
    closes_when_full: bool = False

    def hints(self, text: str) -> Hints:
        """See ``EngineDialect``. One sample per data-parallel rank: sums, and the fullest KV cache."""
        text = "\n" + text
        running, waiting, usage = _values(text, _RUNNING), _values(text, _WAITING), _values(text, _KV_USAGE)
        preemptions = _values(text, _PREEMPTIONS)
        return Hints(
            running=sum(running) if running else None,
            waiting=sum(waiting) if waiting else None,
            kv_usage=min(max(usage), 1.0) if usage else None,
            kv_capacity_tokens=_capacity(text),
            preemptions_total=sum(preemptions) if preemptions else None,
        )


def _samples(text: str, name: str) -> Iterator[tuple[str, str]]:
    """(labels, value) of every sample of ``name``: lines that begin with it, found without reading the others."""
    start = text.find("\n" + name)
    while start >= 0:
        after = start + 1 + len(name)
        end = text.find("\n", after)
        line = text[after : end if end >= 0 else len(text)]
        labels, brace, value = line[1:].rpartition("}") if line.startswith("{") else ("", "}", line)
        if brace and value.startswith((" ", "\t")):
            yield labels, value.split(maxsplit=1)[0] if value.strip() else ""
        start = text.find("\n" + name, after)


def _values(text: str, names: tuple[str, ...]) -> list[float]:
    """Finite, not negative values of the first of ``names`` that has any."""
    for name in names:
        values = [value for _, sample in _samples(text, name) if (value := _number(sample)) is not None]
        if values:
            return values
    return []


def _number(sample: str) -> float | None:
    try:
        value = float(sample)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _capacity(text: str) -> int | None:
    """KV capacity in tokens, over all data-parallel ranks."""
    tokens = int(sum(_values(text, _KV_CAPACITY)))
    if not tokens:
        infos = next((infos for name in _KV_BLOCKS if (infos := list(_samples(text, name)))), [])
        for labels, _ in infos:
            blocks, size = _NUM_BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
            tokens += int(blocks.group(1)) * int(size.group(1)) if blocks and size else 0
    return tokens or None


ENGINES: Final[Mapping[str, Engine]] = MappingProxyType({
    engine.kind: engine
    for engine in (
        Engine("openai", Probe("/health")),
        Engine("vllm", Probe("/health")),
        # SGLang's /health generates a token when idle; /ready, where the version has it, costs nothing.
        Engine("sglang", Probe("/ready")),
        Engine("llamacpp", Probe("/health")),
        # MindIE's health routes live on the management plane; the model list is on the plane that serves.
        # A connection beyond three times maxLinkNum is closed by cpp-httplib's thread pool without a word.
        Engine("mindie", Probe("/v1/models"), closes_when_full=True),
        Engine("tgi", Probe("/health")),
        Engine("lmdeploy", Probe("/health")),
    )
})  # fmt: skip
