"""A real store, as Debian brings it, for the tests: killed, stopped and started again on the same port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.real.process import PATIENCE, eventually, free_port

SERVER = next(filter(None, map(shutil.which, ("valkey-server", "redis-server"))), None)


class StoreServer:
    """A store on a free loopback port that keeps nothing on disk."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        if SERVER is None:
            pytest.skip("neither valkey-server nor redis-server is here (Debian: redis-server)")
        self._folder = folder
        self._options = options
        self._mode: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> StoreServer:
        """Start it, without anything that it knew."""
        assert SERVER is not None
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder))
        line = [SERVER, *self._mode, *place, *(() if self._mode else ("--save", ""))]
        with (self._folder / f"store{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen([*line, *self._options], stdout=log, stderr=log)  # noqa: S603 - Debian's
        eventually(self._listens, "the store listens")
        return self

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(b"PING\r\n")
            return bool(connection.recv(1))
        return False

    def watched(self, *settings: str, port: int | None = None) -> StoreServer:
        """A Sentinel that takes this one for the primary of ``main`` and acts after half a second; not started yet.

        ``port``: where it finds it, if by another one.
        """
        sentinel = StoreServer(self._folder)
        own = (f"sentinel monitor main 127.0.0.1 {port or self.port} 1", "sentinel down-after-milliseconds main 500")
        file = self._folder / f"sentinel{sentinel.port}.conf"
        file.write_text("".join(f"{line}\n" for line in (*own, *settings)))
        sentinel._mode = (str(file), "--sentinel")
        return sentinel

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self.go_on()
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def freeze(self) -> None:
        """Have it answer nobody, with every connection open, as behind a network that swallows packets."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        if stat.exists():
            eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")

    def go_on(self) -> None:
        """And again."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def say(self, *words: str) -> bytes:
        """What it answers to one command, as it is on the wire."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in (each.encode() for each in words))
            connection.sendall(b"*%d\r\n" % len(words) + parts)
            answer = connection.recv(65536)
            while not answer.endswith(b"\r\n"):
                time.sleep(0.001)
                answer += connection.recv(65536)
            return answer
