"""Programs that the tests start: on a free loopback port, with their output kept, ended by their own process id."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE = 30.0  # seconds; a guard against hanging, never what a test measures
ROOT = Path(__file__).parents[2]


_PORTS = 2_000  # for each of the processes that run tests


def _ports() -> Iterator[int]:
    """Ports of this process alone, each once before any comes again.

    They lie below those that the system gives to outgoing connections (32768 and up on Linux), so that between the
    look at one and its use nobody is given it.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, begin = 10_000 + _PORTS * (worker % 11), os.getpid() % _PORTS
    while True:
        yield from (first + (begin + step) % _PORTS for step in range(_PORTS))


_NEXT = _ports()


def free_port() -> int:
    """A loopback port that nobody listens on, and that is given to nobody else."""
    for port in _NEXT:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


class Program:
    """``python -m MODULE ARGUMENTS`` in a process of its own, in ``folder``; its output goes to ``log``."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        python: Path = Path(sys.executable),
        folder: Path = ROOT,
    ) -> None:
        self.name = name
        self._log = log
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [str(python), "-m", *arguments],
                cwd=folder,
                env=inherited | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self, port: int, path: str, patience: float = PATIENCE) -> None:
        """Return once ``path`` answers 200.

        Raises:
            RuntimeError: the program ended, or was not ready in time; says what it printed.
        """
        deadline = time.monotonic() + patience
        while not answers_ok(port, path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready (exit code {self._process.returncode}):\n{self.tail()}")
            time.sleep(0.02)

    def tail(self, characters: int = 4000) -> str:
        """The end of what it printed so far."""
        return self._log.read_text(errors="replace")[-characters:]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it ended by itself."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """End it without a word, as the kernel ends a program that took too much memory."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it as a service manager would; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it did not end by itself and was killed.
        """
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds``; the words of ``what`` say what never came true."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE:g} s: {what}"
        time.sleep(0.005)


def answers_ok(port: int, path: str) -> bool:
    """Whether GET ``path`` on this port is 200 now."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
