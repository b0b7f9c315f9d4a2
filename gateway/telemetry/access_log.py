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

from gateway.model import Choice, Priority, Record, Ticket, Timeline, Usage
from gateway.telemetry.sink import CAPACITY, LineSink

_LOG: Final = logging.getLogger("gateway.access_log")
_SHORT: Final = 128  # characters: ids, names
_SECOND: Final = 1_000_000  # microseconds
_LONG: Final = 512  # characters: paths, error lines


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
    ticket = record.ticket
    fields: dict[str, Any] = {
        "time": _told(ended),
        "request_id": record.request_id[:_SHORT],
        "method": record.method[:_SHORT],
        "path": record.path.partition("?")[0][:_LONG],  # a query may carry a key
        "route": record.route.label,
        "status": record.status,
        "outcome": record.outcome._value_,  # `value` is a call
    }
    if record.reason is not None or record.error or record.retry_after is not None:
        _add_trouble(fields, record)
    if record.lane is not None:
        fields["lane"] = record.lane
    if record.backend is not None:
        fields["backend"] = record.backend
    if record.choice is not None and record.choice is not Choice.HEADROOM:
        fields["choice"] = record.choice._value_
    if record.attempts:
        fields["attempts"] = record.attempts
    fields["bytes_in"] = record.bytes_in
    fields["bytes_out"] = record.bytes_out
    if ticket is not None:
        _add_asked(fields, ticket)
    _add_legs(fields, record.timeline)
    if ticket is not None and ticket.shape.stream:
        _add_stream(fields, record.timeline)
    if record.usage is not None:
        _add_usage(fields, record.usage)
    return fields


def _add_asked(fields: dict[str, Any], ticket: Ticket) -> None:
    shape = ticket.shape
    if shape.model:
        fields["model"] = shape.model[:_SHORT]
    fields["stream"] = shape.stream
    if ticket.client:
        fields["client"] = ticket.client[:_SHORT]
    if ticket.priority is not Priority.STANDARD:
        fields["priority"] = ticket.priority.label
    if ticket.attempt:
        fields["retry"] = ticket.attempt
    if shape.max_output is not None:
        fields["max_output"] = shape.max_output
    fields["estimated_prompt_tokens"] = ticket.work.prompt_tokens
    if shape.generates:
        fields["estimated_output_tokens"] = ticket.work.output_tokens


def _add_legs(fields: dict[str, Any], timeline: Timeline) -> None:
    """Read, parse, queue, connect and backend_ttft add up to ttft."""
    received, read, offered, admitted = timeline.received, timeline.read, timeline.offered, timeline.admitted
    sent = timeline.sent
    if read is not None:
        fields["read_ms"] = _ms(read - received)
        if offered is not None:
            fields["parse_ms"] = _ms(offered - read)
    if admitted is not None:
        if offered is not None:
            fields["queue_ms"] = _ms(admitted - offered)
        if sent is not None:
            fields["connect_ms"] = _ms(sent - admitted)
    if sent is not None and timeline.headers is not None:
        fields["headers_ms"] = _ms(timeline.headers - sent)
    if timeline.finished is not None:
        fields["total_ms"] = _ms(timeline.finished - received)


def _add_stream(fields: dict[str, Any], timeline: Timeline) -> None:
    first, sent, gaps = timeline.first_output, timeline.sent, timeline.gaps
    if first is not None:
        if sent is not None:
            fields["backend_ttft_ms"] = _ms(first - sent)
        fields["ttft_ms"] = _ms(first - timeline.received)
        if timeline.last_output is not None:
            fields["output_ms"] = _ms(timeline.last_output - first)
    fields["output_events"] = timeline.output_events
    if gaps.count:
        fields["itl_mean_ms"] = _ms(gaps.total / gaps.count)
        fields["itl_max_ms"] = _ms(gaps.value(max(gaps.buckets)))


def _add_trouble(fields: dict[str, Any], record: Record) -> None:
    if record.reason is not None:
        fields["reason"] = record.reason._value_
    if record.retry_after is not None:
        fields["retry_after_ms"] = _ms(record.retry_after)
    if record.error:
        fields["error"] = record.error[:_LONG]


def _add_usage(fields: dict[str, Any], usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        fields["prompt_tokens"] = usage.prompt_tokens
    if usage.completion_tokens is not None:
        fields["completion_tokens"] = usage.completion_tokens
    if usage.cached_tokens is not None:
        fields["cached_tokens"] = usage.cached_tokens


class _Seconds:
    """The second that was told last: of many requests it is the same, and the calendar costs a microsecond."""

    def __init__(self) -> None:
        self.at = -1
        self.text = ""

    def __call__(self, ended: float) -> str:
        second = int(ended)
        microseconds = round((ended - second) * 1e6)
        if microseconds == _SECOND:
            second, microseconds = second + 1, 0
        if second != self.at:
            self.at, self.text = second, datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:-6]
        return f"{self.text}.{microseconds // 1000:03d}+00:00"


_told: Final = _Seconds()


def _ms(seconds: float) -> float:
    """To the microsecond; ``round`` to digits takes three times as long, ten times a line."""
    return round(seconds * 1e6) / 1000


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
