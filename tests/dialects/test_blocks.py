"""Two prompts share as many leading hashes as they share whole blocks from their beginning, whatever their JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.blocks import MOST, chain, hashed
from gateway.dialects.registry import standard
from gateway.model import BLOCK_BYTES, BLOCKS_MAX, Shape

DIALECTS = standard()
LONG = "All that is said before the question. " * 60  # four blocks and a bit


def read(path: str, document: Any, *, blocks: bool = True) -> Shape:
    dialect, route = DIALECTS.resolve("POST", path)
    return dialect.read_request(route, "application/json", orjson.dumps(document), blocks=blocks)


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    return {
        "model": "m",
        "messages": [{"role": roles[i % 3], "content": text} for i, text in enumerate(texts)],
    } | fields


def shared(one: Shape, other: Shape) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one.blocks, other.blocks, strict=False)) if a != b),
        min(len(one.blocks), len(other.blocks)),
    )


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_as_many_hashes_are_equal_as_blocks_are_shared(prefix: bytes, one: bytes, other: bytes) -> None:
    first, second = chain("m", prefix + one), chain("m", prefix + other)
    assert len(first) == len(prefix + one) // BLOCK_BYTES
    assert first[: len(prefix) // BLOCK_BYTES] == second[: len(prefix) // BLOCK_BYTES]


def test_a_block_that_differs_makes_all_after_it_differ() -> None:
    one, other = chain("m", bytes(4 * BLOCK_BYTES)), chain("m", bytes(BLOCK_BYTES) + b"x" + bytes(3 * BLOCK_BYTES))
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_another_cache_shares_nothing() -> None:
    assert not set(hashed("one", [LONG])) & set(hashed("other", [LONG]))


def test_the_hashes_are_the_same_in_every_process() -> None:
    says = "from gateway.dialects.blocks import chain; print(chain('m', bytes(1024)))"
    told = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", says], env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    assert told.stdout.decode().strip() == str(chain("m", bytes(2 * BLOCK_BYTES)))


def test_a_huge_prompt_has_no_more_than_so_many() -> None:
    assert len(hashed("m", ["x" * 3 * MOST, "y"])) == BLOCKS_MAX
    assert len(hashed("m", ["x" * (MOST - 10), "y" * 100, "z"])) == BLOCKS_MAX


def test_the_next_turn_of_a_chat_begins_with_the_last_one() -> None:
    first = read("/v1/chat/completions", chat(LONG, LONG))
    second = read("/v1/chat/completions", chat(LONG, LONG, LONG, LONG))
    assert len(first.blocks) == 2 * len(LONG) // BLOCK_BYTES
    assert shared(first, second) == len(first.blocks)
    assert shared(first, read("/v1/chat/completions", chat(LONG, "another" + LONG))) == len(LONG) // BLOCK_BYTES


def test_nobody_asked() -> None:
    assert read("/v1/chat/completions", chat(LONG), blocks=False).blocks == ()


@pytest.mark.parametrize("ascii_only", [True, False])
def test_how_the_text_is_escaped_changes_nothing(ascii_only: bool) -> None:
    document = chat("中文" * 400)
    dialect, route = DIALECTS.resolve("POST", "/v1/chat/completions")
    body = json.dumps(document, ensure_ascii=ascii_only, indent=2).encode()
    assert (
        dialect.read_request(route, "application/json", body, blocks=True).blocks
        == read("/v1/chat/completions", document).blocks
    )


def test_tools_come_first_wherever_they_stand() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    before = read("/v1/chat/completions", {"tools": tools} | chat("ask"))
    after = read("/v1/chat/completions", chat("ask") | {"tools": tools})
    assert before.blocks == after.blocks != ()


def test_what_is_too_deep_to_write_is_walked() -> None:
    deep: Any = LONG
    for _ in range(300):
        deep = [deep]
    dialect, route = DIALECTS.resolve("POST", "/v1/chat/completions")
    body = json.dumps(chat(LONG) | {"tools": deep}).encode()
    assert (
        len(dialect.read_request(route, "application/json", body, blocks=True).blocks) == 2 * len(LONG) // BLOCK_BYTES
    )


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/completions", {"model": "m", "prompt": LONG}),
        ("/v1/completions", {"model": "m", "prompt": list(range(2000))}),
        ("/v1/messages", {"model": "m", "system": LONG, "messages": [{"role": "user", "content": "ask"}]}),
        ("/v1/responses", {"model": "m", "instructions": LONG, "input": "ask"}),
        ("/generate", {"inputs": LONG, "parameters": {}}),
        ("/something/new", {"prompt": LONG}),
        ("/generate", {"nothing_known": 1, "prompt": LONG, "text": LONG}),
    ],
)
def test_every_dialect_tells_them(path: str, document: dict[str, Any]) -> None:
    assert len(read(path, document).blocks) >= 4


def test_several_prompts_at_once_have_no_one_beginning() -> None:
    assert read("/v1/completions", {"model": "m", "prompt": [LONG, LONG]}).blocks == ()


def test_models_and_salts_keep_caches_apart() -> None:
    plain = read("/v1/chat/completions", chat(LONG))
    assert shared(plain, read("/v1/chat/completions", chat(LONG, model="other"))) == 0
    assert shared(plain, read("/v1/chat/completions", chat(LONG, cache_salt="mine"))) == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"conversation": "conv_1"}, "conv_1"),
        ({"conversation": {"id": "conv_2"}, "prompt_cache_key": "k"}, "conv_2"),
        ({"prompt_cache_key": "k", "previous_response_id": "r"}, "k"),
        ({"previous_response_id": "resp_1"}, None),
        ({"conversation": {"id": 3}}, None),
        ({}, None),
    ],
)
def test_what_a_request_belongs_together_with(fields: dict[str, Any], named: str | None) -> None:
    assert read("/v1/responses", {"model": "m", "input": "ask"} | fields).conversation == named
