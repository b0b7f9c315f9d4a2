"""What a request to the emulated MindIE asks for, in each of the ways that MindIE can be asked.

Fields, defaults and refusals are those of MindIE-LLM 3.0.0 (src/server/endpoint/single_req_infer_interface); one word
is one token, as in ``intake``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.emulator.intake import FORCED, Ask, Document, Limits, count_tokens

NEW_TOKENS: Final = 20  # MAX_NEW_TOKENS_DFT
ITERATIONS: Final = 512  # maxIterTimes
TIMEOUT_MAX: Final = 65_535.0  # seconds; what the caller may set

ERROR_TYPES: Final = {
    400: "Bad Request",
    404: "NotFoundError",
    422: "Input Validation Error",
    424: "Generation Error",
    500: "Incomplete Generation",
    503: "Service Unavailable",
}


class Refusal(Exception):  # noqa: N818 - an answer, not an accident
    """An error of MindIE's."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status

    @property
    def body(self) -> bytes:
        """Its JSON."""
        return orjson.dumps({"error": str(self), "error_type": ERROR_TYPES[self.status]})


@dataclass(frozen=True, slots=True)
class Question:
    """One request and how long its caller waits for a token, in seconds."""

    ask: Ask
    details: bool = False
    timeout: float = TIMEOUT_MAX


def read_json(body: bytes) -> Document:
    """The body as an object, or MindIE's refusal."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Refusal("Req body converts to json fail.")
    return document


def chat(document: Document, limits: Limits) -> Question:
    """/v1/chat/completions; ``max_completion_tokens`` is not known to MindIE."""
    _named(document, limits)
    return _openai(document, limits, {"messages": _needed(document, "messages")})


def completion(document: Document, limits: Limits) -> Question:
    """/v1/completions."""
    _named(document, limits)
    return _openai(document, limits, {"prompt": _needed(document, "prompt")})


def vllm(document: Document, limits: Limits) -> Question:
    """/generate with ``prompt``."""
    return _openai(document, limits, {"prompt": _needed(document, "prompt")})


def tgi(document: Document, limits: Limits) -> Question:
    """/generate, /generate_stream and / with ``inputs``."""
    return _parametrised(document, document, limits, count_tokens({"prompt": _needed(document, "inputs")}))


def infer(document: Document, limits: Limits) -> Question:
    """/infer and /infer_token: a text or token ids."""
    if "inputs" in document and "input_id" in document:
        raise Refusal("Input conflict.")
    given = document.get("inputs", document.get("input_id"))
    if given is None:
        raise Refusal("Not found inputs.")
    return _parametrised(document, document, limits, count_tokens({"prompt": given}))


def triton_text(document: Document, limits: Limits) -> Question:
    """/v2/models/{model}/generate and generate_stream."""
    return _parametrised(document, document, limits, count_tokens({"prompt": _needed(document, "text_input")}))


def triton_tokens(document: Document, limits: Limits) -> Question:
    """/v2/models/{model}/infer: one tensor of ids, its parameters beside them."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refusal("Inputs count must be 1.")
    tensor = inputs[0]
    if tensor.get("datatype") != "UINT32":
        raise Refusal(f"Unsupported datatype, got {tensor.get('datatype')}.")
    if not isinstance(document.get("outputs"), list):
        raise Refusal("Req should contain 'outputs' and the type should be array.")
    data = tensor.get("data")
    if not isinstance(data, list) or not all(isinstance(item, int) for item in data):
        raise Refusal("Data element must be integer type.")
    return _parametrised(tensor, document, limits, len(data))


def _needed(document: Document, name: str) -> Any:
    if document.get(name) is None:
        raise Refusal(f"Request should contain '{name}'.")
    return document[name]


def _named(document: Document, limits: Limits) -> None:
    model = document.get("model")
    if not model:
        raise Refusal("Request contains not model or model null")
    if model not in limits.models:
        raise Refusal("Model not found")


def _openai(document: Document, limits: Limits, prompt: Document) -> Question:
    cap = _cap(document, "max_tokens", ITERATIONS, limits)
    return Question(_ask(document, limits, count_tokens(prompt), cap, _count(document, "n", 1)), details=True)


def _parametrised(holder: Document, document: Document, limits: Limits, prompt: int) -> Question:
    parameters = holder.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refusal("The type of parameters is abnormal")
    cap = _cap(parameters, "max_new_tokens", NEW_TOKENS, limits)
    timeout = _count(parameters, "timeout", int(TIMEOUT_MAX))
    ask = _ask(document, limits, prompt, cap, 1)
    return Question(ask, details=parameters.get("details") is True, timeout=float(timeout))


def _cap(document: Document, name: str, default: int, limits: Limits) -> int:
    """Output tokens: as many as are asked for, else what an answer has by nature within the default."""
    return min(default, limits.draw()) if document.get(name) is None else _count(document, name, default)


def _count(document: Document, name: str, default: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refusal(f"{name} must be in (0, 2147483647], got {value}.")
    return value


def _ask(document: Document, limits: Limits, prompt: int, cap: int, choices: int) -> Ask:
    prompt = max(1, prompt)
    room = limits.max_model_len - prompt
    if room < 1:
        raise Refusal(f"Inputs token length must be in (0, {limits.max_model_len - 1}], but got {prompt}")
    most = min(cap, room)
    forced = document.get(FORCED)
    outputs = [min(most, forced if isinstance(forced, int) and forced > 0 else most) for _ in range(choices)]
    return Ask(
        limits.models[0],
        tuple((prompt, output) for output in outputs),
        prompt,
        tuple("length" if output == most else "stop" for output in outputs),
        document.get("stream") is True,
        document=document,
    )


Read = Callable[[Document, Limits], Question]
