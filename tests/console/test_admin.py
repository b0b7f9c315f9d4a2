"""The admin port over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiohttp.test_utils import make_mocked_request
from blockbuster import BlockBuster, blockbuster_ctx
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from gateway.console.readiness import Readiness
from gateway.model import EngineState, ModelState
from tests.console.helpers import CONFIG, TOKEN, Clock, build, fetch, from_afar, served
from tests.telemetry.helpers import backend_state, gateway_state, metrics, record


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[BlockBuster]:
    with blockbuster_ctx() as guard:
        yield guard


# --------------------------------------------------------------------------------------------------------------
# Probes
# --------------------------------------------------------------------------------------------------------------


async def test_livez_answers_whatever_the_state() -> None:
    async with served(build(gateway_state(backend_state(health="down"), draining=True))) as url:
        assert (await fetch(url, "/livez"))[:2] == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
async def test_readyz(path: str) -> None:
    async with served(build()) as url:
        status, body, _ = await fetch(url, path)
    assert status == 200
    assert body == {"ready": True, "degraded": False, "reasons": []}


async def test_C16_readyz_names_what_is_missing() -> None:
    async with served(build(gateway_state(backend_state(health="down", pace=None)))) as url:
        status, body, _ = await fetch(url, "/readyz")
    assert status == 503
    assert body["ready"] is False
    assert body["reasons"] == ["no backend has answered yet", "backend gpu1 is down"]


async def test_C09_readyz_is_degraded_when_some_backends_are_out() -> None:
    state = gateway_state(backend_state("gpu1"), backend_state("gpu2", health="open"))
    async with served(build(state)) as url:
        status, body, _ = await fetch(url, "/readyz")
    assert (status, body["degraded"], body["reasons"]) == (200, True, ["backend gpu2 is open"])


async def test_readyz_while_draining() -> None:
    async with served(build(gateway_state(draining=True))) as url:
        status, body, _ = await fetch(url, "/readyz")
    assert status == 503
    assert body["reasons"] == ["draining: the gateway is shutting down"]


async def test_readyz_asks_the_callable_it_was_given() -> None:
    app = build(readiness=lambda: Readiness(ready=False, degraded=False, reasons=("starting",)))
    async with served(app) as url:
        assert (await fetch(url, "/readyz"))[1]["reasons"] == ["starting"]


# --------------------------------------------------------------------------------------------------------------
# Metrics
# --------------------------------------------------------------------------------------------------------------


async def test_metrics_are_prometheus_text_with_the_process_figures() -> None:
    source = metrics()
    source.observe(record())
    async with served(build(registry=source.registry)) as url:
        status, text, headers = await fetch(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {"gateway_requests", "gateway_inflight_requests", "process_resident_memory_bytes", "python_info"} <= families


async def test_no_family_comes_twice() -> None:
    async with served(build()) as url:
        _, text, _ = await fetch(url, "/metrics")
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len(set(types)) > 40


async def test_other_work_goes_on_between_two_families() -> None:
    registry = CollectorRegistry()
    for number in range(50):
        Gauge(f"g{number}", "A gauge.", registry=registry)
    app = build(registry=registry)
    request = make_mocked_request("GET", "/metrics", app=app)
    turns = 0
    scraped = asyncio.ensure_future(app._handle(request))
    while not scraped.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 50
    assert scraped.result().status == 200


# --------------------------------------------------------------------------------------------------------------
# State and configuration
# --------------------------------------------------------------------------------------------------------------


async def test_state_shows_everything() -> None:
    clock = Clock()
    app = build(clock=clock)
    clock.now += 12.5
    async with served(app) as url:
        status, body, headers = await fetch(url, "/state")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert body == {
        "version": "1.2.3",
        "uptime_seconds": 12.5,
        "draining": False,
        "overloaded": False,
        "replicas": 1,
        "retries_seen": {"kept": 5, "early": 11},
        "lanes": [
            {
                "name": "short",
                "depth": 3,
                "cost": 700.0,
                "oldest_wait_seconds": 0.4,
                "max_wait_seconds": 1.0,
                "threshold": 1000,
                "weight": 2.0,
            },
            {
                "name": "long",
                "depth": 2,
                "cost": 9000.0,
                "oldest_wait_seconds": 2.5,
                "max_wait_seconds": 4.0,
                "threshold": None,
                "weight": 1.0,
            },
        ],
        "priorities": [
            {"name": "critical", "depth": 1},
            {"name": "standard", "depth": 4},
            {"name": "sheddable", "depth": 0},
        ],
        "backends": [
            {
                "name": "gpu1",
                "url": "http://gpu1:8000",
                "health": "up",
                "running": 7,
                "unstarted": 1,
                "limit": 12.5,
                "pinned": False,
                "silence_seconds": 0.2,
                "tokens": 4200,
                "token_limit": 90_000.0,
                "pace_seconds": 0.031,
                "pace_base_seconds": 0.012,
                "pace_target_seconds": 0.06,
                "limit_changes": {"up": {"pace": 9}, "down": {"queue": 2}},
                "choices": {"headroom": 5, "prefix": 3},
                "prompt_tokens": 800,
                "cached_tokens": 600,
                "hints_age_seconds": 1.5,
                "engine": {
                    "running": 7.0,
                    "waiting": 0.0,
                    "kv_usage": 0.42,
                    "kv_capacity_tokens": 100_000,
                    "preemptions_total": 3.0,
                },
            }
        ],
        "models": [],
    }


async def test_state_shows_what_was_learned_of_models() -> None:
    rates = {"letters": 0.21987, "signs": 0.5, "dense": 1.0, "wide": 0.25}
    learned = ModelState("qwen3-8b", True, 12, rates, 21.04, 40, 187.25)
    unheard = ModelState("bge", False, 0, rates, 0.0)
    engine = EngineState("vllm", models={"qwen3-8b": 32_768, "lora": None})
    state = gateway_state(backend_state(engine=engine), models=(learned, unheard))
    async with served(build(state)) as url:
        body = (await fetch(url, "/state"))[1]
    assert body["models"][0] == {
        "name": "qwen3-8b",
        "generates": True,
        "long_prompts": 12,
        "tokens_per_byte": {"letters": 0.2199, "signs": 0.5, "dense": 1.0, "wide": 0.25},
        "template_tokens": 21.0,
        "answers": 40,
        "mean_output_tokens": 187.2,
    }
    assert (body["models"][1]["answers"], body["models"][1]["mean_output_tokens"]) == (0, None)
    assert body["backends"][0]["engine"]["models"] == {"qwen3-8b": 32_768, "lora": None}


async def test_state_shows_what_is_unknown_as_null() -> None:
    fresh = backend_state(token_limit=None, pace=None, pace_base=None, pace_target=None, hints_age=None)
    async with served(build(gateway_state(fresh))) as url:
        (backend,) = (await fetch(url, "/state"))[1]["backends"]
    names = ("token_limit", "pace_seconds", "pace_base_seconds", "pace_target_seconds", "hints_age_seconds")
    assert [backend[name] for name in names] == [None] * 5


async def test_state_shows_no_credentials() -> None:
    async with served(build(gateway_state(backend_state(url="https://user:hunter2@gpu1:8000/base")))) as url:
        (backend,) = (await fetch(url, "/state"))[1]["backends"]
    assert backend["url"] == "https://gpu1:8000/base"


async def test_C04_the_effective_configuration_is_shown() -> None:
    async with served(build()) as url:
        status, body, _ = await fetch(url, "/config")
    assert status == 200
    assert body == CONFIG


# --------------------------------------------------------------------------------------------------------------
# Access
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/state", "/config"])
async def test_loopback_with_and_without_the_token(path: str) -> None:
    async with served(build()) as url:
        assert (await fetch(url, path))[0] == 200
        assert (await fetch(url, path, Authorization=f"Bearer {TOKEN}"))[0] == 200
        status, body, headers = await fetch(url, path, Authorization="Bearer wrong")
    assert status == 401
    assert headers["WWW-Authenticate"] == "Bearer"
    assert "GATEWAY_ADMIN_TOKEN" in body["error"]


@pytest.mark.parametrize("path", ["/state", "/config", "/nothing"])
async def test_a_peer_on_another_machine_needs_the_token(path: str) -> None:
    status, body, _ = await from_afar(build(), path)
    assert status == 403
    assert "GATEWAY_ADMIN_TOKEN" in body["error"]
    assert (await from_afar(build(), path, Authorization="Bearer wrong"))[0] == 401
    assert (await from_afar(build(token=None), path, Authorization="Bearer "))[0] == 403
    status, body, _ = await from_afar(build(), path, Authorization=f"Bearer {TOKEN}")
    assert status == (404 if path == "/nothing" else 200)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
async def test_a_peer_on_another_machine_may_probe(path: str) -> None:
    assert (await from_afar(build(), path))[0] == 200


async def test_a_forged_host_is_refused() -> None:
    async with served(build()) as url:
        status, body, _ = await fetch(url, "/state", Host="evil.example")
        assert status == 403
        assert "evil.example" in body["error"]
        assert (await fetch(url, "/state", Host="evil.example", Authorization=f"Bearer {TOKEN}"))[0] == 200
        assert (await fetch(url, "/metrics", Host="evil.example"))[0] == 200


@pytest.mark.parametrize("header", ["X_Forwarded_For", "Forwarded", "X_Real_IP", "Via"])
async def test_a_request_that_another_proxy_relayed_is_not_local(header: str) -> None:
    async with served(build()) as url:
        assert (await fetch(url, "/state", **{header: "127.0.0.1"}))[0] == 403


async def test_a_path_that_is_not_there_says_which_are() -> None:
    async with served(build()) as url:
        status, body, _ = await fetch(url, "/stats")
        assert status == 404
        assert (
            body["error"]
            == "Not Found: GET /config, /healthz, /livez, /metrics, /readyz, /report, /report/runs, /state"
        )
        assert (await fetch(url, "/state", method="POST"))[0] == 405
        assert (await fetch(url, "/livez", method="HEAD"))[0] == 200


async def test_on_ipv6_loopback() -> None:
    async with served(build(), "::1") as url:
        assert (await fetch(url.replace("::1", "[::1]"), "/state"))[0] == 200
