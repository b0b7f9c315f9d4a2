"""Requests of keys, the claims for them, and the one task that talks to the store.

All claims that are due go in one turn, and the next turn begins when it is answered. Who waits for an answer is decided
alone as soon as there is none. Nothing here raises into the path of a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gateway.admission.quota import Account, Shortage, Standing
from gateway.admission.share import IDLE, Claim, Pending, Shared
from gateway.model import ShareFailure, ShareWay
from gateway.sharing.base import ShareConfig, Store, StoreError, Watch
from gateway.sharing.scripts import claim_call, claim_reply, leave_call, live_call

_log = logging.getLogger(__name__)

Charged = tuple[Shortage | None, Sequence[Standing]]

_BEATS: Final = 5  # to a lease
_LOOK: Final = 0.1  # seconds between two looks at what is to be given back or heard anew
_GATHERED: Final = 0.02  # seconds for which a unit that came back waits for the next request here
_TURN: Final = 200  # claims that go in one turn
_FORGOTTEN: Final = 120.0  # seconds after which an idle holder is forgotten
_FIRST: Final = 0.1  # seconds until the store is tried again; doubled each time
_LAST: Final = 5.0
_STEADY: Final = 10.0  # seconds for which it was of use until trying begins anew
_START: Final = 1.5  # seconds for which the start waits for the store


@dataclass(eq=False, slots=True)
class _Waiting:
    tokens: int
    future: asyncio.Future[Charged]


class _Holder:
    """One holder of keys here: what is counted, who waits for an answer, and its name in the store."""

    __slots__ = ("key", "shared", "waiting")

    def __init__(self, name: str, shared: Shared) -> None:
        self.key = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
        self.shared = shared
        self.waiting: deque[_Waiting] = deque()


class Share:
    """Shares by the store that ``store(url)`` makes, from ``start`` until ``stop``."""

    def __init__(
        self,
        config: ShareConfig,
        store: Callable[[str], Store],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compose; nothing is opened before ``start``. ``clock`` gives monotonic seconds.

        Raises:
            ValueError: the URL is none that the store takes.
        """
        self._config = config
        self._make = store
        self._store, self._store_url = store(config.url), config.url
        self._watch = watch
        self._clock = clock
        self._me = secrets.token_hex(8)
        self._holders: dict[str, _Holder] = {}
        self._lively: dict[_Holder, None] = {}  # sets that keep their order
        self._asking: dict[_Holder, None] = {}  # somebody waits there
        self._due: dict[_Holder, None] = {}
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._gateways = config.gateways
        self._up: bool | None = None  # None until it was tried
        self._tried = asyncio.Event()
        self._beat_at = self._look_at = self._forget_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Share from now on; returns when the store was tried, whatever came of it."""
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(_START):
                await self._tried.wait()

    async def stop(self) -> None:
        """Give back what was claimed, where the store still answers. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._gathering is not None:
            self._gathering.cancel()
        if self._up:
            self._config = replace(self._config, block=0.0)
            with suppress(StoreError):
                await self._turn(list(self._lively))
                await self._store.run([leave_call(self._config.prefix, self._me)], self._config.timeout)
        self._part()
        await self._store.close()

    def reconfigure(self, config: ShareConfig) -> None:
        """Go on with another URL, timeout or block; prefix, lease and the number of gateways stay as they are."""
        self._config = replace(self._config, url=config.url, timeout=config.timeout, block=config.block)
        self._wake.set()

    # -- requests ----------------------------------------------------------------------------------------------------

    def enter_now(self, account: Account, tokens: int) -> Charged | None:
        """Begin a request, or say why not, and how the rates stand; None: the store must be asked, by ``enter``."""
        now = self._clock()
        holder = self._holder(account, now)
        if holder.waiting:  # each in its turn
            return None
        shortage = holder.shared.enter(tokens, now)
        if shortage is Pending.ASK:
            return None
        self._watch.decided(ShareWay.AHEAD if self._up else ShareWay.ALONE)
        if self._up and holder.shared.is_restless(self._config.block, now):
            self._due[holder] = None
            self._wake.set()
        return shortage, tuple(holder.shared.standings(now))

    async def enter(self, account: Account, tokens: int) -> Charged:
        """As ``enter_now``; waits for the store where it must. Cancelling gives back what was taken."""
        charged = self.enter_now(account, tokens)
        if charged is not None:
            return charged
        holder = self._holders[account.terms.name]
        future: asyncio.Future[Charged] = asyncio.get_running_loop().create_future()
        holder.waiting.append(_Waiting(tokens, future))
        self._asking[holder] = None
        self._wake.set()
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.result()[0] is None:
                self.leave(account, tokens, 0, refused=True)
            raise

    def leave(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        """End a request that began; one that was ``refused`` gives everything back."""
        if holder := self._holders.get(account.terms.name):
            now = self._clock()
            holder.shared.leave(reserved, used, now, refused=refused)
            self._tell_soon(holder, now)

    def abandon(self, account: Account, requests: int) -> None:
        """So many requests are gone, and nobody can say what they took."""
        if holder := self._holders.get(account.terms.name):
            now = self._clock()
            holder.shared.abandon(requests, now)
            self._tell_soon(holder, now)

    def _holder(self, account: Account, now: float) -> _Holder:
        terms = account.terms
        holder = self._holders.get(terms.name)
        if holder is None:
            shared = Shared(terms, None if self._up else self._gateways, now)
            holder = self._holders[terms.name] = _Holder(terms.name, shared)
        elif holder.shared.terms is not terms:
            holder.shared.retune(terms, now)
        self._lively[holder] = None
        return holder

    def _tell_soon(self, holder: _Holder, now: float) -> None:
        self._lively[holder] = None
        if not self._up or not holder.shared.is_restless(self._config.block, now):
            return
        self._due[holder] = None
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHERED, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._wake.set()

    # -- the store ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        tries = 0
        while True:
            began = self._clock()
            try:
                await self._join()
                await self._serve()
            except StoreError as error:
                self._lose(error)
            except Exception as error:  # noqa: BLE001 - logged; each gateway keeps to its share meanwhile
                _log.exception("sharing quotas failed inside the gateway")
                self._lose(StoreError(ShareFailure.ERROR, type(error).__name__))
            self._tried.set()
            tries = 0 if self._clock() - began > _STEADY else tries + 1
            pause = random.uniform(0.5, 1.0) * min(_LAST, _FIRST * 2.0**tries)  # noqa: S311 - spreads the gateways
            await self._pause(0.0 if self._moved else pause)

    @property
    def _moved(self) -> bool:
        """Whether another store is to be used."""
        return self._store_url != self._config.url

    async def _pause(self, seconds: float) -> None:
        """Until there is something to do, or the time is over."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _join(self) -> None:
        if self._moved:
            await self._store.close()
            self._store_url = self._config.url
            self._store = self._make(self._store_url)
        await self._store.open()
        await self._say_live()
        self._up = True
        now = self._clock()
        for holder in self._holders.values():
            holder.shared.rejoin(now)
            self._due[holder] = None
        self._watch.changed(True, self._gateways, "")
        self._tried.set()

    def _lose(self, error: StoreError) -> None:
        self._watch.failed(error.failure)
        if self._up is not False:
            self._up = False
            self._watch.changed(False, self._gateways, f"{error.failure.value}: {error}")
        self._part()

    def _part(self) -> None:
        """Everybody who waits is decided alone."""
        self._up = False
        now = self._clock()
        for holder in self._holders.values():
            holder.shared.part(self._gateways, now)
            self._answer(holder, ShareWay.ALONE, now)

    async def _serve(self) -> None:
        while True:
            now = self._clock()
            if self._moved:
                raise StoreError(ShareFailure.UNREACHABLE, "another one is set")
            if now >= self._beat_at and await self._say_live():
                self._doubt()
            if now >= self._look_at:
                self._look(now)
            if self._asking or self._due:
                await self._turn(list(islice(self._asking | self._due, _TURN)))
                continue
            await self._pause(max(0.0, min(self._beat_at, self._look_at) - self._clock()))

    async def _say_live(self) -> bool:
        """Whether this gateway was not among those that live."""
        lease = self._config.lease
        self._beat_at = self._clock() + lease / _BEATS
        call = live_call(self._config.prefix, self._me, lease)
        ((new, gateways),) = await self._store.run([call], self._config.timeout)
        if gateways != self._gateways:
            self._gateways = gateways
            self._watch.counted(gateways)
        return bool(new)

    def _doubt(self) -> None:
        """Its places were given to others, as it was silent for too long; or the store has lost everything."""
        for holder in self._holders.values():
            holder.shared.doubt()
            self._due[holder] = None

    def _look(self, now: float) -> None:
        self._look_at = now + _LOOK
        block = self._config.block
        for holder in list(self._lively):
            if holder.shared.is_restless(block, now) or holder.shared.is_stale(now):
                self._due[holder] = None
            elif now - holder.shared.active > IDLE:
                del self._lively[holder]
        if now >= self._forget_at:
            self._forget_at = now + _FORGOTTEN
            for name, holder in list(self._holders.items()):
                if holder.shared.idle and now - holder.shared.active > _FORGOTTEN:
                    del self._holders[name]

    async def _turn(self, holders: Iterable[_Holder]) -> None:
        now, block = self._clock(), self._config.block
        asked: list[tuple[_Holder, Claim]] = []
        for holder in holders:
            self._asking.pop(holder, None)
            self._due.pop(holder, None)
            waiting = [each.tokens for each in holder.waiting if not each.future.done()]
            if claim := holder.shared.claim(waiting, block, now):
                asked.append((holder, claim))
        if not asked:
            return
        calls = [claim_call(self._config.prefix, self._me, holder.key, claim) for holder, claim in asked]
        replies = await self._store.run(calls, self._config.timeout)
        heard = self._clock()
        self._watch.answered(len(asked), heard - now)
        for (holder, claim), reply in zip(asked, replies, strict=True):
            holder.shared.hear(claim, claim_reply(claim, reply), heard)
            self._answer(holder, ShareWay.ASKED, heard)

    def _answer(self, holder: _Holder, way: ShareWay, now: float) -> None:
        while holder.waiting:
            first = holder.waiting[0]
            if not first.future.done():
                shortage = holder.shared.enter(first.tokens, now)
                if shortage is Pending.ASK:
                    self._asking[holder] = None
                    return
                first.future.set_result((shortage, tuple(holder.shared.standings(now))))
                self._watch.decided(way)
            holder.waiting.popleft()
