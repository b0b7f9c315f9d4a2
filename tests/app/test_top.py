"""``gateway top`` on a real pseudo-terminal, and where there is none."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.cli import main
from gateway.console.status import status_view
from gateway.telemetry.history import History
from tests.telemetry.helpers import backend_state, gateway_state

EVENT = {"id": 1, "at": 1.0, "kind": "limit_cut", "severity": "info", "backend": "gpu1", "text": "limit 40 -> 28"}
FINDING = {"severity": "warning", "title": "gpu1 is short of KV", "evidence": [], "advice": []}
PATIENCE = 40.0


class Port:
    """What an admin port answers; ``broken`` makes it fail."""

    def __init__(self) -> None:
        self.state = gateway_state(backend_state("gpu1"), backend_state("gpu2"))
        self.history = History(lambda: self.state)
        self.broken = False
        self.bare = False  # as an older gateway: without the other routes
        self.tokens: set[str | None] = set()

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        if self.broken:
            return web.json_response({"error": "out of order"}, status=500)
        if request.path == "/status":
            self.history.sample()
            return web.json_response(status_view(self.history, "1.2.3", int(request.query["since"])))
        if self.bare:
            return web.json_response({"error": "Not Found"}, status=404)
        return web.json_response({"findings": [FINDING]} if request.path == "/diagnosis" else {"events": [EVENT]})

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", self.answer)])
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


class Terminal:
    """``gateway top`` on a pseudo-terminal of eighty columns."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        env |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        env.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "gateway", "top", *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.seen = ""

    def read(self) -> None:
        try:
            self.seen += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        except BlockingIOError:
            pass
        except OSError as error:  # the other side is closed
            if error.errno != errno.EIO:
                raise

    async def until(self, holds: Callable[[str], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds(self.seen):
                await asyncio.sleep(0.02)
                self.read()

    async def end(self) -> int:
        """Ctrl-C, and the exit code."""
        os.kill(self._process.pid, signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            while self._process.poll() is None:
                await asyncio.sleep(0.02)
                self.read()
        self.read()
        os.close(self._ours)
        return int(self._process.returncode)


def last_picture(seen: str) -> str:
    """The last whole picture, without its colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.rpartition("Inference Gateway")[2])


async def test_on_a_terminal_it_goes_on_until_ctrl_c() -> None:
    port = Port()
    async with port.served() as url:
        terminal = Terminal("--admin", url, "--interval", "0.1")
        await terminal.until(lambda seen: "limit 40 -> 28" in last_picture(seen))
        picture = last_picture(terminal.seen)
        assert "All is well" in picture
        assert "gpu1 is short of KV" in picture
        assert max(len(line) for line in picture.split("\r\n")) <= 80
        port.state = gateway_state(backend_state("gpu1"), backend_state("gpu2", health="down"))
        await terminal.until(lambda seen: "gpu2 is out" in last_picture(seen))
        port.broken = True
        await terminal.until(lambda seen: "out of order" in last_picture(seen))
        assert "gpu1" in last_picture(terminal.seen)
        port.broken = False
        await terminal.until(lambda seen: "gpu2 is out" in last_picture(seen))
        assert await terminal.end() == 0
    assert "\x1b[?1049h" in terminal.seen  # the other screen, and back: what was there before stays
    assert "\x1b[?1049l" in terminal.seen
    assert "Traceback" not in terminal.seen


async def test_it_waits_for_a_gateway_that_is_not_there_yet() -> None:
    terminal = Terminal("--admin", "http://127.0.0.1:9", "--interval", "0.1")
    await terminal.until(lambda seen: "no gateway answers at http://127.0.0.1:9" in seen.replace("\r\n", ""))
    assert await terminal.end() == 0
    assert "Traceback" not in terminal.seen


async def test_without_a_terminal_it_prints_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "s3cret")
    port = Port()
    async with port.served() as url:
        assert await asyncio.to_thread(main, ["top", "--admin", url]) == 0
    text = capsys.readouterr().out
    assert "All is well" in text
    assert max(map(len, text.splitlines())) <= 80
    assert port.tokens == {"Bearer s3cret"}


async def test_an_older_gateway_has_no_findings_and_no_events(capsys: pytest.CaptureFixture[str]) -> None:
    port = Port()
    port.bare = True
    async with port.served() as url:
        assert await asyncio.to_thread(main, ["top", "--once", "--admin", url]) == 0
    assert "All is well" in capsys.readouterr().out


async def test_once_without_a_gateway_is_told_and_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, ["top", "--once", "--admin", "http://127.0.0.1:9"]) == 3
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err
