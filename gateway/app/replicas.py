"""How many gateways share the engines: those are counted that answer /readyz on their admin port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

import aiohttp

from gateway.discovery.base import url

_log = logging.getLogger("gateway")

_EVERY: Final = 1.0  # seconds between two counts
_LONGEST: Final = 1.0  # seconds that an answer may take
_MISSES: Final = 2  # counts in a row without one that was there before

Place = tuple[bool, str, str, int]
"""Whether DNS is asked for every address; scheme; host; port."""


class Census:
    """Counts the gateways at ``places`` from ``start`` until ``stop``; ``changed`` is told when it differs.

    One that becomes ready counts at once, one that is ready no more is missed twice before it goes: a share is given up
    sooner than it is taken. Where nobody answers, there is still this one.
    """

    def __init__(self, places: Iterable[Place], count: int, changed: Callable[[int], None]) -> None:
        self._places = tuple(places)
        self._count = count
        self._changed = changed
        self._misses: dict[str, int] = {}  # of those that count, by URL
        self._known: dict[Place, frozenset[str]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Count from now on, where there is anything to count."""
        if self._places:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Count no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LONGEST), trust_env=False) as session:
            while True:
                try:
                    await self._look(session)
                except Exception:  # noqa: BLE001 - logged; the count before stays, and the next look may go well
                    _log.exception("counting the gateways that share the engines failed")
                await asyncio.sleep(_EVERY)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        found: frozenset[str] = frozenset().union(*await asyncio.gather(*map(self._addresses, self._places)))
        ready = await asyncio.gather(*(_ready(session, each) for each in found))
        answers = dict(zip(found, ready, strict=True))
        kept = {each: 0 if answers[each] else misses + 1 for each, misses in self._misses.items() if each in answers}
        self._misses = {each: misses for each, misses in kept.items() if misses < _MISSES}
        self._misses |= {each: 0 for each, answered in answers.items() if answered}
        count = max(1, len(self._misses))
        if count != self._count:
            self._count = count
            self._changed(count)

    async def _addresses(self, place: Place) -> frozenset[str]:
        asked, scheme, host, port = place
        if not asked:
            return frozenset({url(scheme, host, port)})
        try:
            answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return self._known.get(place, frozenset())  # whether they live is asked anyway
        self._known[place] = frozenset(url(scheme, str(address[0]), port) for *_, address in answers)
        return self._known[place]


async def _ready(session: aiohttp.ClientSession, place: str) -> bool:
    try:
        async with session.get(f"{place}/readyz", ssl=False) as answer:  # an address has no name to be checked
            return answer.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError):
        return False
