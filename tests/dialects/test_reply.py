from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Fault, Probe
from gateway.dialects.reply import BodyReader, fault_in, find_usage, sole_usage, timings_of, usage_of
from gateway.model import Health, Usage
from tests.dialects.helpers import Heard, cut, hear, pieces


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}, Usage(1, 2, None)),
        ({"usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}}, Usage(1, None, 1)),
        ({"usage": {"prompt_tokens": 1, "prompt_tokens_details": None}}, Usage(1, None, None)),
        (
            {"usage": {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}},
            Usage(1, 2, 0),
        ),
        (
            {"usage": {"input_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 7}},
            Usage(13, None, 5),
        ),
        ({"usage": {"output_tokens": 3, "cache_read_input_tokens": 5}}, Usage(None, 3, 5)),
        ({"usage": {"type": "duration", "seconds": 7}}, None),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": "2"}}, None),
        ({"usage": {"prompt_tokens": 10**30}}, Usage(10**9, None, None)),
        ({"usage": None}, None),
        ({"usage": [1]}, None),
        ({"response": {"usage": {"input_tokens": 4}}}, Usage(4, None, None)),
        ({"message": {"usage": {"input_tokens": 4}}}, Usage(4, None, None)),
        ({"response": {"usage": None}, "message": "x"}, None),
        ({"meta_info": {"prompt_tokens": 4, "completion_tokens": 1, "cached_tokens": 2}}, Usage(4, 1, 2)),
        ({"details": {"generated_tokens": 4, "input_length": 3}}, Usage(3, 4, None)),
        ({}, None),
    ],
)
def test_counts_are_read_in_every_api_s_words(document: dict[str, Any], usage: Usage | None) -> None:
    assert usage_of(document) == usage


@pytest.mark.parametrize(
    ("timings", "usage"),
    [
        ({"cache_n": 17, "prompt_n": 1, "predicted_n": 6}, Usage(18, 6, 17)),
        ({"prompt_n": 4}, Usage(4, None, None)),
        ({}, None),
        (None, None),
    ],
)
def test_llamacpp_s_timings_count_too(timings: Any, usage: Usage | None) -> None:
    assert timings_of({"timings": timings}) == usage


@pytest.mark.parametrize(
    ("window", "usage"),
    [
        (b'..."usage":{"prompt_tokens":5,"completion_tokens":1},"id":"x"}', Usage(5, 1, None)),
        (b'..."usage": {"prompt_tokens": 5}}', Usage(5, None, None)),
        (b'"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}', Usage(2, None, None)),
        (rb'"text":"say \"usage\":{\"prompt_tokens\":9}"', None),
        (b'"usage":null}', None),
        (b'"usage":{"prompt_tok', None),
        (b'"usage":', None),
        (b'"usage":' + b"[" * 4000, None),
        (b"", None),
    ],
)
def test_counts_are_found_in_a_piece_of_json(window: bytes, usage: Usage | None) -> None:
    assert find_usage(window) == usage


@pytest.mark.parametrize("text", ["Model is OVERLOADED", "429 Too Many Requests", "The request queue is full."])
def test_words_of_a_full_engine(text: str) -> None:
    assert fault_in(text) is Fault.BUSY
    assert fault_in("Segmentation fault") is Fault.FAILED


@pytest.mark.parametrize("size", [100, 60_000, 70_000, 3_000_000])
@pytest.mark.parametrize("usage_first", [True, False])
def test_counts_of_a_body_of_any_size_are_found(size: int, usage_first: bool) -> None:
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    data = {"data": [{"embedding": "a" * size}]}
    body = orjson.dumps({**usage, **data} if usage_first else {**data, **usage})
    for step in (1000, 65_536, len(body)):
        listener = BodyReader(200, "application/json; charset=utf-8")
        assert hear(listener, pieces(body, step)) == Heard(0, Usage(9, 0, None), None, True)
        assert sum(map(len, listener._pieces)) <= 2 * 65_536


@pytest.mark.parametrize(
    ("body", "complete"),
    [
        (b"{}", True),
        (b' {"a":1}\n', True),
        (b"[1]", True),
        (b'{"a":', False),
        (b"[1", False),
        (b"Server internal error", False),
        (b"", False),
        (b"{" + b" " * 70_000 + b"}\n", True),
        (b"{" + b" " * 70_000, False),
    ],
)
def test_whether_json_came_whole(body: bytes, complete: bool) -> None:
    assert hear(BodyReader(200, "Application/JSON"), [body]).complete is complete


@given(st.binary(), st.lists(st.integers(0, 100), max_size=5), st.sampled_from(["application/json", "text/plain"]))
def test_any_body_in_any_pieces_is_heard_alike(body: bytes, at: list[int], content_type: str) -> None:
    assert hear(BodyReader(200, content_type), cut(body, at)) == hear(BodyReader(200, content_type), [body])


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, Health.UP),
        (307, Health.UP),
        (401, Health.UNKNOWN),
        (404, Health.UNKNOWN),
        (500, Health.DOWN),
        (503, Health.DOWN),
    ],
)
def test_what_a_probe_s_answer_says(status: int, health: Health) -> None:
    assert Probe("/health").verdict(status) is health


_COUNTS = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
_TEXT = {"message": {"content": 'of "usage": {"completion_tokens": 1}'}}


@pytest.mark.parametrize("dump", [lambda it: json.dumps(it).encode(), orjson.dumps], ids=["with spaces", "without"])
@pytest.mark.parametrize(
    ("document", "sole"),
    [
        ({"choices": [_TEXT], "usage": _COUNTS}, True),
        ({"usage": _COUNTS, "choices": [_TEXT]}, True),
        ({"response": {"output": [], "usage": _COUNTS}}, True),
        ({"choices": [], "usage": None}, False),
        ({"choices": [], "usage": {}}, False),
        ({"choices": []}, False),
        ({"usage": _COUNTS, "choices": [{"message": {"content": 'of an "error"'}}]}, True),
        ({"usage": _COUNTS, "error": None}, False),
        ({"usage": _COUNTS, "error": {"message": "queue is full"}}, False),
        ({"usage": _COUNTS, "message": {"usage": {"input_tokens": 1}}}, False),
        ([{"usage": _COUNTS}], False),
        ({"usage": {"prompt_tokens": 1, "odd": "}{"}}, False),
        ({"usage": {"prompt_tokens": 1, "odd": "}"}}, False),
    ],
)
def test_counts_that_are_found_are_those_that_a_parse_finds(
    document: Any, sole: bool, dump: Callable[[Any], bytes]
) -> None:
    body = dump(document)
    found = sole_usage(body)
    assert (found is not None) is sole
    if found is not None:
        assert found == usage_of(orjson.loads(body))
    heard = hear(BodyReader(200, "application/json"), [body])
    parts = document if isinstance(document, list) else [document]
    assert heard.usage == usage_of(parts[0])
    assert heard.complete
    assert (heard.fault is not None) is bool(parts[0].get("error"))


@pytest.mark.parametrize("body", [b'{"usage":{"prompt_tokens":1', b'{"usage":{]}}', b'{"usage":1}', b""])
def test_counts_of_a_body_that_is_cut_are_not_guessed(body: bytes) -> None:
    assert sole_usage(body) is None
