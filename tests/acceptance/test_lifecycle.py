"""Start, stop and what goes wrong at either: each as its operator sees it."""

from __future__ import annotations

import json
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

from gateway.emulator.profiles import PROFILES
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


def ended(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """``gateway ARGUMENTS`` that is expected to end by itself."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    chosen = {f"GATEWAY_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "gateway", *arguments]
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
    serve = ended(
        "serve", prt="1", port="80a8", backends="http://a,htp://b,", emulator_profile="a100", ttft_objective="fast"
    )
    assert serve.returncode == 1
    assert serve.stdout == ""
    told = {line.removeprefix("[FAIL] ").partition(":")[0] for line in serve.stderr.splitlines()}
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
        serve = ended("serve", **free | {f"{which}port": port})
    assert serve.returncode == 3
    name = f"GATEWAY_{which.upper()}PORT"
    (line,) = [line for line in serve.stderr.splitlines() if "ERROR" in line]
    assert line.endswith(
        f"cannot listen on 127.0.0.1:{port} ({name.replace('PORT', 'HOST')}, {name}): Address already in use"
    )
    assert "Traceback" not in serve.stderr


def test_a_host_that_is_not_known_is_one_line_and_exit_code_3() -> None:
    serve = ended("serve", host="nowhere.invalid", port="0", admin_host="127.0.0.1", admin_port="0")
    assert serve.returncode == 3
    assert re.search(r"ERROR .*: cannot listen on nowhere.invalid:0 \(.*\): [A-Z]\w+ [a-z ]+$", serve.stderr)
    assert "Traceback" not in serve.stderr


def test_an_access_log_that_cannot_be_written_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    serve = ended("serve", port="0", admin_port="0", access_log=str(tmp_path / "none" / "access.log"))
    assert serve.returncode == 3
    assert re.search(r"ERROR .*: cannot write to GATEWAY_ACCESS_LOG=.*: No such file or directory$", serve.stderr)
    assert "Traceback" not in serve.stderr


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


def test_a_rotated_access_log_goes_on_in_a_new_file(engine: Engines, gateway: Gateways) -> None:
    process = gateway(backends=engine("flat").url)
    assert exchange(process.port, Request("GET", "/v1/models", headers=(("X-Request-Id", "before"),))).status == 200
    eventually(lambda: bool(process.logged("before")), "the line is written")
    moved = process.access_log.rename(process.access_log.with_suffix(".1"))
    process.program.signal(signal.SIGHUP)
    eventually(process.access_log.exists, "a new file is begun")
    assert exchange(process.port, Request("GET", "/v1/models", headers=(("X-Request-Id", "after"),))).status == 200
    eventually(lambda: bool(process.logged("after")), "the line is written to the new file")
    assert "after" not in moved.read_text(encoding="utf-8")


def test_a_hangup_reads_the_settings_again_and_streams_go_on(
    engine: Engines, gateway: Gateways, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.env"
    file.write_text("", encoding="utf-8")
    process = gateway(backends=engine("flat").url, env_file=str(file))
    with opened(process.port, chat("flat", max_tokens=150)) as (_, response):
        assert response.readline().startswith(b"data: ")
        for text, told in (
            ("GATEWAY_API_KEYS=[oops\n", "nothing was changed, what was in effect stays: GATEWAY_API_KEYS: got a text"),
            (
                "GATEWAY_API_KEYS=sk-0123456789abcdef0123\nGATEWAY_BACKLOG=9\n",
                "a restart is needed for GATEWAY_BACKLOG",
            ),
        ):
            file.write_text(text, encoding="utf-8")
            process.program.signal(signal.SIGHUP)
            eventually(lambda told=told: told in process.program.tail(), told)  # type: ignore[misc]
        assert exchange(process.port, chat("flat")).status == 401
        assert response.read().decode().rstrip().endswith("data: [DONE]")


def test_it_says_whether_keys_are_asked_for(gateway: Gateways) -> None:
    without = gateway()
    eventually(lambda: "API keys none is asked for" in without.program.tail(), "it says that the house is open")
    asking = gateway(api_keys="sk-0123456789abcdef0123")
    assert '"Authorization: Bearer $KEY"' in said_curl(asking)
    assert "sk-0123" not in asking.program.tail()


def test_in_json_nothing_is_said_that_a_collector_cannot_read(gateway: Gateways) -> None:
    process = gateway(log_format="json")
    eventually(lambda: "curl -N" in process.program.tail(), "a curl line is printed")
    entries = [json.loads(line) for line in process.program.tail().splitlines()]
    assert any(entry["message"].startswith("clients  http://127.0.0.1:") for entry in entries)


def test_profiles_are_listed() -> None:
    listed = ended("emulate", "--list")
    assert listed.returncode == 0
    assert {line.split()[0] for line in listed.stdout.splitlines()} == set(PROFILES)


def test_an_unknown_profile_is_wrong_usage() -> None:
    emulate = ended("emulate", "--profile", "c550asr")
    assert emulate.returncode == 2
    assert emulate.stderr.rstrip().endswith("; did you mean c550-asr?")


def test_an_engine_whose_port_is_taken_exits_with_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        emulate = ended("emulate", "--port", str(taken.getsockname()[1]))
    assert emulate.returncode == 3
    assert "Traceback" not in emulate.stderr
