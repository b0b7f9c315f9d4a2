"""Streams of items: framings, ends and faults, whatever the pieces they come in."""

from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Fault
from gateway.dialects.items import ItemReader, Items
from gateway.model import Usage
from tests.dialects.helpers import Heard, cut, hear, pieces, sse

MARKED = Items(
    re.compile(rb'"error"|"done":true'),
    last=lambda document: document.get("done") is True,
    hollow=lambda document: "text" not in document,
    marked=True,
)
NUL = b'{"text":["a"]}\0{"text":["ab"]}\0'
EVENTS = b'data:{"text":"a"}\n\ndata:{"text":"b"}\n\n'
LINES = b'{"text":"a"}\n{"text":"b"}\n'


@pytest.mark.parametrize(
    "stream",
    [
        NUL,
        NUL.replace(b"\0", b"\n"),
        NUL.replace(b"\0", b"\r\n"),
        NUL.replace(b"\0", b"\0\n"),
        NUL[:-1],
        EVENTS,
        EVENTS.replace(b"data:", b"data: "),
        EVENTS.replace(b"data:", b": ping\n\ndata:"),
        EVENTS[:-2],
        LINES,
        b"\n\r\n" + LINES[:-1],
    ],
)
@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_items_are_counted_in_every_framing(stream: bytes, step: int) -> None:
    assert hear(ItemReader(), pieces(stream, step)) == Heard(2, None, None, True)


@pytest.mark.parametrize("end", [b"\0", b"\n", b"\0\n", b""])
def test_the_counts_of_the_last_item_are_read(end: bytes) -> None:
    items = b'{"x":1}\n{"usage":{"prompt_tokens":3,"completion_tokens":4}}' + end
    assert hear(ItemReader(), [items]).usage == Usage(3, 4, None)


def test_counts_of_an_earlier_item_are_kept_where_the_last_has_none() -> None:
    stream = sse(b'{"done":true,"usage":{"prompt_tokens":3}}', b'{"text":"late"}')
    assert hear(ItemReader(MARKED), [stream]).usage == Usage(3, None, None)


def test_nothing_is_known_before_anything_came() -> None:
    reader = ItemReader()
    assert (reader.usage, reader.fault, reader.complete, reader.between_events) == (None, None, False, False)
    assert hear(reader, [b"", b"\n"]) == Heard(0, None, None, False)


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (sse(b'{"text":"a"}'), False),
        (sse(b'{"text":"a"}', b"[DONE]"), True),
        (sse(b'{"text":"a"}', b'{"done":true}'), True),
        (sse(b'{"text":"a"}', b'{"done":false}'), False),
        (LINES, False),
        (LINES + b'{"done":true}', True),
        (sse(b'{"text":"a"}', b'{"done":true}', b'{"error":"died"}'), False),
    ],
)
def test_where_an_api_marks_its_end_the_mark_must_come(stream: bytes, complete: bool) -> None:
    assert hear(ItemReader(MARKED), [stream]).complete is complete


def test_the_last_item_may_be_hollow() -> None:
    assert hear(ItemReader(MARKED), [LINES + b'{"done":true}\n']).output == 2
    assert hear(ItemReader(MARKED), [LINES + b'{"done":true,"text":"c"}\n']).output == 3


@pytest.mark.parametrize(
    ("stream", "heard"),
    [
        (b"", Heard(0, None, None, False)),
        (sse(b'{"error":{"message":"The request queue is full.","code":503}}'), Heard(0, None, Fault.BUSY, False)),
        (sse(b'{"error":{"message":"overloaded","code":529}}'), Heard(0, None, Fault.BUSY, False)),
        (sse(b'{"text":"a"}', b'{"error":"died","error_type":"generation"}'), Heard(1, None, Fault.FAILED, False)),
        (sse(b'{"text":"\\"error\\" is a word"}', b'{"says":"error"}'), Heard(2, None, None, True)),
        (sse(b'"error" no json'), Heard(1, None, None, True)),
        (sse(b'{"text":"a"}') + b"Engine callback timeout: 600", Heard(1, None, Fault.FAILED, False)),
        (NUL + b"Failed to get engine response", Heard(2, None, Fault.FAILED, False)),
        (NUL + b"Failed to get engine response\0", Heard(2, None, Fault.FAILED, False)),
        (NUL + b'{"error":"Too many requests"}\0', Heard(2, None, Fault.BUSY, False)),
        (b"Too many requests\r\n", Heard(0, None, Fault.BUSY, False)),
    ],
)
@pytest.mark.parametrize("step", [1, 4, 1000])
def test_P28_faults_said_inside_a_success(stream: bytes, heard: Heard, step: int) -> None:
    assert hear(ItemReader(), pieces(stream, step)) == heard


def test_the_first_fault_counts() -> None:
    stream = sse(b'{"error":"Model is overloaded"}', b'{"error":"died"}')
    assert hear(ItemReader(), [stream]).fault is Fault.BUSY


def test_it_says_whether_an_event_may_be_added() -> None:
    def between(stream: bytes) -> bool:
        reader = ItemReader()
        reader.feed(stream)
        return reader.between_events

    assert between(EVENTS)
    assert not between(EVENTS[:-1])
    assert not between(NUL)


@pytest.mark.parametrize("frame", [b"data: %b\n\n", b"%b\n"])
def test_items_of_any_length_take_bounded_memory(frame: bytes) -> None:
    item = orjson.dumps({"text": "a" * 3_000_000, "done": True})
    for step in (1000, 70_000, 4_000_000):
        reader, output = ItemReader(MARKED), 0
        for piece in pieces(frame % item, step):
            output += reader.feed(piece)
            assert len(reader._open) <= 2 * 131_072
        assert output + reader.finish() == 1
        assert len(reader._last) <= 131_072


@given(
    st.lists(
        st.sampled_from([b"{", b"}", b"\0", b"\n", b'"a"', b" ", b"data: ", b"\r\n", b'"error":"x"', b"[DONE]", b"x"])
    ).map(b"".join),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_any_items_in_any_pieces_are_heard_alike(stream: bytes, at: list[int]) -> None:
    for items in (Items(), MARKED):
        assert hear(ItemReader(items), cut(stream, at)) == hear(ItemReader(items), [stream])
