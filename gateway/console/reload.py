"""``/reload`` and ``/backends``: the settings read again, and backends that come and go, while the gateway runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
from aiohttp import web

_MOST: Final = 64 * 1024  # bytes of a backend's description


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of it. Where there are ``faults``, nothing was changed."""

    changed: tuple[str, ...] = ()  # one short sentence or the name of a setting each
    later: tuple[str, ...] = ()  # settings that a restart puts in effect
    faults: tuple[str, ...] = ()


class Changing(Protocol):
    """Who makes the changes."""

    async def reload(self) -> Reloaded:
        """Read the settings again."""

    async def add(self, text: str) -> Reloaded:
        """Add the backends that ``text`` describes, as GATEWAY_BACKENDS does."""

    async def remove(self, name: str) -> Reloaded:
        """Let a backend finish what it runs, and forget it."""


class ReloadRoutes:
    """Changes are asked for with PUT and DELETE: a web page cannot send them across origins unless it is let."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        return (
            web.put("/reload", self._reload),
            web.put("/backends", self._add),
            web.delete("/backends/{name}", self._remove),
        )

    async def _reload(self, _: web.Request) -> web.Response:
        return _told(await self._changing.reload())

    async def _add(self, request: web.Request) -> web.Response:
        body = await request.content.read(_MOST + 1)
        if len(body) > _MOST:
            return _told(Reloaded(faults=(f"the description is longer than {_MOST} bytes",)))
        return _told(await self._changing.add(body.decode("utf-8", "replace")))

    async def _remove(self, request: web.Request) -> web.Response:
        return _told(await self._changing.remove(request.match_info["name"]))


def _told(reloaded: Reloaded) -> web.Response:
    view: dict[str, Any] = {"changed": reloaded.changed, "needs_restart": reloaded.later}
    if reloaded.faults:
        view = {"error": "; ".join(reloaded.faults)}
    body = orjson.dumps(view, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)
    return web.Response(body=body, status=400 if reloaded.faults else 200, content_type="application/json")
