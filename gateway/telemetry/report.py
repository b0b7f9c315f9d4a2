"""A report's figures as people and programs read them: vLLM's own block, the keys of its result file, or CSV.

Layout and keys are those of ``vllm bench serve`` 0.33.0, so that a report and a benchmark's result can be laid side by
side. What only a gateway knows comes in a second block, and under the one key ``gateway``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Rule
from gateway.telemetry.spread import Spread
from gateway.telemetry.tally import OBJECTIVES, Figures

_WIDTH: Final = 50
_MS: Final = 1000.0
_LATENCIES: Final = (  # key, name, heading: vLLM's own
    ("ttft", "TTFT", "Time to First Token"),
    ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    ("itl", "ITL", "Inter-token Latency"),
    ("e2el", "E2EL", "End-to-end Latency"),
)
_FAILED: Final = tuple(
    outcome for outcome in Outcome if outcome not in {Outcome.COMPLETED, Outcome.REFUSED, Outcome.CLIENT_GONE}
)
_OWN_LATENCIES: Final = (
    ("queue_wait", "queue wait", "Wait in the Gateway's Queue"),
    ("engine_ttft", "engine TTFT", "Time to First Token at the Engine"),
    ("first_output", "first output", "First Output of Any Kind"),
)


@dataclass(frozen=True, slots=True)
class Heading:
    """What a report is about. ``offset``: what to add to an instant of the entries for seconds since the epoch.

    ``label`` names a run. ``lost`` is when the last request finished that should be in the report and is not kept any
    more, in seconds since the epoch; None where none is missing.
    """

    label: str | None = None
    model: str | None = None
    offset: float = 0.0
    lost: float | None = None


# ---------------------------------------------------------------------------------------------------------- options


def rule_of(text: str) -> Rule:
    """The definitions of ``0.33`` or ``0.32``, patch numbers included, or ``any``.

    Raises:
        ValueError: no rule is known by this name.
    """
    for rule in Rule:
        if text == rule.value or (rule is not Rule.ANY and text.startswith(rule.value + ".")):
            return rule
    raise ValueError(f"got {text!r}, expected a version of vllm bench serve, 0.33 or 0.32, or any")


def objectives_of(texts: Iterable[str]) -> dict[str, float]:
    """``ttft:500 tpot:50`` in milliseconds, as ``vllm bench serve --goodput`` takes them, in seconds.

    Raises:
        ValueError: it is spelt otherwise.
    """
    found = {}
    for text in texts:
        name, _, bound = text.partition(":")
        if name not in OBJECTIVES or not _is_number(bound):
            wanted = ", ".join(f"{known}:MILLISECONDS" for known in OBJECTIVES)
            raise ValueError(f"got {text!r}, expected {wanted}")
        found[name] = float(bound) / _MS
    return found


def percents_of(text: str) -> tuple[float, ...]:
    """``50,90,99`` as numbers.

    Raises:
        ValueError: one is no number from 0 to 100.
    """
    parts = text.split(",")
    if not all(_is_number(part) and float(part) <= 100.0 for part in parts):  # noqa: PLR2004 - percent
        raise ValueError(f"got {text!r}, expected percentiles from 0 to 100 such as 50,90,99")
    return tuple(map(float, parts))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and text.isascii()


# ------------------------------------------------------------------------------------------------------------- text


def text_report(figures: Figures, heading: Heading) -> str:
    """Both blocks."""
    return "".join(f"{line}\n" for line in (*_bench_block(figures), *_own_block(figures), *_notes(figures, heading)))


def bench_report(figures: Figures) -> str:
    """The block of ``vllm bench serve`` alone."""
    return "".join(f"{line}\n" for line in _bench_block(figures))


def _bench_block(figures: Figures) -> Iterator[str]:
    yield _rule(" Serving Benchmark Result ", "=")
    yield _line("Successful requests:", figures.completed)
    yield _line("Failed requests:", figures.failed)
    yield _line("Benchmark duration (s):", figures.duration)
    yield _line("Total input tokens:", figures.input_tokens)
    yield _line("Total generated tokens:", figures.output_tokens)
    yield _line("Request throughput (req/s):", figures.rate(figures.completed))
    if figures.good is not None:
        yield _line("Request goodput (req/s):", figures.rate(figures.good))
    yield _line("Output token throughput (tok/s):", figures.rate(figures.output_tokens))
    yield _line("Peak output token throughput (tok/s):", float(figures.peak_output))
    yield _line("Peak concurrent requests:", float(figures.peak_concurrency))
    total = figures.input_tokens + figures.output_tokens
    yield _line("Total token throughput (tok/s):", figures.rate(total))
    for key, name, title in _LATENCIES:
        yield from _latency(getattr(figures, key), name, title)
    yield _rule("", "=")


def _own_block(figures: Figures) -> Iterator[str]:
    yield _rule(" Seen by the Gateway ", "=")
    yield _line("Requests received:", figures.received)
    yield _line("First attempts of clients:", figures.first_attempts)
    yield _line("Retries of clients:", figures.received - figures.first_attempts)
    yield _line("Attempts at engines:", figures.engine_attempts)
    yield _line("Given up by their client:", figures.aborted)
    yield _line("Refused:", sum(figures.refused.values()))
    yield from (_line(f"  {reason}:", times) for reason, times in figures.refused.items())
    yield _line("Failed otherwise:", sum(figures.failures.values()) + figures.silent)
    yield from (_line(f"  {outcome}:", times) for outcome, times in figures.failures.items())
    if figures.silent:
        yield _line("  no output that counts:", figures.silent)
    yield _line("Answers not streamed:", figures.whole)
    yield _line("Peak concurrent requests, exact:", figures.peak_concurrency_exact)
    for key, name, title in _OWN_LATENCIES:
        yield from _latency(getattr(figures, key), name, title)
    yield _rule("", "=")


def _latency(spread: Spread, name: str, title: str) -> Iterator[str]:
    yield _rule(title, "-")
    yield _line(f"Mean {name} (ms):", spread.mean * _MS)
    yield _line(f"Median {name} (ms):", spread.median * _MS)
    for percent, value in spread.percentiles.items():
        yield _line(f"P{_word(percent)} {name} (ms):", value * _MS)


def _notes(figures: Figures, heading: Heading) -> Iterator[str]:
    by = (
        "chunks of any output count" if figures.rule is Rule.ANY else f"as vllm bench serve {figures.rule.value} counts"
    )
    yield f"Definitions: {by}; time starts when a request reaches the gateway."
    if figures.silent and figures.rule is not Rule.ANY:
        yield f"{figures.silent} streams ended well without a chunk that counts so: --compat any counts all output."
    if figures.chunks_for_tokens:
        yield (
            f"{figures.chunks_for_tokens} streams came without usage: their output tokens are counts of chunks. "
            "GATEWAY_INJECT_USAGE asks engines for it."
        )
    if figures.estimated_prompts or figures.estimated_outputs:
        yield (
            f"Estimated, as no usage came: the prompt tokens of {figures.estimated_prompts} answers, the output tokens "
            f"of {figures.estimated_outputs}."
        )
    if figures.others:
        yield f"{figures.others} requests generate nothing (embeddings, rerank ...) and are in no figure."
    if heading.lost is not None:
        yield f"What finished up to {_local(heading.lost)} is no longer kept (GATEWAY_REPORT_WINDOW, _MEMORY)."


def _rule(title: str, fill: str) -> str:
    return f"{title:{fill}^{_WIDTH}}"


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10}" if isinstance(value, int) else f"{label:<40} {value:<10.2f}"


def _word(percent: float) -> str:
    return str(int(percent)) if int(percent) == percent else str(percent)


def _local(instant: float) -> str:
    return datetime.fromtimestamp(instant).astimezone().isoformat(timespec="seconds")


# ---------------------------------------------------------------------------------------------------- for programs


def result(figures: Figures, heading: Heading) -> dict[str, Any]:
    """The keys of vLLM's result file, and ``gateway`` with the rest. What no gateway can know is None."""
    asked = heading.model or (figures.models[0] if len(figures.models) == 1 else None)
    began = datetime.fromtimestamp(figures.began + heading.offset, UTC)
    total = figures.input_tokens + figures.output_tokens
    return {
        "date": f"{began:%Y%m%d-%H%M%S}",
        "endpoint_type": "gateway",
        "backend": "gateway",
        "label": heading.label,
        "model_id": asked,
        "tokenizer_id": None,
        "num_prompts": figures.completed + figures.failed,
        "request_rate": None,
        "burstiness": None,
        "max_concurrency": None,
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "request_throughput": figures.rate(figures.completed),
        "request_goodput": None if figures.good is None else figures.rate(figures.good),
        "output_throughput": figures.rate(figures.output_tokens),
        "total_token_throughput": figures.rate(total),
        "max_output_tokens_per_s": float(figures.peak_output),
        "max_concurrent_requests": figures.peak_concurrency,
        "rtfx": 0.0,
        **_keyed(figures, (key for key, _, _ in _LATENCIES)),
        "gateway": _own_result(figures, heading),
    }


def _own_result(figures: Figures, heading: Heading) -> dict[str, Any]:
    return {
        "compat": figures.rule.value,
        "received": figures.received,
        "first_attempts": figures.first_attempts,
        "retries": figures.received - figures.first_attempts,
        "engine_attempts": figures.engine_attempts,
        "aborted": figures.aborted,
        "refused": {reason.value: figures.refused.get(reason.value, 0) for reason in Reason},
        "failures": {outcome.value: figures.failures.get(outcome.value, 0) for outcome in _FAILED},
        "no_counted_output": figures.silent,
        "not_streamed": figures.whole,
        "max_concurrent_requests_exact": figures.peak_concurrency_exact,
        **_keyed(figures, (key for key, _, _ in _OWN_LATENCIES)),
        "streams_without_usage": figures.chunks_for_tokens,
        "estimated_prompts": figures.estimated_prompts,
        "estimated_outputs": figures.estimated_outputs,
        "other_requests": figures.others,
        "models": list(figures.models),
        "lost_until": heading.lost,
    }


def _keyed(figures: Figures, keys: Iterable[str]) -> dict[str, float]:
    found = {}
    for key in keys:
        spread: Spread = getattr(figures, key)
        found[f"mean_{key}_ms"] = spread.mean * _MS
        found[f"median_{key}_ms"] = spread.median * _MS
        found[f"std_{key}_ms"] = spread.std * _MS
        for percent, value in spread.percentiles.items():
            found[f"p{_word(percent)}_{key}_ms"] = value * _MS
    return found


def csv_report(figures: Figures, heading: Heading) -> str:
    """One line of names and one of values; what is nested has its path for a name."""
    flat = dict(_flattened("", result(figures, heading)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(flat)
    writer.writerow(flat.values())
    return out.getvalue()


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flattened(f"{path}.{key}" if path else key, inner)
    else:
        yield path, " ".join(value) if isinstance(value, list) else value
