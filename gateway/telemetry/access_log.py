"""One JSON line a request, with every timing; never a prompt, a key or a query string.

Durations are milliseconds and are named ``..._ms``; ``time`` is when the request ended, in UTC. What does not apply to
a request is left out of its line. Caller-controlled text is cut to a bound, so no line is longer than a few KiB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.model import Priority, Record, Ticket, Timeline
from gateway.telemetry.sink import CAPACITY, LineSink

_LOG: Final = logging.getLogger("gateway.access_log")
_SHORT: Final = 128  # characters: ids, names
_LONG: Final = 512  # characters: paths, error lines

_LEGS: Final = (  # field, from, to; read, parse, queue, connect and backend_ttft add up to ttft
    ("read_ms", "received", "read"),
    ("parse_ms", "read", "offered"),
    ("queue_ms", "offered", "admitted"),
    ("connect_ms", "admitted", "sent"),
    ("headers_ms", "sent", "headers"),
    ("backend_ttft_ms", "sent", "first_output"),
    ("ttft_ms", "received", "first_output"),
    ("output_ms", "first_output", "last_output"),
    ("total_ms", "received", "finished"),
)
_STREAM_ONLY: Final = frozenset({"backend_ttft_ms", "ttft_ms", "output_ms"})


class AccessLog:
    """Writes one line per Record to ``target``: ``stdout``, ``stderr`` or a file's path. Never blocks, never raises."""

    def __init__(
        self,
        target: str,
        *,
        capacity: int = CAPACITY,
        on_trouble: Callable[[str], None] = _LOG.warning,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the target and start its writer.

        ``capacity`` bounds the bytes that wait for it; ``on_trouble`` hears when writing begins to fail and when it
        works again: by default the process log does.

        Raises:
            OSError: the target cannot be opened for appending.
        """
        self._sink = LineSink(target, capacity=capacity, on_trouble=on_trouble)
        self._wall_clock = wall_clock

    def observe(self, record: Record) -> None:
        """Queue the line of one finished request."""
        self._sink.write(line(record, self._wall_clock()))

    def dropped(self) -> int:
        """Lines lost so far: queue full or write failed."""
        return self._sink.dropped

    def reopen(self) -> None:
        """Open the file anew (after logrotate moved it); returns at once."""
        self._sink.reopen()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most ``timeout`` seconds, and close."""
        self._sink.stop(timeout)


def line(record: Record, ended: float) -> bytes:
    """The line of one request that ended at ``ended``, seconds since the epoch."""
    fields = _fields(record, ended)
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a path or a name that is not valid UTF-8 arrives with lone surrogates
        return orjson.dumps({key: _encodable(value) for key, value in fields.items()}, option=orjson.OPT_APPEND_NEWLINE)


def _fields(record: Record, ended: float) -> dict[str, Any]:
    fields = {
        "time": datetime.fromtimestamp(ended, UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id[:_SHORT],
        "method": record.method[:_SHORT],
        "path": record.path.partition("?")[0][:_LONG],  # a query may carry a key
        "route": record.route.label,
        "status": record.status,
        "outcome": record.outcome.value,
        "reason": record.reason.value if record.reason is not None else None,
        "retry_after_ms": None if record.retry_after is None else _ms(record.retry_after),
        "error": record.error[:_LONG] if record.error else None,
        "lane": record.lane,
        "backend": record.backend,
        "attempts": record.attempts or None,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
    }
    if record.ticket is not None:
        fields |= _asked(record.ticket)
    streamed = record.ticket is not None and record.ticket.shape.stream
    fields |= _timings(record.timeline, streamed=streamed)
    if record.usage is not None:
        fields["prompt_tokens"] = record.usage.prompt_tokens
        fields["completion_tokens"] = record.usage.completion_tokens
        fields["cached_tokens"] = record.usage.cached_tokens
    return {key: value for key, value in fields.items() if value is not None}


def _asked(ticket: Ticket) -> dict[str, Any]:
    shape = ticket.shape
    return {
        "model": shape.model[:_SHORT] if shape.model else None,
        "stream": shape.stream,
        "client": ticket.client[:_SHORT] or None,
        "priority": None if ticket.priority is Priority.STANDARD else ticket.priority.label,
        "retry": ticket.attempt or None,
        "max_output": shape.max_output,
        "estimated_prompt_tokens": ticket.work.prompt_tokens,
        "estimated_output_tokens": ticket.work.output_tokens if shape.generates else None,
    }


def _timings(timeline: Timeline, *, streamed: bool) -> dict[str, Any]:
    timings: dict[str, Any] = {}
    for name, start, end in _LEGS:
        began, ended = getattr(timeline, start), getattr(timeline, end)
        if began is not None and ended is not None and (streamed or name not in _STREAM_ONLY):
            timings[name] = _ms(ended - began)
    if streamed:
        timings["output_events"] = timeline.output_events
        if timeline.gaps.count:
            timings["itl_mean_ms"] = _ms(timeline.gaps.total / timeline.gaps.count)
            timings["itl_max_ms"] = _ms(timeline.gaps.value(max(timeline.gaps.buckets)))
    return timings


def _ms(seconds: float) -> float:
    """To the microsecond; ``round`` to digits takes three times as long, ten times a line."""
    return round(seconds * 1e6) / 1000


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
