"""Start, stop and what goes wrong at either: each as its operator sees it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, ROOT, eventually, free_port
from tests.real.wire import Request, exchange, opened

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]


def said_curl(gateway: GatewayProcess) -> str:
    """The line that the gateway printed to try it with."""
    lines: list[str] = []

    def printed() -> bool:
        lines[:] = [line for line in gateway.program.tail().splitlines() if line.startswith("curl ")]
        return bool(lines)

    eventually(printed, "a curl line is printed")
    return lines[0]


def serve(**settings: str) -> subprocess.CompletedProcess[str]:
    """``gateway serve`` that is expected to end by itself."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    chosen = {f"GATEWAY_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "gateway", "serve"]
    return subprocess.run(  # noqa: S603 - our own interpreter and arguments
        command, env=inherited | chosen, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_line_works_as_printed(gateway: Gateways) -> None:
    line = said_curl(gateway(host="0.0.0.0", emulator_profile="flat"))  # noqa: S104 - what the line makes of it
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=True)  # noqa: S603, S607 - as printed
    assert ran.stdout.count("data: {") > 30
    assert ran.stdout.rstrip().endswith("data: [DONE]")


def test_in_front_of_engines_the_printed_line_names_their_model(engine: Engines, gateway: Gateways) -> None:
    backend = engine("flat", "--model", "my-model")
    assert '"model": "my-model"' in said_curl(gateway(backends=backend.url))


def test_with_no_engine_up_it_starts_and_says_what_to_put_in(gateway: Gateways) -> None:
    process = gateway(backends=f"http://127.0.0.1:{free_port()}", until="/livez")
    assert '"model": "MODEL"' in said_curl(process)
    assert exchange(process.admin_port, Request("GET", "/readyz")).status == 503


def test_a_signal_lets_streams_finish_and_exits_with_0(engine: Engines, gateway: Gateways) -> None:
    backend = engine("flat")
    process = gateway(backends=backend.url)
    with opened(process.port, chat("flat", max_tokens=150)) as (_, response):
        assert response.readline().startswith(b"data: ")
        process.program.signal(signal.SIGTERM)
        eventually(lambda: exchange(process.admin_port, Request("GET", "/readyz")).status == 503, "readiness is off")
        refused = exchange(process.port, chat("flat"))
        assert (refused.status, refused.header("connection")) == (503, "close")
        text = response.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    assert text.count('"content"') >= 149
    assert process.program.wait() == 0


def test_a_second_signal_cuts_what_runs(engine: Engines, gateway: Gateways) -> None:
    backend = engine("flat")
    process = gateway(backends=backend.url)
    with opened(process.port, chat("flat", max_tokens=20_000)) as (_, response):
        assert response.readline().startswith(b"data: ")
        process.program.signal(signal.SIGTERM)
        eventually(lambda: exchange(process.admin_port, Request("GET", "/readyz")).status == 503, "readiness is off")
        process.program.signal(signal.SIGTERM)
        assert process.program.wait() == 128 + signal.SIGTERM
    eventually(lambda: backend.state()["running"] == 0, "the engine is rid of the stream")


def test_the_grace_time_ends_what_does_not_end(engine: Engines, gateway: Gateways) -> None:
    backend = engine("flat")
    process = gateway(backends=backend.url, drain_grace="100ms")
    with opened(process.port, chat("flat", max_tokens=20_000)) as (_, response):
        assert response.readline().startswith(b"data: ")
        process.program.signal(signal.SIGINT)
        assert process.program.wait() == 0


def test_every_fault_of_the_settings_is_told_before_it_exits_with_1() -> None:
    ended = serve(prt="1", port="80a8", backends="http://a,htp://b,", emulator_profile="a100", ttft_objective="fast")
    assert ended.returncode == 1
    assert ended.stdout == ""
    told = {line.removeprefix("[FAIL] ").partition(":")[0] for line in ended.stderr.splitlines()}
    assert told == {
        "GATEWAY_PRT",
        "GATEWAY_PORT",
        "GATEWAY_BACKENDS[1].url",
        "GATEWAY_EMULATOR_PROFILE",
        "GATEWAY_TTFT_OBJECTIVE",
    }


@pytest.mark.parametrize("which", ["", "admin_"])
def test_a_port_in_use_is_one_line_and_exit_code_3(which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        free = {"host": "127.0.0.1", "port": "0", "admin_host": "127.0.0.1", "admin_port": "0"}
        ended = serve(**free | {f"{which}port": port})
    assert ended.returncode == 3
    name = f"GATEWAY_{which.upper()}PORT"
    (line,) = [line for line in ended.stderr.splitlines() if "ERROR" in line]
    assert line.endswith(
        f"cannot listen on 127.0.0.1:{port} ({name.replace('PORT', 'HOST')}, {name}): Address already in use"
    )
    assert "Traceback" not in ended.stderr


def test_an_access_log_that_cannot_be_written_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    ended = serve(port="0", admin_port="0", access_log=str(tmp_path / "none" / "access.log"))
    assert ended.returncode == 3
    assert re.search(r"ERROR .*: cannot write to GATEWAY_ACCESS_LOG=.*: No such file or directory$", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_an_engine_that_dies_comes_back_by_itself(engine: Engines, gateway: Gateways) -> None:
    backend = engine("flat")
    process = gateway(backends=backend.url, probe_interval="50ms", breaker_cooldown="100ms")
    assert exchange(process.port, chat("flat", max_tokens=3)).status == 200
    backend.program.kill()
    eventually(lambda: process.state()["backends"][0]["health"] != "up", "the engine's death is noticed")
    refused = exchange(process.port, chat("flat"))
    assert refused.status == 503
    assert int(refused.header("retry-after") or 0) >= 1
    again = engine("flat", port=backend.port)
    eventually(lambda: process.state()["backends"][0]["health"] == "up", "the engine's return is noticed")
    assert exchange(process.port, chat("flat", max_tokens=3)).status == 200
    assert again.state()["finished"] == 1
