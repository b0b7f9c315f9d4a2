"""A listening socket before a pool of threads, as cpp-httplib has it and MindIE sizes it.

Each connection takes a thread for as long as it is open, idle or not. Twice as many as there are threads wait unread;
every further one is closed the moment it is accepted, before TLS and without a byte (MindIE-LLM 3.0.0,
utils/threadpool_monitor.cpp: ``enqueue``; cpp-httplib 0.30, ``Server::listen_internal``). The threads are tasks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

QUEUE: Final = 2  # connections that wait, for each thread
_BACKLOG: Final = 128

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Door:
    """Lets connections in to ``converse``, at most ``threads`` at once. The counts are for people and tests."""

    def __init__(self, converse: Converse, threads: int, tls: ssl.SSLContext | None = None) -> None:
        """Prepare; ``open`` listens."""
        self._converse = converse
        self._threads = threads
        self._tls = tls
        self._waiting: deque[socket.socket] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.accepted = 0
        self.refused = 0
        self.most = 0  # connections inside at once, those that wait included

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port really bound.

        Raises:
            OSError: the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        return int(self._listener.getsockname()[1])

    async def close(self) -> None:
        """Close the port and every connection."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._waiting:
            sock.close()
        self._waiting.clear()
        self._listener.close()

    @property
    def serving(self) -> int:
        """Threads that are taken."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """Connections that were accepted and are not read."""
        return len(self._waiting)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            self.accepted += 1
            if self.serving < self._threads:
                self._let_in(sock)
            elif self.waiting < QUEUE * self._threads:
                self._waiting.append(sock)
            else:
                self._refuse(sock)
            self.most = max(self.most, self.serving + self.waiting)

    def _refuse(self, sock: socket.socket) -> None:
        self.refused += 1
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _let_in(self, sock: socket.socket) -> None:
        task = asyncio.create_task(self._serve(sock))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._leave(done, sock))

    def _leave(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            sock.close()  # it may have been cancelled before it began
        elif self._waiting:
            self._let_in(self._waiting.popleft())

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._tls)
        except OSError:
            sock.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            transport.abort()
            raise
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
