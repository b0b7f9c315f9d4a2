"""Hand-made records and states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.model import (
    Access,
    BackendState,
    GatewayState,
    Hints,
    LaneState,
    Outcome,
    PriorityState,
    Record,
    Route,
    Shape,
    Ticket,
    Timeline,
    Usage,
    WorkEstimate,
)
from gateway.telemetry.metrics import Metrics, MetricsConfig

CHAT = Route("chat", Access.ADMIT)
MODELS = Route("models", Access.BYPASS)

Labels = frozenset[tuple[str, str]]


def backend_state(name: str = "gpu1", **changes: Any) -> BackendState:
    state = BackendState(
        name=name,
        url=f"http://{name}:8000",
        health="up",
        limit=12.5,
        token_limit=90_000.0,
        running=7,
        tokens=4200,
        unstarted=1,
        pace=0.031,
        pace_base=0.012,
        pace_target=0.06,
        limit_changes={("up", "pace"): 9, ("down", "queue"): 2},
        choices={"headroom": 5, "prefix": 3},
        prompt_tokens=800,
        cached_tokens=600,
        hints_age=1.5,
        limit_min=1.0,
        silence=0.2,
        hints=Hints(7.0, 0.0, 0.42, 100_000, 3.0),
    )
    return replace(state, **changes)


def gateway_state(*backends: BackendState, **changes: Any) -> GatewayState:
    state = GatewayState(
        backends=backends or (backend_state(),),
        lanes=(LaneState("short", 3, 700.0, 0.4, 1.0, 1000, 2.0), LaneState("long", 2, 9000.0, 2.5, 4.0)),
        draining=False,
        overloaded=False,
        retries_seen={True: 5, False: 11},
        priorities=(PriorityState("critical", 1), PriorityState("standard", 4), PriorityState("sheddable", 0)),
    )
    return replace(state, **changes)


def ticket(**changes: Any) -> Ticket:
    shape = Shape(CHAT, "qwen3-8b", stream=True, prompt_bytes=400)
    return replace(Ticket(1, shape, WorkEstimate(100, 200, 225.0), client="key:1f2e"), **changes)


def timeline(*, queued: float = 0.0, backend_ttft: float = 0.5, gap: float = 0.02, events: int = 11) -> Timeline:
    """A request received at 100 s whose head, body and relay take 1 ms each, and whose gaps are all alike."""
    line = Timeline(received=100.0, read=100.001, offered=100.002)
    line.admitted = line.offered + queued if line.offered is not None else None
    line.sent = 100.003 + queued
    line.headers = line.sent + backend_ttft / 2
    for event in range(events):
        line.output(1, line.sent + backend_ttft + gap * event)
    line.finished = (line.last_output or line.sent) + 0.001
    return line


def record(**changes: Any) -> Record:
    """A completed chat stream of eleven tokens."""
    made = Record(
        request_id="req-1",
        ticket=ticket(),
        route=CHAT,
        method="POST",
        path="/v1/chat/completions",
        timeline=timeline(),
        outcome=Outcome.COMPLETED,
        status=200,
        lane="short",
        backend="gpu1",
        usage=Usage(57, 11, 32),
        bytes_in=512,
        bytes_out=2048,
        attempts=1,
    )
    return replace(made, **changes)


def refused(**changes: Any) -> Record:
    """A request turned away at the door, 50 ms after it came."""
    line = Timeline(received=100.0, read=100.001, offered=100.002, finished=100.05)
    nothing = {"backend": None, "usage": None, "attempts": 0, "bytes_out": 0}
    return record(**{"timeline": line, "outcome": Outcome.REFUSED, "status": 429, **nothing, **changes})


def asked(model: str | None = "qwen3-8b", *, client: str = "key:1f2e", **shape: Any) -> Ticket:
    """A ticket for ``model``; further names change its shape."""
    plain = ticket(client=client)
    return replace(plain, shape=replace(plain.shape, model=model, **shape))


def metrics(state: GatewayState | None = None, **options: Any) -> Metrics:
    shown = state or gateway_state()
    return Metrics(lambda: shown, version="1.2.3", config_hash="c0ffee", **options)


def bounded(**bounds: Any) -> Metrics:
    return metrics(config=MetricsConfig(**bounds))


def scrape(source: Metrics) -> dict[str, dict[Labels, float]]:
    """Sample name -> labels -> value, read back from the text that Prometheus would get."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(generate_latest(source.registry).decode()):
        for sample in family.samples:
            series = samples.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in series, f"{sample.name}{sample.labels} given twice"
            series[labels] = sample.value
    return samples


def value(source: Metrics, name: str, /, **labels: str) -> float:
    """The one sample of ``name`` with these labels (``class_`` for ``class``), 0 where there is none."""
    wanted = frozenset((label.rstrip("_"), text) for label, text in labels.items())
    return scrape(source).get(name, {}).get(wanted, 0.0)


def buckets(source: Metrics, name: str, /, **labels: str) -> dict[str, float]:
    """``le`` -> cumulative count of one histogram series."""
    wanted = {(label.rstrip("_"), text) for label, text in labels.items()}
    found: dict[str, float] = {}
    for series, count in scrape(source).get(f"{name}_bucket", {}).items():
        if wanted <= series:
            le = dict(series)["le"]
            assert le not in found, f"{name}: several series match {labels}"
            found[le] = count
    return found
