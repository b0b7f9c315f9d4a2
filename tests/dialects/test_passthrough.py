from __future__ import annotations

import orjson
import pytest

from gateway.model import Access, Route, Shape, Usage
from tests.dialects.helpers import Heard, hear, pieces, reader, refusal, resolve, sse

UNKNOWN = "/some/new/route"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "PROPFIND"])
def test_unknown_paths_are_work(method: str) -> None:
    assert resolve(method, UNKNOWN)[1] == Route("other", Access.ADMIT)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "TRACE"])
def test_unknown_paths_without_a_body_are_none(method: str) -> None:
    assert resolve(method, UNKNOWN)[1] == Route("other", Access.BYPASS)


def test_unknown_requests_are_measured_by_their_fields() -> None:
    dialect, route = resolve("POST", UNKNOWN)
    body = orjson.dumps({"inputs": "hello", "parameters": {"max_new_tokens": 20}, "stream": True})
    shape = dialect.read_request(route, "application/json", body)
    assert shape == Shape(route, stream=True, prompt_bytes=5, max_output=20, generates=True)


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (sse(b'{"a":1}', b'{"usage":{"prompt_tokens":9}}', b"[DONE]"), Usage(9)),
        (b'{"a":1}\0{"b":2}\0', None),
    ],
)
@pytest.mark.parametrize("step", [1, 5, 1000])
def test_streams_count_item_by_item(stream: bytes, usage: Usage | None, step: int) -> None:
    assert hear(reader(UNKNOWN), pieces(stream, step)) == Heard(2, usage, None, True)


def test_whole_bodies_and_cheap_replies() -> None:
    dialect, route = resolve("POST", UNKNOWN)
    body = b'{"generated_text":"ab","details":{"generated_tokens":2}}'
    assert hear(dialect.response_reader(Shape(route), 200, "application/json"), [body]).usage == Usage(None, 2, None)
    dialect, route = resolve("GET", "/info")
    assert hear(dialect.response_reader(Shape(route), 200, "application/json"), [body]).usage is None


def test_refusals_have_openai_s_shape() -> None:
    dialect, route = resolve("POST", UNKNOWN)
    _, body = dialect.rejection(route, refusal(route), "Busy.", 429)
    assert orjson.loads(body)["error"]["code"] == "slow_down"
    assert orjson.loads(dialect.failure(route, "Gone.", 502, "bad_gateway")[1])["error"]["code"] == "bad_gateway"
    assert dialect.stream_failure(route, "Gone.", 502, "bad_gateway").startswith(b'data: {"error"')
