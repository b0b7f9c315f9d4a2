"""MindIE's answers, byte for byte as its sources write them: three framings, and usage in the chunk that finishes.

MindIE-LLM 3.0.0, src/server/endpoint/single_req_infer_interface/single_req_*_infer_interface.cpp. JSON keys stand in
the order in which those fill them; each item is one write, hence one HTTP chunk.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.emulator.intake import WORDS
from gateway.emulator.mindie.asks import Question
from gateway.emulator.replies import DONE, framed, text

_FIRST_ID: Final = 100  # token ids are made up
_EOS: Final = {"length": "length", "stop": "eos_token"}


def _word(index: int) -> str:
    return f" {WORDS[index % len(WORDS)]}"


class _Form:
    """What all forms share; see ``replies.Reply``."""

    def __init__(self, question: Question, identity: str, created: int) -> None:
        self._ask = question.ask
        self._details = question.details
        self._id = identity
        self._created = created

    def opening(self) -> bytes:
        return b""

    def first(self, _choice: int) -> bytes:
        return b""

    def token(self, choice: int, index: int) -> bytes:
        return framed(self._item(choice, index, last=False))

    def last(self, choice: int, index: int) -> bytes:
        return framed(self._item(choice, index, last=True))

    def closing(self) -> bytes:
        return b""

    def _item(self, choice: int, index: int, *, last: bool) -> bytes:
        raise NotImplementedError

    def _output(self, choice: int = 0) -> int:
        return self._ask.work[choice][1]

    def _reason(self) -> str:
        return _EOS[self._ask.reasons[0]]


def _event(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


class Chat(_Form):
    """/v1/chat/completions: a role in every chunk, usage in the last one of each choice and before its choices."""

    _object = "chat.completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._ask.model}

    def _usage(self, output: int) -> dict[str, Any]:
        prompt = self._ask.prompt_tokens
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        return {
            "prompt_tokens": prompt, **details, "completion_tokens": output, "total_tokens": prompt + output
        }  # fmt: skip

    def first(self, choice: int) -> bytes:
        """A chunk of the role alone."""
        return framed(self._chunk({"index": choice, "delta": {"role": "assistant", "content": ""}}, None, 0))

    def _chunk(self, choice: dict[str, Any], reason: str | None, output: int) -> bytes:
        head = self._head("chat.completion.chunk")
        usage = {} if reason is None else {"usage": self._usage(output)}
        return _event(head | usage | {"choices": [choice | {"logprobs": None, "finish_reason": reason}]})

    def _item(self, choice: int, index: int, *, last: bool) -> bytes:
        body = {"index": choice, "delta": {"role": "assistant", "content": _word(index)}}
        return self._chunk(body, self._ask.reasons[choice] if last else None, index + 1)

    def closing(self) -> bytes:
        """The end mark."""
        return framed(DONE)

    def whole(self) -> bytes:
        """A chat.completion."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text(output), "tool_calls": []},
                "logprobs": None,
                "finish_reason": self._ask.reasons[index],
            }
            for index, (_, output) in enumerate(self._ask.work)
        ]
        usage = self._usage(sum(output for _, output in self._ask.work))
        return orjson.dumps(self._head("chat.completion") | {"choices": choices, "usage": usage})


class Completion(Chat):
    """/v1/completions."""

    def first(self, _choice: int) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def _item(self, choice: int, index: int, *, last: bool) -> bytes:
        reason = self._ask.reasons[choice] if last else None
        body = {"index": choice, "text": _word(index), "logprobs": None, "stop_reason": None, "finish_reason": reason}
        usage = {"usage": self._usage(index + 1)} if last else {}
        return _event(self._head("text_completion") | usage | {"choices": [body]})

    def whole(self) -> bytes:
        """A text_completion."""
        choices = [
            {
                "index": index,
                "text": text(output),
                "logprobs": None,
                "stop_reason": None,
                "finish_reason": self._ask.reasons[index],
            }
            for index, (_, output) in enumerate(self._ask.work)
        ]
        usage = self._usage(sum(output for _, output in self._ask.work))
        return orjson.dumps(self._head("text_completion") | {"choices": choices, "usage": usage})


class VLLM(_Form):
    """/generate with ``prompt``: items end in NUL, and a whole answer repeats the prompt."""

    def _item(self, choice: int, index: int, *, last: bool) -> bytes:  # noqa: ARG002 - all items look alike
        return orjson.dumps({"text": [_word(index)]}) + b"\0"

    def whole(self) -> bytes:
        """Prompt, a space, and output."""
        prompt = str(self._ask.document.get("prompt"))
        return orjson.dumps({"text": [f"{prompt} {text(output)}" for _, output in self._ask.work]})


class TGI(_Form):
    """/generate and /generate_stream with ``inputs``: no end mark but ``generated_text``."""

    def _told(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._ask.prompt_tokens,
            "finish_reason": self._reason(),
            "generated_tokens": self._output(),
        }

    def _item(self, _choice: int, index: int, *, last: bool) -> bytes:
        token = {"id": _FIRST_ID + index, "text": _word(index), "logprob": None, "special": None}
        told = self._told() | {"seed": None} if last and self._details else None
        return _event({"token": token, "generated_text": text(index + 1) if last else None, "details": told})

    def _document(self) -> dict[str, Any]:
        if not self._details:
            return {"generated_text": text(self._output())}
        ids = range(_FIRST_ID, _FIRST_ID + self._output())
        tokens = [{"id": token, "logprob": None, "special": None, "text": None} for token in ids]
        details = self._told() | {"prefill": [], "seed": None, "tokens": tokens}
        return {"details": details, "generated_text": text(self._output())}

    def whole(self) -> bytes:
        """One object."""
        return orjson.dumps(self._document())


class RootTGI(TGI):
    """POST /: the same, whole answers in a list."""

    def whole(self) -> bytes:
        """A list of one object."""
        return orjson.dumps([self._document()])


class Infer(_Form):
    """/infer and /infer_token."""

    def _told(self) -> dict[str, Any]:
        return {"finish_reason": self._reason(), "generated_tokens": self._output()}

    def _item(self, _choice: int, index: int, *, last: bool) -> bytes:
        times = {"prefill_time": None, "decode_time": 20} if index else {"prefill_time": 61, "decode_time": None}
        ids = [_FIRST_ID + index]
        if not last:
            return _event(times | {"token": {"id": ids, "text": _word(index)}})
        told = self._told() | {"seed": None} if self._details else None
        ended = {"generated_text": text(index + 1), "details": told}
        return _event(times | ended | {"token": {"id": ids, "text": None}})

    def whole(self) -> bytes:
        """One object."""
        document: dict[str, Any] = {"generated_text": text(self._output())}
        if self._details:
            ids = list(range(_FIRST_ID, _FIRST_ID + self._output()))
            document["details"] = self._told() | {"generated_token_ids": ids, "seed": None}
        return orjson.dumps(document)


class TritonText(_Form):
    """/v2/models/{model}/generate and generate_stream: no space behind ``data:``, and no end mark."""

    def _document(self, output: str, tokens: int, *, last: bool) -> dict[str, Any]:
        identity = self._ask.document.get("id") or self._id
        document = {"id": identity, "model_name": self._ask.model, "model_version": None, "text_output": output}
        if self._details:
            reason = {"finish_reason": self._reason()} if last else {}
            costs = {"generated_tokens": tokens, "first_token_cost": None, "decode_cost": None}
            document["details"] = reason | costs | {"batch_size": 1, "queue_wait_time": 5318}
        return document

    def _item(self, _choice: int, index: int, *, last: bool) -> bytes:
        return b"data:%b\n\n" % orjson.dumps(self._document(_word(index), index + 1, last=last))

    def whole(self) -> bytes:
        """One object."""
        return orjson.dumps(self._document(text(self._output()), self._output(), last=True))


class TritonTokens(_Form):
    """/v2/models/{model}/infer: ids in, ids out, never streamed."""

    def whole(self) -> bytes:
        """One tensor."""
        outputs = self._ask.document["outputs"]
        name = outputs[0].get("name") if outputs and isinstance(outputs[0], dict) else None
        ids = list(range(_FIRST_ID, _FIRST_ID + self._output()))
        tensor = {"name": name or "output0", "shape": [1, len(ids)], "datatype": "UINT32", "data": ids}
        return orjson.dumps({"id": self._ask.document.get("id") or self._id, "outputs": [tensor]})
