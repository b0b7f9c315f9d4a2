from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from gateway.admission.config import AdmissionConfig, LaneConfig
from gateway.model import Backend, BackendTls
from gateway.settings.model import Settings
from gateway.settings.plain import admission_config, backends, lanes


def leaves(config: Any, path: str = "") -> dict[str, Any]:
    if not is_dataclass(config):
        return {path: config}
    found: dict[str, Any] = {}
    for item in fields(config):
        found |= leaves(getattr(config, item.name), f"{path}.{item.name}")
    return found


def test_the_defaults_are_those_of_the_room() -> None:
    assert admission_config(Settings()) == AdmissionConfig()


def test_every_tunable_of_admission_has_a_setting() -> None:
    other = Settings.model_validate(
        {
            "lanes": (("a", 10), ("b", None)),
            "lane_quantum": 1,
            "client_quantum": 1,
            "queue_max_requests": 1,
            "queue_max_bytes": 1,
            "reserve_critical": 0.2,
            "priority_floor": 0.2,
            "reserve_short": 0.3,
            "long_prefills": 7,
            "limit_initial": 2,
            "limit_min": 2,
            "limit_max": 9,
            "limit_window": 1,
            "limit_tolerance": 3,
            "limit_tolerance_non_streamed": 3,
            "tpot_objective": 0.05,
            "objective_headroom": 0.5,
            "token_limit": 5,
            "replicas": "3",
            "retry_after_max": 9,
            "overload_ratio": 2,
            "overload_after": 2,
            "retry_budget": 0.2,
            "bytes_per_token": 2,
            "tokens_per_message": 2,
            "default_output_tokens": 2,
            "prompt_weight": 0.5,
            "breaker_failures": 2,
            "breaker_cooldown": 2,
            "breaker_cooldown_max": 9,
            "breaker_silence": 2,
            "affinity": "session",
            "affinity_bound": 0.5,
            "affinity_patience": 2,
            "failover_budget": 0.5,
        }
    )
    default, changed = leaves(AdmissionConfig()), leaves(admission_config(other))
    assert [path for path in default if default[path] == changed[path]] == []


def test_a_bare_objective_is_the_first_lanes_and_halves_its_wait() -> None:
    assert lanes(Settings(ttft_objective={"": 3.0})) == (
        LaneConfig("short", 1000, 2.0, 3.0, 1.5),
        LaneConfig("long", None, 1.0, None, 4.0),
    )


def test_objectives_weights_and_waits_by_lane() -> None:
    settings = Settings(
        lanes=(("s", 10), ("m", 100), ("l", None)),
        lane_weights={"m": 5.0},
        ttft_objective={"s": 1.0, "l": 8.0},
        max_wait={"l": 2.0},
    )
    assert lanes(settings) == (
        LaneConfig("s", 10, 2.0, 1.0, 0.5),
        LaneConfig("m", 100, 5.0, None, 4.0),
        LaneConfig("l", None, 1.0, 8.0, 2.0, lingers=False),
    )


def test_a_bare_wait_is_for_all_lanes() -> None:
    assert [lane.max_wait for lane in lanes(Settings(max_wait={"": 7.0}))] == [7.0, 7.0]


def test_backends_carry_their_key_in_the_clear_and_hide_it_in_their_repr() -> None:
    settings = Settings.model_validate({"backends": '[{"url": "http://a:1", "api_key": "k", "limit": 3}]'})
    (backend,) = backends(settings)
    assert backend == Backend("a:1", "http://a:1", "auto", api_key="k", limit=3)
    assert "'k'" not in repr(backend)
    assert "'k'" not in repr(settings)


def test_what_a_backend_says_of_planes_and_certificates_is_its_own(tmp_path: Path) -> None:
    file = str(tmp_path / "a.pem")
    Path(file).touch()
    entry = {"url": "https://a:1", "management_url": "https://a:2", "metrics_url": "https://a:3", "tls_verify": False}
    (backend,) = backends(Settings.model_validate({"backends": [entry | {"tls_ca": file, "name": "a"}]}))
    assert (backend.management_url, backend.metrics_url) == ("https://a:2", "https://a:3")
    assert backend.tls == BackendTls(verify=False, ca=file)
