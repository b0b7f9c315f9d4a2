"""Engines' own APIs: transcripts of their answers, heard whole and in every pair of pieces.

llama.cpp's are a real server's. The others are made by hand from the engines' sources, byte for byte as these write.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Fault, ResponseReader
from gateway.dialects.registry import standard
from gateway.model import Usage
from tests.dialects.helpers import Capture, Heard, capture, cut, hear, pieces

Body = dict[str, Any]
KINDS = {"vllm_legacy": "vllm"}  # the others are named after their kind
INPUTS: Body = {"inputs": "a"}
PROMPT: Body = {"prompt": "a"}
TEXT: Body = {"text": "a"}
TRITON: Body = {"text_input": "a"}
TOKENS: Body = {"inputs": [{"datatype": "UINT32"}]}
STREAM: Body = {"stream": True}

# transcript, path, request, what is heard
REPLIES: list[tuple[str, str, Body, Heard]] = [
    ("mindie/chat_stream", "/v1/chat/completions", {"messages": []} | STREAM, Heard(5, Usage(9, 5, 4), None, True)),
    ("mindie/tgi_stream", "/generate_stream", INPUTS, Heard(5, Usage(9, 5), None, True)),
    ("mindie/tgi_whole", "/generate", INPUTS, Heard(0, Usage(9, 5), None, True)),
    ("mindie/root_whole", "/", INPUTS, Heard(0, Usage(9, 5), None, True)),
    ("mindie/vllm_stream", "/generate", PROMPT | STREAM, Heard(5, None, None, True)),
    ("mindie/vllm_whole", "/generate", PROMPT, Heard(0, None, None, True)),
    ("mindie/infer_stream", "/infer", INPUTS | STREAM, Heard(5, Usage(None, 5), None, True)),
    ("mindie/infer_whole", "/infer_token", {"input_id": [1]}, Heard(0, Usage(None, 5), None, True)),
    ("mindie/triton_stream", "/v2/models/m/generate_stream", TRITON, Heard(5, Usage(None, 5), None, True)),
    ("mindie/triton_whole", "/v2/models/m/generate", TRITON, Heard(0, Usage(None, 5), None, True)),
    ("mindie/triton_tokens", "/v2/models/m/infer", TOKENS, Heard(0, None, None, True)),
    ("mindie/timeout_first", "/generate_stream", INPUTS, Heard(0, None, Fault.FAILED, False)),
    ("mindie/timeout_later", "/generate_stream", INPUTS, Heard(2, None, Fault.FAILED, False)),
    ("mindie/failed_later", "/generate", PROMPT | STREAM, Heard(2, None, Fault.FAILED, False)),
    ("mindie/timeout_whole", "/infer", INPUTS, Heard(0, None, None, True)),  # the status says it
    ("tgi/stream", "/generate_stream", INPUTS, Heard(5, Usage(9, 5), None, True)),
    ("tgi/whole", "/generate", INPUTS, Heard(0, Usage(None, 5), None, True)),
    ("tgi/overloaded_stream", "/generate_stream", INPUTS, Heard(0, None, Fault.BUSY, False)),
    ("tgi/overloaded", "/generate", INPUTS, Heard(0, None, None, True)),
    ("tgi/failed_later", "/generate_stream", INPUTS, Heard(2, None, Fault.FAILED, False)),
    ("sglang/stream", "/generate", TEXT | STREAM, Heard(5, Usage(9, 5, 4), None, True)),
    ("sglang/whole", "/generate", TEXT, Heard(0, Usage(9, 5, 4), None, True)),
    ("sglang/full_stream", "/generate", TEXT | STREAM, Heard(0, None, Fault.BUSY, False)),
    ("sglang/aborted_stream", "/generate", TEXT | STREAM, Heard(1, Usage(9, 1, 4), Fault.FAILED, False)),
    ("sglang/error_stream", "/generate", TEXT | STREAM, Heard(0, None, Fault.FAILED, False)),
    ("sglang/ollama_chat", "/api/chat", {"messages": []}, Heard(5, None, None, True)),
    ("sglang/ollama_whole", "/api/generate", PROMPT | {"stream": False}, Heard(0, Usage(9, 5), None, True)),
    ("lmdeploy/stream", "/generate", PROMPT | STREAM, Heard(5, Usage(9, 5), None, True)),
    ("lmdeploy/whole", "/generate", PROMPT, Heard(0, Usage(9, 5), None, True)),
    ("triton/stream", "/v2/models/m/generate_stream", TRITON, Heard(5, None, None, True)),
    ("triton/failed_later", "/v2/models/m/generate_stream", TRITON, Heard(1, None, Fault.FAILED, False)),
    ("triton/whole", "/v2/models/m/generate", TRITON, Heard(0, None, None, True)),
    ("vllm_legacy/stream_nul", "/generate", PROMPT | STREAM, Heard(5, None, None, True)),
    ("vllm_legacy/stream_lines", "/generate", PROMPT | STREAM, Heard(5, None, None, True)),
    ("vllm_legacy/whole", "/generate", PROMPT, Heard(0, None, None, True)),
    ("llamacpp/native_stream", "/completion", PROMPT | STREAM, Heard(6, Usage(16, 6, 0), None, True)),
    ("llamacpp/native_nonstream", "/completion", PROMPT, Heard(0, Usage(16, 6, 0), None, True)),
    ("llamacpp/native_batch", "/completion", {"prompt": ["a", "b"]}, Heard(0, Usage(16, 6, 0), None, True)),
]  # fmt: skip
QUESTION = ("name", "path", "body")


@cache
def transcript(name: str) -> Capture:
    return capture(name)


def reader(name: str, path: str, body: Body) -> ResponseReader:
    dialects = standard()
    folder = name.partition("/")[0]
    dialects.prefer({KINDS.get(folder, folder)})
    dialect, route = dialects.resolve("POST", path)
    shape = dialect.read_request(route, "application/json", orjson.dumps(body))
    reply = transcript(name)
    return dialect.response_reader(shape, reply.status, reply.content_type)


@pytest.mark.parametrize((*QUESTION, "heard"), REPLIES, ids=[row[0] for row in REPLIES])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_answers_are_heard(name: str, path: str, body: Body, heard: Heard, step: int) -> None:
    assert hear(reader(name, path, body), pieces(transcript(name).body, step)) == heard


STREAMED = [row for row in REPLIES if row[3].output > 0 or "stream" in row[0]]


@pytest.mark.parametrize((*QUESTION, "heard"), STREAMED, ids=[row[0] for row in STREAMED])
def test_P30_P31_every_split_of_a_stream_is_heard_alike(name: str, path: str, body: Body, heard: Heard) -> None:
    stream = transcript(name).body
    for at in range(1, min(len(stream), 900)):
        assert hear(reader(name, path, body), cut(stream, [at])) == heard


@given(st.sampled_from(STREAMED), st.lists(st.integers(0, 4000), max_size=12))
def test_any_split_of_a_stream_is_heard_alike(row: tuple[str, str, Body, Heard], at: list[int]) -> None:
    name, path, body, heard = row
    assert hear(reader(name, path, body), cut(transcript(row[0]).body, at)) == heard


@given(st.sampled_from(STREAMED), st.integers(0, 4000))
def test_a_stream_that_breaks_off_is_not_whole_where_its_end_is_marked(
    row: tuple[str, str, Body, Heard], at: int
) -> None:
    name, path, body, heard = row
    stream = transcript(row[0]).body
    marked = any(mark in stream for mark in (b"[DONE]", b'"generated_text":"', b'"done":true', b'"stop":true'))
    broken = hear(reader(name, path, body), [stream[: min(at, len(stream) // 2)]])
    assert broken.output <= heard.output + 1
    assert not (marked and broken.complete)


def test_llamacpp_s_pings_are_no_output() -> None:
    row = next(row for row in REPLIES if row[0] == "llamacpp/native_stream")
    name, path, body, heard = row
    stream = b":\n\n" * 3 + transcript(row[0]).body.replace(b"\n\n", b"\n\n:\n\n")
    assert hear(reader(name, path, body), pieces(stream, 5)) == heard


@pytest.mark.parametrize(
    ("last", "usage"),
    [
        (b'{"content":"","stop":true,"tokens_evaluated":7,"tokens_predicted":2}', Usage(7, 2, None)),
        (b'{"content":"","stop":true,"timings":{"prompt_n":3,"cache_n":4,"predicted_n":2}}', Usage(7, 2, 4)),
        (b'{"content":"","stop":true}', None),
    ],
)
def test_llamacpp_s_counts_old_and_new(last: bytes, usage: Usage | None) -> None:
    dialect, route = standard().resolve("POST", "/completion")
    shape = dialect.read_request(route, "application/json", b'{"prompt":"a","stream":true}')
    listener = dialect.response_reader(shape, 200, "text/event-stream")
    assert hear(listener, [b'data: {"content":"a","stop":false}\n\ndata: ' + last + b"\n\n"]) == Heard(
        1, usage, None, True
    )


def test_an_ollama_item_may_lack_counts_of_its_own() -> None:
    dialect, route = standard().resolve("POST", "/api/generate")
    shape = dialect.read_request(route, "application/json", b'{"prompt":"a"}')
    listener = dialect.response_reader(shape, 200, "application/x-ndjson")
    stream = b'{"response":"a","done":false}\n{"response":"","done":true,"eval_count":1}\n'
    assert hear(listener, [stream]) == Heard(1, Usage(None, 1), None, True)


@pytest.mark.parametrize(
    ("finish", "fault"),
    [
        ({"type": "abort", "message": "Request waiting timeout reached.", "status_code": 503}, Fault.BUSY),
        ({"type": "abort", "message": "The request queue is full."}, Fault.BUSY),
        ({"type": "abort", "message": "died", "status_code": 500}, Fault.FAILED),
        ({"type": "abort"}, Fault.FAILED),
        ({"type": "stop", "matched": "abort"}, None),
        ("abort", None),
    ],
)
def test_sglang_s_aborts(finish: object, fault: Fault | None) -> None:
    dialect, route = standard().resolve("POST", "/generate")
    shape = dialect.read_request(route, "application/json", b'{"text":"a","stream":true}')
    listener = dialect.response_reader(shape, 200, "text/event-stream")
    item = orjson.dumps({"text": "", "meta_info": {"finish_reason": finish}})
    assert hear(listener, [b"data: " + item + b"\n\n"]).fault is fault


def test_answers_to_what_is_nobody_s_are_heard_as_unknown_ones() -> None:
    dialect, route = standard().resolve("POST", "/generate")
    shape = dialect.read_request(route, "application/json", b'{"question":"a","stream":true}')
    listener = dialect.response_reader(shape, 200, "text/event-stream")
    assert hear(listener, [b'data: {"answer":"a"}\n\n']) == Heard(1, None, None, True)
