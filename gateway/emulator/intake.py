"""What a request to the emulated engine asks for, read and judged as vLLM does.

One word (split at white space) is one token, an id is one, and a second of audio is 13 (Qwen3-ASR's encoder). The
faults are vLLM 0.32's own, down to their words.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.emulator.blocks import Prefix, chained

AUDIO_TOKENS_PER_SECOND: Final = 13
SPEECH_TOKENS_PER_SECOND: Final = 2.5  # of text: some 150 words a minute
COMPLETION_MAX_TOKENS: Final = 16  # vLLM's default for /v1/completions
WORDS: Final = (
    "tide", "wind", "moss", "fern", "clay", "dune", "reef", "vale", "peak", "bark", "leaf", "rain", "snow", "sand",
)  # fmt: skip
"""What answers are made of, over and over."""

FORCED: Final = "emulator_output_tokens"  # an extra body field: exactly so many output tokens

Document = dict[str, Any]
Words = list[Hashable]  # what one token each is made of


def answer_words(tokens: int) -> Sequence[str]:
    """The words of an answer of so many tokens."""
    return (WORDS * (tokens // len(WORDS) + 1))[:tokens]


class RequestError(Exception):
    """A refusal in vLLM's error shape."""

    def __init__(self, message: str, param: str | None, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The JSON of it."""
        return orjson.dumps(
            {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``work`` holds (prompt, output) tokens, one pair for each engine request it becomes.

    ``prefixes`` are what the engine may find of each in its prefix cache; empty: nothing is known of what they say.
    """

    model: str
    work: tuple[tuple[int, int], ...]
    prompt_tokens: int  # as ``usage`` counts them
    reasons: tuple[str, ...] = ()  # why each answer ends: length or stop
    stream: bool = False
    include_usage: bool = False
    document: Document = field(default_factory=dict)
    prefixes: tuple[Prefix, ...] = ()
    choices: int = 1  # answers to each prompt, one after the other in ``work``

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine had, of what it has begun to read; a prompt counts once for all its answers."""
        return sum(prefix.cached for prefix in self.prefixes[:: self.choices])


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine serves. ``draw()`` gives an output length where the caller sets no bound.

    ``block_size`` tokens are a block of its prefix cache; 0: it has none.
    """

    models: tuple[str, ...]
    max_model_len: int
    draw: Callable[[], int]
    block_size: int = 0


# ------------------------------------------------------------------------------------------------ JSON routes


def read_json(content_type: str, body: bytes) -> Document:
    """The body as an object, or vLLM's fault."""
    if not body:
        raise _validation("missing", "body", "Field required", "None")
    if content_type.partition(";")[0].strip().lower() not in {"application/json", ""}:
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise RequestError(message, None, kind="Bad Request")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        where = f"body.{error.pos}"
        raise _validation("json_invalid", where, "JSON decode error", "<dict of 0 items>") from None
    if not isinstance(document, dict):
        raise _validation("dict_type", "body", "Input should be a valid dictionary", f"<{type(document).__name__}>")
    return document


def _validation(kind: str, where: str, message: str, given: str) -> RequestError:
    shown = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': '{given}'}}"
    return RequestError(f"1 validation error:\n  {shown}", where, kind="Bad Request")


def chat(document: Document, limits: Limits) -> Ask:
    """/v1/chat/completions."""
    messages = _messages(document)
    cap = document.get("max_completion_tokens", document.get("max_tokens"))
    prompt = [word for message in messages for word in _words(message.get("content"))]
    return _generation(document, limits, [prompt], cap)


def completion(document: Document, limits: Limits) -> Ask:
    """/v1/completions: a text, several, token ids, or several lists of them."""
    given = _required(document, "prompt")
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    prompts = [_words(prompt) for prompt in (given if several else [given])]
    return _generation(document, limits, prompts, document.get("max_tokens", COMPLETION_MAX_TOKENS))


def response(document: Document, limits: Limits) -> Ask:
    """/v1/responses: a text or a list of items."""
    given = _required(document, "input")
    items = given if isinstance(given, list) else [given]
    texts = [item.get("content") if isinstance(item, dict) else item for item in items]
    prompt = [word for text in [document.get("instructions"), *texts] for word in _words(text)]
    return _generation(document, limits, [prompt], document.get("max_output_tokens"))


def message(document: Document, limits: Limits) -> Ask:
    """/v1/messages, the API of Anthropic."""
    _required(document, "max_tokens")
    contents = [document.get("system"), *(m.get("content") for m in _messages(document))]
    prompt = [word for content in contents for word in _words(content)]
    return _generation(document, limits, [prompt], document["max_tokens"])


def embedding(document: Document, limits: Limits) -> Ask:
    """/v1/embeddings: like the prompts of a completion, without output."""
    given = _required(document, "input")
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    return _pooling(document, limits, [_words(text) for text in (given if several else [given])])


def rerank(document: Document, limits: Limits) -> Ask:
    """/rerank, /v1/rerank, /v2/rerank: every document with the query before it."""
    query, documents = _words(_required(document, "query")), _required(document, "documents")
    if not isinstance(documents, list):
        raise _validation("list_type", "body.documents", "Input should be a valid list", str(documents)[:40])
    return _pooling(document, limits, [query + _words(text) for text in documents])


def score(document: Document, limits: Limits) -> Ask:
    """/score, /v1/score: every text_2 with text_1 before it."""
    first, second = _required(document, "text_1"), _required(document, "text_2")
    ones = first if isinstance(first, list) else [first]
    twos = second if isinstance(second, list) else [second]
    pairs = zip(ones * len(twos) if len(ones) == 1 else ones, twos, strict=False)
    return _pooling(document, limits, [_words(one) + _words(two) for one, two in pairs])


def count_tokens(document: Document) -> int:
    """Tokens of a prompt or of messages, for /tokenize and /v1/messages/count_tokens."""
    if "messages" in document:
        return sum(len(_words(m.get("content"))) for m in _messages(document))
    return len(_words(_required(document, "prompt")))


# ---------------------------------------------------------------------------------------------- multipart form


def transcription(content_type: str, body: bytes, limits: Limits) -> tuple[Ask, float]:
    """/v1/audio/transcriptions: what it asks for, and the seconds of audio."""
    fields = read_form(content_type, body)
    if "file" not in fields:
        raise _validation("missing", "body.file", "Field required", "None")
    seconds = audio_seconds(fields["file"])
    document: Document = {
        name: fields[name].decode(errors="replace")
        for name in ("model", "prompt", "max_completion_tokens", FORCED)
        if name in fields
    }
    for name in ("max_completion_tokens", FORCED):
        if name in document:
            document[name] = int(document[name]) if document[name].isdigit() else -1
    document["stream"] = fields.get("stream", b"").lower() in {b"true", b"1"}
    if fields.get("stream_include_usage", b"").lower() in {b"true", b"1"}:
        document["stream_options"] = {"include_usage": True}
    prompt = _audio_words(fields["file"], seconds) + _words(document.get("prompt"))
    speech = max(1, round(seconds * SPEECH_TOKENS_PER_SECOND))
    return _generation(document, limits, [prompt], document.get("max_completion_tokens"), speech), seconds


def read_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """Fields of a multipart/form-data body."""
    found = re.search(r'boundary="?([^";]+)"?', content_type)
    if found is None:
        raise _validation("missing", "body", "Field required", "None")
    fields = {}
    for part in body.split(b"--" + found[1].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = re.search(rb'\bname="([^"]*)"', head)
        if name is not None:
            fields[name[1].decode(errors="replace")] = content.removesuffix(b"\r\n")
    return fields


def audio_seconds(audio: bytes) -> float:
    """Length of a WAV file by its header; of anything else as 128 kbit/s would have it."""
    if audio[:4] == b"RIFF" and audio[8:16] == b"WAVEfmt ":
        rate = int.from_bytes(audio[28:32], "little")
        at = audio.find(b"data", 20, 4096)
        if rate and at > 0:
            return max(0, len(audio) - at - 8) / rate
    return len(audio) / 16_000


# ------------------------------------------------------------------------------------------------------ shared


def _generation(
    document: Document, limits: Limits, prompts: list[Words], cap: object, spoken: int | None = None
) -> Ask:
    stream = document.get("stream") is True
    options = document.get("stream_options") or {}
    if options and not stream:
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise RequestError(text, "stream_options")
    model = _model(document, limits)
    most = _cap(cap, limits)
    choices = document.get("n") or 1
    if not isinstance(choices, int) or choices < 1:
        raise RequestError(f"n must be at least 1, got {choices}. (parameter=n, value={choices})", "n")
    work, reasons, prefixes = [], [], []
    for words in prompts:
        prompt = max(1, len(words))
        room = _room(prompt, most, limits)
        for _ in range(choices):
            natural = spoken or most or limits.draw()
            output = _output(document, natural, room if most is None else most)
            work.append((prompt, output))
            reasons.append("length" if output in {most, room} else "stop")
            prefixes += _prefix([*words, *answer_words(output)], limits)
    usage = isinstance(options, dict) and options.get("include_usage") is True
    total = sum(max(1, len(words)) for words in prompts)
    return Ask(model, tuple(work), total, tuple(reasons), stream, usage, document, tuple(prefixes), choices)


def _pooling(document: Document, limits: Limits, prompts: list[Words]) -> Ask:
    model = _model(document, limits)
    lengths = [max(1, len(words)) for words in prompts]
    for prompt in lengths:
        _room(prompt, None, limits, output=0)
    prefixes = tuple(prefix for words in prompts for prefix in _prefix(words, limits))
    return Ask(model, tuple((prompt, 0) for prompt in lengths), sum(lengths), document=document, prefixes=prefixes)


def _prefix(words: Words, limits: Limits) -> list[Prefix]:
    """One, where there is a prefix cache; an answer's words are known before it is given."""
    return [Prefix(chained(words, limits.block_size))] if limits.block_size else []


def _model(document: Mapping[str, Any], limits: Limits) -> str:
    model = document.get("model") or limits.models[0]
    if model not in limits.models:
        aliases = ", ".join(limits.models)
        raise RequestError(
            f"The model `{model}` does not exist. Valid aliases: {aliases}.", "model", 404, "NotFoundError"
        )
    return str(model)


def _cap(cap: object, limits: Limits) -> int | None:
    if cap is None:
        return None
    if not isinstance(cap, int) or cap < 1:
        raise RequestError(
            f"max_tokens must be at least 1, got {cap}. (parameter=max_tokens, value={cap})", "max_tokens"
        )
    if cap > limits.max_model_len:
        raise RequestError(
            f"max_tokens={cap} cannot be greater than max_model_len={limits.max_model_len}."
            f" Please request fewer output tokens. (parameter=max_tokens, value={cap})",
            "max_tokens",
        )
    return cap


def _room(prompt: int, cap: int | None, limits: Limits, output: int = 1) -> int:
    """Output tokens that fit behind the prompt."""
    longest = limits.max_model_len
    if prompt + output > longest:
        raise RequestError(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains at least"
            f" {prompt} input tokens, which exceeds this limit even without any output tokens. Please reduce the"
            f" length of the input prompt. (parameter=input_tokens, value={prompt})",
            "input_tokens",
        )
    if cap is not None and prompt + cap > longest:
        raise RequestError(
            f"This model's maximum context length is {longest} tokens. However, you requested {cap} output tokens and"
            f" your prompt contains at least {prompt} input tokens, for a total of at least {prompt + cap} tokens."
            " Please reduce the length of the input prompt or the number of requested output tokens."
            f" (parameter=input_tokens, value={prompt})",
            "input_tokens",
        )
    return longest - prompt


def _output(document: Document, natural: int, most: int) -> int:
    forced, least = document.get(FORCED), document.get("min_tokens")
    if isinstance(forced, int) and forced > 0:
        return min(forced, most)
    return min(most, max(natural, least if isinstance(least, int) else 1))


def _required(document: Document, name: str) -> Any:
    if document.get(name) is None:
        raise _validation("missing", f"body.{name}", "Field required", f"<dict of {len(document)} items>")
    return document[name]


def _messages(document: Document) -> list[Document]:
    messages = _required(document, "messages")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise _validation("list_type", "body.messages", "Input should be a valid list", str(messages)[:40])
    return messages


def _words(content: object) -> Words:
    if isinstance(content, str):
        return list[Hashable](content.split())
    if isinstance(content, list):
        return [word for part in content for word in _part_words(part)]
    return []


def _part_words(part: object) -> Words:
    if isinstance(part, int):  # a token id
        return [part]
    if not isinstance(part, dict):
        return _words(part)
    audio = part.get("input_audio")
    if isinstance(audio, dict):
        try:
            data = base64.b64decode(str(audio.get("data", "")))
        except binascii.Error:
            raise RequestError("Invalid base64 in input_audio.", "input_audio") from None
        return _audio_words(data, audio_seconds(data))
    return _words(part.get("text") or part.get("content"))


def _audio_words(audio: bytes, seconds: float) -> Words:
    """A token for each 77 ms; the same for the same audio only."""
    return [hash(audio)] * round(seconds * AUDIO_TOKENS_PER_SECOND)
