"""nginx, HAProxy and Envoy in front, each with its example: the real program reads it, and a stream goes through."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.helpers import ROOT, ran, tool
from tests.real.fronts import ENVOY, HAPROXY, NGINX, Front
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually, free_port
from tests.real.wire import Request, exchange, opened

FRONTS: Final = (
    (NGINX, "standby"),
    (HAPROXY, "standby"),
    (HAPROXY, "replicas"),
    (HAPROXY, "sidecars"),
    (ENVOY, "standby"),
    (ENVOY, "sidecars"),
)


@pytest.mark.parametrize("front", [NGINX, HAPROXY, ENVOY], ids=lambda front: front.name)
def test_the_program_takes_its_example(front: Front, tmp_path: Path) -> None:
    copy = tmp_path / front.example.name
    copy.write_text(front.example.read_text().replace("/run/nginx.pid", str(tmp_path / "pid")))
    said = ran(tool(front.name, front.source), *front.check(copy))
    assert "warn" not in said.lower()


def test_keepalived_takes_its_example(tmp_path: Path) -> None:
    """It says nothing of a file that is right and names a wrong line; what it exits with hangs on the system."""
    program = tool("keepalived", "apt-get install keepalived")

    def said(text: str) -> str:
        (tmp_path / "conf").write_text(text)
        command = [program, "--config-test", "--use-file", str(tmp_path / "conf")]
        ended = subprocess.run(  # noqa: S603 - as tool() found it
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50
        )
        return ended.stdout + ended.stderr

    example = (ROOT / "deploy/keepalived/keepalived.conf").read_text()
    assert ": Line" not in said(example)
    assert ": Line" in said(example.replace("advert_int", "advertise"))


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


@pytest.fixture(params=FRONTS, ids=lambda each: f"{each[0].name}-{each[1]}")
def port(request: pytest.FixtureRequest, gateway: GatewayProcess, tmp_path: Path) -> Iterator[int]:
    """Where the program listens, with its example's addresses changed to ones of this machine."""
    front, backend = request.param
    listening = free_port()
    file = front.config(tmp_path, listening, [(gateway.port, gateway.admin_port)], backend)
    with front.running(tool(front.name, front.source), file, listening):
        yield listening


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
