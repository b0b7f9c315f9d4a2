"""OpenAI's API as vLLM, SGLang, MindIE, LMDeploy, TGI, llama.cpp and GPUStack serve it: routes, requests, replies.

What counts as output follows ``vllm bench serve`` 0.33.0: a chunk whose delta has content, reasoning or a tool call, or
empty content without a role; a delta with nothing but a role is none. What 0.33.0 leaves out is output all the same
(``reasoning_content``, refusals, audio), and told as an aside; so are the chunks that 0.32.0 counts without output. On
the completions route every chunk with a choice is output.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.dialects import media
from gateway.dialects.base import Fault, ResponseReader
from gateway.dialects.errors import error_json, refusal_json
from gateway.dialects.form import read_form
from gateway.dialects.reply import (
    BodyReader,
    UnreadReader,
    fault_in,
    fault_of,
    find_usage,
    load,
    streams,
    timings_of,
    usage_of,
)
from gateway.dialects.request import count_of, name_of, read_json
from gateway.dialects.sse import EventReader
from gateway.model import Access, Rejection, Route, Shape, Usage

# POST, by the last segments of the path: the same route is found under /v1, /v2, /v1-openai (GPUStack) or no prefix.
# vLLM 0.33's and GPUStack's route lists.
_INFERENCE: Final = {
    "chat/completions": "chat",
    "chat/completions/batch": "chat",
    "completions": "completions",
    "responses": "responses",
    "audio/transcriptions": "transcriptions",
    "audio/translations": "translations",
    "audio/speech": "speech",
    "images/generations": "images",
    "images/edits": "images",
    "images/variations": "images",
    "embeddings": "embeddings",
    "embed": "embeddings",
    "rerank": "rerank",
    "score": "score",
    "classify": "classify",
    "pooling": "pooling",
    "moderations": "moderations",
    "generative_scoring": "score",
    "invocations": "invocations",  # SageMaker's spelling of whatever the engine serves
}
_GENERATING: Final = frozenset({
    "chat", "completions", "responses", "transcriptions", "translations", "invocations",
})  # fmt: skip

# Answered without the accelerator, whatever the method.
_CHEAP: Final = {
    "/tokenize": "tokenize",
    "/v1/tokenize": "tokenize",
    "/v1/tokenizer": "tokenize",
    "/detokenize": "detokenize",
    "/v1/detokenize": "detokenize",
    "/tokenizer_info": "tokenize",
    "/apply-template": "tokenize",
    "/v1/models": "models",
    "/v1-openai/models": "models",
    "/models": "models",
    "/health": "health",
    "/v1/health": "health",
    "/ready": "health",
    "/ping": "health",
    "/v2/health/live": "health",
    "/v2/health/ready": "health",
    "/metrics": "metrics",
    "/load": "load",
    "/version": "version",
    "/is_sleeping": "health",
    "/is_paused": "health",
    "/is_scaling_elastic_ep": "health",
    "/abort_request": "cancel",
    "/abort_requests": "cancel",
    "/inference/v1/abort_requests": "cancel",
}
_CHEAP_FORMS: Final = (
    (re.compile(r"/(?:v1|v2|v1-openai)/models/[^/]+"), frozenset({"GET", "HEAD"}), "models"),
    (re.compile(r"/v1/responses/[^/]+"), frozenset({"GET", "HEAD", "DELETE"}), "responses_state"),
    (re.compile(r"/v1/responses/[^/]+/cancel"), frozenset({"POST"}), "cancel"),
    (re.compile(r"/v2/models/[^/]+/stopInfer"), frozenset({"POST"}), "cancel"),
    (re.compile(r"/v1/[a-z/_]+/(?:de)?render"), frozenset({"POST"}), "render"),
)
_ROUTES: Final = {label: Route(label, Access.ADMIT) for label in _INFERENCE.values()}
_BYPASSED: Final = {
    label: Route(label, Access.BYPASS) for label in (*_CHEAP.values(), *(label for _, _, label in _CHEAP_FORMS))
}
_REALTIME: Final = Route("realtime", Access.ADMIT)

_ENDS: Final = frozenset({
    "response.completed", "response.incomplete", "response.failed", "transcript.text.done", "speech.audio.done",
})  # fmt: skip
_FAILED_ENDS: Final = frozenset({"abort", "error"})  # finish reasons of vLLM and SGLang
_ENDED: Final = b'"finish_reason":"'
_COUNTED: Final = b'"usage":{'
_HEARD_TEXT: Final = ("content", "reasoning")
_HEARD_CALLS: Final = ("tool_calls", "function_call")
_UNHEARD_TEXT: Final = ("reasoning_content", "refusal")
_HEARD_TOO: Final = re.compile(rb'"(?:content|reasoning)":"|"(?:tool_calls|function_call)":[\[{]')
_BLANK, _UNHEARD, _HEARD = range(3)  # what a choice of a chunk may be


class OpenAI:
    """The dialect; stateless."""

    name = "openai"

    def route(self, method: str, path: str) -> Route | None:
        """See ``Dialect``."""
        if method == "POST":
            tail = path.rsplit("/", 3)
            for segments in (tail[-3:], tail[-2:], tail[-1:]):
                label = _INFERENCE.get("/".join(segments))
                if label is not None:
                    return _ROUTES[label]
        label = _CHEAP.get(path)
        if label is not None:
            return _BYPASSED[label]
        if path == "/v1/realtime":
            return _REALTIME
        for form, methods, name in _CHEAP_FORMS:
            if method in methods and form.fullmatch(path):
                return _BYPASSED[name]
        return None

    def read_request(self, route: Route, content_type: str, body: bytes, *, blocks: bool = False) -> Shape:
        """See ``Dialect``."""
        generates = route.label in _GENERATING
        if "multipart/form-data" in content_type.lower():
            return _read_form(route, content_type, body, generates=generates)
        return read_json(route, body, generates=generates, blocks=blocks)

    def response_reader(self, shape: Shape, status: int, content_type: str) -> ResponseReader:
        """See ``Dialect``."""
        if shape.route.access is not Access.ADMIT:
            return UnreadReader()
        if streams(shape, status, content_type):
            return StreamReader(shape.choices)
        return BodyReader(status, content_type)

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return refusal_json(status, message, rejection.reason)

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:  # noqa: ARG002 - all routes share a shape
        """See ``Dialect``."""
        return error_json(status, message, code)

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:
        """See ``Dialect``."""
        if route.label == "responses":
            event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
            return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"
        return b"data: " + error_json(status, message, code)[1] + b"\n\n"


def _read_form(route: Route, content_type: str, body: bytes, *, generates: bool) -> Shape:
    form = read_form(content_type, body)
    fields = form.fields
    cap = fields.get("max_completion_tokens", "")
    audio = route.label in {"transcriptions", "translations"}
    return Shape(
        route,
        model=name_of(fields.get("model")),
        stream=fields.get("stream", "").lower() in {"true", "1", "on", "yes"},
        prompt_bytes=len(fields.get("prompt", "").encode()),
        media_tokens=media.recording_tokens(form.file_head, form.file_size, form.file_name) if audio else 0,
        max_output=count_of(int(cap)) if cap.isascii() and cap.isdigit() and len(cap) < 20 else None,  # noqa: PLR2004 - digits of 64 bits
        generates=generates,
        user=name_of(fields.get("user")),
    )


class StreamReader:
    """Listens to a stream of chunks (chat, completions, transcriptions) or of typed events (responses).

    Most chunks look like the one before, so each is first searched for what made the last one count: a key with text
    behind it, or an event type. JSON is parsed only where that fails.
    """

    __slots__ = (
        "_ends",
        "_events",
        "_late_usage",
        "_mark",
        "_single",
        "_typed",
        "_unheard",
        "_usage",
        "asides",
        "complete",
        "fault",
    )

    def __init__(self, choices: int) -> None:
        """Start before the first byte; ``choices`` finish reasons end the stream where [DONE] is missing."""
        self.fault: Fault | None = None
        self.complete = False
        self.asides: tuple[int, int] | None = None
        self._events = EventReader()
        self._ends = choices
        self._single = choices == 1
        self._mark = b'"content":"'
        self._typed = False  # the mark is a whole event type: nothing has to follow it
        self._unheard = False  # what has the mark and nothing else is unheard
        self._usage: Usage | None = None
        self._late_usage: bytes | None = None  # the last chunk that carries usage, unparsed

    @property
    def usage(self) -> Usage | None:
        """See ``ResponseReader``."""
        if self._late_usage is not None:
            self._usage = find_usage(self._late_usage) or self._usage
            self._late_usage = None
        return self._usage

    @property
    def between_events(self) -> bool:
        """See ``ResponseReader``."""
        return self._events.between_events

    def feed(self, data: bytes) -> int:
        """See ``ResponseReader``."""
        output = 0
        self.asides = None
        for payload in self._events.feed(data):
            at = payload.find(self._mark)
            if at < 0 or payload.find(_ENDED) >= 0 or (self._unheard and _HEARD_TOO.search(payload)):
                output += self._read(payload)
            elif self._typed or not payload.startswith(b'"', at + len(self._mark)):
                output += 1
                if self._unheard:
                    self._note(_UNHEARD)
                if payload.find(_COUNTED, at) >= 0:
                    self._late_usage = payload
            else:
                output += self._read(payload)
        return output

    def finish(self) -> int:
        """See ``ResponseReader``."""
        self.asides = None
        output = sum(self._read(payload) for payload in self._events.finish())
        if self._events.stray and not self.complete and self.fault is None:
            self.fault = fault_in(self._events.stray.decode(errors="replace"))
        return output

    def _note(self, found: int) -> None:
        blanks, unheard = self.asides or (0, 0)
        self.asides = (blanks + (found == _BLANK), unheard + (found == _UNHEARD))

    def _read(self, payload: bytes) -> bool:
        """Take one event; whether it has output."""
        document = load(payload)
        if document is None:
            return self._read_unparsed(payload)
        usage = usage_of(document) or (timings_of(document) if self._single else None)
        if usage is not None:
            self._usage, self._late_usage = usage, None
        fault = fault_of(document)
        if fault is not None:
            self.fault = fault
        choices = document.get("choices")
        if isinstance(choices, list):
            return bool(choices) and self._read_choices(choices)
        kind = document.get("type")
        return isinstance(kind, str) and self._read_typed(kind, document)

    def _read_unparsed(self, payload: bytes) -> bool:
        """[DONE], or an event so long that its middle is missing."""
        if payload.strip() == b"[DONE]":
            self.complete = True
        else:
            self._usage = find_usage(payload) or self.usage
            self.complete = self.complete or b'"type":"response.completed"' in payload
        return False

    def _read_choices(self, choices: list[Any]) -> bool:
        found = max((self._read_choice(choice) for choice in choices if isinstance(choice, dict)), default=_BLANK)
        if found != _HEARD:
            self._note(found)
        return found != _BLANK

    def _read_choice(self, choice: dict[str, Any]) -> int:
        reason = choice.get("finish_reason")
        if reason:
            self._ends -= 1
            self.complete = self.complete or self._ends <= 0
            if isinstance(reason, str) and reason in _FAILED_ENDS:
                self.fault = self.fault or Fault.FAILED
        if isinstance(choice.get("text"), str):
            self._mark, self._typed, self._unheard = b'"text":"', False, False
            return _HEARD
        delta = choice.get("delta")
        return self._read_delta(delta) if isinstance(delta, dict) else _BLANK

    def _read_delta(self, delta: dict[str, Any]) -> int:
        if self._find_text(delta, _HEARD_TEXT, unheard=False) or any(delta.get(key) for key in _HEARD_CALLS):
            return _HEARD
        unheard = self._find_text(delta, _UNHEARD_TEXT, unheard=True) or bool(delta.get("audio"))
        if delta.get("content") == "" and not delta.get("role"):  # a token without text
            return _UNHEARD if "role" in delta else _HEARD
        return _UNHEARD if unheard else _BLANK

    def _find_text(self, delta: dict[str, Any], keys: tuple[str, ...], *, unheard: bool) -> bool:
        """Whether ``delta`` has text under one of ``keys``; if so, that is what the next chunks are searched for."""
        for key in keys:
            if isinstance(delta.get(key), str) and delta[key]:
                self._mark, self._typed, self._unheard = b'"%b":"' % key.encode(), False, unheard
                return True
        return False

    def _read_typed(self, kind: str, document: dict[str, Any]) -> bool:
        """An event of the Responses API, or of OpenAI's own audio streams."""
        if kind in _ENDS:
            self.complete = True
            nested = document.get("response")
            if kind == "response.failed":
                self.fault = (fault_of(nested) if isinstance(nested, dict) else None) or Fault.FAILED
            return False
        if not kind.endswith(".delta"):
            return False
        self._mark, self._typed, self._unheard = b'"type":"%b"' % kind.encode(), True, False
        return True
