"""The concurrency curve on the admin port: ``/curve``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from aiohttp import web

from gateway.console.query import answer, one_of, only
from gateway.model import GatewayState
from gateway.telemetry.curve import FINE, Curves, Objectives
from gateway.telemetry.curve_table import COARSE, Curve, csv_table, curve, objectives_of, result, text_table

_FORMATS: Final = ("json", "csv", "text")
_KNOWN: Final = ("backend", "model", "format")


class CurveRoutes:
    """Handlers over what was learned; ``state`` tells the objectives and the limits of now."""

    def __init__(self, curves: Curves, state: Callable[[], GatewayState], clock: Callable[[], float]) -> None:
        """``clock`` is that of the requests."""
        self._curves = curves
        self._state = state
        self._clock = clock

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        return (web.get("/curve", self._curve),)

    async def _curve(self, request: web.Request) -> web.Response:
        query = request.query
        try:
            shape = one_of("format", query.get("format", "json"), _FORMATS)
            only(query, _KNOWN)
            wanted = self._wanted(query.get("backend"), query.get("model"))
        except ValueError as error:
            return answer({"error": str(error)}, 400)
        state = self._state()
        objectives = objectives_of(state)
        steps = COARSE if shape == "text" else FINE
        found = [curve_ async for curve_ in self._made(wanted, state, objectives, steps)]
        if shape == "csv":
            return web.Response(text=csv_table(found), content_type="text/csv")
        if shape == "text":
            return web.Response(text=text_table(found))
        return answer(result(found, objectives))

    def _wanted(self, backend: str | None, model: str | None) -> list[tuple[str, str | None]]:
        """Which curves: one a backend, and one a model where a backend has several, or those that are asked for."""
        known = self._curves.backends
        backends = known if backend is None else (one_of("backend", backend, known),)
        wanted: list[tuple[str, str | None]] = []
        for name in backends:
            models = self._curves.models(name)
            if model is None:
                wanted += [(name, None), *((name, each) for each in models if len(models) > 1)]
            elif model in models:
                wanted.append((name, model))
        if model is not None and not wanted:
            one_of("model", model, [each for name in backends for each in self._curves.models(name)])
        return wanted

    async def _made(
        self, wanted: Sequence[tuple[str, str | None]], state: GatewayState, objectives: Objectives, steps: int
    ) -> AsyncIterator[Curve]:
        now = self._clock()
        for backend, model in wanted:
            levels = []
            for level in self._curves.levels(backend, now, objectives, model, steps):
                levels.append(level)
                await asyncio.sleep(0)  # others have their turn between two levels
            yield curve(backend, model, levels, state)
