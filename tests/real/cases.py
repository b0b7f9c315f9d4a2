"""Requests to a real engine, by name: what the same bytes are asked for, directly and through the gateway."""

from __future__ import annotations

import gzip
import json
from typing import Any, Final

from tests.real.wire import Request

MESSAGES: Final = [
    {"role": "system", "content": "You are 网关, and you answer in words."},
    {"role": "user", "content": 'Hello there, 你好! \u00e9 \U0001f680 \\u00e9 "quoted" \t tab'},
]
LONG_TEXT: Final = "the of and to in is that for was with " * 600  # more tokens than the context of a slot
SAMPLING: Final = {"model": "tiny", "temperature": 0, "seed": 7}
OUTPUT: Final = {**SAMPLING, "max_tokens": 24}
STREAM: Final = {"stream": True}
USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}


def post(path: str, *parts: dict[str, Any]) -> Request:
    """A JSON request of these parts."""
    return Request("POST", path, {key: value for part in parts for key, value in part.items()})


def chat(*parts: dict[str, Any]) -> Request:
    """A chat request."""
    return post("/v1/chat/completions", OUTPUT, {"messages": MESSAGES}, *parts)


def completion(*parts: dict[str, Any]) -> Request:
    """A completion request."""
    return post("/v1/completions", OUTPUT, {"prompt": "Say what 世界 is:"}, *parts)


def message(*parts: dict[str, Any]) -> Request:
    """A request in Anthropic's form."""
    return post("/v1/messages", OUTPUT, {"system": "Be brief.", "messages": MESSAGES[1:]}, *parts)


def response(*parts: dict[str, Any]) -> Request:
    """A request to the responses route."""
    return post("/v1/responses", SAMPLING, {"input": "Hello there", "max_output_tokens": 24}, *parts)


def raw(body: bytes, *headers: tuple[str, str], path: str = "/v1/chat/completions") -> Request:
    """A POST of these very bytes."""
    return Request("POST", path, body, headers)


GZIPPED: Final = gzip.compress(json.dumps(chat().body).encode(), mtime=0)
UNUSUAL_JSON: Final = json.dumps(chat().body, indent=3).replace("tiny", "t\\u0069ny").encode() + b"\r\n \t"

ANSWERS: Final[dict[str, Request]] = {
    "chat": chat(),
    "chat, streamed": chat(STREAM),
    "chat, streamed with usage": chat(USAGE),
    "chat, usage in every chunk": chat({"stream": True, "stream_options": {"continuous_usage_stats": True}}),
    "chat, two choices": chat({"n": 2}),
    "chat, log probabilities": chat({"logprobs": True, "top_logprobs": 2}),
    "chat, streamed log probabilities": chat(STREAM, {"logprobs": True}),
    "chat, stopped by a word": chat(STREAM, {"stop": [" there"]}),
    "chat, unusual white space": raw(UNUSUAL_JSON, ("Content-Type", "application/json; charset=utf-8")),
    "chat, no content type": raw(json.dumps(chat().body).encode(), ("Content-Type", "")),
    "chat, without /v1": post("/chat/completions", OUTPUT, {"messages": MESSAGES}),
    "chat, with a query": post("/v1/chat/completions?api-version=1&x=%2F..%2F", OUTPUT, {"messages": MESSAGES}),
    "completion": completion(),
    "completion, streamed": completion(STREAM),
    "completion, streamed with usage": completion(USAGE),
    "completion, several prompts": completion({"prompt": ["one", "two"]}),
    "completion, prompt of tokens": completion({"prompt": [300, 301, 302]}),
    "completion, llama.cpp's own": post("/completion", {"prompt": "Say", "n_predict": 12, "temperature": 0, "seed": 7}),
    "completion, llama.cpp's own, streamed": post(
        "/completion", STREAM, {"prompt": "Say", "n_predict": 12, "temperature": 0, "seed": 7}
    ),
    "message": message(),
    "message, streamed": message(STREAM),
    "response": response(),
    "response, streamed": response(STREAM),
    "embeddings": post("/v1/embeddings", {"model": "tiny", "input": ["hello 你好", "world"]}),
    "embeddings, packed": post("/v1/embeddings", {"model": "tiny", "input": "hello", "encoding_format": "base64"}),
    "count of a message's tokens": post("/v1/messages/count_tokens", {"messages": MESSAGES[1:], "model": "tiny"}),
    "tokenize": post("/tokenize", {"content": "the world 你好", "with_pieces": True}),
    "detokenize": post("/detokenize", {"tokens": [300, 301, 302]}),
    "apply template": post("/apply-template", {"messages": MESSAGES}),
    "models": Request("GET", "/v1/models"),
    "health": Request("GET", "/health"),
}

ERRORS: Final[dict[str, Request]] = {
    "too long to embed": post("/v1/embeddings", {"model": "tiny", "input": LONG_TEXT}),
    "rerank by a model without": post("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b", "c"]}),
    "bad JSON": raw(b'{"model": '),
    "no body": raw(b""),
    "not JSON at all": raw(b"\x00\xff\xfe", ("Content-Type", "application/octet-stream")),
    "no messages": post("/v1/chat/completions", OUTPUT),
    "messages of a wrong type": chat({"messages": "hello"}),
    "temperature of a wrong type": chat({"temperature": "hot"}),
    "negative cap on output": chat({"max_tokens": -5, "stream": True, "n_predict": "many"}),
    "too long": chat({"messages": [{"role": "user", "content": LONG_TEXT}]}),
    "too long, streamed": chat(STREAM, {"messages": [{"role": "user", "content": LONG_TEXT}]}),
    "too long a message": message({"messages": [{"role": "user", "content": LONG_TEXT}]}),
    "too long a response, streamed": response(STREAM, {"input": LONG_TEXT}),
    "gzip, which this engine does not read": raw(GZIPPED, ("Content-Encoding", "gzip")),
    "unknown path": Request("GET", "/v1/nothing/here"),
    "unknown path, posted": post("/v1/nothing", {"a": 1}),
    "wrong method": Request("GET", "/v1/chat/completions"),
    "deletion": Request("DELETE", "/v1/models"),
}


def marked(mark: str, *parts: dict[str, Any]) -> Request:
    """A chat that is known by ``mark``: on the wire in its prompt, in the access log as its id."""
    asked = chat({"messages": [{"role": "user", "content": mark}]}, *parts)
    return Request(asked.method, asked.path, asked.body, (("X-Request-Id", mark),))


def lasting(mark: str, *, stream: bool, tokens: int = 100_000) -> Request:
    """A marked chat that runs for a millisecond a token, at the most until the context is full."""
    return marked(mark, {"max_tokens": tokens, "stream": stream})


def slow_to_begin(mark: str) -> Request:
    """A marked stream with a long prompt: its first token takes a good part of a second."""
    long = {"messages": [{"role": "user", "content": mark + LONG_TEXT[:6_000]}], "max_tokens": 100_000}
    return marked(mark, STREAM, long)
