"""What relaying costs: ``python -m tests.bench.relay``. Prints a table; no part of the test run.

Three processes on loopback: a raw backend, the gateway, and this one as the client. Each figure stands beside the one
of a direct connection, and the gateway's CPU time is read from the kernel, because figures per second depend on how
many cores the three have to share. Linux only.
"""

# ruff: noqa: T201 - a report on the terminal
from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httptools
import uvloop

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.model import Backend
from gateway.proxy.config import ProxyConfig
from gateway.proxy.server import Gateway
from gateway.telemetry.metrics import Metrics

ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"%b"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":64,"total_tokens":73}}'
) % (b"word " * 64)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"model",'
    '"choices":[{"index":0,"delta":{"content":"%.9f"},"logprobs":null,"finish_reason":null}]}\n\n'
)


def _request(*, stream: bool, chunks: int = 0, gap: float = 0.0) -> bytes:
    body = b'{"model":"model","stream":%b,"messages":[{"role":"user","content":"%b"}],"max_tokens":%d}' % (
        b"true" if stream else b"false",
        b"hello " * 20,
        chunks or 64,
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nX-Chunks: {chunks}\r\n"
        f"X-Gap: {gap}\r\nAuthorization: Bearer bench\r\nUser-Agent: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Engine(asyncio.Protocol):
    """Answers whole or in paced chunks, as the request's headers say."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.chunks, self.gap = 0, 0.0
        self.timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"X-Chunks":
            self.chunks = int(value)
        elif name == b"X-Gap":
            self.gap = float(value)

    def on_message_complete(self) -> None:
        if self.chunks:
            self.transport.write(STREAM)
            loop = asyncio.get_running_loop()
            self.due = loop.time() + random.random() * self.gap
            self.timer = loop.call_at(self.due, self.emit)
        else:
            self.transport.write(WHOLE)

    def emit(self) -> None:
        event = (EVENT % time.monotonic()).encode()
        self.chunks -= 1
        self.transport.write(b"%x\r\n%b\r\n%b" % (len(event), event, b"" if self.chunks else b"0\r\n\r\n"))
        if self.chunks:
            self.due += self.gap
            self.timer = asyncio.get_running_loop().call_at(self.due, self.emit)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()


async def _backend() -> None:
    server = await asyncio.get_running_loop().create_server(_Engine, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _gateway(url: str, *, telemetry: bool) -> None:
    backends = [Backend("engine", url, limit=100_000)]
    config = AdmissionConfig()
    estimator = Estimator(config.estimator)
    controller = AdmissionController(config, backends, random.uniform, estimator)
    metrics = (Metrics(lambda: gateway.state(), version="bench", config_hash=""),) if telemetry else ()  # noqa: PLW0108 - bound below
    gateway = Gateway(ProxyConfig(host="127.0.0.1", port=0), backends, controller, estimator, metrics)
    await gateway.start()
    print(gateway.url, flush=True)
    await asyncio.Event().wait()


class _Client(asyncio.Protocol):
    """One connection that asks again as soon as it was answered, until told to stop."""

    def __init__(self, request: bytes, delays: list[float]) -> None:
        self.request = request
        self.delays = delays
        self.latencies: list[float] = []
        self.running = True
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpResponseParser(self)
        self.ask()

    def ask(self) -> None:
        self.asked = time.monotonic()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        now = time.monotonic()
        for event in body.split(b"\n\n"):
            at = event.find(b'"content":"')
            if at >= 0 and event.startswith(b"data: "):
                self.delays.append(now - float(event[at + 11 : event.index(b'"', at + 11)]))

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            raise RuntimeError(f"status {self.parser.get_status_code()}")
        self.latencies.append(time.monotonic() - self.asked)
        if self.running:
            self.ask()
        elif not self.answered.done():
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionError("closed"))


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """(URL, CPU seconds so far) of another process of this script."""
    command = [sys.executable, "-m", "tests.bench.relay", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very script
    try:
        assert process.stdout is not None
        stat = Path(f"/proc/{process.pid}/stat")

        def cpu() -> float:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        yield process.stdout.readline().strip(), cpu
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def _clients(url: str, count: int, request: bytes, delays: list[float]) -> AsyncIterator[list[_Client]]:
    host, port = url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(count):
        _, client = await loop.create_connection(lambda: _Client(request, delays), host, int(port))
        clients.append(client)
    try:
        yield clients
    finally:
        for client in clients:
            client.answered.cancel()
            client.transport.abort()


def _percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    middle, high = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"p50 {middle * 1000:8.2f} ms  p99 {high * 1000:8.2f} ms"


async def _whole(url: str, connections: int, seconds: float, cpu: Callable[[], float] | None) -> str:
    async with _clients(url, connections, _request(stream=False), []) as clients:
        await asyncio.sleep(1.5)  # connections are made, and known to stay open
        for client in clients:
            client.latencies.clear()
        began, used = time.monotonic(), cpu() if cpu else 0.0
        await asyncio.sleep(seconds)
        latencies = [latency for client in clients for latency in client.latencies]
        elapsed, spent = time.monotonic() - began, (cpu() if cpu else 0.0) - used
    rate = len(latencies) / elapsed
    per_request = f"  {spent / len(latencies) * 1e6:6.0f} us of CPU a request" if cpu else ""
    return f"{rate:8.0f} req/s  {_percentiles(latencies)}{per_request}"


async def _paced(url: str, streams: int, chunks: int, gap: float, cpu: Callable[[], float] | None) -> str:
    delays: list[float] = []
    used = cpu() if cpu else 0.0
    async with _clients(url, streams, _request(stream=True, chunks=chunks, gap=gap), delays) as clients:
        began = time.monotonic()
        for client in clients:
            client.running = False
        await asyncio.gather(*(client.answered for client in clients))
        elapsed = time.monotonic() - began
    spent = (cpu() if cpu else 0.0) - used
    per_chunk = f"  {spent / (streams * chunks) * 1e6:6.1f} s of CPU a million chunks" if cpu else ""
    return f"{streams * chunks / elapsed:8.0f} ch/s   {_percentiles(delays)}{per_chunk}"


async def _measure(options: argparse.Namespace) -> None:
    with _process("backend") as (engine, _):
        for title, arguments in (
            ("direct", None),
            ("gateway", ("gateway", engine)),
            ("gateway with metrics", ("gateway", engine, "--telemetry")),
        ):
            with _process(*arguments) if arguments else contextlib.nullcontext((engine, None)) as (url, cpu):
                for connections in (1, 64):
                    result = await _whole(url, connections, options.seconds, cpu)
                    print(f"{title:22} {connections:5} connections  {result}", flush=True)
                result = await _paced(url, options.streams, options.chunks, options.gap, cpu)
                print(f"{title:22} {options.streams:5} paced streams {result}", flush=True)


def main() -> None:
    """Run the part that the arguments name; without one, everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["backend", "gateway"], help="(used by the script itself)")
    parser.add_argument("url", nargs="?", help="(used by the script itself)")
    parser.add_argument("--telemetry", action="store_true", help="(used by the script itself)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of closed-loop load for each figure")
    parser.add_argument("--streams", type=int, default=400, help="that are open at once")
    parser.add_argument("--chunks", type=int, default=100, help="of each stream, about 200 bytes each")
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between two chunks of a stream")
    options = parser.parse_args()
    match options.part:
        case "backend":
            uvloop.run(_backend())
        case "gateway":
            uvloop.run(_gateway(options.url, telemetry=options.telemetry))
        case _:
            uvloop.run(_measure(options))


if __name__ == "__main__":
    main()
