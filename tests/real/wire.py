"""One HTTP exchange exactly as it is on the wire: no header is added, changed or hidden."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.real.process import PATIENCE

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    """What a client sends. A ``body`` that is no bytes goes as JSON."""

    method: str
    path: str
    body: Any = b""
    headers: Headers = ()

    def encoded(self) -> bytes:
        """The body's bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body, ensure_ascii=False).encode()


@dataclass(frozen=True)
class Reply:
    """What came back; header names in lower case, in the order of the wire; the body without its chunk framing."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        """The one value of a header, None where it is absent. More than one is a fault."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    def json(self) -> Any:
        """The body read as JSON."""
        return json.loads(self.body)


@contextmanager
def opened(port: int, request: Request) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
    """Send ``request``; the reply's head is read, its body is not."""
    with closing(sent(port, request)) as connection, connection.getresponse() as response:
        yield connection, response


def sent(port: int, request: Request) -> http.client.HTTPConnection:
    """Send ``request`` and read nothing yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = request.encoded()
    connection.putrequest(request.method, request.path, skip_accept_encoding=True)
    for name, value in request.headers:
        connection.putheader(name, value)
    if body or request.method == "POST":
        connection.putheader("Content-Length", str(len(body)))
        if "content-type" not in {name.lower() for name, _ in request.headers}:
            connection.putheader("Content-Type", "application/json")
    connection.endheaders(body)
    return connection


def exchange(port: int, request: Request) -> Reply:
    """Send ``request`` and read the whole reply."""
    with opened(port, request) as (_, response):
        head = tuple((name.lower(), value) for name, value in response.getheaders())
        return Reply(response.status, head, response.read())
