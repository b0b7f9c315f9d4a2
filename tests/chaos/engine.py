"""An engine that fails as it is told: each request says how it is to be answered, and faults of the whole come on top.

It keeps books that an oracle can trust: whose body arrived and how often, whose answer was sent to its end, and how
many exchanges were open at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

JSON: Final = "application/json"
SSE: Final = "text/event-stream; charset=utf-8"
_RESET: Final = struct.pack("ii", 1, 0)
_HOLD: Final = 3600.0  # seconds: until whoever waits has had enough


def event(key: str, index: int) -> bytes:
    """One output event of the answer to ``key``."""
    delta = {"index": 0, "delta": {"content": f"{key}:{index} "}}
    return b"data: " + json.dumps({"id": key, "choices": [delta]}).encode() + b"\n\n"


def whole_stream(key: str, events: int) -> bytes:
    """All of a streamed answer."""
    return b"".join(event(key, index) for index in range(events)) + b"data: [DONE]\n\n"


def whole_answer(key: str, events: int) -> bytes:
    """All of an answer that is not streamed."""
    message = {"role": "assistant", "content": "".join(f"{key}:{index} " for index in range(events))}
    return json.dumps({"id": key, "choices": [{"index": 0, "message": message}]}).encode()


def expected(plan: dict[str, Any]) -> bytes:
    """What a client gets to see of a request that went well."""
    streamed = plan["stream"] and plan["engine"] not in {"long body", "short body"}
    return (whole_stream if streamed else whole_answer)(plan["key"], plan["events"])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *lines)).encode() + b"\r\n\r\n"


class Exchange(asyncio.Protocol):
    """One connection and the request on it."""

    def __init__(self, engine: ChaosEngine) -> None:
        self.engine = engine
        self._life = engine.life
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None
        self.key = ""
        self.plan: dict[str, Any] = {}
        self._heard = bytearray()
        self._room = asyncio.Event()
        self._room.set()

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.engine.connections.add(self)
        if self._life != self.engine.life:  # accepted in the turn in which the engine was killed
            self.reset()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        self._room.set()
        if self.task is not None:
            self.task.cancel()
        self._over(aborted=True)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._heard += data
        start, separator, body = bytes(self._heard).partition(b"\r\n\r\n")
        if not separator or self.task is not None:
            return
        lines = start.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if len(body) < int(headers.get("content-length", "0")):
            return
        self._heard.clear()
        method, target, _ = lines[0].split(" ")
        if method == "GET":
            self._work(self._probed(target))
            return
        self.plan = json.loads(headers["x-plan"])
        self.key = self.plan["key"]
        self.engine.took(self, body)
        self._work(self._answer())

    def left(self) -> bool:
        """Whether the gateway closed the connection already and only this side has not looked."""
        if self.transport.is_closing():
            return True
        try:
            with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as sock:
                return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    # -- answers ----------------------------------------------------------------------------------------------------

    def _work(self, answering: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await answering
            finally:
                self.task = None

        self.task = asyncio.ensure_future(run())

    async def _probed(self, target: str) -> None:
        body, kind = b'{"object":"list","data":[]}', JSON
        if target.startswith("/metrics"):
            kind = "text/plain"
            body = await self.engine.gauges()
        self.transport.write(head("200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body)

    async def _answer(self) -> None:
        engine = self.engine
        await engine.thawed.wait()
        if engine.storm:
            await self.failing("500 Internal Server Error")
        elif engine.lost_slots >= engine.slots:
            await asyncio.sleep(_HOLD)
        else:
            await ANSWERS[self.plan["engine"]](self)

    def _over(self, *, aborted: bool) -> None:
        if self.key:
            self.engine.ended(self, aborted=aborted)
            self.key = ""

    def end(self, data: bytes = b"", *, whole: bool = True) -> None:
        """Write the last bytes; ``whole``: the answer is what was asked for."""
        if whole:
            self.engine.finished.add(self.key)
        self.transport.write(data)
        self._over(aborted=False)

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    async def send(self, data: bytes) -> None:
        self.transport.write(data)
        await self._room.wait()
        await asyncio.sleep(0)

    async def good(self, *, first: float = 0.0, gap: float = 0.0) -> None:
        """The answer that was asked for; ``first`` and ``gap`` are seconds before the first byte and between events."""
        await asyncio.sleep(first)
        key, events = self.plan["key"], self.plan["events"]
        if not self.plan["stream"]:
            body = whole_answer(key, events)
            self.end(head("200 OK", f"Content-Type: {JSON}", f"Content-Length: {len(body)}") + body)
            return
        await self.begin()
        for index in range(events):
            await self.send(chunk(event(key, index)))
            await asyncio.sleep(gap)
        self.end(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def begin(self) -> None:
        await self.send(head("200 OK", f"Content-Type: {SSE}", "Transfer-Encoding: chunked"))

    async def partly(self) -> None:
        """Head and some of the events of a stream."""
        await self.begin()
        for index in range(self.plan["events"] // 2):
            await self.send(chunk(event(self.plan["key"], index)))
            await asyncio.sleep(0)

    async def failing(self, status: str, *lines: str) -> None:
        body = json.dumps({"error": {"message": self.key, "type": "made_up", "param": None, "code": None}}).encode()
        self.end(head(status, f"Content-Type: {JSON}", f"Content-Length: {len(body)}", *lines) + body, whole=False)


async def _silent(_exchange: Exchange) -> None:
    await asyncio.sleep(_HOLD)


async def _reset_at_once(exchange: Exchange) -> None:
    exchange.reset()


async def _close_at_once(exchange: Exchange) -> None:
    exchange.close()


async def _half_a_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    exchange.close()


async def _reset_after_head(exchange: Exchange) -> None:
    await exchange.begin()
    await asyncio.sleep(0.01)
    exchange.reset()


async def _reset_midway(exchange: Exchange) -> None:
    await exchange.partly()
    await asyncio.sleep(0.01)
    exchange.reset()


async def _close_midway(exchange: Exchange) -> None:
    await exchange.partly()
    exchange.close()


async def _stall_midway(exchange: Exchange) -> None:
    await exchange.partly()
    await asyncio.sleep(_HOLD)


async def _short_body(exchange: Exchange) -> None:
    body = whole_answer(exchange.plan["key"], exchange.plan["events"])
    await exchange.send(head("200 OK", f"Content-Type: {JSON}", f"Content-Length: {len(body) + 100}") + body)
    exchange.close()


async def _long_body(exchange: Exchange) -> None:
    """More than the length says: what is too much belongs to nobody."""
    body = whole_answer(exchange.plan["key"], exchange.plan["events"])
    told = head("200 OK", f"Content-Type: {JSON}", f"Content-Length: {len(body)}")
    exchange.end(told + body + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine", whole=True)


async def _bad_chunk(exchange: Exchange) -> None:
    await exchange.partly()
    await exchange.send(b"zz\r\nnot a chunk\r\n")
    await asyncio.sleep(_HOLD)


async def _negative_length(exchange: Exchange) -> None:
    await exchange.send(head("200 OK", "Content-Length: -5"))
    await asyncio.sleep(_HOLD)


async def _two_lengths(exchange: Exchange) -> None:
    await exchange.send(head("200 OK", "Content-Length: 2", "Content-Length: 7") + b"{}")
    await asyncio.sleep(_HOLD)


async def _garbage(exchange: Exchange) -> None:
    await exchange.send(random.Random(exchange.key).randbytes(400))
    await asyncio.sleep(_HOLD)


async def _garbage_header(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nX-A: \x00\x01\r\n \x07folded\r\nbroken line\r\n\r\n{}")
    await asyncio.sleep(_HOLD)


async def _endless_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n")
    for index in range(4096):
        await exchange.send(b"X-%d: %b\r\n" % (index, b"x" * 1024))
    await asyncio.sleep(_HOLD)


async def _empty(exchange: Exchange) -> None:
    await exchange.begin()
    exchange.end(b"0\r\n\r\n", whole=False)


async def _interim(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    await exchange.good()


async def _until_close(exchange: Exchange) -> None:
    """No framing at all: the end of the connection is that of the body."""
    body = expected(exchange.plan)
    kind = SSE if exchange.plan["stream"] else JSON
    await exchange.send(head("200 OK", f"Content-Type: {kind}", "Connection: close"))
    exchange.end(body)
    exchange.close()


async def _until_reset(exchange: Exchange) -> None:
    body = expected(exchange.plan)
    await exchange.send(head("200 OK", f"Content-Type: {SSE}", "Connection: close") + body[: len(body) // 2])
    await asyncio.sleep(0.01)
    exchange.reset()


ANSWERS: Final[dict[str, Callable[[Exchange], Awaitable[None]]]] = {
    "good": Exchange.good,
    "slow first": lambda exchange: exchange.good(first=0.25),
    "drip": lambda exchange: exchange.good(gap=0.02),
    "interim": _interim,
    "until close": _until_close,
    "silent": _silent,
    "reset at once": _reset_at_once,
    "close at once": _close_at_once,
    "half a head": _half_a_head,
    "reset after head": _reset_after_head,
    "reset midway": _reset_midway,
    "close midway": _close_midway,
    "stall midway": _stall_midway,
    "short body": _short_body,
    "long body": _long_body,
    "bad chunk": _bad_chunk,
    "negative length": _negative_length,
    "two lengths": _two_lengths,
    "garbage": _garbage,
    "garbage header": _garbage_header,
    "endless head": _endless_head,
    "empty": _empty,
    "until reset": _until_reset,
    "500": lambda exchange: exchange.failing("500 Internal Server Error"),
    "503": lambda exchange: exchange.failing("503 Service Unavailable", "Retry-After: 1"),
    "429": lambda exchange: exchange.failing("429 Too Many Requests"),
    "400": lambda exchange: exchange.failing("400 Bad Request"),
}
"""Ways to answer, by the name that a request's plan gives."""

WELL: Final = ("good", "slow first", "drip", "interim", "until close", "long body")
"""Those that give a whole answer."""


class ChaosEngine:
    """Listens on ``address``:``port``; ``permitted`` is asked at each arrival how many it may have in flight."""

    def __init__(self, name: str, permitted: Callable[[str], float]) -> None:
        self.name = name
        self.port = 0
        self.address = "127.0.0.1"
        self.connections: set[Exchange] = set()
        self.running: set[Exchange] = set()
        self.bodies: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.faults: list[str] = []
        self.most = 0
        self.storm = False
        self.metrics = "good"
        self.slots, self.lost_slots = 10**9, 0
        self.thawed = asyncio.Event()
        self.thawed.set()
        self._permitted = permitted
        self.life = 0  # goes up at each death
        self._server: asyncio.Server | None = None
        self._hole: list[socket.socket] = []

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: Exchange(self), self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """End as a killed process does: nobody listens, every connection is reset."""
        self.life += 1
        if self._server is not None:
            self._server.close()
            self._server = None
        for sock in self._hole:
            sock.close()
        self._hole.clear()
        for connection in tuple(self.connections):
            connection.reset()

    async def restart(self, address: str | None = None) -> None:
        """Be there again, with nothing left of what was; ``address``: somewhere else."""
        self.kill()
        self.address = address or self.address
        self.storm, self.metrics = False, "good"
        self.slots, self.lost_slots = 10**9, 0
        self.thawed.set()
        await self.start()

    def blackhole(self) -> None:
        """Drop every SYN: the queue of a listener that accepts nothing is full."""
        self.kill()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.address, self.port))
        listener.listen(0)
        self._hole.append(listener)
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect((self.address, self.port))
            self._hole.append(sock)

    async def gauges(self) -> bytes:
        """The engine's own metrics, true or not."""
        if self.metrics == "slow":
            await asyncio.sleep(5.0)
        running = len(self.running) if self.metrics == "good" else 1e18
        if self.metrics == "garbage":
            return b"\x00\xff vllm:num_requests_running{ 9 9 9\n" * 50
        return f"vllm:num_requests_running {running}\nvllm:num_requests_waiting -7\n".encode()

    # -- books ------------------------------------------------------------------------------------------------------

    def took(self, exchange: Exchange, body: bytes) -> None:
        """A whole body is here."""
        key = exchange.key
        self.bodies[key] += 1
        if self.bodies[key] > 1:
            self.faults.append(f"{self.name} got the body of {key} ({exchange.plan['engine']}) twice")
        document = json.loads(body)
        if document["user"] != key or document["metadata"]["pad"] != exchange.plan["pad"] * key:
            self.faults.append(f"the body of {key} holds something of somebody else")
        self.running.add(exchange)
        self.most = max(self.most, len(self.running))
        permitted = self._permitted(self.name)
        if len(self.running) > permitted:  # unless a connection is just being closed: asyncio does so a turn later
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._count, frozenset(self.running), permitted)

    def _count(self, running: frozenset[Exchange], permitted: float) -> None:
        inside = [each for each in running & self.running if not each.left()]
        if len(inside) > permitted:
            told = sorted((each.key, each.plan["client"], each.plan["engine"]) for each in inside)
            self.faults.append(f"{self.name} has {len(inside)} in flight, {permitted:g} permitted: {told}")

    def ended(self, exchange: Exchange, *, aborted: bool) -> None:
        """An exchange is over."""
        self.running.discard(exchange)
        if aborted and self.slots < 10**9:
            self.lost_slots += 1
