"""What a JSON request body asks for: one parse, one walk, no exception.

The fields of all APIs are read by one table, because their names do not collide: what a field means depends on the
field, not on the path it came by. So a route that no dialect knows is measured as well as a known one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.dialects import media
from gateway.dialects.blocks import MOST, hashed
from gateway.model import Route, Shape

_COUNT_MAX: Final = 1_000_000_000  # a cap above this is no cap
_CHOICES_MAX: Final = 10_000
_NODES_MAX: Final = 100_000  # JSON values visited; a body of more is measured by its size
_OPAQUE_MAX: Final = 64 * 1024
_NAME_MAX: Final = 256  # characters of a model or user name that are kept

_SAMPLE: Final = 256  # characters looked at, in each of four places
_LOOK_MIN: Final = 64  # bytes; shorter strings are not worth a look
_LOOKS: Final = 32  # strings looked at; of the others only those of 4 KiB or more
_LOOK_SURE: Final = 4 * 1024
_DIGITS: Final = b"0123456789"
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BASE64_SIGNS: Final = b"+/=_-"
_SIGNS: Final = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_SORTS: Final = bytes(  # of each byte that is no letter: d a digit, b a sign of base64, s another, - anything else
    b"-sbd"[(byte in _SIGNS) + (byte in _BASE64_SIGNS) + 3 * (byte in _DIGITS)] for byte in range(256)
)
_WORD: Final = 48  # bytes without any other character that no language's text has

# Prompt text, wherever it stands: OpenAI, Anthropic, Cohere, vLLM's pooling routes, and the native routes of MindIE,
# TGI, SGLang, Triton and llama.cpp.
_TEXT_FIELDS: Final = frozenset({
    "system", "instructions", "suffix", "query", "queries", "documents", "items", "text_1", "text_2", "data_1",
    "data_2", "text", "texts", "text_input", "message", "input_prefix", "input_suffix", "input_extra",
    "content",
})  # fmt: skip
_PROMPT_FIELDS: Final = frozenset({"prompt", "input", "inputs", "input_ids", "input_id", "token_ids"})
_MEDIA_FIELDS: Final[dict[str, Callable[[Any], int]]] = {  # beside the prompt: SGLang, LMDeploy, Ollama
    "image_data": media.image_tokens,
    "images": media.image_tokens,
    "audio_data": media.audio_tokens,
    "video_data": media.video_tokens,
}
_MESSAGE_FIELDS: Final = frozenset({"messages", "chat_history"})
_SCHEMA_FIELDS: Final = frozenset({"tools", "functions"})
_FIELDS: Final = frozenset({*_MESSAGE_FIELDS, *_PROMPT_FIELDS, *_SCHEMA_FIELDS, *_MEDIA_FIELDS, *_TEXT_FIELDS})
_FIRST_FIELDS: Final = _SCHEMA_FIELDS | {"system", "instructions"}
_REPEATED_FIELDS: Final = ("documents", "text_2", "data_2", "items")
_CAP_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", "max_new_tokens")
_TRUNCATE_FIELDS: Final = ("truncate_prompt_tokens", "truncate", "truncation")
_WHOLE: Final = (None, False, "disabled", "NONE", "none")
_NESTED: Final = ("parameters", "sampling_params", "options")  # TGI and MindIE, SGLang, Ollama
_QUERY_FIELDS: Final = ("query", "text_1", "data_1", "queries")
_RARE: Final = frozenset({
    *_NESTED, *_TRUNCATE_FIELDS, *_QUERY_FIELDS, "n", "best_of", "metadata", "safety_identifier", "conversation",
    "prompt_cache_key",
})  # fmt: skip
"""What most requests have none of; looked for in one go, as each by itself takes longer than the rest of the shape."""
_NESTED_CAPS: Final = ("max_new_tokens", "max_tokens", "num_predict")

_LABELS: Final = frozenset({
    "role", "type", "id", "name", "status", "detail", "format", "media_type", "mime_type", "tool_call_id", "call_id",
    "tool_use_id", "signature", "encrypted_content", "file_id", "filename", "cache_control",
})  # fmt: skip
_MEDIA: Final[dict[str, Callable[[Any], int]]] = {
    "image_url": media.image_tokens,
    "image": media.image_tokens,
    "source": media.image_tokens,
    "input_audio": media.audio_tokens,
    "audio_url": media.audio_tokens,
    "audio": media.audio_tokens,
    "video_url": media.video_tokens,
    "video": media.video_tokens,
    "file": media.file_tokens,
    "file_data": media.file_tokens,
    "file_url": media.file_tokens,
    "images": lambda value: _each(media.image_tokens, value),  # base64 beside a message's text (Ollama)
    "multimodal_data": lambda value: _each(media.image_tokens, value),  # llama.cpp, beside prompt_string
}


def read_json(route: Route, body: bytes, *, generates: bool, blocks: bool = False) -> Shape:
    """Shape of a request with a JSON body. What is no JSON object counts by its size, up to 64 KiB.

    ``blocks``: hash the blocks of its prompt as well.
    """
    return shape_of(route, parse(body), body, generates=generates, blocks=blocks)


def parse(body: bytes) -> dict[str, Any] | None:
    """The body as a JSON object, None where it is none."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def shape_of(
    route: Route, document: dict[str, Any] | None, body: bytes, *, generates: bool, blocks: bool = False
) -> Shape:
    """Shape of a request whose ``body`` is ``document``; see ``read_json``."""
    if document is None:
        return Shape(route, model=route.model, prompt_bytes=min(len(body), _OPAQUE_MAX), generates=generates)
    plain = _RARE.isdisjoint(document)
    meter = _Meter([] if blocks else None)
    messages = meter.document(document)
    if not plain:
        meter.repeat_query(document)
    if meter.nodes > _NODES_MAX:
        meter.size = max(meter.size, len(body))
    exact = meter.token_ids > 0 and not meter.size and not meter.media
    model = route.model or name_of(document.get("model"))
    return Shape(
        route,
        model=model,
        stream=document.get("stream") is True,
        prompt_bytes=meter.size,
        dense_bytes=meter.share(meter.dense),
        sign_bytes=meter.share(meter.signs),
        wide_bytes=min(meter.wide, meter.size),
        prompt_tokens=meter.token_ids if exact else None,
        media_tokens=meter.media if exact else meter.media + meter.token_ids,
        messages=messages,
        max_output=cap_in(document),
        choices=min(meter.prompts, _CHOICES_MAX) if plain else _choices(document, meter.prompts),
        generates=generates,
        user=name_of(document.get("user")) if plain else _user(document),
        truncates=False if plain else _truncates(document),
        conversation=None if plain else _conversation(document),
        blocks=hashed(f"{model}\0{document.get('cache_salt')}", meter.texts)
        if meter.texts and meter.prompts == 1
        else (),
    )


def name_of(value: Any) -> str | None:
    """A name that came from outside, at most 256 characters of it; None where it is no name."""
    return value[:_NAME_MAX] if isinstance(value, str) and value else None


def count_of(value: Any) -> int | None:
    """A count that came from outside, at most a milliard; None where it is no count (llama.cpp: -1 is unlimited)."""
    if type(value) is int:
        return value if 0 <= value <= _COUNT_MAX else _COUNT_MAX if value > 0 else None
    if isinstance(value, float) and value >= 0:
        return int(min(value, _COUNT_MAX))
    return None


class _Meter:
    """Adds up a prompt. ``size`` is in bytes of UTF-8, ``prompts`` how many prompts a batch holds."""

    __slots__ = (
        "_looked", "_looks", "dense", "media", "nodes", "prompts", "signs", "size", "texts", "token_ids", "wide",
    )  # fmt: skip

    def __init__(self, texts: list[str] | None = None) -> None:
        """``texts`` takes the prompt's texts in the order in which templates write them; None: nobody wants them."""
        self.texts = texts
        self.size = 0
        self.wide = 0
        self.dense = 0  # of the bytes in the strings that were looked at
        self.signs = 0  # of the same
        self._looked = 0
        self._looks = _LOOKS
        self.media = 0
        self.token_ids = 0
        self.prompts = 1
        self.nodes = 0

    def share(self, found: int) -> int:
        """Bytes of the whole prompt, as ``found`` in the strings that were looked at."""
        return self.size * found // self._looked if self._looked else 0

    def document(self, document: dict[str, Any]) -> int:
        """Measure every prompt field; return the number of messages."""
        messages = 0
        fields = document.items() if self.texts is None else sorted(document.items(), key=_place)
        for key, value in fields:
            if key not in _FIELDS:
                continue
            if key in _MESSAGE_FIELDS:
                messages += self._messages(value)
            elif key in _PROMPT_FIELDS:
                messages += self._prompt(value)
            elif key in _SCHEMA_FIELDS:
                self._schema(value)
            elif key in _MEDIA_FIELDS:
                self.media += _each(_MEDIA_FIELDS[key], value)
            else:
                self._value(value)
                messages += key in {"system", "instructions", "message"}
        return messages

    def repeat_query(self, document: dict[str, Any]) -> None:
        """A cross-encoder reads the query with each of what it is compared with."""
        query = next(filter(None, map(document.get, _QUERY_FIELDS)), None)
        if isinstance(query, str):
            times = next((len(v) for v in map(document.get, _REPEATED_FIELDS) if isinstance(v, list)), 1)
            self.size += len(query.encode()) * max(times - 1, 0)

    def _messages(self, messages: Any) -> int:
        if not isinstance(messages, list):
            self._value(messages)
            return 1
        if messages and type(messages[0]) is list:  # vLLM's batch of conversations
            self.prompts = len(messages)
        for message in messages:
            if type(message) is dict and len(message) == 2 and "role" in message:  # noqa: PLR2004 - role and content
                self._content(message.get("content"))
            else:
                self._value(message)
        return len(messages)

    def _content(self, content: Any) -> None:
        """The common cases without a walk: a string, or parts of plain text."""
        if type(content) is str:
            self._text(content)
        elif type(content) is list:
            for part in content:
                text = part.get("text") if type(part) is dict and len(part) == 2 else None  # noqa: PLR2004 - type and text
                if type(text) is str and "type" in part:
                    self._text(text)
                else:
                    self._value(part)
        else:
            self._value(content)

    def _prompt(self, prompt: Any) -> int:
        """A prompt of any form: str, [str], [int], [[int]], Triton's tensors, or the items of the Responses API."""
        if type(prompt) is not list or not prompt:
            self._value(prompt)
            return 0
        first = prompt[0]
        if type(first) is int:
            self.token_ids += len(prompt)
            if self.texts is not None:
                self.texts.append((_written(prompt[: MOST // 4]) or b"").decode())
        elif type(first) is dict:
            if "shape" not in first:
                return self._messages(prompt)
            self._tensor(first)
        else:
            self.prompts = len(prompt)
            for one in prompt:
                if type(one) is list and one and type(one[0]) is int:
                    self.token_ids += len(one)
                else:
                    self._value(one)
        return 0

    def _tensor(self, tensor: dict[str, Any]) -> None:
        """Triton's first input: ids, or text as BYTES."""
        data = tensor.get("data")
        if type(data) is list and data and type(data[0]) is int:
            self.token_ids += len(data)
        else:
            self._value(data)

    def _schema(self, tools: Any) -> None:
        """Templates put the tools into the prompt as JSON text."""
        written = _written(tools) if tools else b""
        if written is None:
            self._value(tools)
            return
        self.size += len(written)
        if self.texts is not None:
            self.texts.append(written.decode())

    def _value(self, value: Any) -> None:
        """Every string in ``value`` but labels; media by their own measure."""
        stack = [value]
        while stack and self.nodes <= _NODES_MAX:
            self.nodes += 1
            node = stack.pop()
            kind = type(node)
            if kind is str:
                self._text(node)
            elif kind is dict:
                self._object(node, stack)
            elif kind is list and node and type(node[0]) in {str, dict, list}:
                stack.extend(node)

    def _object(self, node: dict[str, Any], stack: list[Any]) -> None:
        for key, value in node.items():
            measure = _MEDIA.get(key)
            if measure is not None:
                self.media += measure(value)
            elif key not in _LABELS:
                stack.append(value)

    def _text(self, text: str) -> None:
        size = len(text)
        if not text.isascii():
            size = len(text.encode())
            self.wide += (size - len(text)) * 3 // 2  # exact where a character has three bytes, as Chinese
        self.size += size
        if self.texts is not None:
            self.texts.append(text)
        if size >= _LOOK_MIN and (self._looks > 0 or size >= _LOOK_SURE):
            self._looks -= 1
            self._looked += size
            dense, signs = _looked_at(text, size)
            self.dense += dense
            self.signs += signs


def _written(value: Any) -> bytes | None:
    """``value`` as JSON; None where it is nested deeper than orjson writes, though not deeper than it reads."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return None


def _looked_at(text: str, size: int) -> tuple[int, int]:
    """How many of ``size`` bytes are digits, hex or base64, and how many are signs, by samples from four places."""
    sample = text.encode() if len(text) <= 4 * _SAMPLE else _sample(text)
    rest = sample.translate(_SORTS, _LETTERS)  # most of a text are letters: they are counted by leaving them out
    digits, base64 = rest.count(b"d"), rest.count(b"b")
    if (len(rest) - digits - base64) * _WORD < len(sample):
        return size, 0
    signs = base64 + rest.count(b"s")
    return size * digits // len(sample), size * signs // len(sample)


def _sample(text: str) -> bytes:
    step = len(text) // 4
    return "".join([text[start : start + _SAMPLE] for start in range(0, 4 * step, step)]).encode()


def cap_in(document: dict[str, Any]) -> int | None:
    """The caller's cap on output tokens, wherever it stands; None where it set none."""
    for key in _CAP_FIELDS:
        cap = document.get(key)
        if cap is not None and (cap := count_of(cap)) is not None:
            return cap
    for key in _NESTED:
        nested = document.get(key)
        if isinstance(nested, dict):
            for name in _NESTED_CAPS:
                cap = count_of(nested.get(name))
                if cap is not None:
                    return cap
    return None


def _each(measure: Callable[[Any], int], value: Any) -> int:
    """Media beside a prompt: one, several, or several for each of several prompts."""
    if not isinstance(value, list):
        return 0 if value is None else measure(value)
    inner = [item for one in value for item in (one if isinstance(one, list) else (one,))]
    return sum(measure(item) for item in inner if item is not None)


def _choices(document: dict[str, Any], prompts: int) -> int:
    n = max(count_of(document.get("n")) or 1, count_of(document.get("best_of")) or 1)
    return min(n * max(prompts, 1), _CHOICES_MAX)


def _truncates(document: dict[str, Any]) -> bool:
    """Whether the engine may shorten the prompt: vLLM, TGI, Cohere and OpenAI's Responses API have a word for it."""
    nested = document.get("parameters")
    places = (document, nested) if isinstance(nested, dict) else (document,)
    return any(place.get(key) not in _WHOLE for place in places for key in _TRUNCATE_FIELDS)


def _place(field: tuple[str, Any]) -> bool:
    """Templates write tools and system prompt before the messages, wherever they stand in the body."""
    return field[0] not in _FIRST_FIELDS


def _conversation(document: dict[str, Any]) -> str | None:
    """What it belongs together with, in the words of OpenAI's API: a conversation, a key of the cache.

    ``previous_response_id`` is another one in each turn, and so names nothing that lasts.
    """
    conversation = document.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return name_of(conversation) or name_of(document.get("prompt_cache_key"))


def _user(document: dict[str, Any]) -> str | None:
    """Who the caller says it acts for: ``user``, its successor, or Anthropic's ``metadata.user_id``."""
    metadata = document.get("metadata")
    nested = metadata.get("user_id") if isinstance(metadata, dict) else None
    return name_of(document.get("user")) or name_of(document.get("safety_identifier")) or name_of(nested)
