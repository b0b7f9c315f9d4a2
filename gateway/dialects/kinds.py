"""Which kind an engine is, by what it answers to a few cheap questions that no engine works for.

Every one is a GET that this gateway would relay to anybody. The first is understood by all families that speak
OpenAI's API, and its ``owned_by`` is the server's own name in most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import orjson

Document = Mapping[str, Any]

_CARDS_MAX: Final = 10_000

# Servers that name themselves as the owner of their models: vLLM (and its plugins for Ascend and MetaX), SGLang,
# LMDeploy, llama.cpp, MindIE (JsonParse and HandleModels: "MindIE Server").
_OWNERS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "lmdeploy": "lmdeploy",
    "llamacpp": "llamacpp",
    "mindie server": "mindie",
}


def _by_models(document: Document) -> str | None:
    data = document.get("data")
    cards = data if isinstance(data, list) else []
    owners = {str(card.get("owned_by")).lower() for card in cards if isinstance(card, dict)}
    return next((kind for owner, kind in _OWNERS.items() if owner in owners), None)


def _by_version(document: Document) -> str | None:
    """The whole answer of vLLM is its version."""
    return "vllm" if set(document) == {"version"} else None


def _by_properties(document: Document) -> str | None:
    return "llamacpp" if "default_generation_settings" in document else None


def _by_info(document: Document) -> str | None:
    """TGI's router; MindIE has the path on its management plane, with other fields."""
    return "tgi" if "model_id" in document and "max_concurrent_requests" in document else None


def _by_model_info(document: Document) -> str | None:
    return "sglang" if "model_path" in document else None


def _by_triton(document: Document) -> str | None:
    """KServe's server metadata, which MindIE has as well."""
    name = str(document.get("name")).lower()
    return "triton" if name == "triton" else "mindie" if "mindie" in name else None


QUESTIONS: Final[Mapping[str, Callable[[Document], str | None]]] = MappingProxyType({
    "/v1/models": _by_models,
    "/version": _by_version,
    "/props": _by_properties,
    "/info": _by_info,
    "/get_model_info": _by_model_info,
    "/v2": _by_triton,
})  # fmt: skip
"""Paths to ask in turn, and what their answers say."""


def recognise(path: str, status: int, body: bytes) -> str | None:
    """The kind that the answer to ``path`` of ``QUESTIONS`` gives away, if any. Never raises."""
    if status != HTTPStatus.OK:
        return None
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    return QUESTIONS[path](document) if isinstance(document, dict) else None


def first_model(body: bytes) -> str | None:
    """A model's name out of the answer to ``/v1/models``."""
    return next(iter(served_models(body)), None)


def served_models(body: bytes) -> dict[str, int | None]:
    """Models by name out of the answer to ``/v1/models``, LoRA adapters among them, with their context length.

    The length is prompt and output together in tokens, ``max_model_len`` of vLLM's model cards; its cards of LoRA
    adapters name the base model as ``parent`` instead. It is read of vLLM alone, which refuses what is longer: what
    others do with that depends on how they were started (SGLang may cut it). Never raises.
    """
    try:
        document = orjson.loads(body)
    except ValueError:
        return {}
    data = document.get("data") if isinstance(document, dict) else None
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    named = {name: card for card in cards[:_CARDS_MAX] if isinstance(name := card.get("id"), str)}
    return {name: _length(card) or _length(named.get(str(card.get("parent")), {})) for name, card in named.items()}


def _length(card: Document) -> int | None:
    length = card.get("max_model_len")
    return length if card.get("owned_by") == "vllm" and type(length) is int and length > 0 else None
