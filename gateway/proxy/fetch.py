"""One small answer of a backend, taken whole: for probes, canaries and the list of models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from gateway.proxy.http import ResponseHead
from gateway.proxy.tls import TurnedAway
from gateway.proxy.upstream import Upstream

_LIMIT: Final = 8 * 1024 * 1024  # bytes; an engine's metrics are some 100 KB


class Unanswered(Exception):  # noqa: N818 - says what happened
    """A connection was made, and no whole answer came over it."""


@dataclass(slots=True)
class Answer:
    """Status and body, without framing."""

    status: int = 0
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.parts)


class _Collector:
    def __init__(self) -> None:
        self.answer = Answer()
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._size = 0

    def head(self, head: ResponseHead, _now: float) -> None:
        self.answer.status = head.status

    def data(self, data: bytes, _now: float, *, ended: bool) -> None:
        self._size += len(data)
        self.answer.parts.append(data)
        if self._size > _LIMIT:
            self.lost(f"the answer is larger than {_LIMIT} bytes")
        elif ended and not self.done.done():
            self.done.set_result(self.answer)

    def lost(self, error: str) -> None:
        if not self.done.done():
            self.done.set_exception(Unanswered(error))

    def check(self) -> None:
        """No bell is asked for: whoever waits has a bound of its own."""


async def fetch(upstream: Upstream, head: bytes, seconds: float, body: bytes = b"") -> Answer:
    """Send a request over a connection of its own and take the whole answer.

    Raises:
        OSError: no connection.
        Unanswered: connected, and no whole answer within ``seconds``.
    """
    try:
        connection = await upstream.connect()
    except TurnedAway as error:
        raise Unanswered(str(error)) from error
    collector = _Collector()
    try:
        async with asyncio.timeout(seconds):
            connection.send(head, body, collector, once=True)
            return await collector.done
    except BaseException as error:
        connection.abort()
        if isinstance(error, TimeoutError):
            raise Unanswered(f"no answer within {seconds:g} s") from None
        raise
