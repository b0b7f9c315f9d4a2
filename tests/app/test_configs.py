from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app.check import report
from gateway.app.configs import config_hash, described, load_all, metrics_config, proxy_config
from gateway.proxy.config import ProxyConfig
from gateway.settings import Settings
from gateway.telemetry.metrics import MetricsConfig


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("GATEWAY_"):
            monkeypatch.delenv(name)


def leaves(config: Any, path: str = "") -> dict[str, Any]:
    if not is_dataclass(config):
        return {path: config}
    found: dict[str, Any] = {}
    for item in fields(config):
        found |= leaves(getattr(config, item.name), f"{path}.{item.name}")
    return found


def test_the_defaults_of_the_settings_are_those_of_the_rooms() -> None:
    assert proxy_config(Settings()) == ProxyConfig()
    assert metrics_config(Settings()) == MetricsConfig()


def test_C03_every_tunable_of_the_proxy_has_a_setting(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    other = Settings.model_validate(
        {
            "host": "127.0.0.1",
            "client_header": "x-tenant",
            "priority_header": "x-priority",
            "allow_admin_routes": True,
            "forward_client_keys": True,
            "load_header": True,
            "affinity": "session",
            "session_by": "key",
            "choice_header": True,
            "inject_usage": True,
            "tls_verify": False,
            **dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "listen_tls_cert"), str(pem)),
            **dict.fromkeys(("max_body_size", "max_request_line", "max_header_size", "max_headers"), 777),
            **dict.fromkeys(("body_memory", "client_min_rate"), 777),
            **dict.fromkeys(("port", "backlog", "client_keepalive", "client_timeout", "drain_grace"), 777),
            **dict.fromkeys(("connect_timeout", "connect_attempts", "first_byte_timeout", "answer_timeout"), 777),
            **dict.fromkeys(("idle_timeout", "upstream_keepalive", "upstream_max_idle", "models_timeout"), 777),
            **dict.fromkeys(("probe_interval", "probe_timeout", "probe_failures", "probe_successes"), 777),
            **dict.fromkeys(("models_interval", "heartbeat"), 777),
            "max_prompt_tokens": {"": 777},
            "max_output_tokens": {"": 777},
            "trusted_proxies": "none",
            "cors": False,
        }
    )
    default, changed = leaves(ProxyConfig()), leaves(proxy_config(other))
    assert [path for path in default if path in changed and default[path] == changed[path]] == []


def test_a_timeout_of_nothing_is_none() -> None:
    nothing = Settings(first_byte_timeout=0.0, answer_timeout=0.0, idle_timeout=0.0, models_interval=0.0)
    config = proxy_config(nothing)
    assert (config.first_byte_timeout, config.answer_timeout, config.idle_timeout) == (None, None, None)
    assert (config.probe.models_interval, config.heartbeat) == (None, None)


def test_metrics_know_the_models_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "GATEWAY_BACKENDS", '[{"url": "http://a", "models": "x,y"}, {"url": "http://b", "models": ["x"]}]'
    )
    monkeypatch.setenv("GATEWAY_METRICS_MAX_CLIENTS", "5")
    monkeypatch.setenv("GATEWAY_METRICS_BUCKETS", '{"gateway_queue_wait_seconds": [1, 2]}')
    loaded = load_all(None)
    assert loaded.ok
    assert metrics_config(loaded.settings) == MetricsConfig(
        max_clients=5, models=("x", "y"), buckets={"gateway_queue_wait_seconds": (1.0, 2.0)}
    )


def test_faults_that_only_other_rooms_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_EMULATOR_PROFILE", "a100-lama3-8b")
    monkeypatch.setenv("GATEWAY_METRICS_BUCKETS", '{"queue_wait_seconds": [1]}')
    monkeypatch.setenv("GATEWAY_PORT", "x")
    lines = [str(fault) for fault in load_all(None).faults]
    assert len(lines) == 3
    assert any(line.endswith("; did you mean a100-llama3-8b?") for line in lines)
    assert any(line.endswith("; did you mean gateway_queue_wait_seconds?") for line in lines)


def test_what_config_shows_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "s3cret")
    monkeypatch.setenv("GATEWAY_BACKENDS", '[{"url": "http://a", "api_key": "s3cret"}]')
    view = described(load_all(None))
    assert "s3cret" not in str(view)
    assert view["GATEWAY_ADMIN_TOKEN"] == {"value": "***", "source": "environment"}
    assert view["GATEWAY_PORT"] == {"value": "8080", "source": "default"}


def test_the_hash_names_a_set_of_values() -> None:
    assert config_hash(Settings()) == config_hash(Settings(port=8080))
    assert config_hash(Settings()) != config_hash(Settings(port=8082))


def test_the_report_has_a_line_for_each_setting_and_each_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "s3cret")
    monkeypatch.setenv("GATEWAY_LIMIT_WINDOW", "500ms")
    monkeypatch.setenv("GATEWAY_PORT", "x")
    monkeypatch.setenv("GATEWAY_QUEUE_MAX_BYTES", "1MiB")
    lines = list(report(load_all(None)))
    text = "\n".join(lines)
    assert "s3cret" not in text
    assert [line.split() for line in lines if "_LIMIT_WINDOW" in line] == [
        ["[OK]", "GATEWAY_LIMIT_WINDOW=500ms", "environment"]
    ]
    assert [line.split()[:2] for line in lines if "GATEWAY_PORT" in line] == [["[FAIL]", "GATEWAY_PORT:"]]
    assert sum(line.startswith("[WARN] GATEWAY_QUEUE_MAX_BYTES: ") for line in lines) == 1
    count = len(Settings.model_fields)
    assert lines[-1] == f"[FAIL] {count - 1} of {count} settings in effect, 1 at fault"
