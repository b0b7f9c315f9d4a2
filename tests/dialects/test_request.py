from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.request import read_json
from gateway.model import Shape
from tests.dialects.helpers import CHAT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([
    "model", "messages", "prompt", "input", "inputs", "system", "tools", "max_tokens", "n", "best_of", "stream", "user",
    "metadata", "parameters", "query", "documents", "text_1", "text_2", "image_url", "content",
])  # fmt: skip


def read(**body: Any) -> Shape:
    return read_json(CHAT, orjson.dumps(body), generates=True)


@pytest.mark.parametrize(
    ("body", "truncates"),
    [
        ({}, False),
        ({"truncate_prompt_tokens": 100}, True),
        ({"truncate_prompt_tokens": -1}, True),
        ({"truncate_prompt_tokens": None}, False),
        ({"truncation": "auto"}, True),
        ({"truncation": "disabled"}, False),
        ({"truncate": True}, True),
        ({"truncate": "END"}, True),
        ({"truncate": "NONE"}, False),
        ({"parameters": {"truncate": 10}}, True),
        ({"parameters": [1], "truncate": [1]}, True),
    ],
)
def test_whether_the_engine_may_shorten_the_prompt(body: dict[str, Any], truncates: bool) -> None:
    assert read(prompt="x", **body).truncates is truncates


def test_a_batch_of_conversations_is_several_prompts() -> None:
    shape = read(messages=[[{"role": "user", "content": "ab"}], [{"role": "user", "content": "cd"}]], n=2)
    assert (shape.choices, shape.prompt_bytes) == (4, 4)


def test_a_chat_request_is_read_whole() -> None:
    shape = read(
        model="qwen",
        messages=[{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi"}],
        max_tokens=64,
        stream=True,
        user="ann",
    )
    assert shape == Shape(
        CHAT, model="qwen", stream=True, prompt_bytes=11, messages=2, max_output=64, user="ann", generates=True
    )


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"messages": [{"role": "user", "content": "模型"}]}, 6),
        ({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "abc"}, {"type": "text", "text": "de"}]}]}, 5),
        ({"messages": [{"role": "user", "content": "ab", "name": "bob"}]}, 2),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]}]}, 7),
        ({"messages": [{"role": "assistant", "content": "ab", "reasoning_content": "cde"}]}, 5),
        ({"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "42 C"}]}, 4),
        ({"messages": [{"role": "user", "content": {"text": "abc"}}]}, 3),
        ({"messages": "hello"}, 5),
        ({"messages": ["hello", 3, None]}, 5),
        ({"messages": []}, 0),
        ({"prompt": "hello"}, 5),
        ({"prompt": ["ab", "cde"]}, 5),
        ({"prompt": {"id": "pmpt_1", "variables": {"city": "Rome"}}}, 4),
        ({"prompt": "ab", "suffix": "cd"}, 4),
        ({"input": "hello", "instructions": "be kind"}, 12),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]}]}, 3),
        ({"input": ["ab", "cd"]}, 4),
        ({"system": [{"type": "text", "text": "abc"}], "messages": [{"role": "user", "content": "d"}]}, 4),
        ({"inputs": "hello", "parameters": {"max_new_tokens": 5}}, 5),
        ({"text_input": "hello"}, 5),
        ({"text": "hello", "sampling_params": {}}, 5),
        ({"text": {"format": {"type": "json_schema"}}, "input": "ab"}, 2),
        ({"query": "abc", "documents": ["de", {"text": "fg"}]}, 3 * 2 + 4),
        ({"query": "abc", "documents": []}, 3),
        ({"text_1": "abc", "text_2": ["d", "e", "f"]}, 3 * 3 + 3),
        ({"text_1": ["abc", "d"], "text_2": ["e", "f"]}, 6),
        ({"queries": "abc", "documents": "de"}, 5),
        ({"texts": ["abc", "d"]}, 4),
        ({"temperature": 1, "response_format": {"type": "text"}}, 0),
    ],
)  # fmt: skip
def test_prompt_bytes_are_those_of_the_decoded_strings(body: dict[str, Any], size: int) -> None:
    assert read(**body).prompt_bytes == size


def test_escapes_count_as_what_they_stand_for() -> None:
    escaped = rb'{"messages":[{"role":"user","content":"\u6a21\u578b\n"}]}'
    assert read_json(CHAT, escaped, generates=True).prompt_bytes == 7


def test_tools_count_as_the_json_that_a_template_makes_of_them() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    assert read(tools=tools).prompt_bytes == len(orjson.dumps(tools))
    assert read(tools=None).prompt_bytes == 0


@pytest.mark.parametrize(
    ("body", "tokens", "choices"),
    [
        ({"prompt": [1, 2, 3]}, 3, 1),
        ({"prompt": [[1, 2], [3, 4, 5]]}, 5, 2),
        ({"input": [7] * 1000}, 1000, 1),
        ({"input_ids": [1, 2]}, 2, 1),
        ({"input_id": [1, 2]}, 2, 1),
        ({"inputs": [{"name": "input0", "shape": [1, 3], "datatype": "UINT32", "data": [1, 2, 3]}]}, 3, 1),
        ({"inputs": [{"name": "input0", "shape": [1, 3]}]}, None, 1),
        ({"prompt": []}, None, 1),
        ({"prompt": "abc"}, None, 1),
        ({"prompt": ["abc", "def"], "n": 2}, None, 4),
        ({"prompt": "abc", "n": 2, "best_of": 5}, None, 5),
        ({"prompt": [1.5, 2]}, None, 2),
    ],
)
def test_token_ids_are_counted_exactly(body: dict[str, Any], tokens: int | None, choices: int) -> None:
    shape = read(**body)
    assert (shape.prompt_tokens, shape.choices) == (tokens, choices)


def test_token_ids_beside_text_are_not_lost() -> None:
    shape = read(prompt=[1] * 5000, suffix="x")
    assert (shape.prompt_tokens, shape.prompt_bytes, shape.media_tokens) == (None, 1, 5000)


@pytest.mark.parametrize(
    ("body", "cap"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 5, "max_tokens": 7}, 5),
        ({"max_output_tokens": 9}, 9),
        ({"n_predict": 9}, 9),
        ({"n_predict": -1}, None),
        ({"parameters": {"max_new_tokens": 20}}, 20),
        ({"parameters": {}}, None),
        ({"sampling_params": {"max_new_tokens": 21}}, 21),
        ({"options": {"num_predict": 22}}, 22),
        ({"options": {"num_predict": -1}}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": None}, None),
        ({"max_tokens": "7"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 7.0}, 7),
        ({"max_tokens": -3}, None),
        ({"max_tokens": 10**18}, 10**9),
        ({"max_tokens": 1e300}, 10**9),
    ],
)
def test_the_cap_on_output_is_read(body: dict[str, Any], cap: int | None) -> None:
    assert read(**body).max_output == cap


def test_numbers_beyond_64_bits_do_no_harm() -> None:
    shape = read_json(CHAT, b'{"max_tokens":' + b"9" * 400 + b',"n":1e999}', generates=True)
    assert shape.max_output in {None, 10**9}
    assert read(n=10**15).choices == 10_000
    assert read(n=0).choices == 1


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ({"user": "ann"}, "ann"),
        ({"safety_identifier": "bob"}, "bob"),
        ({"metadata": {"user_id": "eve"}}, "eve"),
        ({"metadata": "x", "user": ""}, None),
        ({"user": 7}, None),
        ({"user": "u" * 1000}, "u" * 256),
    ],
)
def test_the_user_is_read(body: dict[str, Any], user: str | None) -> None:
    assert read(**body).user == user


def test_names_from_outside_are_cut() -> None:
    assert read(model="m" * 1000).model == "m" * 256
    assert read(model=3).model is None
    assert read(stream="true").stream is False


PIXEL = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (56).to_bytes(4, "big") + (280).to_bytes(4, "big") + bytes(3000)
).decode()


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, 20),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}, 20),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}, 20),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, 1024),
        ({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}, 390),
        ({"type": "input_audio", "input_audio": {"data": "A" * 128_000, "format": "mp3"}}, 78),
        ({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}, 4096),
        ({"type": "file", "file": {"file_id": "file-1"}}, 2048),
    ],
)
def test_media_count_by_their_own_measure_and_not_as_text(part: dict[str, Any], tokens: int) -> None:
    shape = read(messages=[{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}])
    assert (shape.media_tokens, shape.prompt_bytes) == (tokens, 5)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 50, 0.0, 0.01),
        ("人工智能模型的推理服务需要限流。" * 50, 0.0, 0.01),
        ("def f(x, y):\n    return [x + y for _ in range(3)]\n" * 50, 0.0, 0.05),
        (base64.b64encode(bytes(range(256)) * 20).decode(), 1.0, 1.0),
        ("0123456789abcdef" * 100, 1.0, 1.0),
        ("3.1415 2.7182 1.4142 " * 100, 0.6, 0.9),
        ("1" * 63, 0.0, 0.0),
    ],
)
def test_digits_hex_and_base64_are_told_from_text(text: str, least: float, most: float) -> None:
    shape = read(messages=[{"role": "user", "content": text}])
    assert least <= shape.dense_bytes / shape.prompt_bytes <= most


@pytest.mark.parametrize(
    ("text", "signs", "wide"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 50, 1 / 45, 0.0),
        ("人工智能模型的推理服务需要限流。" * 50, 0.0, 1.0),
        ('{"a": [], "b": {}}\n' * 60, 13 / 19, 0.0),
        ("Grüße aus Köln! " * 40, 1 / 19, 0.75 * 6 / 19),  # two-byte characters count as three quarters
        ("half of it 一半是中文的" * 30, 0.0, 18 / 29),
    ],
)
def test_signs_and_wide_characters_are_told_from_letters(text: str, signs: float, wide: float) -> None:
    shape = read(messages=[{"role": "user", "content": text}])
    assert shape.sign_bytes / shape.prompt_bytes == pytest.approx(signs, abs=0.01)
    assert shape.wide_bytes / shape.prompt_bytes == pytest.approx(wide, abs=0.01)


def test_many_short_strings_are_judged_by_the_first_and_long_ones_always() -> None:
    words, digits = "The quick brown fox jumps over the lazy dog, again and once more today.", "0" * 8192
    shape = read(messages=[{"role": "user", "content": text} for text in [words] * 40 + [digits]])
    assert shape.dense_bytes > 0.75 * len(digits)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[1]", b'"text"', b"\xff", b"{}{}", b"[" * 5000, b'{"a":' * 5000]
)
def test_what_is_no_json_object_counts_by_its_size(body: bytes) -> None:
    assert read_json(CHAT, body, generates=True) == Shape(CHAT, prompt_bytes=len(body))


def test_a_large_body_that_cannot_be_read_counts_as_long_but_not_without_bound() -> None:
    assert read_json(CHAT, b"\0" * 10_000_000, generates=False) == Shape(CHAT, prompt_bytes=65_536, generates=False)


def test_tools_nested_deeper_than_can_be_written_are_walked() -> None:
    body = b'{"tools":' + b"[" * 400 + b'["deep enough"]' + b"]" * 400 + b"}"
    assert read_json(CHAT, body, generates=True).prompt_bytes == len("deep enough")


def test_a_body_of_too_many_values_counts_by_its_size() -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": [["x"]] * 150_000}]})
    assert read_json(CHAT, body, generates=True).prompt_bytes == len(body)


@given(st.binary())
def test_any_bytes_are_read(body: bytes) -> None:
    assert read_json(CHAT, body, generates=True).prompt_bytes >= 0


@given(st.dictionaries(FIELDS, JSON))
def test_any_json_is_read(body: dict[str, Any]) -> None:
    shape = read(**body)
    assert 0 <= shape.dense_bytes + shape.sign_bytes <= shape.prompt_bytes
    assert 0 <= shape.wide_bytes <= shape.prompt_bytes
    assert 1 <= shape.choices <= 10_000
    assert shape.max_output is None or 0 <= shape.max_output <= 10**9
    assert shape.media_tokens >= 0
    assert shape.messages >= 0


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(st.characters(codec="utf-8")))))
def test_the_bytes_of_a_conversation_are_those_of_its_texts(turns: list[tuple[str, str]]) -> None:
    strings = [{"role": role, "content": text} for role, text in turns]
    parts = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    for messages in (strings, parts):
        shape = read(messages=messages)
        assert shape.prompt_bytes == sum(len(text.encode()) for _, text in turns)
        assert shape.messages == len(turns)
