"""A wire tap in front of an engine: relays every byte, keeps it, and knows who closed a connection."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from typing import Self


class Tapped:
    """One connection between the gateway and the engine; ``ended_by`` is who closed it first, None while it is open."""

    def __init__(self, gateway: socket.socket, engine: socket.socket) -> None:
        self.heard = bytearray()  # from the gateway
        self.said = bytearray()  # by the engine
        self.ended_by: str | None = None
        self._sides = gateway, engine
        Thread(target=self._relay, args=(gateway, engine, self.heard, "gateway"), daemon=True).start()
        Thread(target=self._relay, args=(engine, gateway, self.said, "engine"), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, kept: bytearray, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                kept += data
                # An engine may answer and close before it has read the body; what the gateway sent is kept even so.
                with suppress(OSError):
                    sink.sendall(data)
        first, self.ended_by = self.ended_by is None, self.ended_by or name
        if first and name == "engine":  # pass the end on, and go on listening to the gateway until it closes too
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        else:
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
