"""Clients of every manner, and what each of them saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, Self

_RESET: Final = struct.pack("ii", 1, 0)
_GUARD: Final = 120.0  # seconds; whoever waits so long hangs, however busy the machine is

READERS: Final = ("plain", "plain", "plain", "slow reader", "slow sender", "pipeline", "keep")
"""Manners of those who read their answer to its end."""

LEAVERS: Final = ("vanish", "vanish midway", "reset", "half close", "never read", "half a body", "bad framing")
"""Manners of those who do not."""


@dataclass
class Seen:
    """What a client saw of one answer; ``whole``: by its framing it was complete."""

    plan: dict[str, Any]
    status: int = 0
    body: bytes = b""
    whole: bool = False
    left: bool = False  # by its own choice


def encoded(plan: dict[str, Any]) -> tuple[bytes, bytes]:
    """(head, body) of the request of ``plan``."""
    document = {
        "model": "m",
        "user": plan["key"],
        "stream": plan["stream"],
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}],
        "metadata": {"pad": plan["pad"] * plan["key"]},
    }
    body = json.dumps(document).encode()
    told = {name: plan[name] for name in ("key", "client", "engine", "stream", "events", "pad")}
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {plan['key']}\r\nX-Plan: {json.dumps(told)}\r\nAuthorization: Bearer {plan['key']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


class Client:
    """One connection of one client."""

    def __init__(self, address: tuple[str, int], *, buffer: int | None = None) -> None:
        self._address = address
        self._buffer = buffer
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        sock = socket.socket()
        if self._buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self._address)
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=self._buffer or 2**16)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()

    async def see(self, plan: dict[str, Any], *, pause: float = 0.0) -> Seen:
        """Read one answer; ``pause`` is taken before each read of the body."""
        seen = Seen(plan)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(_GUARD):
                await self._see(seen, pause)
        return seen

    async def _see(self, seen: Seen, pause: float) -> None:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        seen.status = int(head[0].split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                await asyncio.sleep(pause)
                seen.body += (await self.reader.readexactly(size + 2))[:-2]
            seen.whole = await self.reader.readexactly(2) == b"\r\n"
            return
        length = int(headers["content-length"]) if "content-length" in headers else None
        while length is None or len(seen.body) < length:
            await asyncio.sleep(pause)
            data = await self.reader.read(65536 if length is None else length - len(seen.body))
            if not data:
                break
            seen.body += data
        seen.whole = length is None or len(seen.body) == length


async def behave(address: tuple[str, int], plans: list[dict[str, Any]]) -> list[Seen]:
    """One client's visit: more than one plan only where it pipelines or keeps its connection."""
    manner = plans[0]["client"]
    async with Client(address, buffer=4096 if manner in {"slow reader", "never read"} else None) as client:
        try:
            if manner in LEAVERS:
                return [await _leave(client, plans[0])]
            return await _stay(client, plans)
        except (ConnectionError, asyncio.IncompleteReadError):
            return [Seen(plan) for plan in plans]


async def _stay(client: Client, plans: list[dict[str, Any]]) -> list[Seen]:
    manner = plans[0]["client"]
    requests = [encoded(plan) for plan in plans]
    if manner == "pipeline":
        client.writer.write(b"".join(head + body for head, body in requests))
        return [await client.see(plan) for plan in plans]
    seen = []
    for plan, (head, body) in zip(plans, requests, strict=True):
        if manner == "slow sender":
            for start in range(0, len(head + body), 200 + len(body) // 5):
                client.writer.write((head + body)[start : start + 200 + len(body) // 5])
                await asyncio.sleep(0.01)
        else:
            client.writer.write(head + body)
        seen.append(await client.see(plan, pause=0.005 if manner == "slow reader" else 0.0))
        if not seen[-1].whole or client.reader.at_eof():
            break
    return seen


async def _leave(client: Client, plan: dict[str, Any]) -> Seen:
    head, body = encoded(plan)
    manner, seen = plan["client"], Seen(plan, left=True)
    if manner == "bad framing":
        client.writer.write(head.replace(b"Content-Length: ", b"Content-Length: x"))
        seen = await client.see(plan)
        seen.left = True
        return seen
    client.writer.write(head + (body[: len(body) // 2] if manner == "half a body" else body))
    if manner == "half close":
        client.writer.write_eof()
        seen = await client.see(plan)
        seen.left = True
        return seen
    if manner == "vanish midway":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await client.reader.read(200)
    else:
        await asyncio.sleep(plan["stays"])
    if manner in {"reset", "never read"}:
        client.reset()
    return seen
