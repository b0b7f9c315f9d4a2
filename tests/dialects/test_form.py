from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.form import read_form
from gateway.model import Shape
from tests.dialects.helpers import resolve

WAV = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0" + struct.pack("<II", 16_000, 32_000) + bytes(8)


def field(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def file(content: bytes, name: str = "speech.wav") -> bytes:
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: audio/wav\r\n\r\n'
    return head.encode() + content


def form(*parts: bytes, boundary: str = "x") -> tuple[str, bytes]:
    body = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    return f"multipart/form-data; boundary={boundary}", body + b"--" + boundary.encode() + b"--\r\n"


def transcription(content_type: str, body: bytes) -> Shape:
    dialect, route = resolve("POST", "/v1/audio/transcriptions")
    return dialect.read_request(route, content_type, body)


@pytest.mark.parametrize("boundary", ["x", "----WebKitFormBoundary7MA4YWxkTrZu0gW", "'()+_,-./:=?", "0" * 70])
@pytest.mark.parametrize("seconds", [1, 10, 780])
@pytest.mark.parametrize("file_first", [True, False])
def test_P18_fields_and_length_are_read_around_a_file_of_any_size(
    boundary: str, seconds: int, file_first: bool
) -> None:
    recording = file(WAV + bytes(32_000 * seconds - len(WAV)))
    fields = [field("model", "qwen-asr"), field("stream", "true"), field("prompt", "模型"), field("user", "ann")]
    content_type, body = form(*([recording, *fields] if file_first else [*fields, recording]), boundary=boundary)
    shape = transcription(content_type, body)
    assert (shape.model, shape.stream, shape.user, shape.prompt_bytes) == ("qwen-asr", True, "ann", 6)
    assert shape.media_tokens == pytest.approx(13 * seconds, rel=0.01, abs=1)
    assert shape.generates


def test_a_boundary_that_is_not_text_is_read_as_the_bytes_it_is() -> None:
    content_type, body = form(field("model", "qwen-asr"), file(WAV), boundary="B")
    name = b"B\xff\x00".decode("utf-8", "surrogateescape")
    shape = transcription(content_type.replace("=B", f"={name}"), body.replace(b"--B", b"--B\xff\x00"))
    assert (shape.model, shape.media_tokens) == ("qwen-asr", 0)
    assert shape.generates


@pytest.mark.parametrize(
    ("value", "cap"),
    [("128", 128), ("", None), ("-1", None), ("1.5", None), ("٣", None), ("9" * 30, None), ("9" * 19, 10**9)],
)
def test_the_cap_of_a_transcription(value: str, cap: int | None) -> None:
    assert transcription(*form(field("max_completion_tokens", value))).max_output == cap


@pytest.mark.parametrize(
    ("value", "stream"), [("true", True), ("True", True), ("1", True), ("false", False), ("", False)]
)
def test_the_stream_flag_of_a_form(value: str, stream: bool) -> None:
    assert transcription(*form(field("stream", value))).stream is stream


def test_an_image_form_has_no_recording() -> None:
    dialect, route = resolve("POST", "/v1/images/edits")
    shape = dialect.read_request(route, *form(field("model", "m"), file(bytes(50_000), "a.png")))
    assert (shape.model, shape.media_tokens, shape.generates) == ("m", 0, False)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=", b""),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x"),
        ("multipart/form-data; boundary=x", b"--x\r\nno head end"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Type: text/plain\r\n\r\nno name\r\n--x--"),
        ("multipart/form-data; boundary=x", b"\0" * 300_000),
    ],
)
def test_what_is_no_form_has_no_fields(content_type: str, body: bytes) -> None:
    found = read_form(content_type, body)
    assert (found.fields, found.file_size) == ({}, 0)
    assert transcription(content_type, body).model is None


def test_quoted_boundaries_bare_names_and_encoded_file_names() -> None:
    body = (
        b"--a b\r\ncontent-disposition: form-data; NAME=model\r\n\r\nm\r\n"
        b"--a b\r\nContent-Disposition: form-data; name=file; filename*=UTF-8''%E6.wav\r\n\r\nabc\r\n--a b--\r\n"
    )
    found = read_form('Multipart/Form-Data; Boundary="a b"', body)
    assert found.fields == {"model": "m"}
    assert (found.file_name, found.file_head, found.file_size) == ("UTF-8''%E6.wav", b"abc\r\n", 5)


def test_a_form_cut_off_inside_its_file_counts_what_is_there() -> None:
    content_type, body = form(field("model", "m"), file(bytes(500_000)))
    found = read_form(content_type, body[:400_000])
    assert found.fields == {"model": "m"}
    assert found.file_size == pytest.approx(400_000, abs=300)


@given(st.binary(max_size=2000), st.text(max_size=50))
def test_any_form_is_read(body: bytes, content_type: str) -> None:
    transcription("multipart/form-data; boundary=x" + content_type, body.replace(b"\0", b"--x"))
    read_form(content_type, body)
