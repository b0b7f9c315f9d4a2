"""A server that answers as its script says, and remembers what it was asked."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

Headers = dict[str, str]


def reply(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    """A whole answer; underscores in header names stand for hyphens."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return head.encode() + body


def stream(*events: bytes) -> bytes:
    """A stream of server-sent events, each a chunk of its own."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


END = b"0\r\n\r\n"
SILENCE = b""
CLOSE = b"close"


class Scripted:
    """Gives the answers of ``script`` in turn, the last one for ever after.

    SILENCE says nothing; one that ends in CLOSE hangs up after it.
    """

    def __init__(self, script: Sequence[bytes]) -> None:
        self._script = list(script)
        self.asked: list[Headers] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[1:-1]
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head)}
                await reader.readexactly(int(headers["content-length"]))
                self.asked.append(headers)
                answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
                writer.write(answer.removesuffix(CLOSE))
                if answer.endswith(CLOSE):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:  # cancelled as the loop ends, too
            writer.close()
