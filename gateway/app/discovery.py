"""Engines that are found become backends, and leave when they are found no more."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from gateway.console.reload import Reloaded
from gateway.discovery.base import Source
from gateway.discovery.dns import Dns
from gateway.discovery.kubernetes import Account, EndpointSlices
from gateway.settings import Settings, variable
from gateway.settings.values import Discovered

_log = logging.getLogger("gateway")

_AGAIN: Final = 10.0  # seconds after a fault of our own


class Backends(Protocol):
    """Where backends are added and removed (``Reloader``)."""

    async def add(self, text: str) -> Reloaded:
        """Add the backends that ``text`` describes, as GATEWAY_BACKENDS does."""

    async def remove(self, name: str) -> Reloaded:
        """Let a backend finish what it runs, and forget it."""


class Discovery:
    """Keeps the backends of ``sources`` as they are found. ``present`` gives the names of all backends."""

    def __init__(
        self, sources: Mapping[str, Source], backends: Backends, present: Callable[[], set[str]], api_key: str | None
    ) -> None:
        self._sources = sources
        self._backends = backends
        self._present = present
        self._api_key = api_key
        self._found: dict[str, frozenset[str]] = {}
        self._ours: set[str] = set()  # names of backends that were added here
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Look for engines from now on."""
        self._tasks = [asyncio.create_task(self._follow(name, source)) for name, source in self._sources.items()]

    def stop(self) -> None:
        """Look no more; what was found stays."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, name: str, source: Source) -> None:
        async def found(urls: frozenset[str]) -> None:
            self._found[name] = urls
            await self._put()

        while True:
            try:
                await source.run(found)
            except Exception:  # noqa: BLE001 - logged; what is known is served on, whatever the fault is
                _log.exception("looking for engines at %s failed", name)
            await asyncio.sleep(_AGAIN)

    async def _put(self) -> None:
        async with self._lock:
            wanted = {_name(url): url for urls in self._found.values() for url in urls}
            for name in sorted(wanted.keys() - self._present()):
                added = await self._backends.add(json.dumps([self._described(name, wanted[name])]))
                if not added.faults:
                    self._ours.add(name)
            for name in sorted(self._ours - wanted.keys()):
                if not (await self._backends.remove(name)).faults:
                    self._ours.discard(name)

    def _described(self, name: str, url: str) -> dict[str, str]:
        key = {} if self._api_key is None else {"api_key": self._api_key}
        return {"name": name, "url": url, **key}


def _name(url: str) -> str:
    return url.partition("://")[2]


def sources(settings: Settings) -> dict[str, Source]:
    """What GATEWAY_DISCOVER names.

    Raises:
        ValueError: Kubernetes is to be asked, and this is no Pod of it.
    """
    return dict(_sources(settings))


def _sources(settings: Settings) -> Iterator[tuple[str, Source]]:
    account = Account.of_pod(os.environ)
    for each in settings.discover:
        if each.how is Discovered.How.DNS:
            yield str(each), Dns(each.scheme, each.host, each.port, settings.discover_interval)
        elif account is None:
            raise ValueError(f"{variable('discover')}: {each} is asked of Kubernetes, and this is no Pod of it")
        else:
            service, _, namespace = each.host.partition(".")
            yield str(each), EndpointSlices(account, each.scheme, service, namespace, each.port)
