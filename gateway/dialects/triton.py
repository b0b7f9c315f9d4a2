"""Triton's HTTP API (KServe v2 with its generate extension), as its vLLM and TensorRT-LLM backends use it.

Triton's docs protocol/extension_generate.md: the fields beside ``text_input`` may stand at the top or in
``parameters``; ``generate_stream`` sends one event for each response. Usage is not told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from gateway.dialects.native import Document, Form
from gateway.dialects.request import count_of, parse
from gateway.model import Access, Route, Shape

_CAPS: Final = frozenset({"max_tokens", "request_output_len"})  # tensors of TensorRT-LLM's models


def _read_text(document: Document, shape: Shape) -> Shape:
    """The vLLM backend also takes its sampling parameters as JSON text."""
    parameters = document.get("parameters")
    inner = parameters if isinstance(parameters, dict) else {}
    text = document.get("sampling_parameters", inner.get("sampling_parameters"))
    if shape.max_output is None and isinstance(text, str):
        sampling = parse(text.encode())
        return replace(shape, max_output=count_of((sampling or {}).get("max_tokens")))
    return shape


def _read_tensors(document: Document, shape: Shape) -> Shape:
    """The cap may be a tensor beside the prompt's."""
    inputs = document.get("inputs")
    for tensor in inputs if isinstance(inputs, list) else ():
        if isinstance(tensor, dict) and tensor.get("name") in _CAPS:
            data = tensor.get("data")
            while isinstance(data, list) and data:
                data = data[0]
            return replace(shape, max_output=count_of(data))
    return shape


_FORMS: Final = {
    "infer": Form(Route("triton_infer", Access.ADMIT), frozenset({"inputs"}), stream=False, read=_read_tensors),
    "generate": Form(Route("triton_generate", Access.ADMIT), frozenset({"text_input"}), stream=False, read=_read_text),
    "generate_stream": Form(
        Route("triton_generate_stream", Access.ADMIT), frozenset({"text_input"}), stream=True, read=_read_text
    ),
}
_PATH: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/(infer|generate|generate_stream)")


class Triton:
    """The dialect; stateless."""

    name = "triton"
    kind = "triton"

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """See ``Native``."""
        found = _PATH.fullmatch(path) if method == "POST" else None
        if found is None:
            return ()
        form = _FORMS[found[2]]
        return (replace(form, route=replace(form.route, model=found[1])),)

    def error(self, route: Route, message: str, status: int) -> bytes:  # noqa: ARG002 - one shape for all
        """See ``Native``."""
        return orjson.dumps({"error": message})
