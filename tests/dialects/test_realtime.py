"""What a client says inside a WebSocket, as far as the gateway listens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.realtime import SessionListener

MASK = b"\x37\xfa\x21\x3d"


def frame(payload: bytes, *, kind: int = 1, last: bool = True, masked: bool = True, bits: int = 0) -> bytes:
    """A frame as RFC 6455 section 5.2 has it."""
    size = len(payload)
    if size < 126:
        length = bytes([size | 0x80 * masked])
    elif size < 1 << 16:
        length = bytes([126 | 0x80 * masked]) + size.to_bytes(2)
    else:
        length = bytes([127 | 0x80 * masked]) + size.to_bytes(8)
    veiled = bytes(byte ^ MASK[place % 4] for place, byte in enumerate(payload)) if masked else payload
    return bytes([0x80 * last | bits | kind]) + length + MASK * masked + veiled


def update(model: object = "qwen-asr", **more: object) -> bytes:
    return json.dumps({"type": "session.update", "model": model, **more}).encode()


def heard(*pieces: bytes) -> SessionListener:
    listener = SessionListener()
    for piece in pieces:
        listener.feed(piece)
    return listener


def test_the_example_of_the_standard() -> None:
    assert frame(b"Hello") == bytes.fromhex("818537fa213d7f9f4d5158")  # RFC 6455, 5.7


@pytest.mark.parametrize(
    "said",
    [
        frame(update()),
        frame(json.dumps({"type": "session.update", "session": {"model": "qwen-asr"}}).encode()),
        frame(b'{"type": "input_audio_buffer.append"}') + frame(update()),
        frame(b"\x00\x01", kind=2) + frame(update()),
        frame(b"", kind=9) + frame(update()),
        frame(update()[:9], last=False) + frame(b"", kind=9) + frame(update()[9:], kind=0),
        frame(b"\x00", kind=2, last=False) + frame(b"\x01", kind=0) + frame(update()),
        frame(update(instructions="x" * 300)),
        frame(b"x" * 60_000, kind=2) + frame(update()),
        frame(update(), masked=False),
        frame(update(None)) + frame(b"no JSON") + frame(b"[]") + frame(update()),
    ],
)
def test_the_model_is_heard_however_the_bytes_come(said: bytes) -> None:
    for pieces in (
        [said],
        [said[:1], said[1:]],
        [said[at : at + 1] for at in range(min(len(said), 2000))] + [said[2000:]],
    ):
        listener = heard(*pieces)
        assert (listener.model, listener.done) == ("qwen-asr", True)


def test_the_first_name_stands() -> None:
    assert heard(frame(update("first")) + frame(update("second"))).model == "first"


@pytest.mark.parametrize(
    "said",
    [
        frame(update(), bits=0x40),  # compressed
        frame(b"x" * 70_000, kind=2),
        frame(b'{"type": "other", "model": "m"}') * 3000,
    ],
)
def test_it_gives_up_where_there_is_nothing_to_hear(said: bytes) -> None:
    listener = heard(said)
    assert (listener.model, listener.done) == (None, True)


def test_a_name_without_bounds_is_cut() -> None:
    assert heard(frame(update("m" * 9000))).model == "m" * 256


@given(st.lists(st.binary(max_size=64), max_size=30))
def test_no_bytes_disturb_it(pieces: list[bytes]) -> None:
    listener = heard(*pieces)
    assert listener.model is None or listener.done
