"""What the first of several processes hears of the others, and that it goes on whatever becomes of them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.app.crew import Crew, _line
from tests.real.process import free_port


@pytest.mark.parametrize(("written", "said"), [((b'{"a": ', b"1}\n"), b'{"a": 1}\n'), ((b"half",), b"half"), ((), b"")])
async def test_a_line_or_what_there_is_of_it(written: tuple[bytes, ...], said: bytes) -> None:
    hears, tells = os.pipe()
    line = asyncio.create_task(_line(hears))
    for part in written:
        await asyncio.sleep(0.01)
        os.write(tells, part)
    os.close(tells)
    assert await line == said


def test_the_pipe_is_closed_once() -> None:
    """A number that is closed once more is another file's by then, or libuv ends the process for it."""

    async def listen() -> None:
        hears, tells = os.pipe()
        os.write(tells, b"ready\n")
        os.close(tells)
        assert await _line(hears) == b"ready\n"
        other = os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, hears)  # the number is another file's now
        await asyncio.sleep(0.05)
        os.fstat(hears)
        for number in {other, hears}:
            os.close(number)

    uvloop.run(listen())


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_who_cannot_be_started_again_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    crew = Crew(
        tmp_path / "brain", free_port(), 1, None, {"GATEWAY_ADMIN_PORT": "0", "GATEWAY_BACKENDS": "http://127.0.0.1:9"}
    )
    await crew.start()
    real, refused = asyncio.create_subprocess_exec, asyncio.Event()

    async def start(*command: str, **more: Any) -> asyncio.subprocess.Process:
        if not refused.is_set():
            refused.set()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await real(*command, **more)

    before = _open_files()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    try:
        crew._processes["brain"].kill()
        async with asyncio.timeout(30):
            while "is back" not in caplog.text:  # noqa: ASYNC110 - what is waited for is the log
                await asyncio.sleep(0.05)
        assert "Resource temporarily unavailable" in caplog.text
        assert _open_files() <= before
    finally:
        await crew.kill()
