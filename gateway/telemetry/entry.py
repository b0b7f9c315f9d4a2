"""What is kept of one finished request: in the window behind the report, in the record file, and for a replay.

Of all that a caller wrote, only a request id, a model's name and the names that the operator gave are kept, each cut to
a bound, so that an entry has a known size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from heapq import merge
from typing import Final, Protocol

from gateway.model import Outcome, Priority, Reason, Record, Ticket, Timeline

_NAME: Final = 128  # characters
_BASE_SIZE: Final = 800  # bytes of an entry without its stamps, as measured


@unique
class Rule(Enum):
    """Which chunks count. The first two are what ``vllm bench serve`` of that version takes for output."""

    V33 = "0.33"  # chunks with output, but for `reasoning_content`, refusals and audio
    V32 = "0.32"  # every chunk with a choice, the role's and a bare finish reason among them
    ANY = "any"  # chunks with output of any kind


@dataclass(slots=True)
class Entry:
    """One finished request.

    ``received`` is in seconds: of the monotonic clock in the window, since the epoch in a file. Other instants are
    whole microseconds after it, None where they never came. For the stamps see ``Timeline``.
    """

    received: float
    request_id: str
    route: str
    model: str | None
    lane: str | None
    priority: str | None  # None: standard
    backend: str | None
    outcome: Outcome
    status: int
    reason: Reason | None
    stream: bool
    generates: bool
    retry: int  # the client's own count: 0 is a first attempt
    attempts: int  # of the gateway, at engines
    prompt_tokens: int | None  # these three as the engine reported them
    output_tokens: int | None
    cached_tokens: int | None
    estimated_prompt_tokens: int
    estimated_output_tokens: int
    read: int | None
    offered: int | None
    admitted: int | None
    sent: int | None
    last_output: int | None
    finished: int
    output_events: int
    stamps: array[int]
    blanks: array[int] | None
    unheard: array[int] | None

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        stamps = len(self.stamps) + len(self.blanks or ()) + len(self.unheard or ())
        return _BASE_SIZE + self.stamps.itemsize * stamps

    def counted(self, rule: Rule) -> Sequence[int]:
        """Stamps of the chunks that count under ``rule``, in order."""
        if rule is Rule.V32 and self.blanks:
            return list(merge(self.stamps, self.blanks))
        if rule is Rule.V33 and self.unheard:
            return _without(self.stamps, self.unheard)
        return self.stamps

    def ended(self, rule: Rule, counted: Sequence[int]) -> int:
        """When the last chunk came that counts, in microseconds; ``counted`` are the stamps under ``rule``.

        A stream that outgrew its stamps ended with its last output.
        """
        outgrown = len(self.stamps) < self.output_events and not (rule is Rule.V33 and self.unheard)
        return max(counted[-1], self.last_output or 0) if outgrown else counted[-1]


def _without(stamps: Iterable[int], left_out: Sequence[int]) -> list[int]:
    """``stamps`` less ``left_out``, which are among them; both in order."""
    kept, place = [], 0
    for stamp in stamps:
        if place < len(left_out) and stamp == left_out[place]:
            place += 1
        else:
            kept.append(stamp)
    return kept


def entry_of(record: Record, ticket: Ticket) -> Entry:
    """The entry of a finished request that came to admission as ``ticket``."""
    timeline, usage, shape = record.timeline, record.usage, ticket.shape
    return Entry(
        received=timeline.received,
        request_id=record.request_id[:_NAME],
        route=record.route.label,
        model=shape.model[:_NAME] if shape.model else None,
        lane=record.lane,
        priority=None if ticket.priority is Priority.STANDARD else ticket.priority.label,
        backend=record.backend,
        outcome=record.outcome,
        status=record.status,
        reason=record.reason,
        stream=shape.stream or timeline.output_events > 0,
        generates=shape.generates,
        retry=ticket.attempt,
        attempts=record.attempts,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        estimated_prompt_tokens=ticket.work.prompt_tokens,
        estimated_output_tokens=ticket.work.output_tokens,
        read=_offset(timeline, timeline.read),
        offered=_offset(timeline, timeline.offered),
        admitted=_offset(timeline, timeline.admitted),
        sent=_offset(timeline, timeline.sent),
        last_output=_offset(timeline, timeline.last_output),
        finished=_offset(timeline, timeline.finished) or 0,
        output_events=timeline.output_events,
        stamps=timeline.stamps,
        blanks=timeline.blanks,
        unheard=timeline.unheard,
    )


def _offset(timeline: Timeline, instant: float | None) -> int | None:
    return None if instant is None else int((instant - timeline.received) * 1e6)


class Taker(Protocol):
    """Who wants every entry. Must not raise and must not block."""

    def take(self, entry: Entry) -> None:
        """Take the entry of one finished request."""


class Recorder:
    """An Observer that makes one entry of a Record and hands it to all takers."""

    def __init__(self, *takers: Taker) -> None:
        """``takers`` are asked in this order."""
        self._takers = takers

    def observe(self, record: Record) -> None:
        """Take one finished request; one that never came to admission makes no entry."""
        if record.ticket is not None:
            entry = entry_of(record, record.ticket)
            for taker in self._takers:
                taker.take(entry)
