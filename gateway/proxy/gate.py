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
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from gateway.admission.controller import AdmissionController
from gateway.admission.tuning import Tuning
from gateway.model import Backend, GatewayState, Health, Hints, Outcome, Permit, Rejection, Ticket, Usage, Verdict

_TIMER_SLACK: Final = 0.001  # uvloop rounds to milliseconds: fire after the instant, not before


class Gate:
    """The one caller of the controller. ``clock`` gives monotonic seconds."""

    def __init__(self, controller: AdmissionController, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller = controller
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._down: set[str] = set()
        self._drained: set[str] = set()
        self.draining = False

    async def enter(self, ticket: Ticket) -> Permit | Rejection:
        """Wait for the verdict on ``ticket``. A permit must be given to ``leave``; cancelling gives it back itself."""
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[ticket.id] = future
        try:
            self._apply(self._controller.offer(ticket, self._clock()))
            return await future
        except BaseException:
            self._give_up(ticket, future)
            raise
        finally:
            self._waiting.pop(ticket.id, None)

    def knock(self, ticket: Ticket) -> Rejection | None:
        """The refusal that ``enter`` would give at once, if any; nobody waits, and no permit is given."""
        return self._controller.knock(ticket, self._clock())

    def _give_up(self, ticket: Ticket, future: asyncio.Future[Verdict]) -> None:
        if not future.done() or future.cancelled():
            self._waiting.pop(ticket.id, None)
            self._apply(self._controller.withdraw(ticket.id, self._clock()))
        elif isinstance(verdict := future.result(), Permit):
            self.leave(verdict, Outcome.CLIENT_GONE, None)

    def leave(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        """Give a permit back, exactly once, with what became of it.

        Raises:
            KeyError: it was given back before.
        """
        self._apply(self._controller.settle(permit, outcome, usage, self._clock()))

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

    def _apply(self, verdicts: Iterable[Verdict]) -> None:
        pending = deque(verdicts)
        while pending:
            verdict = pending.popleft()
            future = self._waiting.get(verdict.ticket.id)
            if future is not None and not future.done():
                future.set_result(verdict)
            elif isinstance(verdict, Permit):
                pending.extend(self._controller.settle(verdict, Outcome.CLIENT_GONE, None, self._clock()))
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
        self._apply(self._controller.tick(now) if due is not None and due <= now else ())
