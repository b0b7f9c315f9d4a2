"""An engine's own gauges out of what it exposes: Prometheus text of every family, and MindIE's JSON.

Absent gauges stay None, and nothing here raises: hints only ever lower a limit, so what cannot be read is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

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


def prometheus(texts: Sequence[str]) -> Hints:
    """Gauges out of one exposition. One sample per data-parallel rank: sums, and the fullest KV cache.

    The names of the families do not collide, so all of them are looked for.
    """
    text = "\n" + texts[0]
    running, waiting, usage = _values(text, _RUNNING), _values(text, _WAITING), _values(text, _KV_USAGE)
    preemptions = _values(text, _PREEMPTIONS)
    return Hints(
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        kv_usage=min(max(usage), 1.0) if usage else None,
        kv_capacity_tokens=_capacity(text),
        preemptions_total=sum(preemptions) if preemptions else None,
    )


def mindie_status(texts: Sequence[str]) -> Hints:
    """Gauges out of MindIE's ``/v2/status``, with the size of its blocks out of ``/v1/config``."""
    resource = _object(texts[0]).get("resource")
    config = _object(texts[1])
    if not isinstance(resource, dict):
        return Hints()
    free, total = _count(resource, "freeNpuBlockNums"), _count(resource, "totalNpuBlockNums")
    block = _count(config, "cacheBlockSize")
    return Hints(
        running=_count(resource, "runningRequestNum"),
        waiting=_count(resource, "waitingRequestNum"),
        kv_usage=min(max(1.0 - free / total, 0.0), 1.0) if free is not None and total else None,
        kv_capacity_tokens=int(total * block) or None if total and block else None,
    )


def mindie_slots(texts: Sequence[str]) -> Hints:
    """Running requests out of MindIE's ``/v2/models/{model}/getSlotCount``: its slots bound the running batch."""
    slots = _object(texts[0])
    total, free = _count(slots, "total_slots"), _count(slots, "free_slots")
    return Hints(running=max(total - free, 0.0) if total is not None and free is not None else None)


def _object(text: str) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _count(document: dict[str, Any], name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


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
