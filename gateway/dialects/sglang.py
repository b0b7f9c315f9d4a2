"""SGLang's own API and its Ollama routes (sgl-project/sglang, srt/entrypoints/http_server.py and ollama/serving.py).

A full queue (``--max-queued-requests``) is 503 for a whole answer, but for a stream an item inside its 200 whose
``finish_reason`` is an abort.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from gateway.dialects.base import Fault
from gateway.dialects.errors import error_json
from gateway.dialects.items import Items
from gateway.dialects.native import Document, Form
from gateway.dialects.reply import fault_in, fault_of
from gateway.dialects.request import cap_in, count_of
from gateway.model import Access, Route, Shape, Usage

_UNSET_CAP: Final = 128  # SamplingParams.max_new_tokens, for the Ollama routes as well
_BUSY: Final = frozenset({429, 503})


def _finish(document: Document) -> Document:
    meta = document.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    return reason if isinstance(reason, dict) else {}


def _fault(document: Document) -> Fault | None:
    reason = _finish(document)
    if reason.get("type") != "abort":
        return fault_of(document)
    if reason.get("status_code") in _BUSY:
        return Fault.BUSY
    return fault_in(str(reason.get("message")))


def _read_batch(document: Document, shape: Shape) -> Shape:
    """Several prompts and their parameters may come in lists."""
    text, sampling = document.get("text"), document.get("sampling_params")
    if isinstance(sampling, list) and sampling and isinstance(sampling[0], dict):
        shape = replace(shape, max_output=cap_in(sampling[0]))
    inner = sampling if isinstance(sampling, dict) else {}
    times = max(count_of(inner.get("n")) or 1, 1) * (len(text) if isinstance(text, list) and text else 1)
    return replace(shape, choices=min(shape.choices * times, 10_000))


def _evaluated(document: Document) -> Usage | None:
    prompt, output = count_of(document.get("prompt_eval_count")), count_of(document.get("eval_count"))
    return None if prompt is None and output is None else Usage(prompt, output)


_SOFT: Final = Items(re.compile(rb'"error"|"abort"'), fault=_fault, marked=True)
_OLLAMA: Final = Items(
    re.compile(rb'"error"|"done":\s*true'),
    last=lambda document: document.get("done") is True,
    hollow=lambda document: document.get("done") is True,
    counts=_evaluated,
    marked=True,
)


def _ollama(label: str, *keys: str) -> Form:
    route = Route(label, Access.ADMIT)
    return Form(route, frozenset(keys), stream_unset=True, unset_cap=_UNSET_CAP, items=_OLLAMA)


_PATHS: Final = {
    "/generate": Form(
        Route("sglang_generate", Access.ADMIT),
        frozenset({"text", "input_ids", "input_embeds"}),
        unset_cap=_UNSET_CAP,
        read=_read_batch,
        items=_SOFT,
    ),
    "/encode": Form(
        Route("sglang_encode", Access.ADMIT), frozenset({"text", "input_ids"}), stream=False, generates=False
    ),
    "/api/chat": _ollama("ollama_chat", "messages"),
    "/api/generate": _ollama("ollama_generate", "prompt", "system"),
    "/api/show": Form(Route("ollama_show", Access.BYPASS), generates=False),
}


class SGLang:
    """The dialect; stateless."""

    name = "sglang"
    kind = "sglang"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``; its own routes take PUT as well."""
        return (_PATHS[path],) if method in {"POST", "PUT"} and path in _PATHS else ()

    def error(self, route: Route, message: str, status: int) -> bytes:
        """See ``Native``."""
        if route.label.startswith("ollama"):
            return orjson.dumps({"error": message})
        return error_json(status, message, None)[1]
