"""``GET /v1/models`` over several backends: the union of what the live ones serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.proxy.fetch import Unanswered, fetch
from gateway.proxy.relay import Wire
from gateway.proxy.upstream import Upstream

MODELS: Final = "/v1/models"


class Catalog:
    """Asks every backend at once; one that is dead, slow or unreadable is left out."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def union(self, upstreams: Sequence[Upstream], wire: Wire) -> bytes | None:
        """A list in OpenAI's shape, each model once, first come first; None where nobody gave one."""
        lists = await asyncio.gather(*(self._models(upstream, wire) for upstream in upstreams))
        if all(models is None for models in lists):
            return None
        merged: dict[str, Any] = {}
        for models in lists:
            for model in models or ():
                merged.setdefault(model["id"], model)
        return orjson.dumps({"object": "list", "data": list(merged.values())})

    async def _models(self, upstream: Upstream, wire: Wire) -> list[dict[str, Any]] | None:
        try:
            answer = await fetch(upstream, wire.head(upstream), self._timeout)
        except (OSError, Unanswered):
            return None
        return _read(answer.body) if answer.status == HTTPStatus.OK else None


def _read(body: bytes) -> list[dict[str, Any]] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    data = parsed.get("data") if isinstance(parsed, dict) else None
    if not isinstance(data, list):
        return None
    return [model for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]
