from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.media import audio_tokens, file_tokens, image_tokens, recording_tokens, video_tokens


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0"


def jpeg(width: int, height: int, *before: bytes) -> bytes:
    frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\x03"
    return b"\xff\xd8" + b"".join(before) + frame


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + body


EXIF = b"\xff\xe1" + struct.pack(">H", 30_002) + bytes(30_000)
LOSSLESS = webp(b"VP8L", b"\x2f" + struct.pack("<I", (561 - 1) | (281 - 1) << 14))
EXTENDED = webp(b"VP8X", bytes(4) + (559).to_bytes(3, "little") + (279).to_bytes(3, "little"))
LOSSY = webp(b"VP8 ", bytes(6) + struct.pack("<HH", 560 | 0x4000, 280))


@pytest.mark.parametrize(
    "picture",
    [
        png(560, 280),
        gif(560, 280),
        jpeg(560, 280),
        jpeg(560, 280, EXIF),
        jpeg(560, 280, b"\xff\xd0", b"\xff\xc4\0\x04ab"),
        LOSSLESS,
        EXTENDED,
        LOSSY,
    ],
    ids=["png", "gif", "jpeg", "jpeg exif", "jpeg tables", "webp lossless", "webp extended", "webp lossy"],
)
def test_a_picture_costs_a_token_for_each_28_pixels_squared(picture: bytes) -> None:
    assert image_tokens({"url": url(picture)}) == 200


@pytest.mark.parametrize(
    ("picture", "tokens"),
    [(png(1, 1), 4), (png(20_000, 20_000), 16_384), (png(2**32 - 1, 2**32 - 1), 16_384), (png(0, 0), 4)],
)
def test_the_tokens_of_a_picture_are_bounded(picture: bytes, tokens: int) -> None:
    assert image_tokens(url(picture)) == tokens


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        {},
        {"url": None},
        "https://example.com/a.png",
        "data:image/png",
        "data:image/png;base64,",
        "data:image/png;base64,\u6a21\u578b\u6a21\u578b",
        url(b"\x89PNG\r\n\x1a\n"),
        url(b"\xff\xd8\xff\xe1"),
        url(b"\xff\xd8\xff\xe1\xff\xff" + bytes(60_000)),
        url(b"\xff\xd8\0\0\0\0\0\0\0\0\0\0"),
        url(webp(b"ALPH", bytes(20))),
        url(b"BM" + bytes(50)),
        "A",
    ],
)
def test_a_picture_that_cannot_be_seen_has_a_prior(value: Any) -> None:
    assert image_tokens(value) == 1024


def wav(rate: int, *, before: bytes = b"") -> bytes:
    return b"RIFF\0\0\0\0WAVE" + before + b"fmt \x10\0\0\0\x01\0\x01\0" + struct.pack("<II", rate // 2, rate) + bytes(4)


@pytest.mark.parametrize(
    ("head", "size", "name", "tokens"),
    [
        (wav(32_000), 320_000, "a.wav", 130),
        (wav(88_200), 882_000, "", 130),
        (wav(32_000, before=b"JUNK\x04\0\0\0abcd"), 320_000, "a.wav", 130),
        (wav(0), 320_000, "a.wav", 130),
        (b"RIFF\0\0\0\0WAVE", 320_000, "a.WAV", 130),
        (b"RIFF\0\0\0\0AVI ", 160_000, "a.avi", 130),
        (b"ID3", 160_000, "a.mp3", 130),
        (b"", 320_000, "pcm16", 130),
        (b"", 0, "", 0),
        (wav(1), 10**9, "", 1_000_000),
    ],
)
def test_a_recording_costs_13_tokens_a_second(head: bytes, size: int, name: str, tokens: int) -> None:
    assert recording_tokens(head, size, name) == tokens


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"data": base64.b64encode(wav(32_000) + bytes(320_000 - 44)).decode(), "format": "wav"}, 130),
        ({"data": base64.b64encode(bytes(160_000)).decode(), "format": "mp3"}, 130),
        ({"url": url(wav(32_000) + bytes(320_000 - 44), "audio/wav")}, 130),
        ({"url": "https://example.com/a.wav"}, 390),
        ({"id": "audio_1"}, 390),
        (None, 390),
    ],
)
def test_audio_in_a_message(value: Any, tokens: int) -> None:
    assert audio_tokens(value) == pytest.approx(tokens, abs=1)


def test_video_and_files_have_priors() -> None:
    assert video_tokens({"url": "x"}) == 4096
    assert file_tokens(None) == 2048


@given(
    st.binary(max_size=200),
    st.sampled_from([png(1, 1)[:16], b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8L", b"RIFF1234WAVEfmt "]),
)
def test_any_header_is_read(data: bytes, head: bytes) -> None:
    assert 4 <= image_tokens(url(head + data)) <= 16_384
    assert 0 <= recording_tokens(head + data, len(data), "x") <= 1_000_000
