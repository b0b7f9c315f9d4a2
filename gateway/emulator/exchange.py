"""One request on its way: engine emissions in, bytes out."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.emulator.driver import Driver
from gateway.emulator.engine import Emission
from gateway.emulator.intake import Ask
from gateway.emulator.replies import Reply

LAST_CHUNK = b"0\r\n\r\n"


class Meter(Protocol):
    """Who counts what the engine did. Times are engine seconds."""

    def generated(self) -> None:
        """One token more."""

    def gap(self, seconds: float) -> None:
        """Time between two tokens of one answer."""

    def first(self, prompt_tokens: int, ttft: float) -> None:
        """A request had its first token."""

    def finished(self, reason: str, latency: float) -> None:
        """A request ended by itself."""

    def aborted(self, requests: int) -> None:
        """Requests were ended before they did."""


class Exchange:
    """Follows the engine requests of one HTTP request until all have ended.

    With a transport it streams: chunks are written from the engine's step, and no task wakes for a token. A client
    that reads slowly does not hold the engine back (vLLM's does not either); its bytes wait in the transport.
    """

    def __init__(self, ask: Ask, gauges: Meter, driver: Driver) -> None:
        """Prepare; ``start`` begins."""
        self._ask = ask
        self._gauges = gauges
        self._driver = driver
        self._keys = range(0)
        self._started = 0.0
        self._produced = [0] * len(ask.work)
        self._latest = [0.0] * len(ask.work)
        self._open = len(ask.work)
        self._reply: Reply | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._done = asyncio.get_running_loop().create_future()

    def start(self) -> bool:
        """Hand the work to the engine; False where its queue limit refuses it."""
        self._started = self._driver.now()
        keys = self._driver.submit(self._ask.work, self._take, self._ask.prefixes)
        self._keys = keys or range(0)
        return keys is not None

    def stream_to(self, transport: asyncio.WriteTransport, head: bytes, reply: Reply) -> None:
        """From now on write ``reply`` as it comes, after ``head``. No emission may have come before."""
        self._transport, self._reply = transport, reply
        transport.write(head + reply.opening())

    @property
    def produced(self) -> int:
        """Tokens so far, of all answers."""
        return sum(self._produced)

    async def wait(self) -> None:
        """Until everything is produced. Whoever cancels this ends the work at once."""
        try:
            await self._done
        finally:
            if self._open:
                self._gauges.aborted(self._open)
                self._driver.abort(self._keys)

    def _take(self, emission: Emission) -> None:
        choice = emission.key - self._keys.start
        index = self._produced[choice]
        if emission.tokens:
            self._produced[choice] = index + 1
            self._gauges.generated()
            if index:
                self._gauges.gap(emission.at - self._latest[choice])
            else:
                self._gauges.first(self._ask.work[choice][0], emission.at - self._started)
            self._latest[choice] = emission.at
        if emission.finished:
            self._open -= 1
            reason = self._ask.reasons[choice] if self._ask.reasons else "stop"
            self._gauges.finished(reason, emission.at - self._started)
        if self._transport is not None and self._reply is not None and not self._transport.is_closing():
            self._transport.write(self._chunks(self._reply, choice, index, finished=emission.finished))
        if not self._open and not self._done.done():
            self._done.set_result(None)

    def _chunks(self, reply: Reply, choice: int, index: int, *, finished: bool) -> bytes:
        if index and not finished:
            return reply.token(choice, index)
        chunks = b"" if index else reply.first(choice)
        chunks += reply.last(choice, index) if finished else reply.token(choice, index)
        return chunks if self._open else chunks + reply.closing() + LAST_CHUNK
