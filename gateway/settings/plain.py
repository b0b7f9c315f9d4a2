"""Settings -> the plain frozen values that the rooms inside take."""

from __future__ import annotations

from typing import Final

from gateway.admission.config import (
    AdmissionConfig,
    Affinity,
    BalanceConfig,
    BreakerConfig,
    EstimatorConfig,
    LaneConfig,
    LimitConfig,
    QueueConfig,
    ShedConfig,
)
from gateway.admission.quota import KeyTerms
from gateway.model import Backend, BackendTls, Priority
from gateway.settings.keys import KeySettings, contradictions, read_keys
from gateway.settings.model import Settings

_FIRST_WAIT: Final = 1.0  # seconds: a person in a chat does not mind a second
_OTHER_WAIT: Final = 4.0
_FIRST_WEIGHT: Final = 2.0
_OTHER_WEIGHT: Final = 1.0


def backends(settings: Settings) -> tuple[Backend, ...]:
    """The configured engines; empty where none are."""
    return tuple(
        Backend(
            name=backend.name,
            url=backend.url,
            kind=backend.kind,
            models=backend.models,
            api_key=backend.api_key.get_secret_value() if backend.api_key else None,
            limit=backend.limit,
            max_model_len=backend.max_model_len,
            weight=backend.weight,
            tier=backend.tier,
            management_url=backend.management_url,
            metrics_url=backend.metrics_url,
            tls=BackendTls(backend.tls_verify, backend.tls_ca, backend.tls_cert, backend.tls_key),
        )
        for backend in settings.backends
    )


def api_keys(settings: Settings) -> dict[bytes, KeyTerms] | None:
    """What each key is good for, by its SHA-256; None where no key is asked for.

    Raises:
        ValueError: the file of keys is wrong.
    """
    if not settings.api_keys and settings.api_keys_file is None:
        return None
    entries = settings.api_keys + (read_keys(settings.api_keys_file) if settings.api_keys_file else ())
    if wrong := next(contradictions(entries), None):
        raise ValueError(wrong)
    return {digest: _terms(entry) for entry in entries for digest in entry.digests}


def _terms(entry: KeySettings) -> KeyTerms:
    return KeyTerms(
        entry.name,
        weight=entry.weight,
        priority=Priority[entry.priority.upper()],
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        max_in_flight=entry.max_in_flight,
        models=frozenset(entry.models),
    )


def admission_config(settings: Settings) -> AdmissionConfig:
    """Everything that decides."""
    return AdmissionConfig(
        _limit(settings),
        _queue(settings),
        _shed(settings),
        _estimator(settings),
        _breaker(settings),
        _balance(settings),
    )


def lanes(settings: Settings) -> tuple[LaneConfig, ...]:
    """The lanes; a lane waits half of its TTFT objective where that is set and no wait is given."""
    return tuple(
        _lane(settings, name, threshold, first=index == 0) for index, (name, threshold) in enumerate(settings.lanes)
    )


def _lane(settings: Settings, name: str, threshold: int | None, *, first: bool) -> LaneConfig:
    bare = "" if first else name  # a bare weight or objective is the first lane's
    weight = settings.lane_weights.get(name, settings.lane_weights.get(bare))
    objective = settings.ttft_objective.get(name, settings.ttft_objective.get(bare))
    wait = settings.max_wait.get(name, settings.max_wait.get(""))
    lingers = wait is None
    if wait is None:
        wait = objective / 2.0 if objective is not None else _FIRST_WAIT if first else _OTHER_WAIT
    if weight is None:
        weight = _FIRST_WEIGHT if first else _OTHER_WEIGHT
    return LaneConfig(name, threshold, weight, objective, wait, lingers)


def _limit(settings: Settings) -> LimitConfig:
    return LimitConfig(
        initial=settings.limit_initial,
        minimum=settings.limit_min,
        maximum=settings.limit_max,
        window=settings.limit_window,
        tolerance=settings.limit_tolerance,
        tolerance_non_streamed=settings.limit_tolerance_non_streamed,
        tpot_objective=settings.tpot_objective,
        objective_headroom=settings.objective_headroom,
        token_limit=settings.token_limit,
        replicas=settings.replicas.count,
    )


def _queue(settings: Settings) -> QueueConfig:
    return QueueConfig(
        lanes=lanes(settings),
        lane_quantum=settings.lane_quantum,
        client_quantum=settings.client_quantum,
        max_requests=settings.queue_max_requests,
        max_bytes=settings.queue_max_bytes,
        reserve_critical=settings.reserve_critical,
        floor=settings.priority_floor,
        reserve_short=settings.reserve_short,
        long_prefills=settings.long_prefills,
    )


def _shed(settings: Settings) -> ShedConfig:
    return ShedConfig(
        retry_after_max=settings.retry_after_max,
        overload_ratio=settings.overload_ratio,
        overload_after=settings.overload_after,
        retry_budget=settings.retry_budget,
    )


def _estimator(settings: Settings) -> EstimatorConfig:
    return EstimatorConfig(
        bytes_per_token=settings.bytes_per_token,
        tokens_per_message=settings.tokens_per_message,
        default_output=settings.default_output_tokens,
        prompt_weight=settings.prompt_weight,
    )


def _breaker(settings: Settings) -> BreakerConfig:
    return BreakerConfig(
        failures=settings.breaker_failures,
        cooldown=settings.breaker_cooldown,
        cooldown_max=settings.breaker_cooldown_max,
        silence=settings.breaker_silence,
    )


def _balance(settings: Settings) -> BalanceConfig:
    return BalanceConfig(
        affinity=Affinity(settings.affinity),
        bound=settings.affinity_bound,
        patience=settings.affinity_patience,
        failovers=settings.failover_budget,
    )
