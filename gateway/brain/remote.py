"""The worker's side: a gate whose decisions are made in another process.

Without the brain new work is refused with 503, for a second or two; what runs goes on. When the brain is back it is
told what runs, so that its books are whole again.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from gateway.admission.estimator import Estimator
from gateway.admission.quota import Account, Revoked, Shortage, Standing
from gateway.brain.setup import Setup
from gateway.brain.view import EMPTY, View, ViewCodec
from gateway.brain.wire import Channel, Kind, heard, reach
from gateway.brain.words import CHOICES, PROGRESS, RECORDS, TICKETS, USAGES, weighed
from gateway.model import (
    Outcome,
    Permit,
    Reason,
    Record,
    Rejection,
    Ticket,
    Usage,
    Verdict,
    WorkEstimate,
)

_log = logging.getLogger(__name__)

_GATHERED: Final = 0.01  # seconds until outputs and records are told at the latest: a tenth of the law's own tick
_HELD: Final = 0.002  # the same for the end of a stream, where there is room for whoever comes
_PULSE: Final = 1.0  # seconds between two words of how this process is
_AGAIN: Final[tuple[float, ...]] = (0.05, 0.1, 0.2, 0.5)  # seconds before the next try to reach the brain
_SOON: Final = 1.0  # seconds after which a client may come again while there is no brain


class RemoteGate:
    """``gateway.proxy.gate.Gate`` for a worker.

    ``on_setup`` is told what the brain is set up with, before anything is granted under that; ``on_view`` what it
    knows of the backends.
    """

    def __init__(
        self,
        path: str,
        on_setup: Callable[[Setup], None],
        on_view: Callable[[View], None],
        lag: Callable[[], float],
        in_flight: Callable[[], int],
        refused: Callable[[], int],
        estimator: Estimator,
    ) -> None:
        self._path = path
        self._on_setup = on_setup
        self._on_view = on_view
        self._lag = lag
        self._in_flight = in_flight
        self._refused = refused
        self._estimator = estimator
        self._channel = Channel()
        self._view = EMPTY
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._tickets: dict[int, Ticket] = {}  # of those that wait
        # Knocks and charges, and what becomes of the answer to one whose client has left.
        self._asked: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None]]] = {}
        self._held: dict[int, Permit] = {}  # by the ticket's id
        self._outputs = bytearray()
        self._gathers = False  # a timer is set to tell what was gathered
        self._holds = False  # the same for ends that are held
        self._room = False  # nobody waits for the end of a stream, as far as the brain said
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self._told = asyncio.Event()
        self._records_dropped = 0  # since the last pulse that found the brain
        self._refused_told = 0
        self.listens = False
        self.draining = False

    # -- the connection ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the brain, now and whenever it is lost; returns when it has told how the backends are."""
        self._tasks = [asyncio.create_task(self._stay()), asyncio.create_task(self._beat())]
        await self._told.wait()

    async def stop(self) -> None:
        """Say nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._keep_outputs()
        self._channel.lost = lambda: None
        self._channel.close()

    async def _stay(self) -> None:
        tries = 0
        while True:
            self._gone.clear()  # before: it may be lost as soon as it is there
            channel = self._channel_made()
            try:
                await reach(self._path, channel)
            except Exception as error:  # noqa: BLE001 - whatever it is, a worker that looks no more refuses for ever
                if not isinstance(error, OSError):  # those say only that it is not there
                    _log.exception("looking for the brain failed")
                await asyncio.sleep(_AGAIN[min(tries, len(_AGAIN) - 1)])
                tries += 1
                continue
            tries = 0
            self._channel = channel
            held = [(TICKETS.flat(permit.ticket), permit.backend) for permit in self._held.values()]
            channel.say(Kind.HELLO, os.getpid(), held)
            await self._gone.wait()
            _log.warning("the brain is gone: new requests get 503 until it is back, %d go on", len(self._held))

    def _channel_made(self) -> Channel:
        channel = Channel()
        channel.take, channel.lost = self._take, self._lost
        return channel

    async def _beat(self) -> None:
        while True:
            self.pulse()
            await asyncio.sleep(_PULSE)

    def pulse(self) -> None:
        """Say how this process is."""
        if self._channel.open:
            refused = self._refused()
            since = self._records_dropped, refused - self._refused_told
            self._channel.say(Kind.PULSE, self.listens, self._lag(), self._in_flight(), *since)
            self._records_dropped, self._refused_told = 0, refused

    def _lost(self) -> None:
        for there, future in list(self._waiting.items()):
            if not future.done():
                future.set_result(self._without_brain(self._tickets[there]))
        for asked, _ in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()
        self._room = False
        self._gone.set()

    @staticmethod
    def _without_brain(ticket: Ticket) -> Rejection:
        return Rejection(ticket, Reason.NO_BACKEND, _SOON)

    # -- what the handler asks ---------------------------------------------------------------------------------------

    def ask(self, ticket: Ticket) -> Coroutine[None, None, Permit | Rejection]:
        """``enter``: what another process decides is always waited for."""
        return self.enter(ticket)

    async def enter(self, ticket: Ticket) -> Permit | Rejection:
        """Wait for the verdict on ``ticket``. A permit must be given to ``leave``; cancelling gives it back itself."""
        if not self._channel.open:
            return self._without_brain(ticket)
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[ticket.id] = future
        self._tickets[ticket.id] = ticket
        try:
            if ticket.refused:  # nobody lets it wait for a place: those that are free come first
                self._channel.flush()
            self._channel.send(Kind.OFFER, TICKETS.dumps(ticket))
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                self._channel.say(Kind.WITHDRAW, ticket.id)
            elif isinstance(verdict := future.result(), Permit):
                self.leave(verdict, Outcome.CLIENT_GONE, None)
            raise
        finally:
            del self._waiting[ticket.id], self._tickets[ticket.id]

    def leave(self, permit: Permit, outcome: Outcome, usage: Usage | None, rest: float = 0.0) -> None:
        """Give a permit back, exactly once, with what became of it.

        ``rest``: seconds for which the engine asked not to be sent anything.

        Raises:
            KeyError: it was given back before.
        """
        del self._held[permit.ticket.id]
        shape = permit.ticket.shape
        # A stream's pace is measured by its outputs, that of an answer in one piece by its end.
        waits = self._room and shape.stream and outcome is Outcome.COMPLETED
        self._give_back(permit.ticket.id, outcome, usage, rest, waits=waits)
        if outcome is Outcome.COMPLETED and usage is not None:
            self._estimator.learn(shape, usage, permit.ticket.client)

    def _give_back(
        self, there: int, outcome: Outcome, usage: Usage | None, rest: float = 0.0, *, waits: bool = False
    ) -> None:
        self._keep_outputs()
        spent = None if usage is None else USAGES.flat(usage)
        self._channel.keep(Kind.LEAVE, marshal.dumps((there, outcome._value_, spent, rest)))
        if not waits:
            self._channel.flush()
        elif not self._holds:
            self._holds = True
            asyncio.get_running_loop().call_later(_HELD, self._tell_ends)

    async def knock(self, ticket: Ticket) -> Rejection | None:
        """The refusal that ``enter`` would give at once, if any; nobody waits, and no permit is given."""
        if not self._channel.open:
            return self._without_brain(ticket)
        said = await self._ask(ticket.id, Kind.KNOCK, TICKETS.dumps(ticket))
        if said is None:
            return self._without_brain(ticket)
        (refusal,) = said
        if refusal is None:
            return None
        reason, retry_after, should_retry = refusal
        return Rejection(ticket, Reason(reason), retry_after, should_retry)

    def charge_now(self, account: Account, tokens: int) -> None:
        """``charge``: what another process counts is always waited for."""
        del account, tokens

    async def charge(self, account: Account, ticket: Ticket) -> tuple[Shortage | None, Sequence[Standing]]:
        """Begin a request of a key's holder, or say why not; and how the rates of the key stand.

        Raises:
            Revoked: the key was taken away, of which this process has not heard yet.
        """
        name, tokens = account.terms.name, ticket.work.tokens

        def give_back(said: Any) -> None:
            if said is not None and said[0] is None:
                self._channel.say(Kind.REFUND, name, tokens, 0, True)

        payload = marshal.dumps((ticket.id, name, tokens))
        said = await self._ask(ticket.id, Kind.CHARGE, payload, give_back) if self._channel.open else None
        if said is None:
            return None, ()  # nothing passes without the brain: ``enter`` says so
        shortage, standings = said
        if standings is None:
            raise Revoked
        return (
            None if shortage is None else Shortage(Reason(shortage[0]), shortage[1]),
            [Standing(*each) for each in standings],
        )

    def refund(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        """End a request that ``charge`` began; one that was ``refused`` gives everything back."""
        self._channel.say(Kind.REFUND, account.terms.name, reserved, used, refused)

    async def _ask(
        self, there: int, kind: Kind, payload: bytes, unwanted: Callable[[Any], None] = lambda _: None
    ) -> Any:
        """The answer, None where the brain is lost; ``unwanted`` gets it if its client leaves meanwhile."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[there] = future, unwanted
        self._channel.send(kind, payload)
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled():
                unwanted(future.result())
            raise

    def observe(self, record: Record) -> None:
        """Hand a finished request to those who watch, in the brain."""
        if self._channel.clogged or not self._channel.open:
            self._records_dropped += 1
        else:
            self._channel.keep(Kind.RECORD, RECORDS.dumps(record))
            self._gather()

    def is_down(self, backend: str) -> bool:
        """Whether ``backend`` was found dead or is drained; requests without a permit go elsewhere first."""
        return backend in self._view.down

    def serving(self, model: str | None) -> tuple[str, ...]:
        """Names of the backends that requests for ``model`` may go to."""
        routes = self._view.routes
        return routes.get(model) or routes.get(None, ())

    def lane(self, ticket: Ticket) -> str:
        """Name of the ticket's lane."""
        tokens = ticket.work.tokens
        for name, threshold in self._view.lanes:
            if threshold is None or tokens <= threshold:
                return name
        return ""

    def load(self) -> str:
        """How full the gateway is, as of the last quarter of a second."""
        return self._view.load

    def drain(self) -> None:
        """Refuse what arrives from now on."""
        self.draining = True

    # -- what the brain says -----------------------------------------------------------------------------------------

    def _take(self, kind: Kind, payload: memoryview) -> None:
        if kind is Kind.PERMIT:
            self._permit(*heard(payload))
        elif kind is Kind.REJECTION:
            self._reject(*heard(payload))
        elif kind is Kind.VIEW:
            self._view = ViewCodec.loads(payload)
            self._on_view(self._view)
            self._told.set()
        elif kind is Kind.SETUP:
            self._on_setup(Setup.loads(payload))
        elif kind is Kind.ROOM:
            (self._room,) = heard(payload)
            if not self._room:
                self._channel.flush()
        else:
            there, *said = heard(payload)
            asked, unwanted = self._asked.pop(there)
            if asked.done():
                unwanted(said)
            else:
                asked.set_result(said)

    def _permit(
        self, there: int, backend: str, granted_at: float, estimate: tuple[int, int, float], choice: str
    ) -> None:
        future = self._waiting.get(there)
        if future is None or future.done():
            self._give_back(there, Outcome.CLIENT_GONE, None)  # its client left while this was on its way
            return
        ticket = weighed(self._tickets[there], WorkEstimate(*estimate))
        permit = Permit(there, ticket, backend, granted_at, _Outputs(self, there), CHOICES[choice])
        self._held[there] = permit
        future.set_result(permit)

    def _reject(
        self, there: int, reason: str, retry_after: float, should_retry: bool | None, estimate: tuple[int, int, float]
    ) -> None:
        future = self._waiting.get(there)
        if future is not None and not future.done():
            ticket = weighed(self._tickets[there], WorkEstimate(*estimate))
            future.set_result(Rejection(ticket, Reason(reason), retry_after, should_retry))

    # -- what nobody waits for: it goes with the next word that is said, or soon ---------------------------------------

    def note(self, there: int, events: int, now: float) -> None:
        """Note an output; this is on the path of every chunk."""
        self._outputs += PROGRESS.pack(there, events, now)
        if not self._gathers:
            self._gather()

    def _gather(self) -> None:
        if not self._gathers:
            self._gathers = True
            asyncio.get_running_loop().call_later(_GATHERED, self._tell_gathered)

    def _tell_gathered(self) -> None:
        self._gathers = False
        self._keep_outputs()
        self._channel.flush()

    def _tell_ends(self) -> None:
        self._holds = False
        self._channel.flush()

    def _keep_outputs(self) -> None:
        """Tell them before what is said next, such as the end of their request."""
        if self._outputs:
            self._channel.keep(Kind.PROGRESS, bytes(self._outputs))
            self._outputs.clear()


class _Outputs:
    """Where the relay reports the output of one request."""

    __slots__ = ("_gate", "_id")

    def __init__(self, gate: RemoteGate, there: int) -> None:
        self._gate = gate
        self._id = there

    def output(self, events: int, now: float) -> None:
        """Tell that ``events`` output events arrived at ``now``."""
        self._gate.note(self._id, events, now)
