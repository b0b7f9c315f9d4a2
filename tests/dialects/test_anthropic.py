from __future__ import annotations

import orjson
import pytest

from gateway.dialects.base import Fault
from gateway.model import Access, Route, Shape, Usage
from tests.dialects.helpers import Heard, hear, pieces, reader, refusal, resolve, sse

MESSAGES = "/v1/messages"
START = (
    b'{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":20,"output_tokens":1}}}'
)
TEXT = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}'
THINKING = b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a"}}'
SIGNATURE = b'{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"abc"}}'
DELTA = b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}'
STOP = b'{"type":"message_stop"}'


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/messages", Route("messages", Access.ADMIT)),
        ("POST", "/anthropic/v1/messages?beta=true", Route("messages", Access.ADMIT)),
        ("POST", "/v1/messages/count_tokens", Route("count_tokens", Access.BYPASS)),
        ("GET", "/v1/messages", Route("other", Access.BYPASS)),
        ("POST", "/v1/messages/batches", Route("other", Access.ADMIT)),
    ],
)
def test_routes(method: str, path: str, route: Route) -> None:
    assert resolve(method, path)[1] == route


def test_a_request_is_read_whole() -> None:
    dialect, route = resolve("POST", MESSAGES)
    body = {
        "model": "claude",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"q": "abc"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "def"}]},
        ],
        "stream": True,
        "metadata": {"user_id": "ann"},
    }
    shape = dialect.read_request(route, "application/json", orjson.dumps(body))
    assert shape == Shape(
        route, model="claude", stream=True, prompt_bytes=16, messages=4, max_output=100, user="ann", generates=True
    )


def test_a_stream_is_heard() -> None:
    stream = sse(START, b'{"type":"ping"}', TEXT, THINKING, SIGNATURE, DELTA, STOP)
    for step in (1, 50, len(stream)):
        assert hear(reader(MESSAGES), pieces(stream, step)) == Heard(2, Usage(25, 7, 20), None, True)


def test_spaces_in_the_json_change_nothing() -> None:
    spaced = [payload.replace(b":", b": ") for payload in (START, TEXT, SIGNATURE, DELTA, STOP)]
    assert hear(reader(MESSAGES), [sse(*spaced)]) == Heard(1, Usage(25, 7, 20), None, True)


def test_counts_that_the_last_event_repeats_win() -> None:
    last = b'{"type":"message_delta","usage":{"input_tokens":9,"cache_read_input_tokens":1,"output_tokens":3}}'
    assert hear(reader(MESSAGES), [sse(START, last)]).usage == Usage(10, 3, 1)
    assert hear(reader(MESSAGES), [sse(last, DELTA)]).usage == Usage(10, 7, 1)
    assert hear(reader(MESSAGES), [sse(DELTA, b'{"usage":{"input_tokens":4}}')]).usage == Usage(4, 7, None)


def test_an_event_too_long_to_keep_still_tells_its_counts() -> None:
    middle = b'"x":"' + b"a" * 100_000 + b'","y":[1' + b",1" * 60_000 + b"]"
    long = START[:-1] + b"," + middle + b',"usage":{"input_tokens":3,"output_tokens":4}}'
    assert hear(reader(MESSAGES), [sse(long)]).usage == Usage(3, 4, None)


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', Fault.BUSY),
        (b'{"type":"error","error":{"type":"rate_limit_error","message":"x"}}', Fault.BUSY),
        (b'{"type":"error","error":{"type":"Service Unavailable","message":"currently busy"}}', Fault.BUSY),
        (b'{"type":"error","error":{"type":"api_error","message":"Internal"}}', Fault.FAILED),
    ],
)
def test_P28_errors_in_the_stream_are_heard(payload: bytes, fault: Fault) -> None:
    assert hear(reader(MESSAGES), [sse(START, TEXT, payload)]) == Heard(1, Usage(25, 1, 20), fault, False)
    assert hear(reader(MESSAGES), [sse(payload, b'{"type":"ping"}')]).fault is fault


def test_bare_text_at_the_end_is_an_error_unless_the_message_stopped() -> None:
    assert hear(reader(MESSAGES), [sse(TEXT) + b"gone"]).fault is Fault.FAILED
    assert hear(reader(MESSAGES), [sse(TEXT, STOP) + b"gone"]).fault is None
    assert (
        hear(reader(MESSAGES), [sse(b'{"type":"error","error":{"type":"overloaded_error"}}') + b"x"]).fault
        is Fault.BUSY
    )


def test_it_says_whether_an_event_is_open() -> None:
    listener = reader(MESSAGES)
    listener.feed(sse(TEXT))
    assert listener.between_events
    listener.feed(b"event: con")
    assert not listener.between_events


def test_counting_tokens_is_not_listened_to() -> None:
    dialect, route = resolve("POST", "/v1/messages/count_tokens")
    assert hear(dialect.response_reader(Shape(route), 200, "application/json"), [b'{"input_tokens":5}']).usage is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (403, "permission_error"),
        (413, "request_too_large"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_anthropic_s_shape(status: int, kind: str) -> None:
    dialect, route = resolve("POST", MESSAGES)
    shape = {"type": "error", "error": {"type": kind, "message": "Busy."}}
    for content_type, body in (
        dialect.rejection(route, refusal(route), "Busy.", status),
        dialect.failure(route, "Busy.", status, "why"),
    ):
        assert content_type == "application/json"
        assert orjson.loads(body) == shape
    event = dialect.stream_failure(route, "Busy.", status, "why")
    assert event.startswith(b"event: error\ndata: ")
    assert orjson.loads(event.partition(b"data: ")[2]) == shape
