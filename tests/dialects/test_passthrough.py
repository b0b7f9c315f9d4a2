from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Fault
from gateway.model import Access, Route, Shape, Usage
from tests.dialects.helpers import Heard, cut, hear, pieces, reader, refusal, resolve, sse

GENERATE = "/generate"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "PROPFIND"])
def test_unknown_paths_are_work(method: str) -> None:
    assert resolve(method, "/v2/models/qwen/generate")[1] == Route("other", Access.ADMIT)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "TRACE"])
def test_unknown_paths_without_a_body_are_none(method: str) -> None:
    assert resolve(method, "/whatever")[1] == Route("other", Access.BYPASS)


def test_native_requests_are_measured_by_their_fields() -> None:
    dialect, route = resolve("POST", "/infer")
    body = orjson.dumps({"inputs": "hello", "parameters": {"max_new_tokens": 20}, "stream": True})
    shape = dialect.read_request(route, "application/json", body)
    assert shape == Shape(route, stream=True, prompt_bytes=5, max_output=20, generates=True)


TGI = sse(
    b'{"token":{"text":"a"},"generated_text":null,"details":null}',
    b'{"token":{"text":"b"},"generated_text":"ab","details":{"generated_tokens":2,"input_length":9}}',
)
SGLANG = sse(
    b'{"text":"a","meta_info":{"prompt_tokens":9,"completion_tokens":1,"cached_tokens":4}}',
    b'{"text":"ab","meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":4}}',
    b"[DONE]",
)
MINDIE = b'{"text":["a"]}\0{"text":["ab"]}\0'
TRITON = b'data:{"text_output":"a"}\n\ndata:{"text_output":"b"}\n\n'
OLLAMA = b'{"response":"a","done":false}\n{"response":"b","done":true}\n'


@pytest.mark.parametrize(
    ("stream", "content_type", "usage"),
    [
        (TGI, "text/event-stream", Usage(9, 2, None)),
        (SGLANG, "text/event-stream", Usage(9, 2, 4)),
        (MINDIE, "text/event-stream", None),
        (MINDIE.replace(b"\0", b"\n"), "text/event-stream", None),
        (MINDIE.replace(b"\0", b"\0\n"), "", None),
        (MINDIE[:-1], "text/event-stream", None),
        (TRITON, "text/event-stream", None),
        (OLLAMA, "application/x-ndjson", None),
        (b"\n" + OLLAMA[:-1], "application/x-ndjson", None),
    ],
)
@pytest.mark.parametrize("step", [1, 5, 1000])
def test_streams_of_native_routes_count_item_by_item(
    stream: bytes, content_type: str, usage: Usage | None, step: int
) -> None:
    assert hear(reader(GENERATE, 200, content_type), pieces(stream, step)) == Heard(2, usage, None, True)


def test_the_counts_of_the_last_delimited_item_are_read() -> None:
    items = b'{"x":1}\n{"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    assert hear(reader(GENERATE), [items]).usage == Usage(3, 4, None)
    assert hear(reader(GENERATE), [items + b"\0\n"]).usage == Usage(3, 4, None)


@pytest.mark.parametrize(
    ("stream", "heard"),
    [
        (b"", Heard(0, None, None, False)),
        (sse(b'{"error":{"message":"The request queue is full.","code":503}}'), Heard(0, None, Fault.BUSY, False)),
        (sse(b'{"text":"a"}', b'{"error":"died","error_type":"generation"}'), Heard(1, None, Fault.FAILED, False)),
        (sse(b'{"text":"\\"error\\" is a word"}', b'{"says":"error"}'), Heard(2, None, None, True)),
        (sse(b'"error" no json'), Heard(1, None, None, True)),
        (sse(b'{"text":"a"}') + b"Engine callback timeout: 600", Heard(1, None, Fault.FAILED, False)),
        (b"Too many requests", Heard(0, None, Fault.BUSY, False)),
    ],
)
def test_P28_errors_and_ends_of_unknown_streams(stream: bytes, heard: Heard) -> None:
    assert hear(reader(GENERATE), [stream]) == heard
    assert hear(reader(GENERATE), pieces(stream, 4)) == heard


def test_it_says_whether_an_event_may_be_added() -> None:
    def between(stream: bytes) -> bool:
        listener = reader(GENERATE)
        listener.feed(stream)
        return listener.between_events

    assert between(TRITON)
    assert not between(TRITON[:-1])
    assert not between(MINDIE)
    assert not between(b"")


def test_whole_bodies_and_cheap_replies() -> None:
    dialect, route = resolve("POST", GENERATE)
    body = b'{"generated_text":"ab","details":{"generated_tokens":2}}'
    assert hear(dialect.response_reader(Shape(route), 200, "application/json"), [body]).usage == Usage(None, 2, None)
    dialect, route = resolve("GET", "/info")
    assert hear(dialect.response_reader(Shape(route), 200, "application/json"), [body]).usage is None


def test_refusals_have_openai_s_shape() -> None:
    dialect, route = resolve("POST", GENERATE)
    _, body = dialect.rejection(route, refusal(route), "Busy.", 429)
    assert orjson.loads(body)["error"]["code"] == "slow_down"


@given(
    st.lists(st.sampled_from([b"{", b"}", b"\0", b"\n", b'"a"', b" ", b"data: ", b"\r\n"])).map(b"".join),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_any_items_in_any_pieces_are_heard_alike(stream: bytes, at: list[int]) -> None:
    assert hear(reader(GENERATE), cut(stream, at)) == hear(reader(GENERATE), [stream])
