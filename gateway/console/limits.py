"""``/limits``: what an operator can change while the gateway runs, read and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.admission.config import LaneConfig
from gateway.admission.tuning import Tuning, changed, differences

_MOST: Final = 64 * 1024  # bytes of a change

Told = Callable[[str | None, str], None]
"""Takes the backend that a change is about, None for all, and one sentence."""


class LimitsRoutes:
    """``read`` gives what is in effect, ``retune`` puts another in effect, ``tell`` hears of every difference."""

    def __init__(self, read: Callable[[], Tuning], retune: Callable[[Tuning], None], tell: Told) -> None:
        self._read = read
        self._retune = retune
        self._tell = tell

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application.

        A change is a PATCH: a web page cannot send one across origins without being allowed to.
        """
        return (web.get("/limits", self._show), web.patch("/limits", self._change))

    async def _show(self, _: web.Request) -> web.Response:
        return _json(tuning_view(self._read()))

    async def _change(self, request: web.Request) -> web.Response:
        body = await request.content.read(_MOST + 1)
        try:
            before = self._read()
            after = changed(before, _parsed(body))
        except ValueError as error:
            return _json({"error": str(error)}, 400)
        told = list(differences(before, after))
        if told:
            self._retune(after)
        for backend, text in told:
            self._tell(backend, text)
        sentences = [text if backend is None else f"{backend}: {text}" for backend, text in told]
        return _json({"changed": sentences, **tuning_view(after)})


def tuning_view(tuning: Tuning) -> dict[str, Any]:
    """As ``changed`` reads it."""
    return {
        "tpot_objective_seconds": tuning.tpot_objective,
        "lanes": {lane.name: _lane(lane) for lane in tuning.lanes},
        "backends": {
            name: {"limit": backend.limit, "drained": backend.drained} for name, backend in tuning.backends.items()
        },
    }


def _lane(lane: LaneConfig) -> dict[str, float | None]:
    return {
        "threshold": lane.threshold,
        "weight": lane.weight,
        "ttft_objective_seconds": lane.ttft_objective,
        "max_wait_seconds": lane.max_wait,
    }


def _parsed(body: bytes) -> Any:
    if len(body) > _MOST:
        raise ValueError(f"the change is longer than {_MOST} bytes")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the change is no JSON: {error}") from None


def _json(value: object, status: int = 200) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)
    return web.Response(body=body, status=status, content_type="application/json")
