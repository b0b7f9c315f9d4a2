"""``gateway simulate``: what these settings would have made of a trace, on an emulated engine, in simulated time."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from gateway.admission.config import LaneConfig
from gateway.app.check import marked
from gateway.app.configs import load_all
from gateway.app.exits import EXIT_CONFIG, EXIT_START, EXIT_USAGE
from gateway.emulator.engine import Profile
from gateway.emulator.profiles import PROFILES
from gateway.model import Reason
from gateway.settings import Settings
from gateway.settings.faults import nearest
from gateway.settings.plain import admission_config
from gateway.simulator import trace
from gateway.simulator.clients import Call, Habits
from gateway.simulator.figures import of_group, percentile
from gateway.simulator.run import Result, direct, gateway
from gateway.simulator.setup import Load, Machine, Objectives, Setup
from gateway.simulator.workload import WORKLOADS, Arrival, arrivals, wants

_LEAST_SPAN: Final = 1.0  # seconds: rates of a trace of one instant
_POINTS: Final = 16  # of the limit over time, as text
_JSON_POINTS: Final = 240
_REASONS: Final = frozenset(reason.value for reason in Reason)


class _UsageError(ValueError):
    """An argument is wrong; the message says which, what was given and what is expected."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is simulated, and the lanes by which it is judged."""

    setup: Setup
    lanes: tuple[LaneConfig, ...]
    tpot: float | None
    span: float  # seconds of arrivals
    offered: tuple[Arrival, ...]
    too_long: int  # left out: the engine would refuse them


def run_simulate(arguments: argparse.Namespace) -> int:
    """Simulate and print; the exit code is one of those that ``cli`` lists."""
    loaded = load_all(arguments.env_file)
    if not loaded.ok:
        sys.stderr.writelines(f"{marked(fault)}\n" for fault in loaded.faults)
        return EXIT_CONFIG
    try:
        plan = _plan(arguments, loaded.settings)
    except (trace.TraceError, _UsageError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except OSError as error:
        sys.stderr.write(f"{arguments.trace}: {error.strerror or error}\n")
        return EXIT_START
    config = admission_config(loaded.settings)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        behind = gateway(plan.setup, config=config, progress=_shown(bar, "with the gateway"))
        bare = direct(plan.setup, progress=_shown(bar, "without"))
    document = _document(plan, behind, bare)
    text = json.dumps(document, indent=2) + "\n" if arguments.json else "".join(f"{line}\n" for line in _text(document))
    sys.stdout.write(text)
    return 0


def _shown(bar: Progress, name: str) -> Callable[[float], object]:
    task = bar.add_task(name, total=1.0)
    return lambda share: bar.update(task, completed=share)


# --------------------------------------------------------------------------------------------------------------
# What is asked for
# --------------------------------------------------------------------------------------------------------------


def _plan(arguments: argparse.Namespace, settings: Settings) -> _Plan:
    profile = _profile(arguments, settings)
    asked = _asked(arguments)
    offered = tuple(row for row in asked if row.prompt_tokens + row.output_tokens <= profile.max_model_len)
    if not offered:
        raise _UsageError(f"every request is longer than the engine's {profile.max_model_len} tokens of context")
    config = admission_config(settings)
    habits = Habits(timeout=arguments.timeout, retries=arguments.retries)
    load = Load(label="", trace=offered, clients=arguments.clients, streamed=arguments.streamed, habits=habits)
    span = max(offered[-1].at, _LEAST_SPAN)
    fleet = tuple(_fleet(arguments, settings, profile))
    setup = Setup(horizon=span + arguments.timeout, fleet=fleet, load=(load,), seed=arguments.seed)
    return _Plan(setup, config.queue.lanes, config.limit.tpot_objective, span, offered, len(asked) - len(offered))


def _profile(arguments: argparse.Namespace, settings: Settings) -> Profile:
    name = arguments.profile or settings.emulator_profile
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise _UsageError(f"--profile: got {name!r}, expected one of {known}{nearest(name, PROFILES)}")
    given = dict(_constant(text) for text in arguments.constant)
    try:
        return replace(PROFILES[name], **given)
    except ValueError as error:
        raise _UsageError(f"--constant {error}") from None


def _constant(text: str) -> tuple[str, Any]:
    known = {field.name: field.type for field in fields(Profile) if field.name != "name"}
    name, equals, value = text.partition("=")
    if not equals or name not in known:
        raise _UsageError(
            f"--constant: got {text!r}, expected NAME=VALUE with one of {', '.join(known)}{nearest(name, known)}"
        )
    whole, flag = str(known[name]).startswith("int"), known[name] == "bool"
    if flag and value in {"true", "false"}:
        return name, value == "true"
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if flag or not math.isfinite(number) or number < 0 or (whole and number != int(number)):
        expected = "true or false" if flag else "a whole number, 0 or more" if whole else "a number, 0 or more"
        raise _UsageError(f"--constant {name}: got {value!r}, expected {expected}")
    return name, int(number) if whole else number


def _fleet(arguments: argparse.Namespace, settings: Settings, profile: Profile) -> Iterator[Machine]:
    """As many engines as asked for, else one for each backend of the settings, with its limit and its weight."""
    if arguments.engines or not settings.backends:
        yield from (Machine(f"engine-{number}", profile) for number in range(1, (arguments.engines or 1) + 1))
    else:
        for backend in settings.backends:
            yield Machine(backend.name, profile, limit=backend.limit, weight=backend.weight)


def _asked(arguments: argparse.Namespace) -> tuple[Arrival, ...]:
    if bool(arguments.trace) is bool(arguments.mix):
        raise _UsageError("expected either a trace or --mix, and with --mix a --rate")
    if arguments.trace:
        with Path(arguments.trace).open(encoding="utf-8", newline="") as lines:
            try:
                found = trace.read(lines, arguments.trace)
            except UnicodeDecodeError:
                raise trace.TraceError(f"{arguments.trace}: expected text in UTF-8") from None
        return tuple(row._replace(at=row.at / arguments.speed) for row in found)
    if arguments.rate is None:
        raise _UsageError("--mix: expected a --rate with it, in requests a second")
    return tuple(_drawn(arguments))


def _drawn(arguments: argparse.Namespace) -> Iterator[Arrival]:
    """A Poisson process of the mixes, each at its share of the rate."""
    shares = dict(_mix(text) for text in arguments.mix)
    rows: list[Arrival] = []
    for name, share in shares.items():
        rate = arguments.rate * arguments.speed * share / sum(shares.values())
        seed = f"{arguments.seed}/{name}"
        lengths = wants(name, seed, clients=1, streamed=1.0, first_id=0, label="")
        times = arrivals(((0.0, rate),), seed, arguments.duration)
        rows += (Arrival(at, want.prompt_tokens, want.output_tokens) for at, want in zip(times, lengths, strict=False))
    if not rows:
        raise _UsageError(f"--duration: got {arguments.duration:g}, expected longer: no request arrives")
    yield from sorted(rows, key=lambda row: row.at)


def _mix(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise _UsageError(f"--mix: got {name!r}, expected one of {known}{nearest(name, WORKLOADS)}")
    try:
        weight = float(share or "1")
    except ValueError:
        weight = math.nan
    if not 0.0 < weight < math.inf:
        raise _UsageError(f"--mix {name}: got {share!r}, expected a share above 0")
    return name, weight


# --------------------------------------------------------------------------------------------------------------
# What came of it
# --------------------------------------------------------------------------------------------------------------


def _document(plan: _Plan, behind: Result, bare: Result) -> dict[str, Any]:
    offered = plan.offered
    return {
        "offered": {
            "requests": len(offered),
            "seconds": plan.span,
            "requests_per_second": len(offered) / plan.span,
            "prompt_tokens_mean": sum(row.prompt_tokens for row in offered) / len(offered),
            "output_tokens_mean": sum(row.output_tokens for row in offered) / len(offered),
            "longer_than_the_context": plan.too_long,
        },
        "engines": [{"name": machine.name, "profile": machine.profile.name} for machine in plan.setup.fleet],
        "objectives": {
            "tpot": plan.tpot,
            "ttft": {lane.name: lane.ttft_objective for lane in plan.lanes},
        },
        "gateway": _figures(plan, behind) | _decided(plan, behind),
        "no_gateway": _figures(plan, bare),
    }


def _figures(plan: _Plan, result: Result) -> dict[str, Any]:
    lanes: dict[str, list[Call]] = {lane.name: [] for lane in plan.lanes}
    for call in result.calls:
        lanes[_lane(plan, call).name].append(call)
    by_lane = {
        lane.name: _numbers(of_group(calls, _objectives(plan, lane), plan.span))
        for lane in plan.lanes
        if (calls := lanes[lane.name])
    }
    whole = _numbers(of_group(result.calls, Objectives(), plan.span)) if result.calls else {}
    for name in ("goodput", "goodput_tokens"):
        whole[name] = sum(figures[name] or 0.0 for figures in by_lane.values())
    if result.calls:
        good = sum((f["in_objective"] or 0.0) * (f["ended"] or 0.0) for f in by_lane.values())
        whole["in_objective"] = good / len(result.calls)
    endings = Counter(call.ending.value for call in result.calls if call.ending is not None)
    unfinished = len(plan.offered) - len(result.calls)
    return whole | {
        "endings": dict(endings) | ({"unfinished": unfinished} if unfinished else {}),
        "preemptions": result.figures["preemptions"],
        "lanes": by_lane,
    }


def _lane(plan: _Plan, call: Call) -> LaneConfig:
    tokens = call.want.prompt_tokens + call.want.output_tokens
    return next((lane for lane in plan.lanes if lane.threshold is None or tokens <= lane.threshold), plan.lanes[-1])


def _objectives(plan: _Plan, lane: LaneConfig) -> Objectives:
    return Objectives(lane.ttft_objective, lane.ttft_objective, plan.tpot)


def _numbers(figures: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _decided(plan: _Plan, result: Result) -> dict[str, Any]:
    """What only a gateway has: waits, refusals, limits."""
    waits = [decision.wait for decision in result.decisions if decision.what not in _REASONS]
    refused = Counter(decision.what for decision in result.decisions if decision.what in _REASONS)
    during = [(at, states) for at, states in result.trace if at <= plan.span]
    every = max(1, len(during) // _JSON_POINTS)
    return {
        "queue_wait": _numbers(
            {f"p{q}": percentile(waits, q / 100) for q in (50, 90, 99)} | {"max": max(waits, default=math.nan)}
        ),
        "queue_deepest": result.figures["queue_deepest"],
        "refused_attempts": dict(refused),
        "limits": [
            {
                "at": at,
                "engines": {
                    state.name: {"limit": round(state.limit, 1), "in_flight": state.running} for state in states
                },
            }
            for at, states in during[::every]
        ],
    }


# --------------------------------------------------------------------------------------------------------------
# As text
# --------------------------------------------------------------------------------------------------------------

_LINES: Final = (
    ("goodput, requests/s", ("goodput",), ".2f"),
    ("goodput, tokens/s", ("goodput_tokens",), ".0f"),
    ("in objective", ("in_objective",), ".1%"),
    ("answered", ("answered",), ".1%"),
    ("refused for good", ("shed",), ".1%"),
    ("attempts per request", ("amplification",), ".2f"),
    ("TTFT p50 / p95 / p99, s", ("ttft_p50", "ttft_p95", "ttft_p99"), ".2f"),
    ("TPOT p50 / p90, ms", ("tpot_p50", "tpot_p90"), ".0f"),
    ("whole time p99, s", ("e2e_p99",), ".2f"),
    ("preemptions", ("preemptions",), ".0f"),
)


def _text(document: dict[str, Any]) -> Iterator[str]:
    offered, engines = document["offered"], document["engines"]
    behind, bare = document["gateway"], document["no_gateway"]
    yield (
        f"{offered['requests']} requests in {offered['seconds']:.0f} s ({offered['requests_per_second']:.2f}/s), mean "
        f"{offered['prompt_tokens_mean']:.0f} prompt and {offered['output_tokens_mean']:.0f} output tokens, "
        f"on {len(engines)} x {engines[0]['profile']}"
    )
    if left := offered["longer_than_the_context"]:
        yield f"{left} further requests are longer than the engine's context and were left out."
    yield from ("", f"{'':28}{'gateway':>24}{'no gateway':>24}")
    for name, keys, form in _LINES:
        yield f"{name:<28}{_cell(behind, keys, form):>24}{_cell(bare, keys, form):>24}"
    for lane in behind["lanes"]:
        sides = (side["lanes"].get(lane, {}) for side in (behind, bare))
        yield f"{f'{lane}: in objective':<28}" + "".join(
            f"{_cell(side, ('in_objective',), '.1%'):>24}" for side in sides
        )
    wait = behind["queue_wait"]
    yield from (
        "",
        "Wait in the queue p50 / p90 / p99 / max, s: "
        + _joined([wait[key] for key in ("p50", "p90", "p99", "max")], ".2f")
        + f"; at most {behind['queue_deepest']:.0f} waited",
        "Refused attempts: "
        + (", ".join(f"{reason} {count}" for reason, count in sorted(behind["refused_attempts"].items())) or "none"),
        "",
        *_limits(behind["limits"]),
        "",
        _judged(document["objectives"]),
    )


def _cell(figures: dict[str, Any], keys: Sequence[str], form: str) -> str:
    scale = 1000.0 if keys[0].startswith("tpot") else 1.0
    values = [figures.get(key) for key in keys]
    return _joined([None if value is None else value * scale for value in values], form)


def _joined(values: Sequence[float | None], form: str) -> str:
    return " / ".join("-" if value is None else format(value, form) for value in values)


def _limits(points: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The limit over time: some lines, evenly spread."""
    if not points:
        return
    names = list(points[0]["engines"])
    yield f"{'limit (in flight) at, s':<28}" + "".join(f"{name:>20}" for name in names)
    chosen = points[:: max(1, math.ceil(len(points) / _POINTS))]
    for point in chosen:
        cells = (f"{state['limit']:.0f} ({state['in_flight']})" for state in point["engines"].values())
        yield f"{point['at']:<28.0f}" + "".join(f"{cell:>20}" for cell in cells)


def _judged(objectives: dict[str, Any]) -> str:
    told = [f"TTFT {name} {seconds:g} s" for name, seconds in objectives["ttft"].items() if seconds is not None]
    if objectives["tpot"] is not None:
        told.append(f"TPOT {objectives['tpot'] * 1000.0:g} ms")
    if told:
        return f"In objective: answered within {', '.join(told)}, from the first attempt on."
    return "No objective is set (GATEWAY_TTFT_OBJECTIVE, GATEWAY_TPOT_OBJECTIVE): whatever is answered counts as good."
