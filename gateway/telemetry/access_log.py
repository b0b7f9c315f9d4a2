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
_REMEMBERED: Final = 1024  # callers, and kinds of requests, whose JSON is kept


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

    Put together by hand: a dict and its encoding took three times as long. What requests of one kind have in common is
    put together once.
    """
    ticket, request_id, usage = record.ticket, record.request_id[:_SHORT], record.usage
    named = f'"{request_id}"' if request_id.isalnum() and request_id.isascii() else _quoted(request_id)
    went_well = record.reason is None and not record.error and record.retry_after is None
    trouble = "" if went_well else _trouble(record)
    stream = _stream(record.timeline) if ticket is not None and ticket.shape.stream else ""
    return (
        f'{{"time":"{_clock.told(ended)}","request_id":{named}{_kind(record, ticket)}{trouble}'
        f',"bytes_in":{record.bytes_in},"bytes_out":{record.bytes_out}{"" if ticket is None else _asked(ticket)}'
        f"{_legs(record.timeline)}{stream}{'' if usage is None else _used(usage)}}}\n"
    ).encode()


_KINDS: Final[dict[tuple[object, ...], str]] = {}


def _kind(record: Record, ticket: Ticket | None) -> str:
    """What is the same in the lines of requests of one kind. It names no caller: of these there may be very many."""
    method, path = record.method[:_SHORT], record.path.partition("?")[0][:_LONG]  # a query may carry a key
    shape = None if ticket is None else ticket.shape
    key = (
        method,
        path,
        record.route.label,
        record.status,
        record.outcome,
        record.lane,
        record.backend,
        record.choice,
        record.attempts,
        None if shape is None else shape.model,
        shape is None or shape.stream,
        None if ticket is None else ticket.priority,
        0 if ticket is None else ticket.attempt,
    )
    said = _KINDS.get(key)
    if said is None:
        if len(_KINDS) >= _REMEMBERED:
            _KINDS.clear()
        said = _KINDS[key] = _kind_of(record, ticket, method, path)
    return said


def _kind_of(record: Record, ticket: Ticket | None, method: str, path: str) -> str:
    said = (
        f',"method":{_quoted(method)},"path":{_quoted(path)}'
        f',"route":{_quoted(record.route.label)},"status":{record.status},"outcome":"{record.outcome.value}"'
    )
    if record.lane is not None:
        said += f',"lane":{_quoted(record.lane)}'
    if record.backend is not None:
        said += f',"backend":{_quoted(record.backend)}'
    if record.choice is not None and record.choice is not Choice.HEADROOM:
        said += f',"choice":"{record.choice.value}"'
    if record.attempts:
        said += f',"attempts":{record.attempts}'
    if ticket is not None:
        shape = ticket.shape
        said += f',"model":{_quoted(shape.model[:_SHORT])}' if shape.model else ""
        said += ',"stream":true' if shape.stream else ',"stream":false'
        if ticket.priority is not Priority.STANDARD:
            said += f',"priority":"{ticket.priority.label}"'
        if ticket.attempt:
            said += f',"retry":{ticket.attempt}'
    return said


def _asked(ticket: Ticket) -> str:
    shape, work = ticket.shape, ticket.work
    client = f',"client":{_known(ticket.client[:_SHORT])}' if ticket.client else ""
    cap = _number(',"max_output":', shape.max_output)
    output = _number(',"estimated_output_tokens":', work.output_tokens) if shape.generates else ""
    return f'{client}{cap},"estimated_prompt_tokens":{work.prompt_tokens}{output}'


def _legs(timeline: Timeline) -> str:
    """Read, parse, queue, connect and backend_ttft add up to ttft."""
    received, read, offered, admitted = timeline.received, timeline.read, timeline.offered, timeline.admitted
    sent, headers, finished = timeline.sent, timeline.headers, timeline.finished
    if read is None or offered is None or admitted is None or sent is None or headers is None or finished is None:
        return (
            _leg(',"read_ms":', received, read)
            + _leg(',"parse_ms":', read, offered)
            + _leg(',"queue_ms":', offered, admitted)
            + _leg(',"connect_ms":', admitted, sent)
            + _leg(',"headers_ms":', sent, headers)
            + _leg(',"total_ms":', received, finished)
        )
    return (  # the same in one, as most requests have them all
        f',"read_ms":{_ms(read - received)},"parse_ms":{_ms(offered - read)},"queue_ms":{_ms(admitted - offered)}'
        f',"connect_ms":{_ms(sent - admitted)},"headers_ms":{_ms(headers - sent)},"total_ms":{_ms(finished - received)}'
    )


def _stream(timeline: Timeline) -> str:
    first, gaps = timeline.first_output, timeline.gaps
    said = _leg(',"backend_ttft_ms":', timeline.sent, first) + _leg(',"ttft_ms":', timeline.received, first)
    said += _leg(',"output_ms":', first, timeline.last_output) + _number(',"output_events":', timeline.output_events)
    if gaps.count:
        said += _leg(',"itl_mean_ms":', 0.0, gaps.total / gaps.count)
        said += _leg(',"itl_max_ms":', 0.0, gaps.value(max(gaps.buckets)))
    return said


def _trouble(record: Record) -> str:
    said = "" if record.reason is None else f',"reason":"{record.reason.value}"'
    said += _leg(',"retry_after_ms":', 0.0, record.retry_after)
    return said + (f',"error":{_quoted(record.error[:_LONG])}' if record.error else "")


def _used(usage: Usage) -> str:
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    if prompt is None or output is None:
        said = _number(',"prompt_tokens":', prompt) + _number(',"completion_tokens":', output)
    else:
        said = f',"prompt_tokens":{prompt},"completion_tokens":{output}'
    return said if usage.cached_tokens is None else f'{said},"cached_tokens":{usage.cached_tokens}'


def _quoted(text: str) -> str:
    """``text`` as JSON. A path or a name that is not valid UTF-8 arrives with lone surrogates: they are replaced."""
    try:
        return orjson.dumps(text).decode()
    except TypeError:
        return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()


_KNOWN: Final[dict[str, str]] = {}


def _known(text: str) -> str:
    """The same of who asks again and again."""
    quoted = _KNOWN.get(text)
    if quoted is None:
        quoted = _quoted(text)
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        _KNOWN[text] = quoted
    return quoted


class _Clock:
    """Remembers the second that was told last: of many requests it is the same, and the calendar is not cheap."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def told(self, at: float) -> str:
        """``at``, seconds since the epoch, to the millisecond."""
        micro = int((at - int(at)) * 1e6 + 0.5)
        second = int(at) + micro // _SECOND
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:-6]
        return f"{self._text}{_THOUSANDTHS[micro // 1000 % 1000]}+00:00"


_clock: Final = _Clock()
_SHORTER: Final = 1000  # microseconds
_THOUSANDTHS: Final = [f".{number:03d}" for number in range(1000)]
_FRACTIONS: Final = [f"0.{number:03d}" for number in range(_SHORTER)]


def _ms(seconds: float) -> str:
    """To the microsecond."""
    micro = int(seconds * 1e6 + 0.5) if seconds >= 0.0 else 0  # clocks of two processes may differ by that
    if micro < _SHORTER:
        return _FRACTIONS[micro]
    return f"{micro // 1000}{_THOUSANDTHS[micro % 1000]}"


def _leg(name: str, start: float | None, end: float | None) -> str:
    """``name`` with the milliseconds between two instants; nothing where one never came."""
    return "" if start is None or end is None else name + _ms(end - start)


def _number(name: str, number: int | None) -> str:
    return "" if number is None else f"{name}{number}"
