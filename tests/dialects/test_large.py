"""Large bodies are made small before they are parsed, in steps, and nothing that counts gets lost on the way."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import large
from gateway.dialects.large import Condensed, condensed
from gateway.dialects.registry import standard
from gateway.dialects.usage import ask_for_usage
from gateway.model import Shape

MIB: Final = 2**20
DIALECT, ROUTE = standard().resolve("POST", "/v1/chat/completions")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_WHOLE", MIB)


def made(body: bytes) -> tuple[Condensed, int]:
    """What stands for ``body``, and after how many pauses."""
    steps, pauses = condensed(body), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


def both(document: dict[str, Any], route: str = "/v1/chat/completions") -> tuple[Shape, Shape, Condensed]:
    """The shape as it is found, and as a parser of the whole body would find it."""
    dialect, found = standard().resolve("POST", route)
    body = json.dumps(document).encode()
    whole, _ = made(body)
    shape = whole.restored(dialect.read_request(found, "application/json", whole.body))
    return shape, dialect.read_request(found, "application/json", body), whole


def chat(content: object, **more: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "model": "m", "stream": True, "max_tokens": 7, "user": "u", **more}


def same(found: Shape, expected: Shape) -> None:
    for name in ("route", "model", "stream", "messages", "max_output", "choices", "generates", "user", "truncates"):
        assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize(
    "text",
    ["words and words ", 'a "quoted" one\\ \n', "中文字", "\U0001f600", "0123456789abcdef", "\\\\", '\\"', "é\x01"],
)
def test_a_long_text_counts_as_if_it_was_read(text: str) -> None:
    content = "x" + text * (2 * MIB // len(text.encode()))
    found, expected, whole = both(chat(content))
    same(found, expected)
    assert len(whole.body) < 1.1 * MIB
    assert found.prompt_bytes == expected.prompt_bytes == len(content.encode())
    for name in ("dense_bytes", "sign_bytes", "wide_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=0.03, abs=9), name


def test_a_picture_costs_what_its_head_says() -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (1000).to_bytes(4, "big") + (2000).to_bytes(4, "big")
    url = "data:image/png;base64," + base64.b64encode(png + bytes(2 * MIB)).decode()
    found, expected, _ = both(
        chat([{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}])
    )
    assert found == expected
    assert found.media_tokens > 2000


@pytest.mark.parametrize("wav", [True, False])
def test_a_recording_costs_what_its_length_says(wav: bool) -> None:
    head = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    data = base64.b64encode((head if wav else b"\xff\xfb\x90\0") + bytes(3 * MIB)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav" if wav else "mp3"}}
    found, expected, _ = both(chat([part]))
    assert found.media_tokens == pytest.approx(expected.media_tokens, rel=0.01, abs=2)
    assert expected.media_tokens > 1000
    assert found.prompt_bytes == expected.prompt_bytes == 0


@pytest.mark.parametrize("prompt", [list(range(300_000)), [list(range(1000, 1500))] * 300])
def test_token_ids_are_counted(prompt: list[Any]) -> None:
    found, expected, whole = both({"model": "m", "prompt": prompt}, "/v1/completions")
    assert found == expected
    assert len(whole.body) < large.LARGE


def test_many_long_texts_are_held_to_a_bound() -> None:
    messages = [{"role": "user", "content": "long " * 20_000}] * 200
    found, expected, whole = both({**chat("x"), "messages": messages})
    same(found, expected)
    assert found.prompt_bytes == pytest.approx(expected.prompt_bytes, rel=0.01)
    assert len(whole.body) < 6 * MIB


@pytest.mark.parametrize(
    "inside", [b"[]", b"{}", b'"a"', b"1.5", b'{"a":1}', b"[" * 50 + b"]" * 50], ids=lambda inside: inside[:8]
)
@pytest.mark.parametrize("around", [b'{"model":"m","x":[%b]}', b"[%b]", b'"%b"', b'{"model":"m","x":"%b'])
def test_what_is_large_by_many_small_things_is_not_parsed(inside: bytes, around: bytes) -> None:
    body = around % b",".join([inside] * (MIB // len(inside)))
    whole, pauses = made(body)
    assert len(whole.body) < 128 * 1024
    assert pauses <= 4 + large._STRINGS // large._STRINGS_STEP
    if not whole.body:
        shape = whole.restored(DIALECT.read_request(ROUTE, "application/json", whole.body))
        assert (shape.model, shape.stream, shape.prompt_bytes) == (None, False, len(body))
        assert ask_for_usage(ROUTE, body, whole.body) is None


def test_others_get_their_turn() -> None:
    _, pauses = made(json.dumps({"model": "m", "prompt": list(range(1_000_000))}).encode())
    assert pauses >= 6 * MIB // large._STEP
    _, pauses = made(json.dumps(chat("\"'" * 100_000)).encode())
    assert pauses >= 100


def test_a_form_is_left_as_it_is() -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n' + bytes(MIB)
    assert made(body)[0].body is body


def test_the_option_is_put_into_the_whole_body_and_not_into_a_huge_one() -> None:
    body = json.dumps(chat("x" * 2 * MIB)).encode()
    asking = ask_for_usage(ROUTE, body, made(body)[0].body)
    assert asking is not None
    assert orjson.loads(asking) == {**orjson.loads(body), "stream_options": {"include_usage": True}}
    body = json.dumps(chat("x" * 9 * MIB)).encode()
    assert ask_for_usage(ROUTE, body, made(body)[0].body) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.text(max_size=300)
    | st.text('\\"u\U0001f600d', max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=1), inner, max_size=5),
    max_leaves=20,
)


def alike(small: Any, whole: Any) -> bool:
    """Whether ``small`` is ``whole`` with long strings cut."""
    if isinstance(whole, str):
        return isinstance(small, str) and whole.startswith(small) and (small == whole or len(json.dumps(whole)) > 24)
    if isinstance(whole, dict):
        return isinstance(small, dict) and [*small] == [*whole] and all(alike(small[k], whole[k]) for k in whole)
    if isinstance(whole, list):
        return isinstance(small, list) and len(small) == len(whole) and all(map(alike, small, whole))
    return bool(small == whole)


@given(st.dictionaries(st.text(max_size=1), VALUES, max_size=6), st.booleans(), st.integers(24, 80))
def test_what_is_left_is_json_of_the_same_form(document: dict[str, Any], ascii_only: bool, room: int) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "_WHOLE", room)
        small = made(body)[0].body
    assert alike(orjson.loads(small), orjson.loads(body))


PIECES = st.sampled_from([
    b'"', b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b'"data":"', b'"url":"data:image/png;base64,', b"\\ud83d",
    b"\\u0041", "é".encode(), b"\xff", b"1,2," * 100, b"x" * 50, b" ", b"\0",
])  # fmt: skip


@given(st.lists(PIECES, max_size=60).map(b"".join), st.integers(8, 80))
def test_no_bytes_are_too_odd(rest: bytes, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "_WHOLE", room)
        patch.setattr(large, "_STEP", 64)
        whole, _ = made(b"{" + rest)
    shape = whole.restored(DIALECT.read_request(ROUTE, "application/json", whole.body))
    assert 0 <= shape.prompt_bytes <= 2 * (len(rest) + 1)
