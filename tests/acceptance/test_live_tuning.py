"""What an operator changes on a running gateway, with `gateway limits`, while streams go on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, ROOT, eventually
from tests.real.wire import Request, exchange, opened

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]


def limits(gateway: GatewayProcess, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "gateway",
        "limits",
        "--admin",
        f"http://127.0.0.1:{gateway.admin_port}",
        *arguments,
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - ourselves
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def backend(gateway: GatewayProcess, name: str) -> Any:
    return next(each for each in gateway.state()["backends"] if each["name"] == name)


def events(gateway: GatewayProcess) -> list[Any]:
    found = exchange(gateway.admin_port, Request("GET", "/events")).json()["events"]
    return [each for each in found if each["kind"] == "setting_changed"]


def served_by(gateway: GatewayProcess, number: int) -> str:
    """Which backend a new request went to, as the access log has it."""
    request_id = f"new-{number}"
    asking = replace(chat("flat", max_tokens=2), headers=(("X-Request-Id", request_id),))
    assert exchange(gateway.port, asking).status == 200
    eventually(lambda: bool(gateway.logged(request_id)), "it is logged")
    return str(gateway.logged(request_id)[0]["backend"])


def test_a_drained_backend_ends_its_streams_and_gets_no_new_request(engine: Engines, gateway: Gateways) -> None:
    first, second = engine("flat"), engine("flat")
    backends = [{"name": "a", "url": first.url}, {"name": "b", "url": second.url}]
    process = gateway(backends=json.dumps(backends))
    with ExitStack() as streams:
        running = [streams.enter_context(opened(process.port, chat("flat", max_tokens=400)))[1] for _ in range(4)]
        eventually(lambda: process.running() == 4, "four streams run")
        assert backend(process, "a")["running"] == 2
        assert "a: drained" in limits(process, "--drain", "a")
        assert [served_by(process, number) for number in range(4)] == ["b"] * 4
        assert exchange(process.port, Request("GET", "/v1/models")).status == 200
        answers = [response.read().decode() for response in running]
        assert all(answer.rstrip().endswith("data: [DONE]") for answer in answers)
        assert all(answer.count('"content"') >= 400 for answer in answers)
    eventually(lambda: backend(process, "a")["running"] == 0, "a is empty")
    assert backend(process, "a")["health"] == "drained"
    limits(process, "--undrain", "a", "--drain", "b")
    assert served_by(process, 4) == "a"
    told = [(each["backend"], each["text"]) for each in events(process)]
    assert told == [
        ("a", "drained: no new request goes to it"),
        ("a", "drained no longer"),
        ("b", "drained: no new request goes to it"),
    ]


def test_a_pinned_limit_and_an_objective_are_in_effect_at_once(engine: Engines, gateway: Gateways) -> None:
    backends = [{"name": "a", "url": engine("flat").url}]
    process = gateway(backends=json.dumps(backends), limit_initial="1", max_wait="20s")
    with ExitStack() as streams:
        first = streams.enter_context(opened(process.port, chat("flat", max_tokens=3_000)))
        assert first[1].readline().startswith(b"data: ")
        limits(
            process,
            "--pin",
            "a=2",
            "--tpot-objective",
            "80ms",
            "--ttft-objective",
            "short=3",
            "--lane-weight",
            "long=4",
        )
        second = streams.enter_context(opened(process.port, chat("flat", max_tokens=3_000)))
        assert second[1].readline().startswith(b"data: ")
        found = backend(process, "a")
        assert (found["limit"], found["pinned"], found["running"]) == (2.0, True, 2)
        assert "80ms" in limits(process)
        assert process.series("gateway_queue_max_wait_seconds")['{class="short"}'] == 1.5
    assert "a: limit unpinned" in limits(process, "--unpin", "a")
    assert backend(process, "a")["pinned"] is False


def test_with_all_backends_drained_clients_are_told_that_nobody_can_serve(engine: Engines, gateway: Gateways) -> None:
    process = gateway(backends=json.dumps([{"name": "a", "url": engine("flat").url}]))
    limits(process, "--drain", "a")
    refused = exchange(process.port, chat("flat"))
    assert refused.status == 503
    assert int(refused.header("retry-after") or 0) >= 1
    assert process.series("gateway_backend_up") == {'{backend="a"}': 0.0}
    assert process.series("gateway_backend_drained") == {'{backend="a"}': 1.0}
    limits(process, "--undrain", "a")
    assert exchange(process.port, chat("flat", max_tokens=2)).status == 200
