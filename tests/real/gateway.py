"""The gateway as its users run it: a process of its own, configured by its environment alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.real.process import Program, free_port
from tests.real.wire import Request, exchange


class GatewayProcess:
    """``python -m gateway serve`` on two free loopback ports; settings in lower case, without the prefix."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.access_log = folder / "access.jsonl"
        self.admin_port = int(settings.get("admin_port", self.admin_port))
        chosen = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "admin_host": "127.0.0.1",
            "admin_port": str(self.admin_port),
            "access_log": str(self.access_log),
            **settings,
        }
        environment = {f"GATEWAY_{name.upper()}": value for name, value in chosen.items()}
        self.program = Program(folder.name, ["gateway", "serve"], folder / "log", environment)

    def wait_until_ready(self) -> None:
        """Return once it is fit to take traffic."""
        self.program.wait_until_ready(self.admin_port, "/readyz")

    def state(self) -> Any:
        """/state of the admin port."""
        return exchange(self.admin_port, Request("GET", "/state")).json()

    def running(self) -> int:
        """Permits held now, over all backends."""
        return sum(backend["running"] for backend in self.state()["backends"])

    def waiting(self) -> int:
        """Requests in the queue now, over all lanes."""
        return sum(lane["depth"] for lane in self.state()["lanes"])

    def series(self, name: str) -> dict[str, float]:
        """The series of one metric: labels as they are printed -> value."""
        text = exchange(self.admin_port, Request("GET", "/metrics")).body.decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith((name + "{", name + " ")))
        return {series.removeprefix(name): float(value) for series, _, value in lines}

    def logged(self, request_id: str) -> list[dict[str, Any]]:
        """The access log's lines about one request id."""
        lines = (json.loads(line) for line in self.access_log.read_text().splitlines())
        return [line for line in lines if line.get("request_id") == request_id]
