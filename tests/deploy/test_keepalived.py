"""keepalived's example at work: two machines (network namespaces), each with a gateway, and one address between them.

Not covered: real network cards, and switches that hold back multicast.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.deploy.helpers import ROOT, tool
from tests.real.process import eventually

EXAMPLE: Final = ROOT / "deploy/keepalived/keepalived.conf"
ADDRESS: Final = "10.0.0.10"  # of the example

RESET: Final = 56  # curl: failure in receiving network data
SETUP: Final = [line.removeprefix("#   ") for line in EXAMPLE.read_text().splitlines() if line.startswith("#   ")]
"""What the example wants on both machines."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def _ran(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)  # noqa: S603 - fixed commands
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


class Machine:
    """A network namespace with ``eth0`` on a common bridge."""

    def __init__(self, stack: ExitStack, name: str, bridge: str, number: int) -> None:
        self.name, self._stack = f"{bridge}-{name}", stack
        self.address = f"10.0.0.{number}"
        _ran("ip", "netns", "add", self.name)
        stack.callback(_ran, "ip", "netns", "delete", self.name)
        port = f"{bridge}{number}"
        _ran("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ran("ip", "link", "set", port, "master", bridge, "up")
        self.ran("ip", "link", "set", "lo", "up")
        self.ran("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.ran("ip", "link", "set", "eth0", "up")

    def ran(self, *command: str) -> str:
        return _ran("ip", "netns", "exec", self.name, *command)

    def started(self, log: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """A program on this machine, until it or the test ends."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - fixed commands
                ["ip", "netns", "exec", self.name, *command],  # noqa: S607 - the system's
                cwd=ROOT,
                env=inherited | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(_ended, process)
        return process

    @property
    def has_it(self) -> bool:
        """Whether the common address is here."""
        (card,) = json.loads(self.ran("ip", "-json", "address", "show", "dev", "eth0"))
        return ADDRESS in {each.get("local") for each in card["addr_info"]}


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Stream(NamedTuple):
    """A client that is being answered, and what it got."""

    process: subprocess.Popen[bytes]
    log: Path


class Pair:
    """Two machines with a gateway and a keepalived each, and one more from which clients ask."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._keepalived = tool("keepalived", "apt-get install keepalived")
        bridge = f"gw{os.getpid() % 100_000}"
        try:
            _ran("ip", "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
        except (RuntimeError, FileNotFoundError) as error:
            pytest.skip(f"needs root and iproute2: {error}")
        stack.callback(_ran, "ip", "link", "delete", bridge)
        _ran("ip", "link", "set", bridge, "up")
        self.client = Machine(stack, "c", bridge, 100)
        self.machines = [Machine(stack, name, bridge, number) for number, name in enumerate("ab", 1)]
        self._folder = folder
        for machine in self.machines:
            (folder / machine.name).mkdir()
            for line in SETUP:
                machine.ran(*line.split())

    def keep(self, number: int, priority: int) -> None:
        """Start the keepalived of one of the two."""
        machine = self.machines[number]
        place = self._folder / machine.name
        (place / "conf").write_text(EXAMPLE.read_text().replace("priority 100", f"priority {priority}"))
        files = [f"--{kind}={place / kind}" for kind in ("pid", "vrrp_pid", "checkers_pid")]
        command = (self._keepalived, "--dont-fork", "--log-console", "--vrrp", "--use-file", str(place / "conf"))
        machine.started(place / "keepalived.log", *command, *files)

    def serve(self, number: int) -> subprocess.Popen[bytes]:
        """Start the gateway of one of the two."""
        machine = self.machines[number]
        return machine.started(
            self._folder / machine.name / "gateway.log",
            *(sys.executable, "-m", "gateway", "serve"),
            GATEWAY_HOST="0.0.0.0",  # noqa: S104 - in a network of its own
            GATEWAY_ADMIN_HOST="127.0.0.1",
            GATEWAY_EMULATOR_PROFILE="flat",
            GATEWAY_ACCESS_LOG="off",
        )

    def stream(self) -> Stream:
        """An answer of a minute, at the common address."""
        log = self._folder / "stream"
        body = {
            "model": "flat",
            "stream": True,
            "max_tokens": 6_000,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        command = ("curl", "--silent", "--no-buffer", "--json", json.dumps(body))
        return Stream(self.client.started(log, *command, f"http://{ADDRESS}:8080/v1/chat/completions"), log)

    def keeper_log(self, number: int) -> str:
        """What the keepalived of one of the two has said."""
        return (self._folder / self.machines[number].name / "keepalived.log").read_text()

    def answers(self) -> bool:
        """Whether a client gets an answer at the common address."""
        ask = ("curl", "--silent", "--fail", "--max-time", "1", f"http://{ADDRESS}:8080/v1/models")
        try:
            return bool(self.client.ran(*ask))
        except RuntimeError:
            return False

    def holder(self) -> list[bool]:
        """On which of the two the address is."""
        return [machine.has_it for machine in self.machines]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed, and the example asks with it")
    with ExitStack() as stack:
        yield Pair(stack, tmp_path)


def test_the_address_is_where_a_gateway_is_ready(pair: Pair) -> None:
    gateway = pair.serve(0)
    pair.keep(0, 100)
    eventually(lambda: pair.holder() == [True, False] and pair.answers(), "one that is alone takes it")
    pair.serve(1)
    pair.keep(1, 90)
    eventually(lambda: "Entering BACKUP" in pair.keeper_log(1), "the other one stands by")
    stream = pair.stream()
    eventually(lambda: b"data: " in stream.log.read_bytes(), "a stream runs")
    gateway.send_signal(signal.SIGTERM)  # an upgrade: it drains, and is not ready any more
    eventually(lambda: pair.holder() == [False, True] and pair.answers(), "the other one takes it")
    assert stream.process.wait(30) == RESET, "a stream does not move with the address; its client hears that at once"
    gateway.kill()
    gateway.wait(30)
    pair.serve(0)
    eventually(lambda: pair.keeper_log(0).count("(ready) succeeded") == 2, "the first is ready again")
    assert pair.holder() == [False, True], "who comes back stands by"
    pair.machines[1].ran("ip", "link", "set", "eth0", "down")  # a machine that vanishes says nothing
    eventually(lambda: pair.holder()[0] and pair.answers(), "the first takes it back")
