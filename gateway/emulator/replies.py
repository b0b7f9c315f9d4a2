"""The answers of the emulated engine, in the shapes that vLLM 0.32 puts on the wire.

A stream of a thousand tokens renders its chunk once: what changes from token to token is one word of fixed length,
so an event is three byte strings joined.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import orjson

from gateway.emulator.intake import WORDS, Ask, answer_words

FINGERPRINT: Final = "vllm-0.32.0-emulated"
DONE: Final = b"data: [DONE]\n\n"
_TOKENS: Final = tuple(f" {word}".encode() for word in WORDS)
_MARK: Final = "\u241f"  # stands for the token while a chunk is rendered


def text(tokens: int) -> str:
    """The text of an answer of so many tokens."""
    return "".join(f" {word}" for word in answer_words(tokens))


def spoilt(body: bytes) -> bytes:
    """An answer in which every word is exclamation marks."""
    for word in _TOKENS:
        body = body.replace(word, b"!" * len(word))
    return body


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Template:
    """An event that differs from the next by its token alone; a chunk of its own on the wire."""

    def __init__(self, event: bytes) -> None:
        """Split the event, rendered with the mark in place of its token."""
        before, after = event.split(_MARK.encode())
        size = len(before) + len(_TOKENS[0]) + len(after)
        self._parts = tuple(b"%x\r\n%b%b%b\r\n" % (size, before, token, after) for token in _TOKENS)

    def __call__(self, index: int) -> bytes:
        """The event of the answer's token number ``index``, from 0."""
        return self._parts[index % len(self._parts)]


class Reply(Protocol):
    """How one request is answered: as a stream of HTTP chunks, or whole."""

    def opening(self) -> bytes:
        """Chunks that leave with the headers, before any token."""

    def first(self, choice: int) -> bytes:
        """Chunks that leave with the first token of an answer, before it."""

    def token(self, choice: int, index: int) -> bytes:
        """The chunk of one token."""

    def last(self, choice: int, index: int) -> bytes:
        """The chunks of an answer's last token."""

    def closing(self) -> bytes:
        """Chunks after the last answer."""

    def whole(self) -> bytes:
        """The answer as one JSON document."""


def _sse(document: dict[str, Any], event: str | None = None) -> bytes:
    head = b"" if event is None else b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (head, orjson.dumps(document))


class _Plain:
    """What most replies share."""

    def __init__(self, ask: Ask, identity: str, created: int) -> None:
        self._ask = ask
        self._id = identity
        self._created = created
        self._output = sum(output for _, output in ask.work)
        self._templates: dict[int, Template] = {}

    def opening(self) -> bytes:
        return b""

    def first(self, _choice: int) -> bytes:
        return b""

    def token(self, choice: int, index: int) -> bytes:
        template = self._templates.get(choice)
        if template is None:
            template = self._templates[choice] = Template(self._event(choice, _MARK))
        return template(index)

    def _event(self, choice: int, content: str) -> bytes:
        raise NotImplementedError

    def _usage(self) -> dict[str, Any]:
        """As with ``--enable-prompt-tokens-details``, which adds the details where any token was cached."""
        prompt, cached = self._ask.prompt_tokens, self._ask.cached_tokens
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + self._output, "completion_tokens": self._output}
        return counts | ({"prompt_tokens_details": {"cached_tokens": cached}} if cached else {})

    def _usage_whole(self) -> dict[str, Any]:
        return dict.fromkeys(("prompt_tokens_details", "completion_tokens_details")) | self._usage()


class Chat(_Plain):
    """/v1/chat/completions."""

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        head = {"id": f"chatcmpl-{self._id}", "object": "chat.completion.chunk", "created": self._created}
        return _sse(head | {"model": self._ask.model, "choices": choices} | more)

    def first(self, choice: int) -> bytes:
        """The role, a chunk of its own."""
        delta = {"role": "assistant", "content": ""}
        body = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return framed(self._chunk([body], prompt_token_ids=None, prompt_text=None))

    def _event(self, choice: int, content: str) -> bytes:
        body = {"index": choice, "delta": {"content": content}, "logprobs": None, "finish_reason": None}
        return self._chunk([body | {"token_ids": None}])

    def last(self, choice: int, index: int) -> bytes:
        """The last token with its reason."""
        body = {
            "index": choice,
            "delta": {"content": _TOKENS[index % len(_TOKENS)].decode()},
            "logprobs": None,
            "finish_reason": self._ask.reasons[choice],
            "stop_reason": None,
            "token_ids": None,
        }
        if self._ask.include_usage:
            return framed(self._chunk([body]))
        return framed(self._chunk([body], system_fingerprint=FINGERPRINT))

    def closing(self) -> bytes:
        """Usage where it was asked for, and the end mark."""
        if not self._ask.include_usage:
            return framed(DONE)
        return framed(self._chunk([], usage=self._usage(), system_fingerprint=FINGERPRINT)) + framed(DONE)

    def whole(self) -> bytes:
        """A chat.completion."""
        unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choices = [
            {
                "index": choice,
                "message": {"role": "assistant", "content": text(output), **unused},
                "logprobs": None,
                "finish_reason": self._ask.reasons[choice],
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for choice, (_, output) in enumerate(self._ask.work)
        ]
        return orjson.dumps(
            {
                "id": f"chatcmpl-{self._id}",
                "object": "chat.completion",
                "created": self._created,
                "model": self._ask.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage_whole(),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )


class Completion(_Plain):
    """/v1/completions."""

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        head = {"id": f"cmpl-{self._id}", "object": "text_completion", "created": self._created}
        return _sse(head | {"model": self._ask.model, "choices": choices} | more)

    def _body(self, choice: int, content: str, reason: str | None) -> dict[str, Any]:
        body = {"index": choice, "text": content, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return body | {"prompt_token_ids": None, "token_ids": None}

    def _event(self, choice: int, content: str) -> bytes:
        return self._chunk([self._body(choice, content, None)])

    def last(self, choice: int, index: int) -> bytes:
        """The last token with its reason."""
        body = self._body(choice, _TOKENS[index % len(_TOKENS)].decode(), self._ask.reasons[choice])
        if self._ask.include_usage:
            return framed(self._chunk([body]))
        return framed(self._chunk([body], system_fingerprint=FINGERPRINT))

    def closing(self) -> bytes:
        """Usage where it was asked for, and the end mark."""
        if not self._ask.include_usage:
            return framed(DONE)
        return framed(self._chunk([], usage=self._usage(), system_fingerprint=FINGERPRINT)) + framed(DONE)

    def whole(self) -> bytes:
        """A text_completion."""
        unused = dict.fromkeys(("token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"))
        choices = [
            {
                "index": choice,
                "text": text(output),
                "logprobs": None,
                "finish_reason": self._ask.reasons[choice],
                "stop_reason": None,
                **unused,
            }
            for choice, (_, output) in enumerate(self._ask.work)
        ]
        return orjson.dumps(
            {
                "id": f"cmpl-{self._id}",
                "object": "text_completion",
                "created": self._created,
                "model": self._ask.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage_whole(),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )


_TURNS: Final[dict[str, list[int]]] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
_OUTPUT_TURNS: Final[dict[str, list[int]]] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
_UNUSED: Final = dict.fromkeys(
    (
        "max_tool_calls",
        "previous_response_id",
        "prompt",
        "reasoning",
        "text",
        "top_logprobs",
        "user",
        "kv_transfer_params",
        "ec_transfer_params",
        "input_messages",
        "output_messages",
    )
)


class Responses(_Plain):
    """/v1/responses: typed events that carry a running number."""

    def __init__(self, ask: Ask, identity: str, created: int) -> None:
        super().__init__(ask, identity, created)
        self._numbers = 0

    def _numbered(self, kind: str, **document: object) -> bytes:
        number, self._numbers = self._numbers, self._numbers + 1
        return framed(_sse(document | {"sequence_number": number, "type": kind}, kind))

    def _document(self, *, ended: bool) -> dict[str, Any]:
        cut = ended and self._ask.reasons[0] == "length"
        status = "in_progress" if not ended else "incomplete" if cut else "completed"
        usage = {
            "input_tokens": self._ask.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._ask.cached_tokens, "cache_write_tokens": 0} | _TURNS,
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0} | _OUTPUT_TURNS,
            "total_tokens": self._ask.prompt_tokens + self._output,
        }
        return {
            "id": f"resp_{self._id}",
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self._ask.document.get("instructions"),
            "metadata": None,
            "model": self._ask.model,
            "object": "response",
            "output": [self._item("completed")] if ended else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._ask.document.get("max_output_tokens"),
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": usage if ended else None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **_UNUSED,
        }

    def _part(self) -> dict[str, Any]:
        return {"annotations": [], "text": text(self._output), "type": "output_text", "logprobs": None}

    def _item(self, status: str) -> dict[str, Any]:
        content = [self._part()] if status == "completed" else []
        head = {"id": f"msg_{self._id}", "content": content, "role": "assistant"}
        return head | {"status": status, "type": "message", "phase": None}

    def opening(self) -> bytes:
        """The response exists before the engine has taken it."""
        document = self._document(ended=False)
        return self._numbered("response.created", response=document) + self._numbered(
            "response.in_progress", response=document
        )

    def first(self, _choice: int) -> bytes:
        """The message and its part begin."""
        part = self._part() | {"text": "", "logprobs": []}
        item = self._numbered("response.output_item.added", item=self._item("in_progress"), output_index=0)
        place = {"content_index": 0, "item_id": f"msg_{self._id}", "output_index": 0}
        return item + self._numbered("response.content_part.added", **place, part=part)

    def token(self, _choice: int, index: int) -> bytes:
        """A delta."""
        place = {"content_index": 0, "item_id": f"msg_{self._id}", "output_index": 0}
        delta = _TOKENS[index % len(_TOKENS)].decode()
        return self._numbered("response.output_text.delta", **place, delta=delta, logprobs=[])

    def last(self, choice: int, index: int) -> bytes:
        """The last delta."""
        return self.token(choice, index)

    def closing(self) -> bytes:
        """Everything ends, from the inside to the outside."""
        place = {"content_index": 0, "item_id": f"msg_{self._id}", "output_index": 0}
        return (
            self._numbered("response.output_text.done", **place, text=text(self._output), logprobs=[])
            + self._numbered("response.content_part.done", **place, part=self._part())
            + self._numbered("response.output_item.done", item=self._item("completed"), output_index=0)
            + self._numbered("response.completed", response=self._document(ended=True))
        )

    def whole(self) -> bytes:
        """A response."""
        return orjson.dumps(self._document(ended=True))


class Messages(_Plain):
    """/v1/messages."""

    def _stop(self) -> str:
        return "max_tokens" if self._ask.reasons[0] == "length" else "end_turn"

    def _counts(self, output: int) -> dict[str, int]:
        return {"input_tokens": self._ask.prompt_tokens, "output_tokens": output}

    def first(self, _choice: int) -> bytes:
        """The message and its block begin."""
        message: dict[str, Any] = {"id": f"chatcmpl-{self._id}", "type": "message", "role": "assistant", "content": []}
        message |= {"model": self._ask.model, "stop_reason": None, "stop_sequence": None, "usage": self._counts(0)}
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        start = _sse({"type": "message_start", "message": message}, "message_start")
        return framed(start) + framed(_sse(block, "content_block_start"))

    def _event(self, _choice: int, content: str) -> bytes:
        delta = {"type": "text_delta", "text": content}
        return _sse({"type": "content_block_delta", "delta": delta, "index": 0}, "content_block_delta")

    def last(self, choice: int, index: int) -> bytes:
        """The last delta."""
        return self.token(choice, index)

    def closing(self) -> bytes:
        """Block and message end."""
        delta = {"stop_reason": self._stop(), "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": self._counts(self._output)}
        return (
            framed(_sse({"type": "content_block_stop", "index": 0}, "content_block_stop"))
            + framed(_sse(end, "message_delta"))
            + framed(_sse({"type": "message_stop"}, "message_stop"))
        )

    def whole(self) -> bytes:
        """A message."""
        return orjson.dumps(
            {
                "id": f"chatcmpl-{self._id}",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text(self._output)}],
                "model": self._ask.model,
                "stop_reason": self._stop(),
                "usage": self._counts(self._output),
            }
        )


class Transcription(_Plain):
    """/v1/audio/transcriptions of ``seconds`` of audio."""

    def __init__(self, ask: Ask, identity: str, created: int, seconds: float) -> None:
        super().__init__(ask, identity, created)
        self._seconds = seconds

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        head = {"id": f"trsc-{self._id}", "object": "transcription.chunk", "created": self._created}
        return _sse(head | {"model": self._ask.model, "choices": choices} | more)

    def _event(self, _choice: int, content: str) -> bytes:
        return self._chunk([{"delta": {"content": content}, "finish_reason": None, "stop_reason": None}])

    def last(self, _choice: int, index: int) -> bytes:
        """The last token with its reason."""
        delta = {"content": _TOKENS[index % len(_TOKENS)].decode()}
        return framed(self._chunk([{"delta": delta, "finish_reason": self._ask.reasons[0], "stop_reason": None}]))

    def closing(self) -> bytes:
        """Usage where it was asked for, and the end mark."""
        if not self._ask.include_usage:
            return framed(DONE)
        return framed(self._chunk([], usage=self._usage())) + framed(DONE)

    def whole(self) -> bytes:
        """The text, and the audio's length for usage."""
        usage = {"type": "duration", "seconds": max(1, round(self._seconds))}
        return orjson.dumps({"text": text(self._output).strip(), "usage": usage})
