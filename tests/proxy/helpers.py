"""Both ends of the wire, raw: a scripted backend and a client that sees every byte; and a controller under orders."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.admission.config import EstimatorConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.model import (
    Backend,
    BackendState,
    GatewayState,
    Health,
    Hints,
    LaneState,
    Outcome,
    Permit,
    Reason,
    Record,
    Rejection,
    Shape,
    Ticket,
    Usage,
    Verdict,
    WorkEstimate,
)
from gateway.proxy.config import ProbeConfig, ProxyConfig
from gateway.proxy.front import Front
from gateway.proxy.keys import Keys
from gateway.proxy.server import Gateway

GUARD = 20.0  # seconds after which something hangs; no test measures time

# --------------------------------------------------------------------------------------------------------------
# Messages
# --------------------------------------------------------------------------------------------------------------


@dataclass
class Message:
    """A request or a response as it was on the wire."""

    start: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    connection: int = 0  # which of the backend's connections brought it

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1])

    @property
    def reason(self) -> str:
        return self.start.split(" ", 2)[2]

    @property
    def method(self) -> str:
        return self.start.split(" ", 1)[0]

    @property
    def target(self) -> str:
        return self.start.split(" ", 2)[1]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None


def request(
    method: str = "POST",
    target: str = "/v1/chat/completions",
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    version: str = "1.1",
    length: bool = True,
) -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: gateway.test"]
    lines += [f"{name}: {value}" for name, value in headers]
    if length and (body or method == "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def reply(
    body: bytes = b"{}",
    status: str = "200 OK",
    headers: Iterable[tuple[str, str]] = (("Content-Type", "application/json"),),
    *,
    length: bool = True,
) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


SSE_HEAD = reply(
    b"",
    headers=(("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked")),
    length=False,
)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CHAT_STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


async def _read_head(reader: asyncio.StreamReader) -> Message:
    raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GUARD)
    start, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return Message(start, headers)


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ordinal = 0

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), GUARD)

    async def until(self, mark: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), GUARD)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), GUARD)

    async def head(self) -> Message:
        return await _read_head(self.reader)

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty for the last one."""
        size = int((await self.until(b"\r\n")).split(b";")[0], 16)
        data = await self.read(size) if size else b""
        if size:
            assert await self.read(2) == b"\r\n"
        return data

    async def body(self, message: Message) -> Message:
        """Read the body that ``message`` announces."""
        if message.get("Transfer-Encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            message.body = b"".join(parts)
            while (line := await self.until(b"\r\n")) != b"\r\n":
                name, _, value = line.decode().partition(":")
                message.trailers.append((name, value.strip()))
        elif message.get("Content-Length") is not None:
            message.body = await self.read(int(message.get("Content-Length") or 0))
        return message

    async def ended(self) -> bool:
        """Wait for the other side's end; whether it was a reset."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), GUARD):
                pass
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with a reset, as a killed process or a full thread pool does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


# --------------------------------------------------------------------------------------------------------------
# The backend
# --------------------------------------------------------------------------------------------------------------

Script = Callable[["Peer", Message], Awaitable[None]]
StartBackend = Callable[[Script], Awaitable["ScriptedBackend"]]


def always(data: bytes) -> Script:
    async def script(peer: Peer, _message: Message) -> None:
        await peer.send(data)

    return script


class ScriptedBackend:
    """Reads requests and lets ``script`` answer each; counts what happens to its connections."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Message] = []
        self.probes: list[Message] = []
        self.probe_script: Script = always(reply(b"", headers=()))
        self.accepted = 0
        self.open = 0
        self.url = ""
        self.read_bodies = True
        self.greeting: Callable[[Peer], Awaitable[bool]] | None = None
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> ScriptedBackend:
        self._server = await asyncio.start_server(self._serve, host, port, limit=64 * 1024 * 1024)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        peer = Peer(reader, writer)
        peer.ordinal = self.accepted
        await self._count(1)
        try:
            if self.greeting is None or await self.greeting(peer):
                await self._converse(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # closing would wait for what nobody reads any more, beyond the end of the loop
        finally:
            writer.close()
            await self._count(-1)
            self._tasks.discard(task)

    async def _converse(self, peer: Peer) -> None:
        while True:
            head = await peer.reader.readuntil(b"\r\n\r\n")
            start, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            message = Message(start, [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)])
            message.connection = peer.ordinal
            if self.read_bodies:
                await peer.body(message)
            if message.get("User-Agent") == "inference-gateway":
                self.probes.append(message)
                await self.probe_script(peer, message)
            else:
                self.requests.append(message)
                await self._count(0)
                await self.script(peer, message)

    async def _count(self, change: int) -> None:
        self.open += change
        async with self._changed:
            self._changed.notify_all()

    async def when(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), GUARD)

    async def received(self, count: int) -> None:
        """Wait until so many requests have arrived in all."""
        await self.when(lambda: len(self.requests) >= count)

    async def deserted(self) -> None:
        """Wait until the gateway holds no connection to it."""
        await self.when(lambda: self.open == 0)


async def wait_until(condition: Callable[[], object]) -> None:
    """Look until ``condition`` holds, where nothing tells."""
    async with asyncio.timeout(GUARD):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


# --------------------------------------------------------------------------------------------------------------
# The client
# --------------------------------------------------------------------------------------------------------------


class RawClient(Peer):
    @classmethod
    async def connect(cls, url: str, *, receive_buffer: int | None = None) -> RawClient:
        host, port = url.removeprefix("http://").split(":")
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16)
        return cls(reader, writer)

    async def ask(self, data: bytes) -> Message:
        """Send a request and read its whole answer."""
        await self.send(data)
        return await self.answer(head_only=data.startswith(b"HEAD "))

    async def answer(self, *, head_only: bool = False) -> Message:
        message = await self.head()
        return message if head_only or message.status in {204, 304} else await self.body(message)


# --------------------------------------------------------------------------------------------------------------
# A controller under orders, and a gateway around it
# --------------------------------------------------------------------------------------------------------------


@dataclass
class CountedProgress:
    events: int = 0

    def output(self, events: int, now: float) -> None:  # noqa: ARG002 - the count is what is asserted
        self.events += events


class CountingController(AdmissionController):
    """A fixed limit per backend and one FIFO; refuses on demand; keeps exact books and fails on a bad settle."""

    def __init__(self, names: Iterable[str], limit: int = 1_000_000) -> None:
        self.names = list(names)
        self.limit = limit
        self.running: dict[int, Permit] = {}
        self.queue: dict[int, Ticket] = {}
        self.offered: list[Ticket] = []
        self.granted: list[Permit] = []
        self.rests: list[tuple[str, float]] = []
        self.settled: list[tuple[Permit, Outcome, Usage | None]] = []
        self.learned: list[tuple[Permit, Outcome, Usage | None]] = []
        self.refuse: Reason | None = None
        self.capacity = 1_000_000
        self.retry_after = 1.0
        self.should_retry: bool | None = None
        self.draining = False
        self.health: dict[str, list[Health]] = {name: [] for name in self.names}
        self.hints: dict[str, list[Hints]] = {name: [] for name in self.names}
        self.models: dict[str, list[str]] = {}
        self.wakeup: float | None = None
        self.ticks: list[float] = []
        self._ids = itertools.count()

    def offer(self, ticket: Ticket, now: float) -> list[Verdict]:
        self.offered.append(ticket)
        rejection = self.knock(ticket, now)
        if rejection is not None:
            return [rejection]
        self.queue[ticket.id] = ticket
        return self.dispatch(now)

    def knock(self, ticket: Ticket, now: float) -> Rejection | None:  # noqa: ARG002 - no timing here
        reason = Reason.DRAINING if self.draining else self.refuse
        if reason is None and not set(self.names) - ticket.avoid:
            reason = Reason.NO_BACKEND
        if reason is None and len(self.queue) >= self.capacity:
            reason = Reason.QUEUE_FULL
        return None if reason is None else Rejection(ticket, reason, self.retry_after, self.should_retry)

    def dispatch(self, now: float) -> list[Verdict]:
        verdicts: list[Verdict] = []
        if not self.queue:
            return verdicts
        room = {name: self.limit - self.inflight(name) for name in self.names}
        for ticket in list(self.queue.values()) if any(left > 0 for left in room.values()) else ():
            for name in self.names:
                if name not in ticket.avoid and room[name] > 0:
                    room[name] -= 1
                    del self.queue[ticket.id]
                    permit = Permit(next(self._ids), ticket, name, now, CountedProgress())
                    self.running[permit.id] = permit
                    self.granted.append(permit)
                    verdicts.append(permit)
                    break
        return verdicts

    def inflight(self, name: str) -> int:
        return sum(permit.backend == name for permit in self.running.values())

    def withdraw(self, ticket_id: int, now: float) -> list[Verdict]:
        self.queue.pop(ticket_id, None)
        return self.dispatch(now)

    def release(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        del self.running[permit.id]
        self.settled.append((permit, outcome, usage))
        return self.dispatch(now)

    def learn(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        self.learned.append((permit, outcome, usage))

    def rest(self, backend: str, seconds: float, now: float) -> None:  # noqa: ARG002 - no timing here
        self.rests.append((backend, seconds))

    def note_health(self, backend: str, health: Health, now: float) -> list[Verdict]:  # noqa: ARG002 - no timing here
        self.health[backend].append(health)
        return []

    def note_hints(self, backend: str, hints: Hints, now: float) -> list[Verdict]:  # noqa: ARG002 - no timing here
        self.hints[backend].append(hints)
        return []

    def note_models(self, backend: str, models: Iterable[str], now: float) -> list[Verdict]:  # noqa: ARG002 - no timing here
        self.models[backend] = list(models)
        return []

    def serving(self, model: str | None) -> tuple[str, ...]:
        named = [name for name in self.names if not self.models.get(name) or model in self.models[name]]
        return tuple(named or self.names)

    def drain(self, now: float) -> list[Verdict]:  # noqa: ARG002 - no timing here
        self.draining = True
        return []

    def tick(self, now: float) -> list[Verdict]:
        self.ticks.append(now)
        self.wakeup = None
        return self.dispatch(now)

    def next_wakeup(self) -> float | None:
        return self.wakeup

    def lane(self, ticket: Ticket) -> str:  # noqa: ARG002 - one lane
        return "only"

    def state(self, now: float) -> GatewayState:  # noqa: ARG002 - no timing here
        backends = tuple(
            BackendState(name, "", "up", self.limit, None, self.inflight(name), 0, 0, None, None, None, {}, None)
            for name in self.names
        )
        return GatewayState(backends, (LaneState("only", len(self.queue), 0, 0, 0),), self.draining, False, {})

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for _, outcome, _ in self.settled]

    @property
    def balanced(self) -> bool:
        """Nothing runs, nothing waits, and every permit came back once."""
        return not self.running and not self.queue and len(self.granted) == len(self.settled)


class ConstantEstimator(Estimator):
    def __init__(self) -> None:
        super().__init__(EstimatorConfig())
        self.work = WorkEstimate(1, 0, 1.0)  # of no account for timeouts

    def estimate(self, shape: Shape, client: str = "") -> WorkEstimate:  # noqa: ARG002 - constant
        return self.work


class Records:
    def __init__(self) -> None:
        self.all: list[Record] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def observe(self, record: Record) -> None:
        self.all.append(record)
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def count(self, count: int) -> list[Record]:
        """Wait until so many requests are finished in all."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self.all) >= count), GUARD)
        return self.all


@dataclass
class House:
    """A gateway with everything around it that a test looks at."""

    gateway: Gateway
    controller: CountingController
    estimator: ConstantEstimator
    records: Records
    clients: list[RawClient] = field(default_factory=list)

    @property
    def front(self) -> Front:
        assert isinstance(self.gateway.front, Front)
        return self.gateway.front

    async def client(self, *, receive_buffer: int | None = None) -> RawClient:
        client = await RawClient.connect(self.gateway.url, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Message:
        return await (await self.client()).ask(data)

    def expire(self, reason: Reason) -> None:
        """Throw everybody out of the queue."""
        tickets, self.controller.queue = self.controller.queue, {}
        self.gateway.brain.gate._apply([Rejection(ticket, reason, 1.0) for ticket in tickets.values()])


# Probes would be requests that no test asked for.
QUIET = ProbeConfig(interval=3600.0)


def proxy_config(**changes: object) -> ProxyConfig:
    defaults: dict[str, object] = {"host": "127.0.0.1", "port": 0, "drain_grace": 5.0, "probe": QUIET}
    return ProxyConfig(**{**defaults, **changes})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def open_house(
    *backends: Backend | ScriptedBackend | str,
    limit: int = 1_000_000,
    observers: Iterable[object] = (),
    keys: Keys | None = None,
    **changes: object,
) -> AsyncIterator[House]:
    """A started gateway before ``backends``; named a, b, ... where they are not Backend values."""
    configured = [
        backend
        if isinstance(backend, Backend)
        else Backend(name, backend.url if isinstance(backend, ScriptedBackend) else backend)
        for name, backend in zip("abcdefgh", backends, strict=False)
    ]
    controller = CountingController((backend.name for backend in configured), limit)
    controller.models = {backend.name: list(backend.models) for backend in configured if backend.models}
    estimator, records = ConstantEstimator(), Records()
    observing: Any = (records, *observers)
    gateway = Gateway(proxy_config(**changes), configured, controller, estimator, observing, keys=keys)
    await gateway.start()
    house = House(gateway, controller, estimator, records)
    try:
        yield house
    finally:
        for client in house.clients:
            client.writer.transport.abort()
        await gateway.stop()
