"""MindIE's own API, and its takes on the APIs of TGI, vLLM and Triton; its OpenAI routes are ``openai``'s.

Read from MindIE-LLM 3.0.0, src/server/endpoint: http_wrapper/http_handler.cpp (routes), single_req_*_interface.cpp
(fields, framings), utils/http_rest_resource.cpp (errors). A stream that fails ends in bare text under its 200:
``Engine callback timeout: ...`` or ``Failed to get engine response``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from gateway.dialects.items import PLAIN, Items
from gateway.dialects.native import Document, Form
from gateway.dialects.request import cap_in
from gateway.model import Access, Route, Shape

# Output tokens where the request sets no cap: 20 where the cap is ``max_new_tokens`` (MAX_NEW_TOKENS_DFT), and the
# configured ``maxIterTimes``, by default 512, where it is vLLM's ``max_tokens``.
_NEW_TOKENS: Final = 20
_ITERATIONS: Final = 512

_ERRORS: Final = {
    400: "Bad Request",
    404: "NotFoundError",
    413: "Input Validation Error",
    422: "Input Validation Error",
    424: "Generation Error",
    429: "Too Many Requests",
    500: "Incomplete Generation",
    503: "Service Unavailable",
}


def _finished(document: Document) -> bool:
    return document.get("generated_text") is not None


_TGI: Final = Items(re.compile(rb'"error"|"generated_text":"'), last=_finished, marked=True)


def _tensor(document: Document) -> Document | None:
    """The one input of the token route, UINT32 ids."""
    inputs = document.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else None
    return first if isinstance(first, dict) and first.get("datatype") == "UINT32" else None


def _read_tensor(document: Document, shape: Shape) -> Shape:
    """The parameters stand beside the ids."""
    tensor = _tensor(document)
    return replace(shape, max_output=cap_in(tensor) if tensor is not None else None)


def _own_parameters(document: Document) -> bool:
    """No field of TensorRT-LLM's or vLLM's Triton backends, which share the path."""
    parameters = document.get("parameters")
    inner = parameters if isinstance(parameters, dict) else {}
    return "max_tokens" not in document and "max_tokens" not in inner and "stream" not in inner


def _form(label: str, *keys: str, stream: bool | None = None, cap: int = _NEW_TOKENS) -> Form:
    items = _TGI if cap == _NEW_TOKENS else PLAIN
    return Form(Route(label, Access.ADMIT), frozenset(keys), stream=stream, unset_cap=cap, items=items)


_PATHS: Final[dict[str, tuple[Form, ...]]] = {
    "/": (_form("mindie_tgi", "inputs"),),
    "/generate": (
        _form("mindie_generate", "prompt", cap=_ITERATIONS),
        _form("mindie_tgi", "inputs", stream=False),
    ),
    "/generate_stream": (_form("mindie_tgi_stream", "inputs", stream=True),),
    "/infer": (_form("mindie_infer", "inputs", "input_id"),),
    "/infer_token": (_form("mindie_infer_token", "input_id", "inputs"),),
}
_TRITON: Final = {
    "infer": Form(
        Route("mindie_triton_infer", Access.ADMIT),
        speaks=lambda document: _tensor(document) is not None,
        stream=False,
        unset_cap=_NEW_TOKENS,
        read=_read_tensor,
    ),
    "generate": Form(
        Route("mindie_triton", Access.ADMIT),
        frozenset({"text_input"}),
        speaks=_own_parameters,
        stream=False,
        unset_cap=_NEW_TOKENS,
    ),
    "generate_stream": Form(
        Route("mindie_triton_stream", Access.ADMIT),
        frozenset({"text_input"}),
        speaks=_own_parameters,
        stream=True,
        unset_cap=_NEW_TOKENS,
    ),
}
_TRITON_PATH: Final = re.compile(r"/v2/models/([\w.-]+)/(infer|generate|generate_stream)")


class MindIE:
    """The dialect; stateless."""

    name = "mindie"
    kind = "mindie"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        if method != "POST":
            return ()
        found = _TRITON_PATH.fullmatch(path)
        if found is None:
            return _PATHS.get(path, ())
        form = _TRITON[found[2]]
        return (replace(form, route=replace(form.route, model=found[1])),)

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - all routes share a shape
        """See ``Native``."""
        kind = _ERRORS.get(status, _ERRORS[500] if status >= 500 else _ERRORS[400])  # noqa: PLR2004 - 5xx
        return orjson.dumps({"error": message, "error_type": kind})
