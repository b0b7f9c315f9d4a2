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

from gateway.model import Outcome, Priority, Reason, Record, Ticket

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
    choice: str | None = None  # why that backend

    @property
    def finished_at(self) -> float:
        """When it was over, on the clock of ``received``; seconds."""
        return self.received + self.finished / 1e6

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        stamps = len(self.stamps)
        if self.blanks is not None:
            stamps += len(self.blanks)
        if self.unheard is not None:
            stamps += len(self.unheard)
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
    timeline, usage, shape, work = record.timeline, record.usage, ticket.shape, ticket.work
    received, read, offered, admitted = timeline.received, timeline.read, timeline.offered, timeline.admitted
    sent, last, finished = timeline.sent, timeline.last_output, timeline.finished
    return Entry(  # by place and inline, for it runs at the end of every request
        received,
        record.request_id[:_NAME],
        record.route.label,
        shape.model[:_NAME] if shape.model else None,
        record.lane,
        None if ticket.priority is Priority.STANDARD else ticket.priority.label,
        record.backend,
        record.outcome,
        record.status,
        record.reason,
        shape.stream or timeline.output_events > 0,
        shape.generates,
        ticket.attempt,
        record.attempts,
        usage.prompt_tokens if usage else None,
        usage.completion_tokens if usage else None,
        usage.cached_tokens if usage else None,
        work.prompt_tokens,
        work.output_tokens,
        None if read is None else int((read - received) * 1e6),
        None if offered is None else int((offered - received) * 1e6),
        None if admitted is None else int((admitted - received) * 1e6),
        None if sent is None else int((sent - received) * 1e6),
        None if last is None else int((last - received) * 1e6),
        0 if finished is None else int((finished - received) * 1e6),
        timeline.output_events,
        timeline.stamps,
        timeline.blanks,
        timeline.unheard,
        None if record.choice is None else record.choice._value_,
    )


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
