"""One JSON line a request, with every timing; never a prompt, a key or a query string.

Durations are milliseconds and are named ``..._ms``; ``time`` is when the request ended, in UTC. What does not apply to
a request is left out of its line. Caller-controlled text is cut to a bound, so no line is longer than a few KiB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import orjson

from gateway.model import Choice, Priority, Record, Ticket, Timeline, Usage
from gateway.telemetry.sink import CAPACITY, LineSink

_LOG: Final = logging.getLogger("gateway.access_log")
_SHORT: Final = 128  # characters: ids, names
_SECOND: Final = 1_000_000  # microseconds
_LONG: Final = 512  # characters: paths, error lines
_REMEMBERED: Final = 1024  # names and paths whose JSON is kept


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
    """The line of one request that ended at ``ended``, seconds since the epoch.

    Put together by hand: a dict and its encoding took three times as long.
    """
    ticket, request_id = record.ticket, record.request_id[:_SHORT]
    named = f'"{request_id}"' if request_id.isalnum() and request_id.isascii() else _quoted(request_id)
    said = (
        f'{{"time":"{_told(ended)}","request_id":{named},"method":{_known(record.method[:_SHORT])},'
        f'"path":{_known(record.path.partition("?")[0][:_LONG])},'  # a query may carry a key
        f'"route":{_known(record.route.label)},"status":{record.status},'
        f'"outcome":"{record.outcome._value_}"'  # `value` is a call
    )
    if record.reason is not None or record.error or record.retry_after is not None:
        said += _trouble(record)
    if record.lane is not None:
        said += f',"lane":{_known(record.lane)}'
    if record.backend is not None:
        said += f',"backend":{_known(record.backend)}'
    if record.choice is not None and record.choice is not Choice.HEADROOM:
        said += f',"choice":"{record.choice._value_}"'
    if record.attempts:
        said += f',"attempts":{record.attempts}'
    said += f',"bytes_in":{record.bytes_in},"bytes_out":{record.bytes_out}'
    if ticket is not None:
        said += _asked(ticket)
    said += _legs(record.timeline)
    if ticket is not None and ticket.shape.stream:
        said += _stream(record.timeline)
    if record.usage is not None:
        said += _used(record.usage)
    return (said + "}\n").encode()


def _asked(ticket: Ticket) -> str:
    shape = ticket.shape
    said = f',"model":{_known(shape.model[:_SHORT])}' if shape.model else ""
    said += ',"stream":true' if shape.stream else ',"stream":false'
    if ticket.client:
        said += f',"client":{_known(ticket.client[:_SHORT])}'
    if ticket.priority is not Priority.STANDARD:
        said += f',"priority":"{ticket.priority.label}"'
    if ticket.attempt:
        said += f',"retry":{ticket.attempt}'
    if shape.max_output is not None:
        said += f',"max_output":{shape.max_output}'
    said += f',"estimated_prompt_tokens":{ticket.work.prompt_tokens}'
    if shape.generates:
        said += f',"estimated_output_tokens":{ticket.work.output_tokens}'
    return said


def _legs(timeline: Timeline) -> str:
    """Read, parse, queue, connect and backend_ttft add up to ttft."""
    received, read, offered, admitted = timeline.received, timeline.read, timeline.offered, timeline.admitted
    sent, said = timeline.sent, ""
    if read is not None:
        said += f',"read_ms":{_ms(read - received)}'
        if offered is not None:
            said += f',"parse_ms":{_ms(offered - read)}'
    if admitted is not None:
        if offered is not None:
            said += f',"queue_ms":{_ms(admitted - offered)}'
        if sent is not None:
            said += f',"connect_ms":{_ms(sent - admitted)}'
    if sent is not None and timeline.headers is not None:
        said += f',"headers_ms":{_ms(timeline.headers - sent)}'
    if timeline.finished is not None:
        said += f',"total_ms":{_ms(timeline.finished - received)}'
    return said


def _stream(timeline: Timeline) -> str:
    first, sent, gaps, said = timeline.first_output, timeline.sent, timeline.gaps, ""
    if first is not None:
        if sent is not None:
            said += f',"backend_ttft_ms":{_ms(first - sent)}'
        said += f',"ttft_ms":{_ms(first - timeline.received)}'
        if timeline.last_output is not None:
            said += f',"output_ms":{_ms(timeline.last_output - first)}'
    said += f',"output_events":{timeline.output_events}'
    if gaps.count:
        said += f',"itl_mean_ms":{_ms(gaps.total / gaps.count)},"itl_max_ms":{_ms(gaps.value(max(gaps.buckets)))}'
    return said


def _trouble(record: Record) -> str:
    said = "" if record.reason is None else f',"reason":"{record.reason._value_}"'
    if record.retry_after is not None:
        said += f',"retry_after_ms":{_ms(record.retry_after)}'
    return said + (f',"error":{_quoted(record.error[:_LONG])}' if record.error else "")


def _used(usage: Usage) -> str:
    said = "" if usage.prompt_tokens is None else f',"prompt_tokens":{usage.prompt_tokens}'
    if usage.completion_tokens is not None:
        said += f',"completion_tokens":{usage.completion_tokens}'
    return said + ("" if usage.cached_tokens is None else f',"cached_tokens":{usage.cached_tokens}')


def _quoted(text: str) -> str:
    """``text`` as JSON. A path or a name that is not valid UTF-8 arrives with lone surrogates: they are replaced."""
    try:
        return orjson.dumps(text).decode()
    except TypeError:
        return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()


_KNOWN: Final[dict[str, str]] = {}


def _known(text: str) -> str:
    """The same of what is said again and again: names and paths."""
    quoted = _KNOWN.get(text)
    if quoted is None:
        quoted = _quoted(text)
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        _KNOWN[text] = quoted
    return quoted


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
        return f"{self.text}{_THOUSANDTHS[microseconds // 1000]}+00:00"


_THOUSANDTHS: Final = tuple(f".{thousandths:03d}" for thousandths in range(1000))
_told: Final = _Seconds()


def _ms(seconds: float) -> str:
    """To the microsecond."""
    micro = int(seconds * 1e6 + 0.5) if seconds >= 0.0 else 0  # clocks of two processes may differ by that
    return f"{micro // 1000}{_THOUSANDTHS[micro % 1000]}"
