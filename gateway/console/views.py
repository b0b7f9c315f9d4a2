"""JSON views of what admission knows."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.model import BackendState, EngineState, GatewayState, LaneState, ModelState

_MODELS_MAX: Final = 64  # shown of one engine


def state_view(state: GatewayState) -> dict[str, Any]:
    """All of ``state``; seconds and tokens as in the model, rounded for the eye. URLs lose their credentials."""
    return {
        "draining": state.draining,
        "overloaded": state.overloaded,
        "replicas": state.replicas,
        "retries_seen": {"kept": state.retries_seen.get(True, 0), "early": state.retries_seen.get(False, 0)},
        "lanes": [_lane(lane) for lane in state.lanes],
        "priorities": [{"name": priority.name, "depth": priority.depth} for priority in state.priorities],
        "backends": [_backend(backend) for backend in state.backends],
        "models": [_model(model) for model in state.models],
    }


def _lane(lane: LaneState) -> dict[str, Any]:
    return {
        "name": lane.name,
        "depth": lane.depth,
        "cost": round(lane.cost, 1),
        "oldest_wait_seconds": round(lane.oldest_wait, 3),
        "max_wait_seconds": lane.max_wait,
        "threshold": lane.threshold,
        "weight": lane.weight,
    }


def _backend(backend: BackendState) -> dict[str, Any]:
    changes: dict[str, dict[str, int]] = {}
    for (direction, reason), count in backend.limit_changes.items():
        changes.setdefault(direction, {})[reason] = count
    return {
        "name": backend.name,
        "url": _without_credentials(backend.url),
        "health": backend.health,
        "running": backend.running,
        "unstarted": backend.unstarted,
        "limit": round(backend.limit, 2),
        "pinned": backend.limit_min is None,
        "silence_seconds": round(backend.silence, 1),
        "tokens": backend.tokens,
        "token_limit": _rounded(backend.token_limit, 0),
        "pace_seconds": _rounded(backend.pace, 6),
        "pace_base_seconds": _rounded(backend.pace_base, 6),
        "pace_target_seconds": _rounded(backend.pace_target, 6),
        "limit_changes": changes,
        "choices": dict(backend.choices),
        "prompt_tokens": backend.prompt_tokens,
        "cached_tokens": backend.cached_tokens,
        "hints_age_seconds": _rounded(backend.hints_age, 3),
        "engine": _engine(backend.engine)
        | {
            "running": backend.hints.running,
            "waiting": backend.hints.waiting,
            "kv_usage": _rounded(backend.hints.kv_usage, 4),
            "kv_capacity_tokens": backend.hints.kv_capacity_tokens,
            "preemptions_total": backend.hints.preemptions_total,
        },
    }


def _engine(engine: EngineState | None) -> dict[str, Any]:
    if engine is None:
        return {}
    return {
        "kind": engine.kind,
        "detected": engine.detected,
        "health_at": engine.health_at,
        "trouble": engine.trouble,
        "hints_at": engine.hints_at,
        "hints_use": engine.hints_use.value,
        "models": None if engine.models is None else dict(islice(engine.models.items(), _MODELS_MAX)),
    }


def _model(model: ModelState) -> dict[str, Any]:
    return {
        "name": model.name,
        "generates": model.generates,
        "long_prompts": model.prompts,
        "tokens_per_byte": {sort: round(rate, 4) for sort, rate in model.rates.items()},
        "template_tokens": round(model.template, 1),
        "answers": model.answers,
        "mean_output_tokens": _rounded(model.output, 1),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
