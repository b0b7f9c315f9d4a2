"""A wire tap in front of an engine: relays every byte, and keeps what came from the gateway's side."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Thread
from typing import Self


class Tapped:
    """One connection from the gateway to the engine."""

    def __init__(self, gateway: socket.socket, engine: socket.socket) -> None:
        self.heard = bytearray()
        self.closed = Event()  # by the gateway
        self._sides = gateway, engine
        Thread(target=self._relay_requests, daemon=True).start()
        Thread(target=self._relay_answers, daemon=True).start()

    def _relay_requests(self) -> None:
        gateway, engine = self._sides
        with suppress(OSError):
            while data := gateway.recv(65536):
                self.heard += data
                engine.sendall(data)
        self.closed.set()
        self._shut()

    def _relay_answers(self) -> None:
        gateway, engine = self._sides
        with suppress(OSError):
            while data := engine.recv(65536):
                gateway.sendall(data)
        self._shut()

    def _shut(self) -> None:
        for side in self._sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class Tap:
    """Listens on ``url`` from entry to exit."""

    def __init__(self, engine_port: int) -> None:
        self.connections: list[Tapped] = []
        self._engine_port = engine_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                gateway, _ = self._listener.accept()
                engine = socket.create_connection(("127.0.0.1", self._engine_port))
                self.connections.append(Tapped(gateway, engine))

    def that_heard(self, words: bytes) -> list[Tapped]:
        """The connections over which the gateway sent these bytes."""
        return [connection for connection in self.connections if words in connection.heard]
