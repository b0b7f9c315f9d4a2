"""The store: a Valkey or Redis (6.2 or newer) over one connection, several questions in one turn.

Needs the optional extra ``inference-gateway[valkey]``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gateway.model import ShareFailure
from gateway.sharing.base import Call, StoreError
from gateway.trust import ANCHORS, LENIENT

_SENTINEL: Final = "+sentinel"
_PORT: Final = 26_379  # where a Sentinel listens
_CONNECTING: Final = 1.0  # seconds for TCP, TLS and the password; nobody waits for it
_TRUST: Final[dict[str, Any]] = {"ssl_exclude_verify_flags": [LENIENT], "ssl_include_verify_flags": [ANCHORS]}
_LATE: Final = 5  # turns of the loop: if this process itself stood still, what came meanwhile is read first
_TEXTS: Final = (("READONLY", ShareFailure.READONLY), ("OOM ", ShareFailure.MEMORY), ("LOADING", ShareFailure.LOADING))
_KINDS: Final = (
    (exceptions.AuthenticationError, ShareFailure.DENIED),
    (exceptions.AuthorizationError, ShareFailure.DENIED),
    (exceptions.NoPermissionError, ShareFailure.DENIED),
    (exceptions.BusyLoadingError, ShareFailure.LOADING),
    (exceptions.ReadOnlyError, ShareFailure.READONLY),
    (exceptions.OutOfMemoryError, ShareFailure.MEMORY),
    ((exceptions.TimeoutError, TimeoutError), ShareFailure.TIMEOUT),
    ((exceptions.ConnectionError, OSError), ShareFailure.UNREACHABLE),
)


def _sentinel(url: str, options: dict[str, Any]) -> tuple[Sentinel, str]:
    """Who is asked for the primary, and its name there; a new connection asks anew, so it follows a failover."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.removesuffix(_SENTINEL)
    places, _, path = rest.partition("/")
    credentials, at, places = places.rpartition("@")
    name, _, database = path.partition("?")[0].partition("/")
    hosts = [each if each.rpartition("]")[2].count(":") else f"{each}:{_PORT}" for each in places.split(",")]
    query = parse_qs(path.partition("?")[2])
    own = {
        each.removeprefix("sentinel_"): query.pop(each)[0]
        for each in ("sentinel_username", "sentinel_password")
        if each in query
    }
    more = f"/{database}?{urlencode(query, doseq=True)}"
    found = [parse_url(f"{scheme}://{credentials}{at}{host}{more}") for host in hosts]
    store = {key: value for key, value in found[0].items() if key not in {"host", "port", "connection_class"}}
    tls = {"ssl": True} if scheme == "rediss" else {}
    authorities = {key: value for key, value in store.items() if key.startswith("ssl_")}
    patience = _CONNECTING / (len(hosts) + 1)  # one that vanished leaves time for the others
    asked = {"socket_timeout": patience, "socket_connect_timeout": patience, **own, **options, **tls, **authorities}
    addresses = [(each["host"], each["port"]) for each in found]
    sentinel = Sentinel(addresses, sentinel_kwargs=asked, **store, **options, **tls)  # type: ignore[no-untyped-call]
    return sentinel, name


@cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """``url`` as redis-py takes it: redis://, rediss:// or unix://, with user and password where needed.

    Or redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB, rediss+sentinel:// with TLS on all connections: the one that the
    Sentinels at these addresses take for the primary of NAME. User and password are the store's; a Sentinel's own are
    in the query (``sentinel_username``, ``sentinel_password``).
    """

    def __init__(self, url: str) -> None:
        """Prepare; nothing is opened.

        Raises:
            ValueError: it is none of these.
        """
        # Whoever asks decides at once by itself, and comes again.
        options: dict[str, Any] = {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
        if url.startswith("rediss"):
            options |= _TRUST
        self._sentinel = _sentinel(url, options) if _SENTINEL in url.partition("://")[0] else None
        self._client: Redis = (
            Redis.from_url(url, socket_timeout=None, socket_connect_timeout=None, **options)
            if self._sentinel is None
            else self._sentinel[0].master_for(self._sentinel[1])
        )

    async def open(self) -> None:
        """Connect anew.

        The client stays the same: it reads the certificates of authorities once, which takes tens of milliseconds.

        Raises:
            StoreError: it cannot be reached, or does not take the password.
        """
        with suppress(StoreError):
            await self._ask(self._client.connection_pool.disconnect(), _CONNECTING)
        await self._ask(self._client.ping(), _CONNECTING)

    async def close(self) -> None:
        """Let go of the connection, whatever state it is in."""
        sentinels = () if self._sentinel is None else self._sentinel[0].sentinels
        for client in (self._client, *sentinels):
            with suppress(StoreError):
                await self._ask(client.aclose(), _CONNECTING)

    async def run(self, calls: Sequence[Call], timeout: float) -> list[list[int]]:  # noqa: ASYNC109 - bounds all of it
        """What each call gives, in their order.

        Raises:
            StoreError: one of them was not answered within ``timeout`` seconds, or by an error.
        """
        replies = await self._send(calls, timeout)
        lost = [place for place, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
        if lost:  # it was restarted, or another took its place: none of these was run
            scripts = {calls[place].script for place in lost}
            for script in scripts:
                await self._ask(self._client.script_load(script), timeout)
            for place, reply in zip(lost, await self._send([calls[place] for place in lost], timeout), strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise _failed(reply) from None
        return replies

    async def _send(self, calls: Sequence[Call], timeout: float) -> list[Any]:  # noqa: ASYNC109 - the same
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command("EVALSHA", _sha(call.script), len(call.keys), *call.keys, *call.arguments)
        replies: list[Any] = await self._ask(pipeline.execute(raise_on_error=False), timeout)
        return replies

    @staticmethod
    async def _ask(answer: Any, timeout: float) -> Any:  # noqa: ASYNC109 - the same
        task = asyncio.ensure_future(answer)
        try:
            await asyncio.wait({task}, timeout=timeout)
            for _ in range(_LATE):
                if not task.done():
                    await asyncio.sleep(0)
            if not task.done():
                raise StoreError(ShareFailure.TIMEOUT, "no answer in time")
            return task.result()
        except (exceptions.RedisError, OSError) as error:
            raise _failed(error) from None
        finally:
            task.cancel()


def _failed(error: Exception) -> StoreError:
    text = str(error) or type(error).__name__
    kind = next((kind for classes, kind in _KINDS if isinstance(error, classes)), ShareFailure.ERROR)
    if kind in {ShareFailure.ERROR, ShareFailure.UNREACHABLE}:
        kind = next((said for word, said in _TEXTS if word in text), kind)
    return StoreError(kind, text)
