from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Fault
from gateway.model import Access, Route, Shape, Usage
from tests.dialects.helpers import Heard, capture, cut, hear, pieces, reader, refusal, resolve, sse

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CUTS = st.lists(st.integers(0, 4000), max_size=12)


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return orjson.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more})


# ------------------------------------------------------------------------------------------------------- routes


@pytest.mark.parametrize(
    ("method", "path", "label", "access"),
    [
        ("POST", "/v1/chat/completions", "chat", Access.ADMIT),
        ("POST", "/v1-openai/chat/completions", "chat", Access.ADMIT),
        ("POST", "/chat/completions", "chat", Access.ADMIT),
        ("POST", "/model/proxy/3/v1/chat/completions", "chat", Access.ADMIT),
        ("POST", "//v1//chat/./completions/?x=1", "chat", Access.ADMIT),
        ("POST", "/v1/chat/completions/batch", "chat", Access.ADMIT),
        ("POST", "/v1/completions", "completions", Access.ADMIT),
        ("POST", "/v1/responses", "responses", Access.ADMIT),
        ("POST", "/v1/embeddings", "embeddings", Access.ADMIT),
        ("POST", "/v2/embed", "embeddings", Access.ADMIT),
        ("POST", "/rerank", "rerank", Access.ADMIT),
        ("POST", "/v2/rerank", "rerank", Access.ADMIT),
        ("POST", "/v1/score", "score", Access.ADMIT),
        ("POST", "/classify", "classify", Access.ADMIT),
        ("POST", "/pooling", "pooling", Access.ADMIT),
        ("POST", "/v1/audio/transcriptions", "transcriptions", Access.ADMIT),
        ("POST", "/v1/audio/translations", "translations", Access.ADMIT),
        ("POST", "/v1/audio/speech", "speech", Access.ADMIT),
        ("POST", "/v1/images/generations", "images", Access.ADMIT),
        ("POST", "/invocations", "invocations", Access.ADMIT),
        ("GET", "/v1/realtime", "realtime", Access.ADMIT),
        ("POST", "/tokenize", "tokenize", Access.BYPASS),
        ("POST", "/detokenize", "detokenize", Access.BYPASS),
        ("GET", "/v1/models", "models", Access.BYPASS),
        ("GET", "/v1/models/qwen", "models", Access.BYPASS),
        ("GET", "/health", "health", Access.BYPASS),
        ("POST", "/ping", "health", Access.BYPASS),
        ("GET", "/metrics", "metrics", Access.BYPASS),
        ("GET", "/load", "load", Access.BYPASS),
        ("GET", "/version", "version", Access.BYPASS),
        ("GET", "/v1/responses/resp_1", "responses_state", Access.BYPASS),
        ("POST", "/v1/responses/resp_1/cancel", "cancel", Access.BYPASS),
        ("POST", "/v2/models/qwen/stopInfer", "cancel", Access.BYPASS),
        ("POST", "/abort_request", "cancel", Access.BYPASS),
        ("POST", "/v1/chat/completions/render", "render", Access.BYPASS),
        ("POST", "/v1/completions/derender", "render", Access.BYPASS),
        ("OPTIONS", "/v1/chat/completions", "preflight", Access.BYPASS),
        ("GET", "/v1/chat/completions", "other", Access.BYPASS),
        ("DELETE", "/v1/chat/completions", "other", Access.BYPASS),
        ("PUT", "/v1/chat/completions", "other", Access.ADMIT),
    ],
)
def test_routes(method: str, path: str, label: str, access: Access) -> None:
    assert resolve(method, path)[1] == Route(label, access)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "HEAD", "DELETE"])
@pytest.mark.parametrize(
    "path", [CHAT, "/v1/audio/transcriptions", "/v1/embeddings", "/v1/models", "/v1/messages", "/x"]
)
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'),
        ("application/json", b"{"),
        ("", b""),
        ("application/x-www-form-urlencoded", b"a=b"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--'),
        ("multipart/form-data", b"--x"),
        ("text/plain; charset=\udcff", b"\xff"),
    ],
)
def test_P19_every_method_route_and_kind_of_body_has_a_shape(
    method: str, path: str, content_type: str, body: bytes
) -> None:
    dialect, route = resolve(method, path)
    shape = dialect.read_request(route, content_type, body)
    assert shape.route is route
    assert 0 <= shape.prompt_bytes <= len(body)


@pytest.mark.parametrize(
    ("path", "generates"),
    [
        (CHAT, True),
        (RESPONSES, True),
        ("/v1/embeddings", False),
        ("/rerank", False),
        ("/v1/audio/transcriptions", True),
    ],
)
def test_routes_without_output_are_said_to_have_none(path: str, generates: bool) -> None:
    dialect, route = resolve("POST", path)
    assert dialect.read_request(route, "application/json", b"{}").generates is generates


# ------------------------------------------------------------------------------------------ real transcripts

VLLM = Usage(18, 6, None)
LLAMACPP = Usage(18, 6, 17)


@pytest.mark.parametrize(
    ("name", "path", "choices", "heard"),
    [
        ("vllm/chat_stream", CHAT, 1, Heard(6, None, None, True)),
        ("vllm/chat_stream_usage", CHAT, 1, Heard(6, VLLM, None, True)),
        ("vllm/chat_stream_contusage", CHAT, 1, Heard(6, VLLM, None, True)),
        ("vllm/chat_n2", CHAT, 2, Heard(6, None, None, True)),
        ("vllm/completion_stream", COMPLETIONS, 1, Heard(6, None, None, True)),
        ("vllm/completion_stream_usage", COMPLETIONS, 1, Heard(6, Usage(12, 6, None), None, True)),
        ("vllm/responses_stream", RESPONSES, 1, Heard(2, Usage(18, 6, 0), None, True)),
        ("vllm/messages_stream", "/v1/messages", 1, Heard(6, VLLM, None, True)),
        ("llamacpp/chat_stream", CHAT, 1, Heard(6, LLAMACPP, None, True)),
        ("llamacpp/chat_stream_usage", CHAT, 1, Heard(6, LLAMACPP, None, True)),
        ("llamacpp/chat_stream_contusage", CHAT, 1, Heard(6, LLAMACPP, None, True)),
        ("llamacpp/chat_n2", CHAT, 2, Heard(6, None, None, True)),
        # llama.cpp ends a completion with an empty text; vllm bench counts every chunk with a choice on this route.
        ("llamacpp/completion_stream", COMPLETIONS, 1, Heard(7, Usage(12, 6, 11), None, True)),
        ("llamacpp/completion_stream_usage", COMPLETIONS, 1, Heard(7, Usage(12, 6, 11), None, True)),
        ("llamacpp/err_unknownmodel_stream", CHAT, 1, Heard(2, Usage(17, 2, 16), None, True)),
        ("llamacpp/responses_stream", RESPONSES, 1, Heard(6, LLAMACPP, None, True)),
        ("llamacpp/messages_stream", "/v1/messages", 1, Heard(6, LLAMACPP, None, True)),
        ("vllm/chat_nonstream", CHAT, 1, Heard(0, VLLM, None, True)),
        ("vllm/completion_nonstream", COMPLETIONS, 1, Heard(0, Usage(12, 6, None), None, True)),
        ("vllm/completion_batch", COMPLETIONS, 2, Heard(0, Usage(4, 6, None), None, True)),
        ("vllm/responses", RESPONSES, 1, Heard(0, Usage(18, 6, 0), None, True)),
        ("vllm/messages", "/v1/messages", 1, Heard(0, VLLM, None, True)),
        ("llamacpp/chat_nonstream", CHAT, 1, Heard(0, LLAMACPP, None, True)),
        ("llamacpp/responses", RESPONSES, 1, Heard(0, Usage(18, 6, 7), None, True)),
        ("llamacpp/messages", "/v1/messages", 1, Heard(0, LLAMACPP, None, True)),
        ("vllm_pooling/embeddings", "/v1/embeddings", 1, Heard(0, Usage(5, 0, None), None, True)),
        ("vllm_pooling/pooling", "/pooling", 1, Heard(0, Usage(3, 0, None), None, True)),
        ("vllm_pooling/score", "/score", 1, Heard(0, Usage(5, 0, None), None, True)),
        ("vllm_pooling/rerank", "/rerank", 1, Heard(0, Usage(5, None, None), None, True)),
        ("vllm/err_toolong_stream", CHAT, 1, Heard(0, None, None, True)),
        ("llamacpp/err_toolong_stream", CHAT, 1, Heard(0, None, None, True)),
        ("vllm/err_unknownmodel_stream", CHAT, 1, Heard(0, None, None, True)),
        ("vllm_pooling/embeddings_toolong", "/v1/embeddings", 1, Heard(0, None, None, True)),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 100, 10**6])
def test_replies_of_real_engines(name: str, path: str, choices: int, heard: Heard, step: int) -> None:
    said = capture(name)
    listener = reader(path, said.status, said.content_type, choices)
    assert hear(listener, pieces(said.body, step)) == heard


@pytest.mark.parametrize(
    ("name", "path", "events"),
    [
        ("vllm/chat_stream", CHAT, 2),
        ("vllm/completion_stream", COMPLETIONS, 1),
        ("vllm/responses_stream", RESPONSES, 5),
        ("vllm/messages_stream", "/v1/messages", 3),
        ("llamacpp/chat_stream", CHAT, 2),
        ("llamacpp/completion_stream", COMPLETIONS, 1),
        ("llamacpp/responses_stream", RESPONSES, 5),
        ("llamacpp/messages_stream", "/v1/messages", 3),
    ],
)
def test_M06_the_first_token_is_the_first_event_with_output_on_every_api(name: str, path: str, events: int) -> None:
    said = capture(name)
    listener = reader(path, said.status, said.content_type)
    counts = [listener.feed(event + b"\n\n") for event in said.body.split(b"\n\n") if event.strip()]
    assert counts.index(1) == events - 1
    assert counts.index(1) < len(counts) - 1


def test_M10_the_engine_s_own_counts_are_what_is_reported() -> None:
    listener = reader(CHAT)
    last = {"choices": [], "usage": {"prompt_tokens": 3263, "completion_tokens": 15, "total_tokens": 3278}}
    stream = sse(chunk({"content": "x"}), chunk({}, "stop"), orjson.dumps(last), b"[DONE]")
    assert hear(listener, [stream]) == Heard(1, Usage(3263, 15, None), None, True)


# ------------------------------------------------------------------------------------------ what is output


@pytest.mark.parametrize(
    ("delta", "output"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant", "content": None}, 0),
        ({"role": "assistant"}, 0),
        ({}, 0),
        ({"content": None}, 0),
        ({"content": ""}, 1),
        ({"role": None, "content": "", "tool_calls": None}, 1),
        ({"role": None, "content": None, "tool_calls": None}, 0),
        ({"content": "a"}, 1),
        ({"content": '"'}, 1),
        ({"role": "assistant", "content": "a"}, 1),
        ({"content": "a", "role": "assistant"}, 1),
        ({"content": "", "role": "assistant"}, 0),
        ({"reasoning": "a"}, 1),
        ({"reasoning_content": "a"}, 1),
        ({"role": "assistant", "content": "", "reasoning_content": "a"}, 1),
        ({"audio": {"data": "UklG"}}, 1),
        ({"role": "assistant", "content": "", "reasoning_content": ""}, 0),
        ({"refusal": "no"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, 1),
        ({"tool_calls": [], "role": "assistant"}, 0),
        ({"function_call": {"name": "f"}}, 1),
    ],
)
@pytest.mark.parametrize("spaces", [False, True])
def test_what_counts_as_output(delta: dict[str, Any], output: int, spaces: bool) -> None:
    payload = chunk(delta)
    if spaces:
        payload = payload.replace(b'":', b'": ').replace(b',"', b', "')
    assert reader(CHAT).feed(sse(payload)) == output
    # the same after a stream that has found its mark
    for before in ({"content": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}):
        listener = reader(CHAT)
        listener.feed(sse(chunk(before)))
        assert listener.feed(sse(payload)) == output


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "role": st.just("assistant"),
                "content": st.none() | st.sampled_from(["", "a", '"content":"', '\\"', '","usage":{', "模型", "\n\n"]),
                "reasoning_content": st.none() | st.sampled_from(["", "b"]),
                "reasoning": st.sampled_from(["", "c"]),
                "tool_calls": st.sampled_from([[], [{"index": 0}]]),
            },
        ),
        max_size=8,
    ),
    CUTS,
)
def test_the_byte_search_and_the_parse_agree(deltas: list[dict[str, Any]], at: list[int]) -> None:
    def plain(delta: dict[str, Any]) -> bool:
        spoken = any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
        return spoken or (delta.get("content") == "" and not delta.get("role"))

    stream = sse(*(chunk(delta) for delta in deltas))
    assert hear(reader(CHAT), cut(stream, at)).output == sum(map(plain, deltas))


def test_usage_is_known_before_the_end_where_every_chunk_carries_it() -> None:
    listener = reader(CHAT)
    for n in range(1, 4):
        listener.feed(sse(chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": n})))
        assert listener.usage == Usage(9, n, None)
    assert not listener.complete


def test_mindie_counts_in_its_last_chunk_of_content() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2}
    stream = sse(chunk({"role": "assistant", "content": "a"}), chunk({"content": "b"}, "stop", usage=usage))
    assert hear(reader(CHAT), [stream]) == Heard(2, Usage(9, 2, 4), None, True)


def test_each_choice_has_to_finish_where_done_is_missing() -> None:
    listener = reader(CHAT, choices=2)
    listener.feed(sse(chunk({"content": "a"}, "stop", 0)))
    assert not listener.complete
    listener.feed(sse(chunk({"content": "a"}, "length", 1)))
    assert listener.complete


def test_a_stream_that_breaks_off_is_not_complete() -> None:
    assert hear(reader(CHAT), [sse(chunk({"content": "a"}))]) == Heard(1, None, None, False)
    assert hear(reader(CHAT), [sse(chunk({"content": "a"}))[:-2]]) == Heard(1, None, None, False)


def test_it_says_whether_an_event_is_open() -> None:
    def between(stream: bytes, content_type: str = "text/event-stream") -> bool:
        listener = reader(CHAT, content_type=content_type)
        listener.feed(stream)
        return listener.between_events

    whole = sse(chunk({"content": "a"}))
    assert between(whole)
    assert not between(whole + b"data: {")
    assert not between(whole, "application/json")


def test_P29_an_empty_stream_is_not_complete() -> None:
    assert hear(reader(CHAT), []) == Heard(0, None, None, False)
    assert hear(reader(CHAT, content_type="application/json"), []) == Heard(0, None, None, False)
    assert hear(reader(CHAT, content_type="audio/wav"), []) == Heard(0, None, None, False)


def test_pings_are_no_output_and_are_not_taken_for_errors() -> None:
    stream = b": ping\n\n" + sse(chunk({"content": "a"})) + b":\n\n"
    assert hear(reader(CHAT), [stream]) == Heard(1, None, None, False)


@pytest.mark.parametrize("kind", ["output_text", "reasoning_text", "function_call_arguments", "refusal"])
def test_typed_deltas_are_output(kind: str) -> None:
    event = f"event: response.{kind}.delta\n".encode() + sse(
        b'{"type":"response.%b.delta","delta":"a"}' % kind.encode()
    )
    listener = reader(RESPONSES)
    assert [listener.feed(event) for _ in range(3)] == [1, 1, 1]
    assert listener.feed(sse(b'{"type":"response.%b.done","text":"a.delta"}' % kind.encode())) == 0


def test_transcripts_of_openai_end_by_their_type() -> None:
    done = {"type": "transcript.text.done", "text": "ab", "usage": {"input_tokens": 9, "output_tokens": 2}}
    delta = b'{"type":"transcript.text.delta","delta":"a"}'
    stream = sse(delta, delta, orjson.dumps(done))
    assert hear(reader("/v1/audio/transcriptions"), [stream]) == Heard(2, Usage(9, 2, None), None, True)


def test_the_counts_of_an_event_too_long_to_keep_are_found_at_its_end() -> None:
    output = [{"text": "a" * 100_000}, [1] * 60_000]
    response = {"output": output, "usage": {"input_tokens": 9, "output_tokens": 70_000}}
    event = orjson.dumps({"type": "response.completed", "response": response})
    assert hear(reader(RESPONSES), pieces(sse(event), 16_384)) == Heard(0, Usage(9, 70_000, None), None, True)


def test_a_stream_without_its_content_type_is_still_read() -> None:
    dialect, route = resolve("POST", CHAT)
    stream = sse(chunk({"content": "a"}), b"[DONE]")
    asked = dialect.response_reader(Shape(route, stream=True), 200, "")
    assert hear(asked, [stream]) == Heard(1, None, None, True)
    not_asked = dialect.response_reader(Shape(route), 200, "text/plain")
    assert hear(not_asked, [stream]) == Heard(0, None, None, True)
    refused = dialect.response_reader(Shape(route, stream=True), 502, "text/html")
    assert hear(refused, [b"<html>"]) == Heard(0, None, None, True)


def test_replies_of_cheap_routes_are_not_read() -> None:
    dialect, route = resolve("GET", "/v1/models")
    listener = dialect.response_reader(Shape(route), 200, "application/json")
    assert not listener.between_events
    assert hear(listener, [b'{"error":{"code":503},"usage":{"prompt_tokens":1}}']) == Heard(0, None, None, True)


@given(st.binary(), CUTS, st.sampled_from([CHAT, COMPLETIONS, RESPONSES, "/v1/messages", "/generate"]))
def test_any_bytes_in_any_pieces_are_heard_alike(stream: bytes, at: list[int], path: str) -> None:
    for kind in ("text/event-stream", "application/json", "text/plain"):
        assert hear(reader(path, 200, kind), cut(stream, at)) == hear(reader(path, 200, kind), [stream])


PARTS = st.lists(
    st.sampled_from([
        chunk({"content": "模型"}), chunk({"role": "assistant", "content": ""}), chunk({}, "stop"),
        chunk({"tool_calls": [1]}),
        b"[DONE]", b'{"error":{"code":503,"message":"x"}}', b'{"type":"response.output_text.delta","delta":"a"}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}', b'{"choices":[{"text":"a"}]}',
        b'{"choices":[3,null]}', b'{"usage":{"prompt_tokens":1}}', b"3", b"null", b"[]", b'{"choices":[{"delta":3}]}',
        b'{"type":3}', b"{", b'"content":"', b'{"timings":{"prompt_n":1}}',
        b'{"response":{"usage":{"input_tokens":2}}}', b'{"choices":[{"finish_reason":{"type":"stop"}}]}',
    ])
)  # fmt: skip


@given(PARTS, CUTS, st.booleans(), st.sampled_from([CHAT, COMPLETIONS, RESPONSES, "/v1/messages", "/generate"]))
def test_P31_any_events_in_any_pieces_are_heard_alike(
    payloads: list[bytes], at: list[int], crlf: bool, path: str
) -> None:
    stream = sse(*payloads)
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    assert hear(reader(path), cut(stream, at)) == hear(reader(path), [stream])


# --------------------------------------------------------------------------------------------------- errors

BUSY = (
    b'{"error":{"message":"The engine is currently busy and cannot accept new requests.","type":"Service Unavailable",'
    b'"param":null,"code":503}}'
)


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (BUSY, Fault.BUSY),
        (b'{"error": {"message": "The request queue is full.", "type": "abort"}}', Fault.BUSY),
        (b'{"error":{"message":"x","code":429}}', Fault.BUSY),
        (b'{"error":{"message":"x","code":529}}', Fault.BUSY),
        (b'{"error":"Model is overloaded","error_type":"overloaded"}', Fault.BUSY),
        (b'{"object":"error","message":"prefill token backlog limit reached","code":400}', Fault.BUSY),
        (b'{"type":"error","code":"server_is_overloaded","message":"x"}', Fault.BUSY),
        (
            b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}',
            Fault.FAILED,
        ),
        (b'{"error":{}}', None),
        (b'{"error":null}', None),
        (b'{"error":["what"]}', Fault.FAILED),
        (b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}}}', Fault.FAILED),
        (b'{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}', Fault.BUSY),
        (b'{"type":"response.failed"}', Fault.FAILED),
        (b'{"type":"response.incomplete","response":{"error":null}}', None),
        (b'{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}', Fault.FAILED),
    ],
)
def test_P28_an_error_said_inside_a_success_is_heard(payload: bytes, fault: Fault | None) -> None:
    heard = hear(reader(CHAT), [sse(payload)])
    assert (heard.output, heard.fault) == (0, fault)


def test_P28_an_error_behind_the_first_tokens_is_heard() -> None:
    error = b'{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}'
    stream = sse(chunk({"content": "a"}), error, b"[DONE]")
    assert hear(reader(CHAT), [stream]) == Heard(1, None, Fault.FAILED, True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"Engine callback timeout: 600 s", Fault.FAILED),
        (b"Failed to get engine response", Fault.FAILED),
        (b"Too many requests\r\n", Fault.BUSY),
        (b'{"error":{"message":"busy","code":503,"type":"ServiceUnavailable"}}', Fault.BUSY),
    ],
)
def test_P28_bare_text_at_the_end_of_a_stream_is_an_error(text: bytes, fault: Fault) -> None:
    stream = sse(chunk({"content": "a"})) + text
    assert hear(reader(CHAT), [stream]) == Heard(1, None, fault, False)
    assert hear(reader(CHAT), pieces(stream, 3)) == Heard(1, None, fault, False)


def test_bare_text_in_a_stream_that_came_to_its_end_is_nobody_s_error() -> None:
    stream = b"x-proxy: hello\n\n" + sse(chunk({"content": "a"}), b"[DONE]")
    assert hear(reader(CHAT), [stream]) == Heard(1, None, None, True)


def test_P28_an_error_in_a_whole_body_is_heard_under_a_success_only() -> None:
    assert hear(reader(CHAT, 200, "application/json"), [BUSY]).fault is Fault.BUSY
    assert hear(reader(CHAT, 503, "application/json"), [BUSY]).fault is None


# --------------------------------------------------------------------------------------- the gateway's own words


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(429, "rate_limit_error", "slow_down"), (503, "service_unavailable_error", "server_is_overloaded")],
)
def test_O04_a_refusal_is_what_openai_says_when_it_is_full(status: int, kind: str, code: str) -> None:
    dialect, route = resolve("POST", CHAT)
    content_type, body = dialect.rejection(route, refusal(route), "Busy, come back in 2 s.", status)
    assert content_type == "application/json"
    assert orjson.loads(body) == {
        "error": {"message": "Busy, come back in 2 s.", "type": kind, "param": None, "code": code}
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (403, "permission_error"),
        (405, "invalid_request_error"),
        (413, "invalid_request_error"),
        (500, "server_error"),
        (502, "server_error"),
        (504, "server_error"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/anything"])
def test_other_errors_have_openai_s_shape(status: int, kind: str, path: str) -> None:
    dialect, route = resolve("POST", path)
    content_type, body = dialect.failure(route, 'It "failed".', status, "why")
    assert content_type == "application/json"
    assert orjson.loads(body) == {"error": {"message": 'It "failed".', "type": kind, "param": None, "code": "why"}}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/anything", "/v1/messages"])
def test_O27_an_error_in_mid_stream_is_one_event_that_the_own_reader_hears(path: str) -> None:
    dialect, route = resolve("POST", path)
    event = dialect.stream_failure(route, "Nothing came for 60 s.", 504, "backend_silent")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert hear(reader(path), [event]).fault is Fault.FAILED
    payload = orjson.loads(event.partition(b"data: ")[2])
    assert "Nothing came for 60 s." in str(payload)
