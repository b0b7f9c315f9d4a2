"""One chat completion as a client sees it, measured as the gateway measures those that pass through it."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

import aiohttp

from gateway.dialects.base import Fault
from gateway.dialects.registry import standard
from gateway.model import Outcome, Record, Shape, Ticket, Timeline, WorkEstimate
from gateway.telemetry.entry import Entry, entry_of

PATH: Final = "/v1/chat/completions"
_DIALECT, _ROUTE = standard().resolve("POST", PATH)
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, 529})
_SHOWN: Final = 300  # bytes of an error's body


async def exchange(
    session: aiohttp.ClientSession, url: str, body: bytes, work: WorkEstimate, request_id: str = ""
) -> tuple[Entry, str]:
    """Send one request: what became of it, and what went wrong in a few words, empty where nothing did."""
    shape = _DIALECT.read_request(_ROUTE, "application/json", body)
    ticket = Ticket(0, shape, work)
    timeline = Timeline(received=time.monotonic())
    timeline.sent = timeline.received
    record = Record(request_id, ticket, _ROUTE, "POST", PATH, timeline, Outcome.BACKEND_LOST, 0, attempts=1)
    headers = {"Content-Type": "application/json"} | ({"X-Request-Id": request_id} if request_id else {})
    error = ""
    try:
        async with session.post(url, data=body, headers=headers) as answer:
            head = await _listen(answer, shape, record)
        if record.outcome is not Outcome.COMPLETED:
            error = f"{answer.status} {head.decode(errors='replace')}".strip()
    except (aiohttp.ClientError, TimeoutError) as problem:
        record.outcome = _lost(problem)
        error = str(problem) or type(problem).__name__
    timeline.finished = time.monotonic()
    return entry_of(record, ticket), error


async def _listen(answer: aiohttp.ClientResponse, shape: Shape, record: Record) -> bytes:
    """Read an answer to its end and note what came; return its first bytes."""
    record.status = answer.status
    reader = _DIALECT.response_reader(shape, answer.status, answer.content_type)
    head = b""
    async for data in answer.content.iter_any():
        head = head or data[:_SHOWN]
        _mark(record.timeline, reader.feed(data), reader.asides)
    _mark(record.timeline, reader.finish(), reader.asides)
    record.usage = reader.usage
    record.outcome = _outcome(answer.status, reader.fault)
    return head


def _mark(timeline: Timeline, events: int, asides: tuple[int, int] | None) -> None:
    now = time.monotonic()
    if events:
        timeline.output(events, now)
    if asides:
        timeline.aside(*asides, now)


def _outcome(status: int, fault: Fault | None) -> Outcome:
    if status in _BUSY or fault is Fault.BUSY:
        return Outcome.BACKEND_BUSY
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or fault is not None:
        return Outcome.BACKEND_ERROR
    return Outcome.CLIENT_ERROR if status >= HTTPStatus.BAD_REQUEST else Outcome.COMPLETED


def _lost(problem: Exception) -> Outcome:
    if isinstance(problem, aiohttp.ClientConnectorError):
        return Outcome.CONNECT_FAILED
    return Outcome.BACKEND_SILENT if isinstance(problem, TimeoutError) else Outcome.BACKEND_LOST
