"""The ready endpoints of a Service, from Kubernetes' EndpointSlices: listed once, then watched.

The API server's rules, from "Kubernetes API Concepts" (Efficient detection of changes): a watch begins at the
``resourceVersion`` of the list; it ends whenever the server likes and is begun again at the version last seen, which
bookmarks move on; 410 Gone, as status or as an ERROR event inside the watch, means that this version is forgotten and
all must be listed again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.discovery.base import Found, url
from gateway.trust import trusting

_log = logging.getLogger(__name__)

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT: Final = 10.0  # seconds
_SILENCE: Final = 360.0  # seconds; a watch is cut by itself
_WATCHED: Final = 300  # seconds after which a watch is to end by itself
_AGAIN: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before the next try; the last for ever
_LINE: Final = 4 << 20  # bytes of one event: a slice has at most a thousand endpoints


class _GoneError(Exception):
    """The version to go on from is forgotten."""


@dataclass(frozen=True, slots=True)
class Account:
    """How to speak to the API server: its URL, the file of a token that changes, the file of its authority."""

    server: str
    token: Path | None = None
    ca: Path | None = None

    @classmethod
    def of_pod(cls, environment: Mapping[str, str]) -> Account | None:
        """That of the Pod which this process runs in; None outside of Kubernetes."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        return None if not host else cls(url("https", host, int(port)), _ACCOUNT / "token", _ACCOUNT / "ca.crt")


class EndpointSlices:
    """Every ready endpoint of ``service`` in ``namespace``, as an engine at ``port``."""

    def __init__(self, account: Account, scheme: str, service: str, namespace: str, port: int) -> None:
        self._account = account
        self._scheme = scheme
        self._name = f"{service}.{namespace}"
        self._port = port
        self._path = f"{account.server}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._label = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._slices: dict[str, frozenset[str]] = {}
        self._version = ""
        self._trouble = ""

    async def run(self, found: Found) -> None:
        """As ``Source.run``."""
        tries = 0
        context = await asyncio.to_thread(self._context)
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE),
            connector=aiohttp.TCPConnector(ssl=context),
            read_bufsize=_LINE,
        ) as session:
            while True:
                try:
                    if not self._version:
                        await self._list(session)
                    await self._tell(found)
                    await self._watch(session, found)
                    tries, self._trouble = 0, ""
                except _GoneError:
                    self._version = ""
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError) as error:
                    self._complain(error)
                    await asyncio.sleep(_AGAIN[min(tries, len(_AGAIN) - 1)])
                    tries += 1

    def _context(self) -> ssl.SSLContext:
        return trusting(None if self._account.ca is None else str(self._account.ca))

    def _complain(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._trouble:
            _log.warning("endpoints of %s cannot be watched, those known stay: %s", self._name, trouble)
        self._trouble = trouble

    async def _ask(self, session: aiohttp.ClientSession, **parameters: str) -> aiohttp.ClientResponse:
        token = self._account.token
        # The kubelet replaces the token before it ends, so it is read each time.
        headers = {} if token is None else {"Authorization": f"Bearer {await asyncio.to_thread(_text, token)}"}
        response = await session.get(self._path, params={**self._label, **parameters}, headers=headers)
        if response.status == HTTPStatus.GONE:
            response.close()
            raise _GoneError
        if response.status != HTTPStatus.OK:
            response.close()
            raise OSError(f"the API server answers {response.status}")
        return response

    async def _list(self, session: aiohttp.ClientSession) -> None:
        async with await self._ask(session) as response:
            document = json.loads(await response.read())
        self._slices = {_name(each): self._urls(each) for each in document["items"]}
        self._version = document["metadata"]["resourceVersion"]

    async def _watch(self, session: aiohttp.ClientSession, found: Found) -> None:
        """Follow what changes until the server ends the watch."""
        response = await self._ask(
            session,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(_WATCHED),
        )
        async with response:
            async for line in response.content:
                if line.strip() and self._take(json.loads(line)):
                    await self._tell(found)

    def _take(self, event: Mapping[str, Any]) -> bool:
        """Take one event; whether the endpoints may be others now."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == HTTPStatus.GONE:
                raise _GoneError
            raise OSError(f"the watch ends with {item.get('reason') or item.get('message')}")
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            return self._slices.pop(_name(item), None) is not None
        before, self._slices[_name(item)] = self._slices.get(_name(item)), self._urls(item)
        return before != self._slices[_name(item)]

    def _urls(self, item: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(url(self._scheme, address, self._port) for address in _ready(item))

    async def _tell(self, found: Found) -> None:
        urls = frozenset[str]().union(*self._slices.values())
        if urls:  # none at all is a Service that is being changed, or a mistake: nobody gains where all are sent away
            await found(urls)


def _ready(item: Mapping[str, Any]) -> Iterator[str]:
    """Addresses of the endpoints that are ready. By the API's word "nil should be interpreted as true"."""
    if item.get("addressType") not in {"IPv4", "IPv6"}:
        return
    for endpoint in item.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is not False:
            yield from endpoint["addresses"][:1]  # further ones are not to be used, says the API


def _name(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["name"])


def _text(path: Path) -> str:
    return path.read_text().strip()
