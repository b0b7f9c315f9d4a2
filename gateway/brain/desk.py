"""The brain's side: one desk for each worker, all of them before the one gate.

A request is known by its worker and the id it has there. When a worker is gone, whatever it held or waited for is
given back at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import marshal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.admission.estimator import Estimator
from gateway.admission.quota import Account, KeyTerms
from gateway.brain.setup import Setup
from gateway.brain.view import View, ViewCodec
from gateway.brain.wire import Channel, Kind, heard, listen
from gateway.brain.words import OUTCOMES, PROGRESS, RECORDS, TICKETS, USAGES
from gateway.model import Choice, Observer, Outcome, Permit, Record, Rejection, Ticket, Verdict
from gateway.proxy.gate import Charged, Gate
from gateway.proxy.keys import KeyBook

_log = logging.getLogger(__name__)

_UNCLAIMED: Final = 10_000  # requests of a worker whose records may be missing
_RECORDS_AT_ONCE: Final = 4  # that are passed on before questions are looked for again
_RECORDS_LATER: Final = 100  # of one worker that wait until nobody asked for a turn of the loop
_RECORDS_MOST: Final = 1_000  # of one worker that may wait for that
_LOOK: Final = 0.25  # seconds between two looks at whether workers must be told anything new
_YES, _NO = marshal.dumps((True,)), marshal.dumps((False,))


@dataclass(slots=True)
class Pulse:
    """What a worker last said of itself."""

    pid: int = 0
    listens: bool = False
    loop_lag: float = 0.0  # seconds
    in_flight: int = 0


class Desks:
    """Takes workers' connections at ``path`` from ``start`` until ``stop``."""

    def __init__(
        self,
        path: Path,
        gate: Gate,
        estimator: Estimator,
        observers: Sequence[Observer],
        setup: Callable[[], Setup],
        view: Callable[[], View],
        keys: KeyBook,
    ) -> None:
        self._path = path
        self._gate = gate
        self._estimator = estimator
        self._observers = tuple(observers)
        self._setup = setup
        self._view = view
        self._keys = keys
        self._ticket_ids = itertools.count(1)
        self._desks: set[Desk] = set()
        self._server: asyncio.AbstractServer | None = None
        self._told: tuple[Setup, View] | None = None
        self._room = False  # as the workers were told
        self._short = True  # somebody had to wait for a place, or was refused one, since the last look
        self._timer: asyncio.TimerHandle | None = None
        self.asked = 0  # questions so far
        self.records_dropped = 0  # by all workers that were ever here
        self.connections_refused = 0  # the same
        self.nobody = asyncio.Event()
        self.nobody.set()

    async def start(self) -> None:
        """Let workers come.

        Raises:
            OSError: the socket cannot be made.
        """
        self._path.unlink(missing_ok=True)  # of the brain before this one
        self._server = await listen(self._path, self._seat)
        self._look()

    def stop(self) -> None:
        """Send everybody away."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for desk in list(self._desks):
            desk.channel.close()

    @property
    def pulses(self) -> list[Pulse]:
        """What the workers that are there last said of themselves."""
        return [desk.pulse for desk in self._desks]

    def _seat(self) -> Channel:
        desk = Desk(self, self._gate, self._estimator, self._ticket_ids, self._keys)
        self._desks.add(desk)
        self.nobody.clear()
        return desk.channel

    def greet(self, desk: Desk) -> None:
        """Tell a worker that has come all that the others know.

        Not before it speaks: what is said between its being seated and its connection reaches nobody.
        """
        desk.channel.send(Kind.SETUP, self._setup().dumps())
        desk.channel.send(Kind.VIEW, ViewCodec.dumps(self._view()))
        desk.channel.say(Kind.ROOM, self._room)

    def leave(self, desk: Desk) -> None:
        """A worker is gone."""
        self._desks.discard(desk)
        if not self._desks:
            self.nobody.set()

    def observe(self, record: Record) -> None:
        """Pass a worker's record on."""
        for observer in self._observers:
            observer.observe(record)

    def run_short(self) -> None:
        """Somebody had no place at once, or not where it is best: the end of every request is now told as it comes."""
        self._short = True
        if self._room:
            self._room = False
            self._say(Kind.ROOM, _NO)

    def _look(self) -> None:
        if not self._room and not self._short and self._gate.patient and not any(desk.waits for desk in self._desks):
            self._room = True
            self._say(Kind.ROOM, _YES)
        self._short = False
        self.tell()
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def tell(self) -> None:
        """Let the workers know what they are set up with and how the backends are, where that changed.

        What is granted afterwards finds them informed: the connection keeps the order.
        """
        setup, view = self._setup(), self._view()
        before, self._told = self._told, (setup, view)
        if before is None or before[0] != setup:
            self._say(Kind.SETUP, setup.dumps())
        if before is None or before[1] != view:
            self._say(Kind.VIEW, ViewCodec.dumps(view))

    def _say(self, kind: Kind, payload: bytes) -> None:
        for desk in self._desks:
            desk.channel.send(kind, payload)


class _Asking:
    """Who waits for a verdict, in the place of a future; ``Gate.offer`` says what is asked of it."""

    __slots__ = ("_desk", "_id")

    def __init__(self, desk: Desk, local: int) -> None:
        self._desk = desk
        self._id = local

    def done(self) -> bool:
        return not self._desk.channel.open

    def set_result(self, verdict: Verdict) -> None:
        self._desk.answer(self._id, verdict)


class Desk:
    """One worker, from its first word to its end."""

    def __init__(
        self,
        desks: Desks,
        gate: Gate,
        estimator: Estimator,
        ticket_ids: itertools.count[int],
        keys: KeyBook,
    ) -> None:
        self.pulse = Pulse()
        self.channel = Channel()
        self.channel.take = self._take
        self.channel.lost = self._lost
        self._desks = desks
        self._gate = gate
        self._estimator = estimator
        self._ticket_ids = ticket_ids
        self._keys = keys
        self._waiting: dict[int, int] = {}  # id there -> id here
        self._held: dict[int, Permit] = {}  # by the id there
        self._ended: dict[int, int] = {}  # id there -> id here, until its record comes
        self._outputs: list[bytes] = []  # not looked at yet
        self._records: deque[bytes] = deque()  # the same
        self._awake = False  # whether they will be in the next turn of the loop
        self._asked = 0  # questions of all workers before that was settled
        self._charged: dict[str, int] = {}  # requests that run on each key
        self._charging: set[asyncio.Task[None]] = set()  # those that wait for what other gateways have used
        self._does: dict[Kind, Callable[[memoryview], Any]] = {
            Kind.HELLO: self._hello,
            Kind.OFFER: self._offer,
            Kind.WITHDRAW: self._withdraw,
            Kind.LEAVE: self._leave,
            Kind.PROGRESS: self._keep_outputs,
            Kind.RECORD: self._keep_record,
            Kind.PULSE: self._note_pulse,
            Kind.KNOCK: self._knock,
            Kind.CHARGE: self._charge,
            Kind.REFUND: self._refund,
        }

    @property
    def waits(self) -> bool:
        """Whether anybody there waits for a verdict."""
        return bool(self._waiting)

    def _take(self, kind: Kind, payload: memoryview) -> None:
        try:
            self._does[kind](payload)
        except Exception:  # noqa: BLE001 - logged; one worker that talks nonsense must not end all
            self._end(kind)

    def _end(self, kind: Kind) -> None:
        _log.exception("what a worker said (%s) cannot be carried out", kind.name)
        self.channel.close()  # it comes again and says what it holds

    def _lost(self) -> None:
        while self._outputs or self._records:
            self._catch_up()
        for here in list(self._waiting.values()):
            self._gate.withdraw(here)
        for permit in self._held.values():
            self._gate.leave(permit, Outcome.CLIENT_GONE, None)
        for charging in self._charging:
            charging.cancel()
        for name, count in self._charged.items():
            self._gate.abandon(self._account(name), count)
        self._waiting.clear()
        self._held.clear()
        self._charged.clear()
        self._desks.leave(self)

    # -- what a worker says ------------------------------------------------------------------------------------------

    def _hello(self, payload: memoryview) -> None:
        pid, held = heard(payload)
        self.pulse.pid = pid
        for values, backend in held:
            ticket = TICKETS.build(values)
            there = self._take_in(ticket)
            self._held[there] = self._gate.adopt(ticket, backend)
        _log.debug("worker %d is here with %d requests", pid, len(held))
        self._desks.greet(self)

    def _offer(self, payload: memoryview) -> None:
        ticket = TICKETS.loads(payload)
        there = self._take_in(ticket)
        self._waiting[there] = ticket.id
        self._desks.asked += 1
        self._gate.offer(ticket, _Asking(self, there))
        if self._waiting:
            self._desks.run_short()

    def _take_in(self, ticket: Ticket) -> int:
        """Give a ticket that was just read an id of this process, and estimate it; returns the id that it has there.

        The estimate is made from what all workers' requests taught.
        """
        there = ticket.id
        ticket.id = next(self._ticket_ids)
        ticket.work = self._estimator.estimate(ticket.shape, ticket.client)
        return there

    def _withdraw(self, payload: memoryview) -> None:
        (there,) = heard(payload)
        if (here := self._waiting.pop(there, None)) is not None:
            self._gate.withdraw(here)

    def answer(self, there: int, verdict: Verdict) -> None:
        """Tell the worker the verdict on one of its requests."""
        self._waiting.pop(there, None)
        work = verdict.ticket.work
        estimate = (work.prompt_tokens, work.output_tokens, work.cost)
        if isinstance(verdict, Rejection):
            self._desks.run_short()
            self.channel.say(Kind.REJECTION, there, *_refusal(verdict), estimate)
        else:
            self._held[there] = verdict
            choice = verdict.choice
            if choice is Choice.SPILL:
                self._desks.run_short()
            self.channel.say(Kind.PERMIT, there, verdict.backend, verdict.granted_at, estimate, choice._value_)

    def _leave(self, payload: memoryview) -> None:
        self._note_outputs()
        there, outcome, usage, rest = heard(payload)
        permit = self._held.pop(there)
        self._ended[there] = permit.ticket.id
        if len(self._ended) > _UNCLAIMED:
            del self._ended[next(iter(self._ended))]
        self._gate.leave(permit, OUTCOMES[outcome], None if usage is None else USAGES.build(usage), rest)

    # -- what nobody waits for: done when the answers of this turn of the loop are out --------------------------------

    def _keep_outputs(self, payload: memoryview) -> None:
        self._outputs.append(bytes(payload))
        self._wake()

    def _keep_record(self, payload: memoryview) -> None:
        if len(self._records) >= _RECORDS_MOST:
            self._pass_on()  # a worker that says more than can be done waits for it
        self._records.append(bytes(payload))
        self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._asked = self._desks.asked
            asyncio.get_running_loop().call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._awake = False
        try:
            self._note_outputs()
        except Exception:  # noqa: BLE001 - as in ``_take``
            self._end(Kind.PROGRESS)
        if self._desks.asked == self._asked or len(self._records) > _RECORDS_LATER:
            for _ in range(min(len(self._records), _RECORDS_AT_ONCE)):
                self._pass_on()
        if self._records:  # after a crowd the next questions are there already
            self._wake()

    def _pass_on(self) -> None:
        try:
            self._record(self._records.popleft())
        except Exception:  # noqa: BLE001 - as in ``_take``
            self._end(Kind.RECORD)

    def _record(self, payload: bytes) -> None:
        """What is kept of a request until its record comes is kept under the id that it has here."""
        record = RECORDS.loads(payload)
        if record.ticket is not None and (here := self._ended.pop(record.ticket.id, None)) is not None:
            record.ticket.id = here  # it was made just now
        self._desks.observe(record)

    def _note_outputs(self) -> None:
        held, outputs = self._held, self._outputs
        self._outputs = []
        for payload in outputs:
            for there, events, instant in PROGRESS.iter_unpack(payload):
                permit = held.get(there)
                if permit is not None:
                    permit.progress.output(events, instant)

    def _note_pulse(self, payload: memoryview) -> None:
        pulse = self.pulse
        pulse.listens, pulse.loop_lag, pulse.in_flight, dropped, refused = heard(payload)
        self._desks.records_dropped += dropped
        self._desks.connections_refused += refused

    def _knock(self, payload: memoryview) -> None:
        ticket = TICKETS.loads(payload)
        there = self._take_in(ticket)
        rejection = self._gate.refusal(ticket)
        if rejection is not None:
            self._desks.run_short()
        self.channel.say(Kind.KNOCKED, there, None if rejection is None else _refusal(rejection))

    def _charge(self, payload: memoryview) -> None:
        there, name, tokens = heard(payload)
        account = self._keys.account(name)
        if account is None:  # the key was taken away meanwhile, or is not asked for any more
            self.channel.say(Kind.CHARGED, there, None, None if self._keys.closed else ())
        elif charged := self._gate.charge_now(account, tokens):
            self._charge_is(there, name, charged)
        else:
            task = asyncio.create_task(self._charge_later(there, account, tokens))
            self._charging.add(task)
            task.add_done_callback(self._charging.discard)

    async def _charge_later(self, there: int, account: Account, tokens: int) -> None:
        self._charge_is(there, account.terms.name, await self._gate.charge_later(account, tokens))

    def _charge_is(self, there: int, name: str, charged: Charged) -> None:
        shortage, standings = charged
        if shortage is None:
            self._charged[name] = self._charged.get(name, 0) + 1
        said = None if shortage is None else (shortage.reason.value, shortage.wait)
        self.channel.say(
            Kind.CHARGED, there, said, [(each.what, each.limit, each.remaining, each.reset) for each in standings]
        )

    def _refund(self, payload: memoryview) -> None:
        name, reserved, used, refused = heard(payload)
        if self._charged.get(name):
            self._charged[name] -= 1
            self._gate.refund(self._account(name), reserved, used, refused=refused)

    def _account(self, name: str) -> Account:
        """Whose key was taken away has none here any more, but maybe at other gateways."""
        return self._keys.account(name) or Account(KeyTerms(name))


def _refusal(rejection: Rejection) -> tuple[str, float, bool | None]:
    return rejection.reason.value, rejection.retry_after, rejection.should_retry
