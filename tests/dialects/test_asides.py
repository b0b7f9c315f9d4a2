"""What benchmark clients count otherwise than the gateway: vLLM's of 0.32.0 more, that of 0.33.0 less."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import ResponseReader
from tests.dialects.helpers import capture, cut, pieces, reader, sse

CHAT = "/v1/chat/completions"
Counts = tuple[int, int, int]


def chunk(delta: dict[str, Any] | None, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return orjson.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def counted(listener: ResponseReader, data: Iterable[bytes]) -> Counts:
    """Output events, blanks, unheard."""
    output = blanks = unheard = 0
    for step in (*(lambda piece=piece: listener.feed(piece) for piece in data), listener.finish):
        output += step()
        more = listener.asides or (0, 0)
        blanks, unheard = blanks + more[0], unheard + more[1]
    return output, blanks, unheard


ROLE = {"role": "assistant", "content": ""}
DELTAS = [
    (ROLE, "blank"),
    ({"role": "assistant", "content": None}, "blank"),
    ({}, "blank"),
    ({"content": None}, "blank"),
    (None, "blank"),
    ({"content": ""}, "heard"),
    ({"content": "a"}, "heard"),
    ({"role": "assistant", "content": "a"}, "heard"),
    ({"reasoning": "a"}, "heard"),
    ({"reasoning": "a", "reasoning_content": "a"}, "heard"),
    ({"content": "", "reasoning_content": "a"}, "heard"),
    ({"content": None, "reasoning_content": "a", "tool_calls": [{"index": 0}]}, "heard"),
    ({"tool_calls": [{"index": 0}]}, "heard"),
    ({"function_call": {"name": "f"}}, "heard"),
    ({"reasoning_content": "a"}, "unheard"),
    ({"role": "assistant", "content": None, "reasoning_content": "a"}, "unheard"),
    ({"role": "assistant", "content": "", "reasoning_content": "a"}, "unheard"),
    ({"role": "assistant", "reasoning_content": "a", "tool_calls": []}, "unheard"),
    ({"refusal": "no"}, "unheard"),
    ({"audio": {"data": "UklG"}}, "unheard"),
    ({"role": None, "content": ""}, "unheard"),
]
KINDS = {orjson.dumps(delta): kind for delta, kind in DELTAS}
EXPECTED: dict[str, Counts] = {"blank": (0, 1, 0), "heard": (1, 0, 0), "unheard": (1, 0, 1)}


@pytest.mark.parametrize(("delta", "kind"), DELTAS)
@pytest.mark.parametrize("before", [None, *(delta for delta, _ in DELTAS if delta)])
def test_what_a_chunk_is_to_each_client(delta: dict[str, Any] | None, kind: str, before: dict[str, Any] | None) -> None:
    listener = reader(CHAT)
    listener.feed(sse(chunk(before)) if before else b"")
    assert counted(listener, [sse(chunk(delta))]) == EXPECTED[kind]


def test_a_bare_finish_reason_is_a_blank_and_usage_is_none() -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    stream = sse(chunk(ROLE), chunk({"content": "a"}), chunk({}, "stop"), usage, b"[DONE]")
    assert counted(reader(CHAT), [stream]) == (1, 2, 0)


def test_a_chunk_with_output_in_any_choice_is_output() -> None:
    choices = [{"index": 0, "delta": ROLE}, {"index": 1, "delta": {"reasoning_content": "a"}}, "no choice"]
    assert counted(reader(CHAT), [sse(orjson.dumps({"choices": choices}))]) == (1, 0, 1)
    assert counted(reader(CHAT), [sse(b'{"choices":["no choice"]}')]) == (0, 1, 0)


@given(st.lists(st.sampled_from([delta for delta, _ in DELTAS]), max_size=8), st.lists(st.integers(0, 900), max_size=6))
def test_any_pieces_of_a_stream_are_counted_alike(deltas: list[dict[str, Any] | None], at: list[int]) -> None:
    stream = sse(*map(chunk, deltas))
    kinds = [EXPECTED[KINDS[orjson.dumps(delta)]] for delta in deltas]
    expected = tuple(sum(kind[place] for kind in kinds) for place in range(3))
    assert counted(reader(CHAT), cut(stream, at)) == expected


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("llamacpp/chat_stream", CHAT, (6, 2, 0)),
        ("llamacpp/completion_stream", "/v1/completions", (7, 0, 0)),
        ("vllm/chat_stream_usage", CHAT, (6, 1, 0)),
    ],
)
def test_real_streams(name: str, path: str, expected: Counts, size: int) -> None:
    assert counted(reader(path), pieces(capture(name).body, size)) == expected


@pytest.mark.parametrize("path", ["/v1/messages", "/generate", "/v1/models"])
def test_streams_of_other_apis_have_none(path: str) -> None:
    assert counted(reader(path), [sse(chunk(ROLE))])[1:] == (0, 0)


def test_an_answer_that_is_no_stream_has_none() -> None:
    assert counted(reader(CHAT, content_type="application/json"), [chunk(ROLE)]) == (0, 0, 0)
