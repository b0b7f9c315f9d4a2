"""Settings -> the configs of the rooms that the settings may not know, and the checks that need those rooms."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gateway.emulator.profiles import PROFILES
from gateway.proxy.config import ListenerTls, ProbeConfig, ProxyConfig, TlsConfig
from gateway.settings import Fault, Loaded, Settings, load, shown, variable
from gateway.settings.checks import cross_faults
from gateway.settings.faults import nearest
from gateway.sharing.base import ShareConfig
from gateway.telemetry.definitions import DEFINITIONS, Kind
from gateway.telemetry.metrics import MetricsConfig


def load_all(env_file: str | None) -> Loaded:
    """Settings with every fault, those included that only other rooms can tell. Never raises."""
    loaded = load(env_file)
    bad = frozenset().union(*(fault.fields for fault in loaded.faults))
    found = tuple(fault for fault in _faults(loaded.settings) if not fault.fields & bad)
    return replace(loaded, faults=loaded.faults + found)


def faults_of(settings: Settings) -> list[Fault]:
    """Every contradiction in settings whose single values are right."""
    return [*cross_faults(settings), *_faults(settings)]


def _faults(settings: Settings) -> Iterator[Fault]:
    profile = settings.emulator_profile
    if profile not in PROFILES:
        yield Fault(
            variable("emulator_profile"),
            f"got {profile!r}, expected one of {', '.join(sorted(PROFILES))}{nearest(profile, PROFILES)}",
            frozenset({"emulator_profile"}),
        )

    if settings.share_url is not None and importlib.util.find_spec("redis") is None:
        yield Fault(
            variable("share_url"),
            "redis is not installed, expected it: pip install 'inference-gateway[valkey]'",
            frozenset({"share_url"}),
        )
    if worker_count(settings) > 1 and not hasattr(socket, "SO_REUSEPORT"):
        yield Fault(
            variable("workers"),
            f"got {settings.workers}, expected 1: this system has no SO_REUSEPORT, by which processes share a port",
            frozenset({"workers"}),
        )
    histograms = [each.name for each in DEFINITIONS if each.kind is Kind.HISTOGRAM]
    for name in settings.metrics_buckets:
        if name not in histograms:
            yield Fault(
                variable("metrics_buckets"),
                f"got {name!r}, expected names of {', '.join(histograms)}{nearest(name, histograms)}",
                frozenset({"metrics_buckets"}),
            )


def worker_count(settings: Settings) -> int:
    """Processes that relay."""
    if settings.workers:
        return settings.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def proxy_config(settings: Settings) -> ProxyConfig:
    """Everything that moves bytes; a timeout of 0 is none."""
    return ProxyConfig(
        host=settings.host,
        port=settings.port,
        backlog=settings.backlog,
        max_body=settings.max_body_size,
        body_memory=settings.body_memory,
        max_line=settings.max_request_line,
        max_header=settings.max_header_size,
        max_headers=settings.max_headers,
        client_keepalive=settings.client_keepalive,
        client_timeout=settings.client_timeout,
        client_min_rate=settings.client_min_rate,
        client_header=settings.client_header,
        session_by=() if settings.affinity == "none" else settings.session_by,
        hash_prompts=settings.affinity == "prefix",
        choice_header=settings.choice_header,
        priority_header=settings.priority_header,
        allow_admin_routes=settings.allow_admin_routes,
        load_header=settings.load_header,
        forward_client_keys=settings.forward_client_keys,
        inject_usage=settings.inject_usage,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_output_tokens=settings.max_output_tokens,
        trusted_proxies=settings.trusted_proxies,
        cors=settings.cors,
        heartbeat=settings.heartbeat or None,
        connect_timeout=settings.connect_timeout,
        connect_attempts=settings.connect_attempts,
        first_byte_timeout=settings.first_byte_timeout or None,
        answer_timeout=settings.answer_timeout or None,
        idle_timeout=settings.idle_timeout or None,
        upstream_keepalive=settings.upstream_keepalive,
        max_idle=settings.upstream_max_idle,
        models_timeout=settings.models_timeout,
        drain_grace=settings.drain_grace,
        probe=ProbeConfig(
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            failures=settings.probe_failures,
            successes=settings.probe_successes,
            models_interval=settings.models_interval or None,
        ),
        tls=TlsConfig(settings.tls_verify, settings.tls_ca, settings.tls_cert, settings.tls_key),
        listener_tls=_listener_tls(settings),
    )


def _listener_tls(settings: Settings) -> ListenerTls | None:
    if settings.listen_tls_cert is None:
        return None
    return ListenerTls(settings.listen_tls_cert, settings.listen_tls_key, settings.listen_tls_client_ca)


def share_config(settings: Settings) -> ShareConfig | None:
    """With whom quotas of keys are shared, if with anybody."""
    if settings.share_url is None:
        return None
    return ShareConfig(
        settings.share_url.get_secret_value(),
        prefix=settings.share_prefix,
        timeout=settings.share_timeout,
        block=settings.share_block,
        lease=settings.share_lease,
        gateways=settings.share_gateways,
    )


def admin_tls(settings: Settings) -> ListenerTls | None:
    """How the admin port is reached; None is plain HTTP."""
    return None if settings.admin_tls_cert is None else ListenerTls(settings.admin_tls_cert, settings.admin_tls_key)


def metrics_config(settings: Settings) -> MetricsConfig:
    """Bounds and edges of the metrics; the models that the settings name always have their series."""
    return MetricsConfig(
        max_models=settings.metrics_max_models,
        max_clients=settings.metrics_max_clients,
        models=tuple(dict.fromkeys(model for backend in settings.backends for model in backend.models)),
        buckets=settings.metrics_buckets,
    )


def described(loaded: Loaded) -> dict[str, Any]:
    """Every setting with its source, secrets masked, for /config."""
    return {
        variable(name): {"value": shown(loaded.settings, name), "source": source.value}
        for name, source in loaded.sources.items()
    }


def config_hash(settings: Settings) -> str:
    """Short name of a set of values, to see whether two gateways run with the same; secrets do not enter it."""
    values = {name: shown(settings, name) for name in Settings.model_fields}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
