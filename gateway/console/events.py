"""What happened lately on the admin port: ``/events``."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.console.query import answer, count, only
from gateway.telemetry.events import SHOWN, EventLog


class EventRoutes:
    """A handler over one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        return (web.get("/events", self._events),)

    async def _events(self, request: web.Request) -> web.Response:
        try:
            only(request.query, ("since", "limit"))
            since, limit = count("since", request.query, 0), count("limit", request.query, SHOWN)
        except ValueError as error:
            return answer({"error": str(error)}, 400)
        return answer(self._log.view(since, limit))
