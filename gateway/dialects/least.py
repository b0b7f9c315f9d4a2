"""The fewest tokens that a prompt can have, whatever the vocabulary: what a request can be refused by.

No token of a vocabulary in use reaches from one word into the next, so each run of text without white space is a token
at least. Counted is only what every chat template puts into the prompt, which is what users say: templates leave out
the reasoning of former answers, and tools or system prompts where the model has no place for them. White space counts
none, because some templates cut it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gateway.dialects.request import parse

_LONGEST: Final = 256  # bytes; the longest token in the vocabularies of Qwen and DeepSeek has 128, all one sign

_MARKS: Final = bytes(ord(" " if byte in b" \t\n\r\v\f" else "x") for byte in range(256))


def least_tokens(body: bytes) -> int:
    """Of a chat, message, response or completion; of several prompts those of the longest. 0 where nothing is sure."""
    document = parse(body)
    if document is None:
        return 0
    prompt = document.get("prompt")
    if isinstance(prompt, list):
        return max((_words(text) for text in prompt if isinstance(text, str)), default=0)
    return sum(_words(text) for text in _said(document))


def _said(document: dict[str, Any]) -> Iterator[str]:
    for name in ("prompt", "input"):
        text = document.get(name)
        if isinstance(text, str):
            yield text
    for name in ("messages", "input"):
        messages = document.get(name)
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict) and message.get("role") == "user":
                yield from _texts(message.get("content"))


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                yield text


def _words(text: str) -> int:
    """Runs without white space, counted without a copy of each: a prompt may be as long as a body."""
    data = text.encode(errors="replace")
    marked = data.translate(_MARKS)
    return max(marked.count(b" x") + marked.startswith(b"x"), marked.count(b"x") // _LONGEST)
