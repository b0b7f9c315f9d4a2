"""The emulated engine as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real.process import Program, free_port
from tests.real.wire import Request, exchange


class EmulatedEngine:
    """``gateway emulate`` on a free loopback port."""

    def __init__(self, log: Path, profile: str, *more: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.profile = profile
        arguments = ["gateway", "emulate", "--profile", profile, "--port", str(self.port), *more]
        self.program = Program(f"engine {profile}", arguments, log, {})

    def wait_until_ready(self) -> None:
        """Return once it answers."""
        self.program.wait_until_ready(self.port, "/health")

    def state(self) -> Any:
        """Its books."""
        return exchange(self.port, Request("GET", "/emulator/state")).json()


def chat(model: str, **more: Any) -> Request:
    """A chat request; streamed unless told otherwise."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}], **more}
    return Request("POST", "/v1/chat/completions", body)
