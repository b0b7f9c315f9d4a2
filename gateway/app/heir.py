"""What another gateway has learned, for one that stands by: asked for while it idles, gone on from when it does not.

Each gives what it knows at ``/learned`` on its admin port, as its state file would have it, and says how long ago it
was last used. One that stands by asks for that every few seconds, and goes on from the latest answer when its first
request comes. Ages are told and not times, so the clocks of the machines need not agree. All may have the same
settings: one that meets itself knows it, and from one that was used less lately than itself it has nothing to learn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
from aiohttp import web

from gateway.admission.memory import Memory
from gateway.app.state_file import LARGEST, OLDEST, Document, Learner, read
from gateway.model import Record

_log = logging.getLogger("gateway.heir")

PATH: Final = "/learned"
WHO: Final = "Gateway-Instance"
IDLE: Final = "Gateway-Idle-Seconds"  # since its last request; absent where there was none

_EVERY: Final = 3.0  # seconds between two questions
_LONGEST: Final = 5.0  # seconds that an answer may take
_SAID: Final = 300  # bytes of a refusal that are shown
_CHUNK: Final = 64 * 1024  # bytes
_CLOSE: Final = 1.0  # seconds by which one must have been used later, to be worth hearing


class _UnusableError(Exception):
    """An answer of no use; says why."""


class _Told(NamedTuple):
    """What one gateway told: ``used`` is when, on the clock here."""

    place: str
    used: float
    memory: Memory


class Heir:
    """Asks the gateways at ``places`` (their admin ports) from ``start`` until ``stop``; is asked itself at any time.

    ``before_next`` is given what is to be done before the next request, None: nothing. ``busy`` tells whether any is in
    flight. ``trust`` says whose certificates are believed; ``token`` is that of all their admin ports.
    """

    def __init__(
        self,
        places: Iterable[str],
        learner: Learner,
        before_next: Callable[[Callable[[], None] | None], None],
        busy: Callable[[], bool],
        trust: ssl.SSLContext | None = None,
        token: str | None = None,
    ) -> None:
        self._places = tuple(places)
        self._learner = learner
        self._before_next = before_next
        self._busy = busy
        self._trust = trust
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._id = secrets.token_hex(8)
        self._used: float | None = None  # when the last request ended here
        self._heard: _Told | None = None
        self._troubles: dict[str, str] = {}  # as they were told last, by place
        self._task: asyncio.Task[None] | None = None

    # -- being asked -------------------------------------------------------------------------------------------------

    def observe(self, record: Record) -> None:
        """Note that a request was served here."""
        if record.ticket is not None and record.backend is not None:
            self._used = time.monotonic()

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        return (web.get(PATH, self._tell),)

    async def _tell(self, _: web.Request) -> web.Response:
        document = Document(saved_at=time.time(), memory=self._learner.remember())
        headers = {WHO: self._id}
        used = self._last_used()
        if used is not None:
            headers[IDLE] = f"{time.monotonic() - used:.3f}"
        body = await asyncio.to_thread(document.model_dump_json)
        return web.Response(text=body, content_type="application/json", headers=headers)

    def _last_used(self) -> float | None:
        return time.monotonic() if self._busy() else self._used

    # -- asking ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask from now on, where there is anybody to ask."""
        if self._places:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=_LONGEST), trust_env=False
        ) as session:
            while True:
                used = self._last_used()
                if used is None or time.monotonic() - used >= _EVERY:
                    await self._look(session, used)
                await asyncio.sleep(_EVERY)

    async def _look(self, session: aiohttp.ClientSession, used: float | None) -> None:
        answers = await asyncio.gather(*(self._ask(session, place) for place in self._places))
        told = max((each for each in answers if each is not None), key=lambda each: each.used, default=None)
        if told is None or (used is not None and told.used < used + _CLOSE) or self._last_used() != used:
            return
        if self._heard is None or self._heard.place != told.place:
            _log.info("what %s learns is known here when the next request comes", told.place)
        self._heard = told
        self._before_next(self._inherit)

    def _inherit(self) -> None:
        """Go on from what was heard last. It comes before a request, which must not suffer from what is wrong in it."""
        told = self._heard
        if told is None or time.monotonic() - told.used > OLDEST:
            return
        try:
            known = self._learner.recall(told.memory)
        except Exception:  # noqa: BLE001 - logged; everything is learned again then
            _log.exception("what %s learned cannot be gone on from", told.place)
        else:
            names = ", ".join(known) or "none of these backends"
            _log.info("going on from what %s learned of %s", told.place, names)

    async def _ask(self, session: aiohttp.ClientSession, place: str) -> _Told | None:
        """What the gateway at ``place`` says; None where that is of no use, which is told once."""
        try:
            told = await self._answer(session, place)
        except _UnusableError as error:
            trouble = str(error)
        except (aiohttp.ClientError, OSError) as error:  # a time-out is an OSError
            trouble = f"no answer ({str(error) or type(error).__name__})"
        except Exception:  # noqa: BLE001 - logged; whatever a stranger says there must not end this
            _log.exception("asking %s for what it learned failed", place)
            return None
        else:
            self._troubles.pop(place, None)
            return told
        if self._troubles.get(place) != trouble:
            self._troubles[place] = trouble
            _log.warning("%s does not tell what it learned, everything is learned here then: %s", place, trouble)
        return None

    async def _answer(self, session: aiohttp.ClientSession, place: str) -> _Told | None:
        """None where it is this one, or was never used.

        Raises:
            _UnusableError: why it is of no use.
            ClientError: there is no answer.
            OSError: the same.
        """
        async with session.get(
            f"{place}{PATH}", ssl=True if self._trust is None else self._trust, allow_redirects=False
        ) as answer:
            if answer.status != HTTPStatus.OK:
                said = (await answer.content.read(_SAID)).decode("utf-8", "replace").split()
                raise _UnusableError(" ".join((f"it answers {answer.status} {answer.reason}", *said)))
            if answer.headers.get(WHO) == self._id or (WHO in answer.headers and IDLE not in answer.headers):
                return None
            used = time.monotonic() - _seconds(answer.headers)
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > LARGEST:
                    raise _UnusableError(f"it answers more than {LARGEST} bytes")
        try:
            document = await asyncio.to_thread(read, bytes(body), time.time() - OLDEST)
        except ValueError as error:
            raise _UnusableError(str(error)) from None
        return _Told(place, used, document.memory)


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get(IDLE, ""))
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= OLDEST:  # so no other number either
        raise _UnusableError("it is no gateway, or of another version")
    return seconds
