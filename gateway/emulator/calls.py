"""A lean HTTP client for load: raw connections, one parser each, no task and no object per chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

IDLE: Final = 2.0  # seconds after which an idle connection is not used again: engines close theirs after 5
CONNECT_TIMEOUT: Final = 5.0  # the SDK's

_ERROR: Final = b'data: {"error"'
_END: Final = b"[DONE]"
_END_LENGTH: Final = 16


@dataclass(slots=True)
class Answer:
    """What one attempt brought. Instants are of the loop's clock."""

    status: int | None = None  # None: no head came
    headers: dict[str, str] = field(default_factory=dict)
    first_byte: float | None = None  # of the body
    complete: bool = False  # the body reached its end, a stream its end mark
    timed_out: bool = False


class Connection(asyncio.Protocol):
    """One connection with at most one request on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser
        self._answer = Answer()
        self._done: asyncio.Future[Answer] | None = None
        self._stream = False
        self._tail = b""
        self._fault = False  # an error said inside the stream
        self._active = 0.0
        self._timeout = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._done is None
            and self._loop.time() - self.idle_since < IDLE
        )

    def send(self, data: bytes, timeout: float, *, stream: bool) -> asyncio.Future[Answer]:
        """Send a request; the future brings its answer, whole or as far as it came.

        ``timeout`` is the longest silence in seconds, as httpx counts it. Cancelling the future closes the connection.
        """
        transport = cast("asyncio.Transport", self._transport)
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._stream, self._tail, self._fault = stream, b"", False
        self._done = self._loop.create_future()
        self._done.add_done_callback(self._ended)
        self._active, self._timeout = self._loop.time(), timeout
        self._timer = self._loop.call_later(timeout, self._check_silence)
        transport.write(data)
        return self._done

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # ----------------------------------------------------------------------------------------- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._active = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish()
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The other side closed, or we did."""
        self._finish()

    def _check_silence(self) -> None:
        rest = self._active + self._timeout - self._loop.time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._check_silence)
            return
        self._answer.timed_out = True
        self._finish()
        self.close()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)

    def _ended(self, done: asyncio.Future[Answer]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._done = None
        self.idle_since = self._loop.time()
        if done.cancelled():
            self.close()

    # ------------------------------------------------------------------------------------------ parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        if self._answer.first_byte is None:
            self._answer.first_byte = self._active
        if self._stream and body.startswith(_ERROR):
            self._fault = True
        if self._stream:
            self._tail = body if len(body) >= _END_LENGTH else (self._tail + body)[-_END_LENGTH:]

    def on_message_complete(self) -> None:
        """The answer ended."""
        marked = not self._stream or self._tail.rstrip().endswith(_END)
        self._answer.complete = self._answer.status == 200 and marked and not self._fault  # noqa: PLR2004 - OK
        keep = self._parser.should_keep_alive()
        self._finish()
        if not keep:
            self.close()


class Pool:
    """Connections to one place, the most recently used first."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def take(self) -> Connection:
        """A connection that is free.

        Raises:
            OSError: none can be opened (a timeout among them).
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._all.discard(connection)
            connection.close()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, connection = await loop.create_connection(lambda: Connection(loop), self._host, self._port)
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """The request on it has ended."""
        if connection.usable:
            self._idle.append(connection)
        else:
            self._all.discard(connection)

    def close(self) -> None:
        """Close them all."""
        for connection in self._all:
            connection.close()
        self._idle.clear()
        self._all.clear()


def request_bytes(path: str, host: str, content_type: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A POST as it goes on the wire."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: OpenAI/Python 3.57.0\r\naccept: application/json\r\n"
        f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + body
