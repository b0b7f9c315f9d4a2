"""Real transcripts, and readers fed with them in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gateway.dialects.base import Dialect, Fault, ResponseReader
from gateway.dialects.registry import standard
from gateway.model import Access, Reason, Rejection, Route, Shape, Ticket, Usage, WorkEstimate

CAPTURES = Path(__file__).parent / "captures"
DIALECTS = standard()


@dataclass(frozen=True)
class Capture:
    """One answer of a real engine, as curl printed it (chunked framing undone)."""

    status: int
    content_type: str
    body: bytes


def capture(name: str) -> Capture:
    raw = (CAPTURES / f"{name}.txt").read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n") if b"\r\n\r\n" in raw else raw.partition(b"\n\n")
    lines = head.decode().splitlines()
    status = next(int(line.split()[1]) for line in lines if line.startswith("HTTP/1.1 "))
    kinds = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("content-type:")]
    return Capture(status, kinds[-1] if kinds else "", body.rpartition(b"\n# time_total")[0] or body)


class Heard(NamedTuple):
    """What a reader knows at the end."""

    output: int
    usage: Usage | None
    fault: Fault | None
    complete: bool


def hear(reader: ResponseReader, pieces: Iterable[bytes]) -> Heard:
    output = sum(reader.feed(piece) for piece in pieces)
    output += reader.finish()
    return Heard(output, reader.usage, reader.fault, reader.complete)


def pieces(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def cut(body: bytes, at: Iterable[int]) -> list[bytes]:
    marks = [0, *sorted(min(mark, len(body)) for mark in at), len(body)]
    return [body[start:end] for start, end in pairwise(marks)]


def resolve(method: str, path: str) -> tuple[Dialect, Route]:
    return DIALECTS.resolve(method, path)


def reader(path: str, status: int = 200, content_type: str = "text/event-stream", choices: int = 1) -> ResponseReader:
    dialect, route = DIALECTS.resolve("POST", path)
    return dialect.response_reader(Shape(route, stream=True, choices=choices), status, content_type)


def sse(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def refusal(route: Route) -> Rejection:
    work = WorkEstimate(1, 1, 1.25)
    return Rejection(Ticket(1, Shape(route), work), Reason.QUEUE_FULL, 1.0)


CHAT = Route("chat", Access.ADMIT)
