"""AdmissionController <-> event loop: one dict of futures by ticket id, one timer.

Every change of the controller happens in one synchronous call, so the event loop is its lock. Here its verdicts wake
those who wait, and its next wake-up sets the timer.

The race to know: a verdict is set, the waiting task has not resumed, and now its client hangs up. The task then sees
its cancellation and never the permit, so ``enter`` gives the permit back itself. And a verdict may come for a future
that is cancelled already, while its task has not run to say so: ``_apply`` gives that one back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, Protocol

from gateway.admission.controller import AdmissionController
from gateway.admission.quota import Account, Shortage, Standing
from gateway.admission.tuning import Tuning
from gateway.model import Backend, GatewayState, Health, Hints, Outcome, Permit, Rejection, Ticket, Usage, Verdict
from gateway.proxy.load import LoadReport

_TIMER_SLACK: Final = 0.001  # uvloop rounds to milliseconds: fire after the instant, not before

Charged = tuple[Shortage | None, Sequence[Standing]]
"""Why a request of a key's holder may not begin, if so, and how the rates of the key stand then."""


class Waiter(Protocol):
    """Who waits for a verdict: a future, or another process."""

    def done(self) -> bool:
        """Whether the verdict would find nobody."""

    def set_result(self, verdict: Verdict) -> None:
        """Take the verdict, while not ``done``. A permit must be given to ``Gate.leave``."""


class _Seat:
    """Who asked for a verdict and may have it at once; ``future`` is made where it has to be waited for."""

    __slots__ = ("future", "verdict")

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.future: asyncio.Future[Verdict] | None = None

    def done(self) -> bool:
        return self.verdict is not None if self.future is None else self.future.done()

    def set_result(self, verdict: Verdict) -> None:
        if self.future is None:
            self.verdict = verdict
        else:
            self.future.set_result(verdict)


Entered = Permit | Rejection | Coroutine[None, None, Permit | Rejection]
"""A verdict, or the wait for it, which must be awaited."""


class Admission(Protocol):
    """What the handler asks of admission, wherever that is decided: ``Gate``, or one in another process."""

    draining: bool

    async def enter(self, ticket: Ticket) -> Permit | Rejection:
        """As ``Gate.enter``."""

    def ask(self, ticket: Ticket) -> Entered:
        """As ``Gate.ask``."""

    def leave(self, permit: Permit, outcome: Outcome, usage: Usage | None, rest: float = 0.0) -> None:
        """As ``Gate.leave``."""

    async def knock(self, ticket: Ticket) -> Rejection | None:
        """As ``Gate.knock``."""

    def charge_now(self, account: Account, tokens: int) -> Charged | None:
        """As ``Gate.charge_now``."""

    async def charge(self, account: Account, ticket: Ticket) -> Charged:
        """As ``Gate.charge``.

        Raises:
            Revoked: the key was taken away, and whoever called has not heard of it.
        """

    def refund(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        """As ``Gate.refund``."""

    def is_down(self, backend: str) -> bool:
        """As ``Gate.is_down``."""

    def serving(self, model: str | None) -> tuple[str, ...]:
        """As ``Gate.serving``."""

    def lane(self, ticket: Ticket) -> str:
        """As ``Gate.lane``."""

    def drain(self) -> None:
        """As ``Gate.drain``."""

    @property
    def load(self) -> Callable[[], str]:
        """How full the gateway is, as the header of ``gateway.proxy.load`` says it."""


class Quotas(Protocol):
    """Where what keys have used is counted, if several gateways count together."""

    def enter_now(self, account: Account, tokens: int) -> Charged | None:
        """Begin a request, or say why not; None: that takes ``enter``."""

    async def enter(self, account: Account, tokens: int) -> Charged:
        """The same, however long it takes. Cancelling gives back what was taken."""

    def leave(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        """As ``Account.leave``."""

    def abandon(self, account: Account, requests: int) -> None:
        """As ``Gate.abandon``."""


class Gate:
    """The one caller of the controller. ``clock`` gives monotonic seconds; without ``quotas`` it counts by itself."""

    def __init__(
        self,
        controller: AdmissionController,
        clock: Callable[[], float] = time.monotonic,
        quotas: Quotas | None = None,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._quotas = quotas
        self._waiting: dict[int, Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._down: set[str] = set()
        self._drained: set[str] = set()
        self._unlearned: list[tuple[Permit, Outcome, Usage | None]] = []  # requests that are over
        self.draining = False
        self.before_next: Callable[[], None] | None = None  # done once, before the next request is offered
        self.load = LoadReport(self.state, clock)

    async def enter(self, ticket: Ticket) -> Permit | Rejection:
        """Wait for the verdict on ``ticket``. A permit must be given to ``leave``; cancelling gives it back itself."""
        found = self.ask(ticket)
        return found if isinstance(found, (Permit, Rejection)) else await found

    def ask(self, ticket: Ticket) -> Entered:
        """The verdict on ``ticket`` where there is one at once, else the rest of ``enter``."""
        seat = _Seat()
        try:
            self.offer(ticket, seat)
        except BaseException:
            self.withdraw(ticket.id)
            raise
        return self._wait(ticket, seat) if seat.verdict is None else seat.verdict

    async def _wait(self, ticket: Ticket, seat: _Seat) -> Permit | Rejection:
        if seat.verdict is not None:  # it came before this began
            return seat.verdict
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        seat.future = future
        try:
            return await future
        except BaseException:
            self._give_up(ticket, future)
            raise
        finally:
            self._waiting.pop(ticket.id, None)

    def offer(self, ticket: Ticket, waiter: Waiter) -> None:
        """Have the verdict on ``ticket`` given to ``waiter``: at once, later, or never after ``withdraw``."""
        if self.before_next is not None:
            call, self.before_next = self.before_next, None
            call()
        self._waiting[ticket.id] = waiter
        self._apply(self._controller.offer(ticket, self._clock()))

    def withdraw(self, ticket_id: int) -> None:
        """Forget a ticket that still waits."""
        self._waiting.pop(ticket_id, None)
        self._apply(self._controller.withdraw(ticket_id, self._clock()))

    def adopt(self, ticket: Ticket, backend: str) -> Permit:
        """Take a request into the books that runs already, admitted before this gate was made."""
        permit = self._controller.adopt(ticket, backend, self._clock())
        self._arm()
        return permit

    async def charge(self, account: Account, ticket: Ticket) -> Charged:
        """Begin a request of a key's holder, or say why not; and how the rates of the key stand then."""
        tokens = ticket.work.tokens
        return self.charge_now(account, tokens) or await self.charge_later(account, tokens)

    def charge_now(self, account: Account, tokens: int) -> Charged | None:
        """The same for who must not wait; None: that takes ``charge_later``."""
        if self._quotas is not None:
            return self._quotas.enter_now(account, tokens)
        now = self._clock()
        return account.enter(tokens, now), tuple(account.standings(now))

    async def charge_later(self, account: Account, tokens: int) -> Charged:
        """What ``charge_now`` could not say; cancelling gives back what was taken."""
        assert self._quotas is not None  # noqa: S101 - else it was said
        return await self._quotas.enter(account, tokens)

    def refund(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        """End a request that ``charge`` began; one that was ``refused`` gives everything back."""
        if self._quotas is not None:
            self._quotas.leave(account, reserved, used, refused=refused)
        else:
            account.leave(reserved, used, self._clock(), refused=refused)

    def abandon(self, account: Account, requests: int) -> None:
        """So many requests that ``charge`` began are gone, and nobody can say what they took."""
        if self._quotas is not None:
            self._quotas.abandon(account, requests)
        else:
            account.in_flight -= requests

    async def knock(self, ticket: Ticket) -> Rejection | None:
        """The refusal that ``enter`` would give at once, if any; nobody waits, and no permit is given."""
        return self.refusal(ticket)

    def refusal(self, ticket: Ticket) -> Rejection | None:
        """As ``knock``, for who must not wait."""
        return self._controller.knock(ticket, self._clock())

    def _give_up(self, ticket: Ticket, future: asyncio.Future[Verdict]) -> None:
        if not future.done() or future.cancelled():
            self.withdraw(ticket.id)
        elif isinstance(verdict := future.result(), Permit):
            self.leave(verdict, Outcome.CLIENT_GONE, None)

    def leave(self, permit: Permit, outcome: Outcome, usage: Usage | None, rest: float = 0.0) -> None:
        """Give a permit back, exactly once, with what became of it.

        ``rest``: seconds for which the engine asked not to be sent anything.

        Raises:
            KeyError: it was given back before.
        """
        self.load.finished += 1
        now = self._clock()
        if rest > 0.0:
            self._controller.rest(permit.backend, rest, now)
        self._apply(self._controller.release(permit, outcome, usage, now))
        if not self._unlearned:
            asyncio.get_running_loop().call_soon(self._learn)
        self._unlearned.append((permit, outcome, usage))

    def _learn(self) -> None:
        """What nobody waits for, when the answers of this turn of the loop are out."""
        ended, self._unlearned = self._unlearned, []
        for permit, outcome, usage in ended:
            self._controller.learn(permit, outcome, usage)

    def note_health(self, backend: str, health: Health) -> None:
        """Pass on the prober's finding."""
        (self._down.add if health is Health.DOWN else self._down.discard)(backend)
        self._apply(self._controller.note_health(backend, health, self._clock()))

    def is_down(self, backend: str) -> bool:
        """Whether ``backend`` was found dead or is drained; requests without a permit go elsewhere first."""
        return backend in self._down or backend in self._drained

    @property
    def tuning(self) -> Tuning:
        """What ``retune`` can change, as it stands."""
        return self._controller.tuning

    @property
    def patient(self) -> bool:
        """Whether who finds no place may wait for one."""
        return self._controller.patient

    def retune(self, tuning: Tuning) -> None:
        """Go on with what the operator wants."""
        self._drained = {name for name, backend in tuning.backends.items() if backend.drained}
        self._apply(self._controller.retune(tuning, self._clock()))

    def add_backend(self, backend: Backend) -> None:
        """One backend more."""
        self._apply(self._controller.add_backend(backend, self._clock()))

    def change_backend(self, backend: Backend) -> None:
        """Go on with other models and another weight of a backend."""
        self._apply(self._controller.change_backend(backend, self._clock()))

    def remove_backend(self, name: str) -> None:
        """Forget a backend on which nothing runs."""
        self._apply(self._controller.remove_backend(name, self._clock()))
        self._down.discard(name)
        self._drained.discard(name)

    def inflight(self, backend: str) -> int:
        """Requests that run on a backend."""
        return self._controller.inflight(backend)

    def note_hints(self, backend: str, hints: Hints) -> None:
        """Pass on an engine's own gauges."""
        self._apply(self._controller.note_hints(backend, hints, self._clock()))

    def note_models(self, backend: str, models: Iterable[str]) -> None:
        """Pass on what a backend says it serves."""
        self._apply(self._controller.note_models(backend, models, self._clock()))

    def serving(self, model: str | None) -> tuple[str, ...]:
        """Names of the backends that requests for ``model`` may go to."""
        return self._controller.serving(model)

    @property
    def routes(self) -> Mapping[str | None, tuple[str, ...]]:
        """Model -> the backends that serve it; under None those for models that nobody lists."""
        return self._controller.routes

    @property
    def down(self) -> frozenset[str]:
        """The backends that ``is_down`` tells of."""
        return frozenset(self._down | self._drained)

    def drain(self) -> None:
        """Refuse what arrives from now on."""
        self.draining = True
        self._apply(self._controller.drain(self._clock()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lane(self, ticket: Ticket) -> str:
        """Name of the ticket's lane."""
        return self._controller.lane(ticket)

    def state(self) -> GatewayState:
        """Everything, now."""
        return self._controller.state(self._clock())

    def _apply(self, verdicts: list[Verdict]) -> None:
        for verdict in verdicts:
            waiter = self._waiting.pop(verdict.ticket.id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(verdict)
            elif isinstance(verdict, Permit):
                verdicts += self._controller.release(verdict, Outcome.CLIENT_GONE, None, self._clock())  # gone on with
        self._arm()

    def _arm(self) -> None:
        """Set the timer, unless it fires in time anyway: firing early costs one look, re-setting it costs two calls."""
        due = self._controller.next_wakeup()
        if due is None or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        delay = max(0.0, due - self._clock()) + _TIMER_SLACK
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        due = self._controller.next_wakeup()
        now = self._clock()
        self._apply(self._controller.tick(now) if due is not None and due <= now else [])
