"""What one process says is what the other hears, whatever words the model has."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.brain.codec import Codec, _Arrays, written
from gateway.brain.wire import Channel, Kind, heard
from gateway.brain.words import PROGRESS, RECORDS, TICKETS, USAGES, weighed
from gateway.model import (
    Access,
    Choice,
    Outcome,
    Priority,
    Reason,
    Record,
    Route,
    Shape,
    Ticket,
    Timeline,
    Usage,
    WorkEstimate,
)

texts = st.text(max_size=8)
numbers = st.integers(0, 2**60)
instants = st.floats(0, 1e9)
routes = st.builds(Route, texts, st.sampled_from(Access), st.none() | texts)
shapes = st.builds(
    Shape,
    routes,
    model=st.none() | texts,
    stream=st.booleans(),
    prompt_bytes=numbers,
    max_output=st.none() | numbers,
    conversation=st.none() | texts,
    blocks=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
)
tickets = st.builds(
    Ticket,
    numbers,
    shapes,
    st.builds(WorkEstimate, numbers, numbers, instants),
    client=texts,
    read_timeout=st.none() | instants,
    avoid=st.frozensets(texts, max_size=3),
    priority=st.sampled_from(Priority),
    session=texts,
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    timeline = Timeline(draw(instants))
    for later in sorted(draw(st.lists(st.floats(0, 100), max_size=4))):
        timeline.output(draw(st.integers(1, 3)), timeline.received + later)
    if draw(st.booleans()):
        timeline.aside(1, 1, timeline.received + 1)
    return timeline


records = st.builds(
    Record,
    texts,
    st.none() | tickets,
    routes,
    texts,
    st.just("/\udc80"),  # a path as the client wrote it need not be UTF-8
    timelines(),
    st.sampled_from(Outcome),
    st.just(200) | st.sampled_from(HTTPStatus),
    choice=st.none() | st.sampled_from(Choice),
    reason=st.none() | st.sampled_from(Reason),
    usage=st.none() | st.builds(Usage, st.none() | numbers),
)


@given(tickets)
def test_a_ticket_travels_whole(ticket: Ticket) -> None:
    assert TICKETS.loads(TICKETS.dumps(ticket)) == ticket


@given(records)
def test_a_record_travels_whole(record: Record) -> None:
    again = RECORDS.loads(memoryview(RECORDS.dumps(record)))
    assert RECORDS.flat(again) == RECORDS.flat(record)
    assert type(again.outcome) is Outcome
    assert again.timeline.stamps == record.timeline.stamps
    assert again.timeline.gaps.count == record.timeline.gaps.count


def test_what_is_not_known_how_to_write_is_said_when_the_program_starts() -> None:
    @dataclass
    class Odd:
        values: dict[str, int]

    with pytest.raises(TypeError, match="dict"):
        Codec(Odd)


@pytest.mark.parametrize("kind", [Ticket, Shape, WorkEstimate, Record, Timeline, Usage])
def test_the_types_in_the_source_are_those_that_a_class_tells(kind: type) -> None:
    """A compiled class does not tell of them all."""
    hints = get_type_hints(kind, localns={"array": _Arrays})
    found = written(kind)
    assert {name: found[name] for name in hints} == hints


@given(tickets)
def test_a_ticket_is_weighed_again_and_nothing_else(ticket: Ticket) -> None:
    other = WorkEstimate(7, 8, 9.0)
    full = Ticket(*(object() for _ in fields(Ticket)))  # type: ignore[arg-type] # not one of them may be left out
    assert weighed(ticket, other) == replace(ticket, work=other)
    assert weighed(full, other) == replace(full, work=other)


def test_one_field_alone() -> None:
    assert USAGES.build(USAGES.flat(Usage(1))) == Usage(1)
    assert array("I") == Timeline(0.0).stamps


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=20)), max_size=8), st.data())
def test_frames_are_cut_as_they_were_sent_however_they_arrive(
    frames: list[tuple[Kind, bytes]], data: st.DataObject
) -> None:
    sent = bytearray()

    class Transport:
        def write(self, data: bytes) -> None:
            sent.extend(data)

    sender, taker = Channel(), Channel()
    sender._transport = Transport()  # type: ignore[assignment]
    for kind, payload in frames:
        sender.send(kind, payload)
    taken: list[tuple[Kind, Any]] = []
    taker.take = lambda kind, payload: taken.append((kind, bytes(payload)))
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        taker.data_received(bytes(sent[:cut]))
        del sent[:cut]
    assert taken == frames


def test_an_output_takes_its_fixed_size() -> None:
    data = PROGRESS.pack(2**63, 7, 1.5) + PROGRESS.pack(1, 1, 2.5)
    assert list(PROGRESS.iter_unpack(data)) == [(2**63, 7, 1.5), (1, 1, 2.5)]


def test_nothing_is_sent_into_a_closed_connection() -> None:
    channel = Channel()
    channel.say(Kind.WITHDRAW, 1)
    assert not channel.open
    assert not channel.clogged
    assert heard(memoryview(b"\xa9\x01i\x01\x00\x00\x00")) == (1,)
