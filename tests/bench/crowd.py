"""What load and soak share: an engine with so many places, a gateway process that is looked into, and cheap clients.

``python -m tests.bench.crowd engine`` and ``... gateway FOLDER`` are the two processes.
"""

# ruff: noqa: T201 - one line that says where it listens
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httptools
import uvloop

WHOLE: Final = b'{"id":"x","choices":[{"index":0,"message":{"content":"word"},"finish_reason":"stop"}]}'
EVENT: Final = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
ROOT: Final = Path(__file__).parents[2]


class Engine(asyncio.Protocol):
    """Answers after ``X-Wait`` seconds, or streams ``X-Events`` events that many seconds apart."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.timer: asyncio.TimerHandle | None = None
        self.wait, self.events = 0.0, 0

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"X-Wait":
            self.wait = float(value)
        elif name == b"X-Events":
            self.events = int(value)

    def on_message_complete(self) -> None:
        if self.events:
            self.transport.write(HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        act = self.emit if self.events else self.answer
        self.timer = asyncio.get_running_loop().call_later(self.wait, act)

    def answer(self) -> None:
        self.transport.write(HEAD % (b"application/json", b"Content-Length: %d" % len(WHOLE)) + WHOLE)

    def emit(self) -> None:
        self.events -= 1
        self.transport.write(b"%x\r\n%b\r\n%b" % (len(EVENT), EVENT, b"" if self.events else b"0\r\n\r\n"))
        if self.events:
            self.timer = asyncio.get_running_loop().call_later(self.wait, self.emit)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()


async def _engine() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _gateway(folder: Path) -> None:
    from gateway.app.compose import Service
    from gateway.app.configs import load_all
    from gateway.settings.plain import backends

    loaded = load_all(None)
    service = Service(loaded, backends(loaded.settings))
    await service.start()
    print(json.dumps([service.gateway.url, service.admin_url]), flush=True)
    loop, lags = asyncio.get_running_loop(), []
    told = folder / "told.json"
    while True:  # looks a hundred times a second at how late it is, and tells once a second
        held = 0.0
        for _ in range(100):
            due, used = loop.time() + 0.01, time.thread_time()
            await asyncio.sleep(0.01)
            lags.append(loop.time() - due)
            held = max(held, time.thread_time() - used)
        lags = sorted(lags)
        lag = {"lag": lags[int(0.99 * len(lags))], "worst": lags[-1]}
        figures = {"tasks": len(asyncio.all_tasks()), **lag, "held": held}
        (folder / "new.json").write_text(json.dumps(figures))
        (folder / "new.json").replace(told)
        lags = []


class Stand:
    """Both processes."""

    def __init__(self, engine: subprocess.Popen[str], gateway: subprocess.Popen[str], folder: Path) -> None:
        self._engine, self._gateway, self._folder = engine, gateway, folder
        assert gateway.stdout is not None
        self.url, self.admin = json.loads(gateway.stdout.readline())
        host, port = self.url.removeprefix("http://").split(":")
        self.address = host, int(port)

    def told(self) -> dict[str, float]:
        """Tasks, and of the last second the P99 and the worst of how late its loop was, and the CPU time that it was
        held for at most, which is the same on a machine that others use too.
        """
        with contextlib.suppress(OSError):
            return dict(json.loads((self._folder / "told.json").read_text()))
        return {"tasks": 0, "lag": 0.0, "worst": 0.0, "held": 0.0}

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes."""
        status = Path(f"/proc/{self._gateway.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what + ":"))

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self._gateway.pid}/fd").iterdir())

    def cpu(self) -> float:
        """Seconds of CPU that the gateway took so far."""
        fields = Path(f"/proc/{self._gateway.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def state(self) -> Any:
        with urllib.request.urlopen(f"{self.admin}/state") as answer:  # noqa: S310 - loopback
            return json.load(answer)

    def livez(self) -> float:
        """Seconds that /livez takes."""
        begun = time.monotonic()
        with urllib.request.urlopen(f"{self.admin}/livez") as answer:  # noqa: S310 - loopback
            answer.read()
        return time.monotonic() - begun


@contextlib.contextmanager
def stand(folder: Path, limit: int, **settings: str) -> Iterator[Stand]:
    """An engine, and a gateway that lets ``limit`` requests into it."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    command = [sys.executable, "-m", "tests.bench.crowd"]

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=inherited | environment
        )

    engine = start("engine")
    assert engine.stdout is not None
    port = int(engine.stdout.readline())
    backends = json.dumps([{"name": "engine", "url": f"http://127.0.0.1:{port}", "kind": "openai", "limit": limit}])
    chosen = {"backends": backends, "host": "127.0.0.1", "port": "0", "admin_host": "127.0.0.1", "admin_port": "0"}
    chosen |= {"access_log": str(folder / "access.jsonl")} | settings
    gateway = start("gateway", str(folder), **{f"GATEWAY_{name.upper()}": value for name, value in chosen.items()})
    try:
        yield Stand(engine, gateway, folder)
    finally:
        for process in (gateway, engine):
            process.terminate()
            process.wait()


def request(*, wait: float, events: int = 0, pad: int = 0) -> bytes:
    """A chat request whose answer takes so long."""
    pieces = b'{"model":"m","stream":%b,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}],"pad":"%b"}'
    body = pieces % (b"true" if events else b"false", events or 1, b"x" * pad)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Wait: %f\r\n"
    return head % wait + b"X-Events: %d\r\nContent-Length: %d\r\n\r\n" % (events, len(body)) + body


class Client(asyncio.Protocol):
    """One connection. ``ask`` sends, and what becomes of it is counted by status; 0: it broke off."""

    def __init__(self, ends: Counter[int]) -> None:
        self.ends = ends
        self.busy = self.lost = False
        self.chunks = 0
        self.free: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def ask(self, data: bytes) -> asyncio.Future[None]:
        self.parser = httptools.HttpResponseParser(self)
        self.busy = True
        self.free = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.free

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, _data: bytes) -> None:
        self.chunks += 1

    def on_message_complete(self) -> None:
        self._end(self.parser.get_status_code())

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lost = True
        if self.busy:
            self._end(0)

    def leave(self) -> None:
        """Go, in the middle of whatever there is."""
        self.busy = False
        self.transport.abort()
        if self.free is not None and not self.free.done():
            self.free.set_result(None)

    def _end(self, status: int) -> None:
        self.busy = False
        self.ends[status] += 1
        if self.free is not None and not self.free.done():
            self.free.set_result(None)


async def connected(stand: Stand, count: int, ends: Counter[int]) -> list[Client]:
    """So many connections."""
    loop = asyncio.get_running_loop()
    made: list[Client] = []
    for start in range(0, count, 200):
        some = (loop.create_connection(lambda: Client(ends), *stand.address) for _ in range(min(200, count - start)))
        made += [client for _, client in await asyncio.gather(*some)]
    return made


async def offer(stand: Stand, clients: list[Client], rate: float, seconds: float, data: bytes) -> Counter[str]:
    """Requests at ``rate`` a second, each on a connection that is free; none waits for another's answer."""
    loop, missed = asyncio.get_running_loop(), Counter[str]()
    ends = clients[0].ends
    begun, sent, turn = loop.time(), 0, 0
    while (now := loop.time() - begun) < seconds:
        for _ in range(int(now * rate) - sent):
            sent += 1
            for _ in range(len(clients)):
                turn = (turn + 1) % len(clients)
                if clients[turn].lost:
                    _, clients[turn] = await loop.create_connection(lambda: Client(ends), *stand.address)
                if not clients[turn].busy:
                    clients[turn].ask(data)
                    break
            else:
                missed["no free connection"] += 1
        await asyncio.sleep(0.002)
    return missed


if __name__ == "__main__":
    random.seed(0)
    uvloop.run(_engine() if sys.argv[1] == "engine" else _gateway(Path(sys.argv[2])))
