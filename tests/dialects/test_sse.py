from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.sse import EventReader
from tests.dialects.helpers import cut, pieces

LIMIT = 128 * 1024
BYTES = st.lists(
    st.sampled_from([
        b"data: ", b"data:", b"data", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"\r", b": ping\n\n", b"event: x\n",
        b"id: 1\n", b"retry: 5\n", b'{"a":1}', b"[DONE]", b"bare text", "模型".encode(), b"\xff\x00",
    ])
).map(b"".join)  # fmt: skip
CUTS = st.lists(st.integers(0, 200), max_size=20)


def events(parts: list[bytes]) -> tuple[list[bytes], bytes]:
    reader = EventReader()
    found = [payload for part in parts for payload in reader.feed(part)]
    return found + reader.finish(), reader.stray


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\n\r\ndata: b\r\n\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"event: x\nid: 1\nretry: 9\ndata: a\n\n", [b"a"]),
        (b"data: a\nevent: x\n\n", [b"a"]),
        (b"event: x\ndata: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\ndata: a\n\n:\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"data:\n\n", [b""]),
        (b"event: x\n\n", []),
        (b"", []),
    ],
)
def test_events_are_found(stream: bytes, payloads: list[bytes]) -> None:
    assert events([stream]) == (payloads, b"")
    assert events(pieces(stream, 1)) == (payloads, b"")


def test_text_that_is_no_event_is_kept_apart() -> None:
    assert events([b"data: a\n\nEngine callback timeout: 600"]) == ([b"a"], b"Engine callback timeout: 600")
    assert events([b'{"error":1}\n\n' + b"x" * 5000]) == ([], b"x" * 1024)


@given(BYTES, CUTS)
def test_P31_any_split_gives_the_same_events(stream: bytes, at: list[int]) -> None:
    assert events(cut(stream, at)) == events([stream])


@given(st.binary(), CUTS)
def test_any_bytes_are_read(stream: bytes, at: list[int]) -> None:
    assert events(cut(stream, at)) == events([stream])


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))), CUTS)
def test_P30_text_comes_out_byte_for_byte_wherever_its_characters_are_cut(texts: list[str], at: list[int]) -> None:
    stream = b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)
    assert events(cut(stream, at))[0] == [text.encode() for text in texts]


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2, LIMIT + 3, 2 * LIMIT, 5 * LIMIT])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n", b""])
@pytest.mark.parametrize("step", [1000, 65_536, LIMIT])
def test_an_event_of_any_size_keeps_its_head_and_tail(size: int, end: bytes, step: int) -> None:
    event = b"data: " + bytes(range(33, 126)) * (size // 93 + 1)
    event = event[:size]
    kept = event if size <= LIMIT else event[: LIMIT // 2] + event[-LIMIT // 2 :]
    stream = event + end
    found, _ = events([*pieces(stream, step), b"data: next\n\n" if len(end) > 1 else b""])
    assert found == [kept[6:], b"next"][: 2 if len(end) > 1 else 1]


def test_what_is_kept_of_an_endless_event_is_bounded() -> None:
    reader = EventReader()
    for _ in range(100):
        reader.feed(b"x" * 65_536)
    assert len(reader._open) <= 2 * LIMIT + 65_536


def test_a_blank_line_does_not_arise_where_the_middle_was_cut_out() -> None:
    head = b"data: " + b"a" * (LIMIT // 2 - 7) + b"\n"
    tail = b"\n" + b"b" * (LIMIT // 2 - 1)
    found, _ = events([head + b"c" * 3 * LIMIT, tail, b"\n\n"])
    assert len(found) == 1


@pytest.mark.parametrize(
    ("stream", "between"),
    [
        (b"", True),
        (b"data: a\n\n", True),
        (b"data: a\r\n\r\n", True),
        (b"data: a\n", False),
        (b"da", False),
        (b"data: a\n\nd", False),
        (b"data: a\r\n\r", False),
    ],
)
def test_it_says_whether_an_event_is_open(stream: bytes, between: bool) -> None:
    reader = EventReader()
    reader.feed(stream)
    assert reader.between_events is between
    one_by_one = EventReader()
    for piece in pieces(stream, 1):
        one_by_one.feed(piece)
    assert one_by_one.between_events is between
