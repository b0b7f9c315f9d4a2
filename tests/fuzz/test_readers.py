"""Requests and answers of any shape: no dialect's reader ever raises, and none takes long over its bytes."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admission.config import EstimatorConfig
from gateway.admission.estimator import Estimator
from gateway.dialects.usage import UsageFilter, ask_for_usage
from gateway.model import Access, Route, Shape
from tests.dialects.helpers import DIALECTS, cut
from tests.fuzz.effort import EFFORT

PATHS: Final = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank",
    "/v1/score", "/v1/audio/transcriptions", "/v1/audio/speech", "/v1/images/generations", "/v1/models", "/tokenize",
    "/generate", "/generate_stream", "/infer", "/infer_token", "/v2/models/m/infer", "/v2/models/m/generate",
    "/v2/models/m/generate_stream", "/", "/api/generate", "/api/chat", "/completion", "/infill", "/classify", "/encode",
    "/v1/chat/interactive", "/unknown",
)  # fmt: skip
KINDS: Final = (
    "", "application/json", "text/event-stream", "text/event-stream; charset=utf-8", "application/x-ndjson",
    "multipart/form-data; boundary=x", 'multipart/form-data; boundary="', "text/plain", "\x00",
    "application/json;" * 50,
)  # fmt: skip
WORDS: Final = (
    *("model", "messages", "prompt", "input", "inputs", "stream", "max_tokens", "max_completion_tokens", "n"),
    *("best_of", "role", "content", "text", "type", "image_url", "url", "choices", "delta", "usage"),
    *("prompt_tokens", "error", "code", "completion_tokens", "finish_reason", "parameters", "max_new_tokens"),
    *("data", "outputs", "name", "shape", "datatype", "token", "generated_text", "details", "event"),
    *("stop_reason", "message", "index", "logprobs", "tools", "response", "stream_options", "include_usage"),
    *("reasoning_content", "tool_calls", "function", "arguments", "done", "truncate"),
)

SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["user", "system", "data:image/png;base64,AAAA", "stop", "\ud800", "模型", "1e999", "0x1", "[DONE]"]
    )
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=20,
)
DOCUMENTS: Final = VALUES.map(lambda value: json.dumps(value).encode())
DEEP: Final = b'{"messages":' + b"[" * 100_000
FORMS: Final = st.lists(
    st.sampled_from([
        b"--x\r\n", b"--x--\r\n", b"\r\n", b'Content-Disposition: form-data; name="file"; filename="a"\r\n',
        b'Content-Disposition: form-data; name="model"\r\n', b"Content-Disposition: form-data; name=", b"\x00" * 9,
        b"stream", b"true", b"--", b"Content-Type: audio/wav\r\n", b'name="stream"\r\n\r\ntrue\r\n',
    ]), max_size=12,
).map(b"".join)  # fmt: skip
BODIES: Final = st.binary(max_size=200) | DOCUMENTS | FORMS | DOCUMENTS.map(lambda body: body[: len(body) // 2])
EVENTS: Final = st.lists(
    DOCUMENTS.map(lambda document: b"data: " + document + b"\n\n")
    | DOCUMENTS.map(lambda document: b"event: message_delta\ndata:" + document + b"\r\n\r\n")
    | DOCUMENTS.map(lambda document: document + b"\n")
    | st.sampled_from(
        [b"data: [DONE]\n\n", b": ping\n\n", b"\n", b"data", b"event: error\n", b"\xff\xfe", b"data: {\n\n"]
    )
    | st.binary(max_size=30),
    max_size=8,
).map(b"".join)
CUTS: Final = st.lists(st.integers(0, 300), max_size=6)


def shape_of(path: str, kind: str, body: bytes) -> tuple[Any, Shape]:
    dialect, route = DIALECTS.resolve("POST", path)
    return dialect, dialect.read_request(route, kind, body)


@given(st.sampled_from(PATHS), st.sampled_from(KINDS), BODIES)
@example("/v1/chat/completions", "application/json", DEEP)
@example("/v1/chat/completions", "application/json", b'{"max_tokens":' + b"9" * 5000 + b"}")
@EFFORT
def test_a_request_of_any_shape_is_read(path: str, kind: str, body: bytes) -> None:
    _, shape = shape_of(path, kind, body)
    assert shape.route.access in Access
    assert shape.prompt_bytes >= 0
    assert shape.choices >= 0
    work = Estimator(EstimatorConfig()).estimate(shape, "somebody")
    assert 0 <= work.prompt_tokens < 10**12
    assert 0 <= work.cost < float("inf")
    changed = ask_for_usage(shape.route, body)
    assert changed is None or json.loads(changed)["stream_options"] == {"include_usage": True}


@given(
    st.sampled_from(PATHS), st.sampled_from(KINDS), DOCUMENTS, st.sampled_from((200, 206, 400, 500)),
    st.sampled_from(KINDS), EVENTS, CUTS,
)  # fmt: skip
@EFFORT
def test_an_answer_of_any_shape_is_heard_however_it_is_cut(
    path: str, kind: str, body: bytes, status: int, answered: str, events: bytes, cuts: list[int]
) -> None:
    dialect, shape = shape_of(path, kind, body)
    totals = []
    for parts in ([events], cut(events, cuts)):
        reader = dialect.response_reader(shape, status, answered)
        output = sum(reader.feed(part) for part in parts) + reader.finish()
        assert isinstance(reader.between_events, bool)
        assert isinstance(reader.complete, bool)
        totals.append((output > 0, reader.usage, reader.fault, reader.complete))
    assert totals[0] == totals[1]


@given(EVENTS, CUTS)
@EFFORT
def test_what_is_taken_out_of_a_stream_is_whole_events_and_the_rest_is_as_it_came(
    events: bytes, cuts: list[int]
) -> None:
    whole, parts = UsageFilter(), UsageFilter()
    passed = whole.feed(events, ended=True)
    pieces = cut(events, cuts)
    assert b"".join([*(parts.feed(piece, ended=False) for piece in pieces), parts.feed(b"", ended=True)]) == passed
    if b'"usage"' not in events:
        assert passed == events


@given(st.text(max_size=40), st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "PATCH", "BREW"]))
@EFFORT
def test_any_target_has_a_route(target: str, method: str) -> None:
    dialect, route = DIALECTS.resolve(method, "/" + target)
    assert isinstance(route, Route)
    kind, body = dialect.failure(route, target, 502, "bad_gateway")
    assert kind
    assert body
    dialect.stream_failure(route, target, 502, "bad_gateway")


@pytest.mark.parametrize("path", PATHS)
def test_nesting_without_end_is_no_matter(path: str) -> None:
    for opening in (b"[", b'{"messages":[', b'{"a":', b'data: {"choices":['):
        dialect, shape = shape_of(path, "application/json", opening * 50_000)
        reader = dialect.response_reader(shape, 200, "text/event-stream")
        reader.feed(b"data: " + opening * 20_000 + b"\n\n")
        reader.finish()
