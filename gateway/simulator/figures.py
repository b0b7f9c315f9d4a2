"""What came of a run, in numbers.

Goodput is what was answered inside the objectives (TTFT from the first attempt on), per second; ``goodput_tokens`` is
the same weighted by cost, so that serving only short requests flatters nobody; ``asked_tokens`` is what it would be if
everything that was asked had been answered so. Everything is counted by when it ended,
within the part of the run that is measured. Each figure stands for all of the traffic and, with a prefix, for
``short.``, ``long.`` and each label of the load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from gateway.model import BackendState
from gateway.simulator.clients import Call, Ending
from gateway.simulator.setup import Objectives

Trace = list[tuple[float, tuple[BackendState, ...]]]
LONG = 1000  # tokens, prompt and output together: the default threshold of the lanes
PROMPT_WEIGHT = 0.25


def percentile(values: Sequence[float], q: float) -> float:
    """Linear between the two nearest ranks; NaN of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    place = (len(ranked) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def is_long(call: Call) -> bool:
    """Whether it belongs in the lane of long requests."""
    return call.want.prompt_tokens + call.want.output_tokens > LONG


def cost(call: Call) -> float:
    """Its weight, in output tokens."""
    return PROMPT_WEIGHT * call.want.prompt_tokens + call.want.output_tokens


def ttft(call: Call) -> float:
    """Seconds from the first attempt to the first token."""
    return call.first_output - call.arrived


def tpot(call: Call) -> float:
    """Seconds per output token after the first; 0 where there was only one."""
    gaps = call.want.output_tokens - 1
    return (call.ended_at - call.first_output) / gaps if gaps else 0.0


def in_objective(call: Call, objectives: Objectives) -> bool:
    """Answered in time. An answer that is not streamed has the time that a stream inside both objectives would take."""
    if call.ending is not Ending.ANSWERED:
        return False
    most_ttft = objectives.ttft_long if is_long(call) else objectives.ttft_short
    most_ttft = math.inf if most_ttft is None else most_ttft
    most_tpot = math.inf if objectives.tpot is None else objectives.tpot
    if call.want.stream:
        return ttft(call) <= most_ttft and tpot(call) <= most_tpot
    return call.ended_at - call.arrived <= most_ttft + most_tpot * call.want.output_tokens


def of_calls(calls: Iterable[Call], objectives: Objectives, seconds: float) -> dict[str, float]:
    """All figures of a run's ended calls."""
    groups: dict[str, list[Call]] = {"": [], "short.": [], "long.": []}
    for call in calls:
        groups[""].append(call)
        groups["long." if is_long(call) else "short."].append(call)
        groups.setdefault(f"{call.label}.", []).append(call)
    return {
        prefix + name: value
        for prefix, group in groups.items()
        if group
        for name, value in of_group(group, objectives, seconds).items()
    }


def of_group(calls: Sequence[Call], objectives: Objectives, seconds: float) -> dict[str, float]:
    """The figures of these calls, with no prefix."""
    good = [call for call in calls if in_objective(call, objectives)]
    answered = [call for call in calls if call.ending is Ending.ANSWERED]
    streams = [call for call in answered if call.want.stream]
    ttfts, tpots = [ttft(call) for call in streams], [tpot(call) for call in streams]
    return {
        "ended": len(calls),
        "throughput": len(answered) / seconds,
        "goodput": len(good) / seconds,
        "goodput_tokens": sum(map(cost, good)) / seconds,
        "asked_tokens": sum(map(cost, calls)) / seconds,
        "in_objective": len(good) / len(calls),
        "answered": len(answered) / len(calls),
        "shed": sum(call.ending is Ending.SHED for call in calls) / len(calls),
        "amplification": sum(call.attempts for call in calls) / len(calls),
        "ttft_p50": percentile(ttfts, 0.5),
        "ttft_p95": percentile(ttfts, 0.95),
        "ttft_p99": percentile(ttfts, 0.99),
        "tpot_p50": percentile(tpots, 0.5),
        "tpot_p90": percentile(tpots, 0.9),
        "e2e_p99": percentile([call.ended_at - call.arrived for call in answered], 0.99),
    }


def of_limits(trace: Trace, since: float) -> dict[str, float]:
    """How the first backend's limit went, where there is one; ``limit_at_N`` every ten seconds from the start."""
    limits = [states[0].limit for at, states in trace if at >= since]
    if not limits:
        return {}
    at_tens = {f"limit_at_{at:.0f}": states[0].limit for at, states in trace if at % 10 == 0}
    return at_tens | {
        "limit_mean": fmean(limits),
        "limit_min": min(limits),
        "limit_max": max(limits),
        "limit_end": limits[-1],
    }
