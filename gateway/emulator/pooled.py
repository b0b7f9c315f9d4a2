"""Answers without output tokens: embeddings, rerankings and scores, in the shapes of vLLM 0.32."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.emulator.intake import Ask

DIMENSIONS: Final = 8

Pooled = Callable[[Ask, str, int], bytes]


def embeddings(ask: Ask, identity: str, created: int) -> bytes:
    """/v1/embeddings: unit vectors that depend on the length of the text alone."""
    data: list[dict[str, Any]] = []
    for index, (prompt, _) in enumerate(ask.work):
        vector = [1.0 if place == prompt % DIMENSIONS else 0.0 for place in range(DIMENSIONS)]
        packed = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        encoded: str | list[float] = packed if ask.document.get("encoding_format") == "base64" else vector
        data.append({"index": index, "object": "embedding", "embedding": encoded})
    head = {"id": f"embd-{identity}", "object": "list", "created": created, "model": ask.model}
    return orjson.dumps(head | {"data": data, "usage": _usage(ask)})


def rerank(ask: Ask, identity: str, _created: int) -> bytes:
    """/rerank: the longer a document the lower it stands."""
    documents = ask.document["documents"]
    results: list[dict[str, Any]] = [
        {"index": i, "document": {"text": documents[i], "multi_modal": None}, "relevance_score": 1 / prompt}
        for i, (prompt, _) in enumerate(ask.work)
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    return orjson.dumps({"id": f"score-{identity}", "model": ask.model, "usage": usage, "results": results})


def scores(ask: Ask, identity: str, created: int) -> bytes:
    """/score: as a rerank scores."""
    data = [{"index": i, "object": "score", "score": 1 / prompt} for i, (prompt, _) in enumerate(ask.work)]
    head = {"id": f"score-{identity}", "object": "list", "created": created, "model": ask.model}
    return orjson.dumps(head | {"data": data, "usage": _usage(ask)})


def _usage(ask: Ask) -> dict[str, int | None]:
    counts = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens, "completion_tokens": 0}
    return counts | dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
