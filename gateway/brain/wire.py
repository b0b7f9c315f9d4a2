"""Frames between a worker and the brain: a length, a kind, and plain values."""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Callable
from enum import IntEnum, unique
from pathlib import Path
from struct import Struct
from typing import Any, Final, cast

_HEAD: Final = Struct("<IB")
MOST_UNSENT: Final = 8 << 20
"""Bytes that may wait to be sent before records are dropped: the other side has stopped reading."""


@unique
class Kind(IntEnum):
    """What a frame says. A request is named by the id of its ticket in its worker, from its offer to its end."""

    HELLO = 1  # worker: (pid, requests that it holds permits for: (ticket, backend))
    OFFER = 2  # worker: ticket
    WITHDRAW = 3  # worker: id
    LEAVE = 4  # worker: (id, outcome, usage or None, seconds of rest that the engine asked for)
    PROGRESS = 5  # worker: doubles, three to an output: id, events, instant
    RECORD = 6  # worker: record
    PULSE = 7  # worker: (whether it listens, seconds of loop lag, requests in flight; since the last: records dropped,
    # connections refused)
    KNOCK = 8  # worker: ticket
    CHARGE = 9  # worker: (id, name of the key, tokens)
    REFUND = 10  # worker: (name of the key, reserved, used, refused)
    PERMIT = 11  # brain: (id, backend, instant, work, choice)
    REJECTION = 12  # brain: (id, reason, retry after, should retry, work)
    KNOCKED = 13  # brain: (id, None or what a rejection has)
    CHARGED = 14  # brain: (id, (reason, wait) or None, standings, or None where the key was taken away)
    VIEW = 15  # brain: what workers need to know of the backends
    SETUP = 16  # brain: what workers are set up with
    ROOM = 17  # brain: (whether all who asked lately had their place at once,)


_HEAD_SIZE: Final = _HEAD.size
_KINDS: Final = {kind.value: kind for kind in Kind}


class Channel:
    """One end of the connection. ``take`` is called with each frame, ``lost`` once at the end.

    It is an ``asyncio.Protocol``, and says so to nobody: a compiled class inherits from none that is not.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._unread = b""  # the beginning of a frame
        self._unsent: list[bytes] = []  # frames that are kept
        self.take: Callable[[Kind, memoryview], None] = _nothing
        self.lost: Callable[[], None] = lambda: None

    # -- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - either way it is over
        """End."""
        self._transport = None
        self.lost()

    def data_received(self, data: bytes) -> None:
        """Cut what came into frames."""
        if self._unread:
            data = self._unread + data
        view, take = memoryview(data), self.take
        start, end = 0, len(data)
        while end - start >= _HEAD_SIZE:
            length, kind = _HEAD.unpack_from(data, start)
            begin = start + _HEAD_SIZE
            after = begin + length
            if after > end:
                break
            take(_KINDS[kind], view[begin:after])
            start = after
        self._unread = data[start:]

    def eof_received(self) -> None:
        """The other side says no more: that is the end."""

    def pause_writing(self) -> None:
        """``clogged`` says what matters of it."""

    def resume_writing(self) -> None:
        """The same."""

    # -- sending -----------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether what is sent may arrive."""
        return self._transport is not None

    @property
    def clogged(self) -> bool:
        """Whether so much waits to be sent that nothing that can be missed should be."""
        return self._transport is not None and self._transport.get_write_buffer_size() > MOST_UNSENT

    def send(self, kind: Kind, payload: bytes) -> None:
        """Send a frame; into the void where the connection is over."""
        if self._transport is None:
            return
        frame = _HEAD.pack(len(payload), kind) + payload
        if self._unsent:
            frame += b"".join(self._unsent)
            self._unsent.clear()
        self._transport.write(frame)

    def keep(self, kind: Kind, payload: bytes) -> None:
        """Send a frame right behind the next one, or at ``flush``: each write wakes the other side."""
        self._unsent.append(_HEAD.pack(len(payload), kind) + payload)

    def flush(self) -> None:
        """Send what was kept."""
        kept, self._unsent = self._unsent, []
        if kept and self._transport is not None:
            self._transport.write(b"".join(kept))

    def say(self, kind: Kind, *values: Any) -> None:
        """Send plain values."""
        self.send(kind, marshal.dumps(values))

    def close(self) -> None:
        """End the connection, once what was sent is out."""
        if self._transport is not None:
            self.flush()
            self._transport.close()


async def listen(path: Path, seat: Callable[[], Channel]) -> asyncio.AbstractServer:
    """Give whoever connects to the Unix socket ``path`` the channel that ``seat`` returns.

    Raises:
        OSError: the socket cannot be made.
    """
    return await asyncio.get_running_loop().create_unix_server(cast("Callable[[], asyncio.Protocol]", seat), path)


async def reach(path: str, channel: Channel) -> None:
    """Connect to the Unix socket ``path``.

    Raises:
        OSError: nobody listens there.
    """
    protocol = cast("asyncio.Protocol", channel)
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, path)


def heard(payload: memoryview) -> Any:
    """The plain values that ``say`` sent."""
    return marshal.loads(payload)  # noqa: S302 - said by a process of this gateway


def _nothing(_kind: Kind, _payload: memoryview) -> None:
    pass
