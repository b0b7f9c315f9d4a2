"""Work in portions: so much of it in one turn of the event loop, and whoever else waits in between.

A thousand requests that come at once, or are refused at once, are a fifth of a second of work. In one turn of the loop
no stream would move for so long.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets ``most`` go on in a turn of the loop, the others in the next turns, first come first served."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._armed = False

    def taken(self) -> bool:
        """Whether there was a place in this turn, which is the caller's now; else it has to ``wait`` for one."""
        if not self._left or self._waiting:
            return False
        self._left -= 1
        self._arm()
        return True

    async def wait(self) -> None:
        """Return in a turn that has a place for the caller."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        self._arm()
        await place

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._armed = False
        self._left = self._most
        while self._left and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else its client has left
                place.set_result(None)
                self._left -= 1
        if self._left < self._most:
            self._arm()
