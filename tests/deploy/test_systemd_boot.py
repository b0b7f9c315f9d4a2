"""The unit at work: a machine of its own, as namespaces make one, whose first process is the real systemd.

Its disk is this machine's with what is changed kept in memory, so nothing of this one is touched.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.helpers import ROOT, tool
from tests.real.process import eventually

UNIT: Final = "inference-gateway"
SYSTEMD: Final = Path("/lib/systemd/systemd")
STREAM: Final = "/run/stream"
SETTINGS: Final = "/etc/inference-gateway/gateway.env"

# A boot begins with these on any machine; here they would look for disks, terminals and devices that are not its own.
NOT_HERE: Final = (
    *("systemd-tmpfiles-setup", "systemd-tmpfiles-setup-dev", "systemd-udevd", "systemd-udev-trigger"),
    *("systemd-logind", "systemd-sysusers", "systemd-remount-fs", "systemd-random-seed", "systemd-modules-load"),
    *("systemd-sysctl", "systemd-binfmt", "systemd-journal-flush", "console-getty", "getty@tty1"),
)

BOOT: Final = """
set -e
mount --make-rprivate /
mount -t tmpfs machine {folder}
mkdir {folder}/changed {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/changed,workdir={folder}/work {folder}/root
cd {folder}/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mount --rbind /dev dev
mkdir -p opt/python opt/site opt/source opt/inference-gateway/bin etc/inference-gateway
mount --bind {python} opt/python
mount --bind {site} opt/site
mount --bind {source} opt/source
cp {source}/deploy/systemd/inference-gateway.service etc/systemd/system/
cat >opt/inference-gateway/bin/gateway <<'END'
#!/bin/sh
export LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/source:/opt/site
exec /opt/python/bin/python{version} -m gateway "$@"
END
chmod +x opt/inference-gateway/bin/gateway
for unit in {masked}; do ln -sf /dev/null etc/systemd/system/$unit.service; done
printf '[Unit]\\nRequires=basic.target dbus.service\\n' >etc/systemd/system/here.target
ip link set lo up
exec chroot . /usr/bin/env -i container=namespaces PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --unit=here.target
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Machine:
    """It runs until ``off``."""

    def __init__(self, folder: Path) -> None:
        self._groups = _groups() / f"gateway-test-{os.getpid()}"
        self._groups.mkdir()
        boot = BOOT.format(
            folder=shlex.quote(str(folder)),
            python=shlex.quote(sys.base_prefix),
            site=shlex.quote(str(next(Path(sys.prefix).glob("lib/python3*/site-packages")))),
            source=shlex.quote(str(ROOT)),
            version=f"{sys.version_info.major}.{sys.version_info.minor}",
            masked=" ".join(NOT_HERE),
            systemd=SYSTEMD,
        )
        joined = (
            f"echo $$ >{self._groups}/cgroup.procs; exec unshare -mpuinC --fork --kill-child sh -c {shlex.quote(boot)}"
        )
        self._log = folder.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(["sh", "-c", joined], stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603, S607 - our own words
        self._first = 0
        self.since = 0.0  # seconds since the epoch; what the journal has from before is of no interest

    def wait_until_up(self) -> None:
        """Return when it takes orders; skip the test where this machine lets nobody make one."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")

        def up() -> bool:
            if self._process.poll() is not None:
                pytest.skip(f"no machine can be made here: {self._log.read_text()}")
            self._first = int((children.read_text().split() or ["0"])[0])
            return bool(self._first) and self.tried("systemctl", "is-active", "dbus.service").returncode == 0

        eventually(up, "the machine is up")

    def tried(self, *command: str) -> subprocess.CompletedProcess[str]:
        """What came of a command there."""
        inside = [
            "nsenter",
            f"--target={self._first}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--root",
            "--wd=/",
        ]
        return subprocess.run([*inside, *command], check=False, capture_output=True, text=True, timeout=60)  # noqa: S603 - fixed commands

    def ran(self, *command: str) -> str:
        """The output of one that succeeded."""
        done = self.tried(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.journal()}"
        return done.stdout

    def write(self, path: str, *lines: str) -> None:
        """A file there."""
        self.ran("sh", "-c", f"mkdir -p {Path(path).parent}; printf '%s\\n' {shlex.join(lines)} >{path}")

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.ran("systemctl", "show", "--value", f"--property={name}", UNIT).strip()

    def journal(self) -> str:
        """What the unit said."""
        return self.tried("journalctl", "--no-pager", f"--since=@{self.since:.3f}", "--unit", UNIT).stdout

    def asked(self, port: int, path: str) -> Any:
        """The JSON behind a path."""
        return json.loads(self.ran("curl", "-sf", "-m", "20", f"http://127.0.0.1:{port}{path}"))

    def wait_until_ready(self) -> None:
        """It says so, and has seen its engine."""
        eventually(lambda: self.tried("curl", "-sf", "http://127.0.0.1:8081/readyz").returncode == 0, "it is ready")

    def off(self) -> None:
        """Pull the plug."""
        self._process.kill()
        self._process.wait()
        for folder in sorted(self._groups.rglob("*"), reverse=True):
            if folder.is_dir():
                eventually(lambda folder=folder: _removed(folder), f"{folder} is empty")  # type: ignore[misc]
        eventually(lambda: _removed(self._groups), f"{self._groups} is empty")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # who was in it is not quite gone
        return False
    return True


def _groups() -> Path:
    """Where control groups are made, in their second version: systemd keeps its units apart by them."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, _ = line.split(maxsplit=3)
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    pytest.skip("no control groups of the second version are here")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() or not SYSTEMD.exists():
        pytest.skip("it takes root and systemd")
    for name in ("unshare", "nsenter", "curl", "dbus-daemon"):
        tool(name, "apt-get install util-linux curl dbus")
    made = Machine(tmp_path_factory.mktemp("machine"))
    try:
        made.wait_until_up()
        yield made
    finally:
        made.off()


@pytest.fixture
def unit(machine: Machine) -> Iterator[Machine]:
    """The machine with the unit as it is shipped, stopped."""
    machine.write(SETTINGS, "GATEWAY_EMULATOR_PROFILE=flat")
    machine.since = time.time()
    yield machine
    machine.ran("systemctl", "stop", UNIT)
    machine.tried("systemctl", "reset-failed", UNIT)
    machine.ran("rm", "-rf", f"/etc/systemd/system/{UNIT}.service.d", "/etc/inference-gateway")
    machine.ran("systemctl", "daemon-reload")


def test_it_serves_as_nobody_in_particular(unit: Machine) -> None:
    unit.write("/etc/inference-gateway/secrets.env", "GATEWAY_ADMIN_TOKEN=a-long-and-secret-token")
    unit.ran("chmod", "600", "/etc/inference-gateway/secrets.env")
    unit.write(
        SETTINGS,
        "GATEWAY_EMULATOR_PROFILE=flat",
        "GATEWAY_ACCESS_LOG=/var/log/inference-gateway/access.jsonl",
        "GATEWAY_STATE_FILE=/var/lib/inference-gateway/state.json",
    )
    unit.ran("systemctl", "start", UNIT)
    unit.wait_until_ready()
    status = dict(
        line.split(":\t", 1)
        for line in unit.ran("cat", f"/proc/{unit.shown('MainPID')}/status").splitlines()
        if ":\t" in line
    )
    assert "0" not in status["Uid"].split()
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert unit.asked(8080, "/v1/models")["data"][0]["id"] == "flat"
    assert unit.asked(8081, "/config")["GATEWAY_ADMIN_TOKEN"]["source"] == "environment"
    eventually(
        lambda: "/v1/models" in unit.ran("cat", "/var/log/inference-gateway/access.jsonl"), "the access log has it"
    )
    unit.ran("systemctl", "stop", UNIT)
    assert unit.shown("Result") == "success"
    assert "saved_at" in unit.ran("cat", "/var/lib/inference-gateway/state.json")


def test_it_reads_its_settings_again(unit: Machine) -> None:
    unit.ran("systemctl", "start", UNIT)
    unit.write(SETTINGS, "GATEWAY_EMULATOR_PROFILE=flat", "GATEWAY_TTFT_OBJECTIVE=3")
    unit.ran("systemctl", "reload", UNIT)
    eventually(lambda: "GATEWAY_TTFT_OBJECTIVE" in unit.journal(), "the change is told of")
    unit.write(SETTINGS, "GATEWAY_EMULATOR_PROFILE=flat", "GATEWAY_TTFT_OBJECTIVE=soon")
    unit.ran("systemctl", "reload", UNIT)
    eventually(lambda: "got 'soon'" in unit.journal(), "the fault is told of")
    unit.wait_until_ready()


def _again(unit: Machine, times: int) -> bool:
    return unit.shown("NRestarts") == str(times) and unit.shown("ActiveState") == "active"


@pytest.mark.parametrize(("workers", "signals"), [("1", ("KILL", "STOP")), ("2", ("KILL",))])
def test_it_comes_again(unit: Machine, workers: str, signals: tuple[str, ...]) -> None:
    """After it was killed, and after it stood still for longer than its watchdog waits."""
    unit.write(f"/etc/systemd/system/{UNIT}.service.d/short.conf", "[Service]", "WatchdogSec=3")
    unit.write(SETTINGS, "GATEWAY_EMULATOR_PROFILE=flat", f"GATEWAY_WORKERS={workers}")
    unit.ran("systemctl", "daemon-reload")
    unit.ran("systemctl", "start", UNIT)
    for times, name in enumerate(signals, 1):
        unit.ran("kill", f"-{name}", unit.shown("MainPID"))
        eventually(lambda times=times: _again(unit, times), f"it was started again after {name}")  # type: ignore[misc]
        unit.wait_until_ready()
    assert ("Watchdog timeout" in unit.journal()) is ("STOP" in signals)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stream_is_finished_before_it_stops(unit: Machine, workers: str) -> None:
    """The gateway asks for the time that it takes: here the unit alone would give it one second."""
    unit.write(f"/etc/systemd/system/{UNIT}.service.d/short.conf", "[Service]", "TimeoutStopSec=1")
    unit.write(SETTINGS, "GATEWAY_EMULATOR_PROFILE=flat", f"GATEWAY_WORKERS={workers}")
    unit.ran("systemctl", "daemon-reload")
    unit.ran("systemctl", "start", UNIT)
    body = json.dumps({"model": "flat", "stream": True, "max_tokens": 300, "ignore_eos": True, "prompt": "hello"})
    url = "http://127.0.0.1:8080/v1/completions"
    unit.ran("sh", "-c", f"curl -sN {url} -H 'Content-Type: application/json' -d {shlex.quote(body)} >{STREAM} 2>&1 &")
    eventually(lambda: "data:" in unit.tried("cat", STREAM).stdout, "the stream has begun")
    assert "[DONE]" not in unit.ran("cat", STREAM)
    unit.ran("systemctl", "stop", UNIT)
    assert unit.ran("cat", STREAM).rstrip().endswith("data: [DONE]")
    assert unit.shown("Result") == "success"


def test_wrong_settings_are_told_and_not_tried_again(unit: Machine) -> None:
    unit.write(SETTINGS, "GATEWAY_PORT=eighty")
    assert unit.tried("systemctl", "start", UNIT).returncode == 1
    assert unit.shown("ActiveState") == "failed"
    assert unit.shown("NRestarts") == "0"
    assert "GATEWAY_PORT: got 'eighty'" in unit.journal()
