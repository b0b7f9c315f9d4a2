"""Engines' own APIs: whose a request is, and what it asks for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.registry import standard
from gateway.model import Access, Route, Shape
from tests.dialects.helpers import refusal

TENSOR = {"name": "input0", "shape": [1, 3], "datatype": "UINT32", "data": [1, 2, 3]}


def read(path: str, *kinds: str, method: str = "POST", **body: Any) -> Shape:
    """Shape of a request, where backends of ``kinds`` are known to be there."""
    dialects = standard()
    dialects.prefer(kinds)
    dialect, route = dialects.resolve(method, path)
    return dialect.read_request(route, "application/json", orjson.dumps(body))


# --------------------------------------------------------------------------------------------------------------
# Whose a request is
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "kinds", "label"),
    [
        ("/generate", {"prompt": "a"}, "", "mindie_generate"),
        ("/generate", {"prompt": "a"}, "mindie", "mindie_generate"),
        ("/generate", {"prompt": "a"}, "vllm", "vllm_generate"),
        ("/generate", {"prompt": "a"}, "lmdeploy", "lmdeploy_generate"),
        ("/generate", {"prompt": "a"}, "vllm mindie", "mindie_generate"),
        ("/generate", {"prompt": "a"}, "tgi", "mindie_generate"),
        ("/generate", {"inputs": "a"}, "", "mindie_tgi"),
        ("/generate", {"inputs": "a"}, "tgi", "tgi_generate"),
        ("/generate", {"text": "a"}, "", "sglang_generate"),
        ("/generate", {"text": "a"}, "mindie", "sglang_generate"),
        ("/generate", {"input_ids": [1]}, "", "sglang_generate"),
        ("/generate", {"input_ids": [1]}, "lmdeploy", "lmdeploy_generate"),
        ("/generate", {"input_embeds": [[0.5]]}, "lmdeploy", "sglang_generate"),
        ("/generate", {"something": "else"}, "mindie", "other"),
        ("/generate_stream", {"inputs": "a"}, "", "mindie_tgi_stream"),
        ("/generate_stream", {"inputs": "a"}, "tgi", "tgi_generate_stream"),
        ("/", {"inputs": "a"}, "", "mindie_tgi"),
        ("/", {"inputs": "a"}, "tgi", "tgi"),
        ("/", {"query": "a"}, "", "other"),
        ("/infer", {"inputs": "a"}, "", "mindie_infer"),
        ("/infer_token", {"input_id": [1]}, "", "mindie_infer_token"),
        ("/v2/models/m/infer", {"inputs": [TENSOR]}, "", "mindie_triton_infer"),
        ("/v2/models/m/infer", {"inputs": [TENSOR]}, "triton", "triton_infer"),
        ("/v2/models/m/infer", {"inputs": [TENSOR, TENSOR]}, "mindie", "triton_infer"),
        ("/v2/models/m/infer", {"inputs": [TENSOR | {"datatype": "BYTES", "data": ["a"]}]}, "", "triton_infer"),
        ("/v2/models/m/infer", {"inputs": ["a"]}, "mindie", "triton_infer"),
        ("/v2/models/m/versions/2/infer", {"inputs": [TENSOR]}, "mindie", "triton_infer"),
        ("/v2/models/m/generate", {"text_input": "a"}, "", "mindie_triton"),
        ("/v2/models/m/generate", {"text_input": "a", "max_tokens": 5}, "mindie", "triton_generate"),
        ("/v2/models/m/generate", {"text_input": "a", "parameters": {"stream": False}}, "", "triton_generate"),
        ("/v2/models/m/generate", {"text_input": "a", "parameters": {"max_tokens": 1}}, "", "triton_generate"),
        ("/v2/models/m/generate_stream", {"text_input": "a"}, "", "mindie_triton_stream"),
        ("/v2/models/m/generate_stream", {"text_input": "a"}, "triton", "triton_generate_stream"),
        ("/v2/models/m/generate", {"text": "a"}, "", "other"),
        ("/completion", {"prompt": "a"}, "", "completion"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "", "infill"),
        ("/embedding", {"content": "a"}, "", "embedding"),
        ("/reranking", {"query": "a", "documents": ["b"]}, "", "reranking"),
        ("/encode", {"text": "a"}, "", "sglang_encode"),
        ("/api/chat", {"messages": []}, "", "ollama_chat"),
        ("/api/generate", {"prompt": "a"}, "", "ollama_generate"),
    ],
)  # fmt: skip
def test_who_is_meant_is_told_by_the_body_and_then_by_the_kinds_that_are_there(
    path: str, body: dict[str, Any], kinds: str, label: str
) -> None:
    assert read(path, *kinds.split(), **body).route == Route(label, Access.ADMIT)


def test_the_kinds_that_are_there_may_change() -> None:
    dialects = standard()
    for kinds, label in (((), "mindie_generate"), (("vllm",), "vllm_generate"), (("mindie",), "mindie_generate")):
        dialects.prefer(kinds)
        assert dialects.resolve("POST", "/generate")[1].label == label


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/generate"),
        ("GET", "/v2/models/m/infer"),
        ("GET", "/completion"),
        ("GET", "/api/chat"),
        ("GET", "/v2/models/m/generate"),
        ("POST", "/generate/more"),
        ("POST", "/v2/models/m/whatever"),
        ("PUT", "/infer"),
    ],
)
def test_other_methods_and_paths_are_not_theirs(method: str, path: str) -> None:
    dialect, route = standard().resolve(method, path)
    assert (dialect.name, route.label) == ("other", "other")


def test_sglang_s_own_routes_take_put_as_well() -> None:
    assert read("/generate", method="PUT", text="abc").route.label == "sglang_generate"


def test_what_is_cheap_is_not_admitted() -> None:
    dialect, route = standard().resolve("POST", "/api/show")
    assert route == Route("ollama_show", Access.BYPASS)
    shape = dialect.read_request(route, "application/json", b'{"model":"m"}')
    reader = dialect.response_reader(shape, 200, "application/json")
    assert (reader.feed(b'{"usage":{"prompt_tokens":1}}'), reader.finish(), reader.usage) == (0, 0, None)


# --------------------------------------------------------------------------------------------------------------
# What it asks for
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "body", "cap", "stream"),
    [
        ("/generate", "mindie", {"prompt": "a"}, 512, False),
        ("/generate", "mindie", {"prompt": "a", "max_tokens": 7, "stream": True}, 7, True),
        ("/generate", "mindie", {"inputs": "a"}, 20, False),
        ("/generate", "mindie", {"inputs": "a", "stream": True}, 20, False),  # this form never streams here
        ("/generate_stream", "mindie", {"inputs": "a", "parameters": {"max_new_tokens": 9}}, 9, True),
        ("/", "mindie", {"inputs": "a", "stream": True}, 20, True),
        ("/infer", "mindie", {"inputs": "a", "stream": True, "parameters": {"max_new_tokens": 9}}, 9, True),
        ("/infer", "mindie", {"inputs": "a"}, 20, False),
        ("/infer_token", "mindie", {"input_id": [1]}, 20, False),
        ("/v2/models/m/infer", "mindie", {"inputs": [TENSOR]}, 20, False),
        ("/v2/models/m/infer", "mindie", {"inputs": [TENSOR | {"parameters": {"max_new_tokens": 8}}]}, 8, False),
        ("/v2/models/m/generate", "mindie", {"text_input": "a", "stream": True}, 20, False),
        ("/v2/models/m/generate_stream", "mindie", {"text_input": "a"}, 20, True),
        ("/generate", "vllm", {"prompt": "a"}, 16, False),
        ("/generate", "vllm", {"prompt": "a", "stream": True, "max_tokens": 0}, 0, True),
        ("/generate", "tgi", {"inputs": "a", "stream": True}, None, False),
        ("/", "tgi", {"inputs": "a", "stream": True, "parameters": {"max_new_tokens": 6}}, 6, True),
        ("/generate_stream", "tgi", {"inputs": "a"}, None, True),
        ("/generate", "sglang", {"text": "a"}, 128, False),
        ("/generate", "sglang", {"text": "a", "sampling_params": {"max_new_tokens": 4}, "stream": True}, 4, True),
        ("/generate", "sglang", {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 4}, {}]}, 4, False),
        ("/generate", "sglang", {"text": ["a"], "sampling_params": [4]}, 128, False),
        ("/api/chat", "sglang", {"messages": []}, 128, True),
        ("/api/chat", "sglang", {"messages": [], "stream": False}, 128, False),
        ("/api/generate", "sglang", {"prompt": "a", "stream": True, "options": {"num_predict": 5}}, 5, True),
        ("/generate", "lmdeploy", {"prompt": "a"}, 128, False),
        ("/generate", "lmdeploy", {"prompt": "a", "max_tokens": 3, "stream": True}, 3, True),
        ("/completion", "llamacpp", {"prompt": "a", "n_predict": -1}, None, False),
        ("/completion", "llamacpp", {"prompt": "a", "n_predict": 6, "stream": True}, 6, True),
        ("/v2/models/m/generate", "triton", {"text_input": "a"}, None, False),
        ("/v2/models/m/generate_stream", "triton", {"text_input": "a", "max_tokens": 5}, 5, True),
        ("/v2/models/m/generate", "triton", {"text_input": "a", "parameters": {"max_tokens": 5}}, 5, False),
        ("/v2/models/m/generate", "triton", {"text_input": "a", "sampling_parameters": '{"max_tokens": 5}'}, 5, False),
        (
            "/v2/models/m/generate",
            "triton",
            {"text_input": "a", "parameters": {"sampling_parameters": '{"max_tokens": 5}'}},
            5,
            False,
        ),
        ("/v2/models/m/generate", "triton", {"text_input": "a", "sampling_parameters": "[1"}, None, False),
        ("/v2/models/m/infer", "triton", {"inputs": [TENSOR, {"name": "max_tokens", "data": [[7]]}]}, 7, False),
        ("/v2/models/m/infer", "triton", {"inputs": [TENSOR, {"name": "max_tokens", "data": []}]}, None, False),
        ("/v2/models/m/infer", "triton", {"inputs": [TENSOR, "x"]}, None, False),
        ("/v2/models/m/infer", "triton", {"inputs": "x"}, None, False),
    ],
)  # fmt: skip
def test_caps_and_streams_are_read_with_the_engine_s_own_defaults(
    path: str, kind: str, body: dict[str, Any], cap: int | None, stream: bool
) -> None:
    shape = read(path, kind, **body)
    assert (shape.max_output, shape.stream) == (cap, stream)


@pytest.mark.parametrize(
    ("path", "body", "tokens", "size"),
    [
        ("/infer_token", {"input_id": [1, 2, 3]}, 3, 0),
        ("/generate", {"input_ids": [1, 2]}, 2, 0),
        ("/completion", {"prompt": [5, 6, 7]}, 3, 0),
        ("/v2/models/m/infer", {"inputs": [TENSOR]}, 3, 0),
        ("/v2/models/m/infer", {"inputs": [TENSOR | {"datatype": "BYTES", "data": ["abcd"]}]}, None, 4),
        ("/v2/models/m/infer", {"inputs": [{"name": "a", "shape": [1], "datatype": "BYTES"}]}, None, 0),
        ("/inference/v1/generate", {"token_ids": [1, 2, 3, 4]}, 4, 0),
        ("/infer", {"inputs": "hello"}, None, 5),
        ("/infer", {"inputs": [{"type": "text", "text": "hello"}]}, None, 5),
        ("/infill", {"input_prefix": "ab", "input_extra": [{"filename": "f", "text": "cde"}]}, None, 5),
        ("/embedding", {"content": "abc"}, None, 3),
        ("/v2/models/m/generate", {"text_input": "hello"}, None, 5),
    ],
)  # fmt: skip
def test_prompts_are_measured_and_token_ids_are_exact(
    path: str, body: dict[str, Any], tokens: int | None, size: int
) -> None:
    shape = read(path, **body)
    assert (shape.prompt_tokens, shape.prompt_bytes) == (tokens, size)


@pytest.mark.parametrize("path", ["/v2/models/qwen3-8b/infer", "/v2/models/qwen3-8b/generate"])
@pytest.mark.parametrize("kind", ["mindie", "triton"])
def test_the_model_is_the_one_in_the_path(path: str, kind: str) -> None:
    assert read(path, kind, text_input="a", inputs=[TENSOR], model="other").model == "qwen3-8b"


def test_batches_multiply_the_output() -> None:
    assert read("/generate", text=["a", "b", "c"]).choices == 3
    assert read("/generate", text="a", sampling_params={"n": 4}).choices == 4
    assert read("/generate", text=["a"] * 200, sampling_params={"n": 10**9}).choices == 10_000
    assert read("/completion", prompt=["a", "b"]).choices == 2


@pytest.mark.parametrize(
    ("path", "body", "media"),
    [
        ("/generate", {"text": "a", "image_data": "https://example.com/a.png"}, 1024),
        ("/generate", {"text": "a", "image_data": [["QUJD", None], "QUJD"]}, 2 * 1024),
        ("/generate", {"text": "a", "image_data": None}, 0),
        ("/generate", {"text": "a", "audio_data": ["https://example.com/a.wav"]}, 390),
        ("/generate", {"text": "a", "video_data": "https://example.com/a.mp4"}, 4096),
        ("/api/generate", {"prompt": "a", "images": ["QUJD"]}, 1024),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["QUJD", "QUJD"]}]}, 2048),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["QUJD"]}}, 1024),
    ],
)
def test_media_beside_a_prompt_are_no_text(path: str, body: dict[str, Any], media: int) -> None:
    shape = read(path, **body)
    assert (shape.media_tokens, shape.prompt_bytes) == (media, 1)


def test_embeddings_generate_nothing() -> None:
    assert not read("/encode", text="a").generates
    assert not read("/embedding", content="a").generates
    assert not read("/reranking", query="a", documents=["b"]).generates


# --------------------------------------------------------------------------------------------------------------
# Refusals in the route's own words
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "error"),
    [
        ("/infer", "mindie", {"inputs": "a"}, 429, {"error": "Busy.", "error_type": "Too Many Requests"}),
        ("/infer", "mindie", {"inputs": "a"}, 503, {"error": "Busy.", "error_type": "Service Unavailable"}),
        ("/infer", "mindie", {"inputs": "a"}, 502, {"error": "Busy.", "error_type": "Incomplete Generation"}),
        ("/infer", "mindie", {"inputs": "a"}, 403, {"error": "Busy.", "error_type": "Bad Request"}),
        ("/generate", "tgi", {"inputs": "a"}, 429, {"error": "Busy.", "error_type": "overloaded"}),
        ("/generate", "tgi", {"inputs": "a"}, 502, {"error": "Busy.", "error_type": "generation"}),
        ("/v2/models/m/generate", "triton", {"text_input": "a"}, 429, {"error": "Busy."}),
        ("/generate", "vllm", {"prompt": "a"}, 429, {"detail": "Busy."}),
        (
            "/generate",
            "sglang",
            {"text": "a"},
            429,
            {"error": {"message": "Busy.", "type": "rate_limit_error", "param": None, "code": None}},
        ),
        ("/api/chat", "sglang", {"messages": []}, 503, {"error": "Busy."}),
        (
            "/generate",
            "lmdeploy",
            {"prompt": "a"},
            429,
            {"object": "error", "message": "Busy.", "type": "invalid_request_error", "code": 429, "param": None},
        ),
        (
            "/generate",
            "lmdeploy",
            {"prompt": "a"},
            503,
            {"object": "error", "message": "Busy.", "type": "server_error", "code": 503, "param": None},
        ),
        (
            "/completion",
            "llamacpp",
            {"prompt": "a"},
            503,
            {"error": {"code": 503, "message": "Busy.", "type": "unavailable_error"}},
        ),
        (
            "/completion",
            "llamacpp",
            {"prompt": "a"},
            429,
            {"error": {"code": 429, "message": "Busy.", "type": "invalid_request_error"}},
        ),
        (
            "/completion",
            "llamacpp",
            {"prompt": "a"},
            502,
            {"error": {"code": 502, "message": "Busy.", "type": "server_error"}},
        ),
    ],
)
def test_refusals_and_failures_have_the_route_s_own_shape(
    path: str, kind: str, body: dict[str, Any], status: int, error: dict[str, Any]
) -> None:
    dialects = standard()
    dialects.prefer({kind})
    dialect, route = dialects.resolve("POST", path)
    route = dialect.read_request(route, "application/json", orjson.dumps(body)).route
    content_type, refused = dialect.rejection(route, refusal(route), "Busy.", status)
    assert (content_type, orjson.loads(refused)) == ("application/json", error)
    assert dialect.failure(route, "Busy.", status, "slow_down") == (content_type, refused)
    assert dialect.stream_failure(route, "Busy.", status, "slow_down") == b"data: " + refused + b"\n\n"


def test_before_the_body_is_known_the_first_claim_speaks() -> None:
    dialect, route = standard().resolve("POST", "/generate")
    assert dialect.route("POST", "/generate") == route
    _, body = dialect.rejection(route, refusal(route), "Busy.", 429)
    assert orjson.loads(body)["error_type"] == "Too Many Requests"


def test_a_body_that_is_nobody_s_is_answered_as_openai_would() -> None:
    dialect, route = standard().resolve("POST", "/generate")
    shape = dialect.read_request(route, "application/json", b"{}")
    _, body = dialect.rejection(shape.route, refusal(shape.route), "Busy.", 429)
    assert orjson.loads(body)["error"]["code"] == "slow_down"
    assert orjson.loads(dialect.failure(shape.route, "No.", 502, "bad_gateway")[1])["error"]["code"] == "bad_gateway"
    assert dialect.read_request(route, "application/json", b"no json").prompt_bytes == 7


PATHS = st.sampled_from([
    "/", "/generate", "/generate_stream", "/infer", "/infer_token", "/completion", "/infill", "/api/chat", "/encode",
    "/v2/models/m/infer", "/v2/models/m/generate", "/v2/models/m/versions/1/generate_stream",
])  # fmt: skip
KEYS = st.sampled_from([
    "prompt", "inputs", "input_id", "input_ids", "text", "text_input", "parameters", "sampling_params", "stream",
    "options", "max_tokens", "image_data", "images", "sampling_parameters", "messages", "n",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.sampled_from(["datatype", "data"]), inner),
    max_leaves=10,
)


@given(PATHS, st.dictionaries(KEYS, VALUES), st.sets(st.sampled_from(["mindie", "tgi", "triton", "sglang", "vllm"])))
def test_any_body_is_read(path: str, body: dict[str, Any], kinds: set[str]) -> None:
    shape = read(path, *kinds, **body)
    assert shape.max_output is None or 0 <= shape.max_output <= 10**9
    assert 1 <= shape.choices <= 10_000
    assert shape.prompt_bytes >= 0
    assert shape.route.label
