"""The unit is right, and `gateway serve` tells its service manager what sd_notify(3) has it tell."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app.notify import ServiceManager
from tests.deploy.helpers import ROOT, ran, tool
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE

UNIT = ROOT / "deploy/systemd/inference-gateway.service"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def heard(listener: socket.socket) -> dict[str, str]:
    """The next message, as fields."""
    return dict(line.split("=", 1) for line in listener.recv(4096).decode().splitlines())


def heard_besides_life(listener: socket.socket) -> dict[str, str]:
    """The next message that is no sign of life."""
    while (message := heard(listener)) == {"WATCHDOG": "1"}:
        pass
    return message


@pytest.mark.real
def test_a_life_under_systemd(manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    gateway = GatewayProcess(tmp_path, {"emulator_profile": "flat", "drain_grace": "7"})
    try:
        assert heard(manager) == {"READY": "1"}
        with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE):
            pass  # it listens when it says so
        assert [heard(manager) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
        gateway.program.signal(signal.SIGHUP)
        assert heard_besides_life(manager).keys() == {"RELOADING", "MONOTONIC_USEC"}
        assert heard_besides_life(manager) == {"READY": "1"}
    finally:
        code = gateway.program.stop()
    assert code == 0
    assert heard_besides_life(manager) == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "17000000"}


@pytest.mark.real
def test_nothing_is_ready_that_cannot_listen(manager: socket.socket, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = GatewayProcess(tmp_path, {"emulator_profile": "flat", "port": str(taken.getsockname()[1])})
        assert gateway.program.wait() == 3
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


async def test_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel gives it an abstract name
        told = ServiceManager({"NOTIFY_SOCKET": "@" + listener.getsockname()[1:].decode()})
        told.ready()
        told.close()
        assert listener.recv(4096) == b"READY=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
async def test_nobody_to_tell(environment: dict[str, str]) -> None:
    told = ServiceManager(environment)
    told.ready()
    told.stopping(1.0)
    told.close()


async def test_the_watchdog_of_another_process_is_not_fed(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": os.environ["NOTIFY_SOCKET"], "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    told = ServiceManager(environment)
    told.ready()
    await asyncio.sleep(0.01)
    told.close()
    manager.setblocking(False)
    assert heard(manager) == {"READY": "1"}
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


async def test_a_manager_that_is_gone_or_does_not_read_stops_nothing(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": os.environ["NOTIFY_SOCKET"]})
    for _ in range(10_000):  # more than a socket's queue holds
        told.reloading()
    manager.close()
    told.stopping(1.0)
    told.close()
    told.close()
    told.ready()
    assert "the service manager cannot be told STOPPING=1: Connection refused" in caplog.text


def sections() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_waits_for_what_the_gateway_tells() -> None:
    service = sections()["Service"]
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) > 0
    assert service["RestartPreventExitStatus"] == "1"  # what `gateway` exits with where its settings are wrong
    assert "GATEWAY_" not in UNIT.read_text().replace("GATEWAY_DRAIN_GRACE", "")  # settings are the operator's


def test_the_unit_leaves_what_the_process_metrics_need() -> None:
    assert "ProcSubset" not in sections()["Service"]  # without /proc/stat prometheus_client tells no process_ metric


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its paths replaced by ones that exist; `security` is systemd's own judgement of the hardening, 10 is none."""
    analyze = tool("systemd-analyze", "apt-get install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/inference-gateway/bin/gateway", "/bin/true"))
    assert UNIT.name not in ran(analyze, "verify", unit)  # it names the units that it warns of
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", ran(analyze, "security", "--offline=true", unit))
    assert level is not None
    assert float(level[1]) < 2.0
