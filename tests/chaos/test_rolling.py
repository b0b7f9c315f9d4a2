"""Two replicas behind the shipped nginx and HAProxy examples are restarted in turn under constant streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.helpers import ROOT, tool
from tests.proxy.helpers import (
    CHAT_STREAM,
    SSE_HEAD,
    Message,
    Peer,
    RawClient,
    ScriptedBackend,
    chunked,
    event,
    request,
)
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, Program, answers_ok, eventually, free_port

CLIENTS: Final = 12
EVENTS: Final = 20
PAUSE: Final = 0.02  # seconds between events: a stream of 0.4 s, far below the grace time
FRONTS: Final = {
    "nginx": (ROOT / "deploy/nginx/nginx.conf", ("-e", "stderr", "-g", "daemon off; master_process off;", "-c")),
    "haproxy": (ROOT / "deploy/haproxy/haproxy.cfg", ("-db", "-f")),
}


async def stream(peer: Peer, _message: Message) -> None:
    await peer.send(SSE_HEAD)
    for index in range(EVENTS):
        await peer.send(chunked(event(str(index))))
        await asyncio.sleep(PAUSE)
    await peer.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def replica(folder: Path, name: str, engine: str, ports: tuple[int, int] | None = None) -> GatewayProcess:
    """A gateway process; ``ports`` are those of the one whose place it takes."""
    (folder / name).mkdir()
    backends = json.dumps([{"name": "engine", "url": engine, "limit": 100}])
    process = GatewayProcess(folder / name, {"backends": backends, "drain_grace": "10"} | placed(ports))
    if ports is not None:
        process.port, process.admin_port = ports
    return process


def placed(ports: tuple[int, int] | None) -> dict[str, str]:
    return {} if ports is None else {"port": str(ports[0]), "admin_port": str(ports[1])}


@contextlib.contextmanager
def front(name: str, replicas: list[GatewayProcess], folder: Path) -> Iterator[int]:
    """The program with its example, changed to addresses of this machine; its port."""
    example, arguments = FRONTS[name]
    port, text = free_port(), example.read_text()
    first, second = replicas
    for written, here in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("bind :80\n", f"bind 127.0.0.1:{port}\n"),
        ("default_backend standby", "default_backend replicas"),
        ("    server gateway3 10.0.0.13:8080 port 8081\n", ""),
        ("10.0.0.11:8080 port 8081", f"127.0.0.1:{first.port} port {first.admin_port}"),
        ("10.0.0.12:8080 port 8081", f"127.0.0.1:{second.port} port {second.admin_port}"),
        ("10.0.0.11:8080", f"127.0.0.1:{first.port}"),
        ("10.0.0.12:8080", f"127.0.0.1:{second.port}"),
        ("inter 1s fastinter 300ms", "inter 100ms"),
        ("fail_timeout=5s", "fail_timeout=1s"),
        ("/run/nginx.pid", str(folder / "pid")),
        ("worker_rlimit_nofile 65536;", ""),
        ("maxconn 32768", "maxconn 100"),
    ):
        text = text.replace(written, here)
    assert "10.0.0." not in text
    (folder / example.name).write_text(text)
    with (folder / "front.log").open("wb") as log:
        command = [tool(name, f"apt-get install {name}"), *arguments, str(folder / example.name)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - as tool() found it
    try:
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def visit(port: int) -> str:
    """One stream, and how it ended."""
    client = await RawClient.connect(f"http://127.0.0.1:{port}")
    status = 0
    try:
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        status = head.status
        body = (await client.body(head)).body
    except (ConnectionError, asyncio.IncompleteReadError):
        return f"{status} broken"
    finally:
        client.close()
    whole = status != HTTPStatus.OK or body.endswith(b"data: [DONE]\n\n")
    return str(status) if whole else f"{status} cut"


@contextlib.asynccontextmanager
async def visitors(port: int, ends: Counter[str]) -> AsyncIterator[None]:
    """Clients that come again and again."""
    over = asyncio.Event()

    async def one() -> None:
        while not over.is_set():
            end = await visit(port)
            ends[end] += 1
            if end != "200":
                await asyncio.sleep(0.05)  # and comes again, as it was told

    tasks = [asyncio.create_task(one()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FRONTS)
async def test_C06_rolling_two_replicas_breaks_no_stream(name: str, tmp_path: Path) -> None:
    engine = await ScriptedBackend(stream).start()
    started: list[Program] = []
    replicas = [replica(tmp_path, each, engine.url) for each in "ab"]
    started += [each.program for each in replicas]
    ends: Counter[str] = Counter()
    try:
        for each in replicas:
            await asyncio.to_thread(each.wait_until_ready)
        with front(name, replicas, tmp_path) as port:
            await asyncio.to_thread(eventually, lambda: answers_ok(port, "/health"), f"{name} serves")
            async with visitors(port, ends):
                for index, old in enumerate(replicas):
                    # So that whoever stands in front has seen that the other is back: nginx counts in whole seconds.
                    await asyncio.sleep(2.5)
                    before = ends["200"]
                    old.program.signal(signal.SIGTERM)
                    assert await asyncio.to_thread(old.program.wait) == 0, old.program.tail()
                    new = replica(tmp_path, f"{index} anew", engine.url, (old.port, old.admin_port))
                    started.append(new.program)
                    await asyncio.to_thread(new.wait_until_ready)
                    assert ends["200"] > before
    finally:
        for program in started:
            program.kill()
        await engine.stop()
    assert ends["200"] > 5 * CLIENTS
    assert {end for end in ends if end.startswith("200")} == {"200"}, ends
    assert ends.keys() <= {"200", "503"}, ends
