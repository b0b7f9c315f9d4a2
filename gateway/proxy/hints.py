"""An engine's own gauges: where they are, and whether they may be believed.

Hints only ever lower a limit, and even that only while they can be right: they are passed on where they were just read
and tell of at least about half of what this gateway itself has in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.admission.pool import HINTS_LAPSE
from gateway.dialects.base import EngineDialect, Gauges
from gateway.model import Hints, HintsUse
from gateway.proxy.fetch import Unanswered
from gateway.proxy.planes import Planes

_LOOK_AGAIN: Final = 60.0  # seconds after a search that found nothing
_FEW: Final = 4  # requests in flight of which no gauge need tell
_CONTRADICTIONS: Final = 3  # readings in a row: a gauge may be seconds old


class HintReader:
    """Finds the first source of gauges that an engine of this kind has, and reads it from then on."""

    def __init__(self, planes: Planes, clock: Callable[[], float] = time.monotonic) -> None:
        self._planes = planes
        self._clock = clock
        self._engine: EngineDialect | None = None
        self._model: str | None = None
        self._source: Gauges | None = None
        self._capacity: int | None = None
        self._search_at = 0.0
        self._searched = False
        self._read_at = 0.0
        self._contradictions = 0

    def begin(self, engine: EngineDialect, model: str | None) -> None:
        """Search anew: the engine may be another one, or started otherwise. ``model``: one that it serves."""
        self._engine, self._model = engine, model
        self._source = self._capacity = None
        self._search_at, self._searched, self._contradictions = 0.0, False, 0

    @property
    def at(self) -> str | None:
        """What is read, for people."""
        source = self._source
        return None if source is None else f"{self._planes.address(source.plane)}{self._path(source.paths[0])}"

    @property
    def use(self) -> HintsUse:
        """What becomes of them now."""
        if self._source is None:
            return HintsUse.ABSENT if self._searched else HintsUse.UNKNOWN
        if self._clock() - self._read_at > HINTS_LAPSE:
            return HintsUse.STALE
        return HintsUse.CONTRADICTED if self._contradictions >= _CONTRADICTIONS else HintsUse.USED

    async def read(self, in_flight: int) -> Hints | None:
        """The gauges as they are now, None where there is nothing to heed. ``in_flight``: requests of ours.

        Raises:
            OSError: the port that serves cannot be reached.
        """
        hints = await (self._search() if self._source is None else self._ask(self._source))
        if hints == Hints():
            if self._clock() - self._read_at > _LOOK_AGAIN:
                self._source = None
            return None
        self._read_at = self._clock()
        self._compare(hints, in_flight)
        if self._contradictions >= _CONTRADICTIONS:
            return None
        return replace(hints, kv_capacity_tokens=hints.kv_capacity_tokens or self._capacity)

    async def _search(self) -> Hints:
        """Ask in turn until one has gauges and the size of the KV cache is known."""
        found = Hints()
        if self._engine is None or self._clock() < self._search_at:
            return found
        for source in self._engine.gauges:
            hints = await self._ask(source)
            if self._source is None and hints != Hints():
                self._source, found = source, hints
            self._capacity = self._capacity or hints.kv_capacity_tokens
            if self._source is not None and self._capacity is not None:
                break
        self._searched = True
        self._search_at = self._clock() + _LOOK_AGAIN
        return found

    async def _ask(self, source: Gauges) -> Hints:
        if self._model is None and any("{model}" in path for path in source.paths):
            return Hints()
        texts = []
        for path in source.paths:
            try:
                answer = await self._planes.ask(self._path(path), source.plane)
            except Unanswered:
                return Hints()
            texts.append(answer.body.decode("utf-8", "replace") if answer.status < 400 else "")  # noqa: PLR2004 - HTTP's own line
        return source.read(texts)

    def _path(self, path: str) -> str:
        return path.replace("{model}", self._model or "")

    def _compare(self, hints: Hints, in_flight: int) -> None:
        """An engine that tells of far fewer requests than it was given is another one, or its gauges stand still."""
        if hints.running is None:
            return
        told = hints.running + (hints.waiting or 0.0)
        self._contradictions = self._contradictions + 1 if in_flight > max(_FEW, 2.0 * told) else 0
