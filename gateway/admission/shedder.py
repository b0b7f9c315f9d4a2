"""Who is refused at the door or thrown out of the queue, why, and when to come back.

The door refuses what could not start in time. It reckons with the lane's *entitled* share of the drain as well as with
the observed one: by the observed one alone a lane that is refused looks slow, so it is refused more (a death spiral).
And it reckons per client: a client that floods the queue waits behind itself, so it sheds itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.admission.backlog import Backlog, Group
from gateway.admission.config import AdmissionConfig
from gateway.admission.queue import Entry, Lane
from gateway.admission.retries import Ledger, RetryBudget
from gateway.admission.window import HUGE_PROMPT
from gateway.model import Priority, Reason, Rejection, Ticket

NO_BACKEND_WAIT: Final[tuple[float, float]] = (5.0, 30.0)
REACH: Final = 4.0  # times the seconds that were seen of a queue: a forecast of it reaches no further
JITTER: Final = 1.5
START_SHARE: Final = 0.25  # of a TTFT objective, which the engine may take for the first token
SERIAL_PATIENCE: Final = 120.0  # seconds that a long prompt may wait for the one that is being read, at most
ROOM: Final[tuple[float, ...]] = (1.1, 1.0, 0.5)  # of the bounds on what may wait, by priority
LINGER: Final = 30.0  # seconds that one waits at most where no objective is known and a backend is far from full
SPARE_LAPSE: Final = 30.0  # seconds after which no backend will be so again before long
LINGERING: Final = 0.5  # of the bounds on what may wait, above which nobody lingers: who comes in time needs the rest
SERIAL_PACE: Final = 2_048.0  # and a second for so many tokens of its own; two where it waits for the other's end


class Prospect(NamedTuple):
    """What a request that cannot go at once may expect, in seconds."""

    bound: float  # it may wait so long
    limit: float  # and so long where only a long prompt before it holds it
    wait: float  # it would wait so long; 0 where nothing is known
    lane: int
    first: float | None  # when its client asked first, where it did before


class Shedder:
    """The door, and the words of every refusal. ``uniform(a, b)`` spreads the times at which clients come back."""

    def __init__(self, config: AdmissionConfig, uniform: Callable[[float, float], float]) -> None:
        self._config = config
        self._uniform = uniform
        self._budget = RetryBudget(config.shed.retry_budget)
        self._failovers = RetryBudget(config.balance.failovers)
        self.ledger = Ledger()

    def retune(self, config: AdmissionConfig) -> None:
        """Go on with other settings of queue and lanes."""
        self._config = config

    def attempt(self, ticket: Ticket, now: float) -> float | None:
        """Note an arrival; when its client asked first, as far as is known, where it did before."""
        again = now if ticket.attempt > 0 else None
        if ticket.tried:
            self._failovers.arrive(retry=True, now=now)
            return again  # it came once
        first = self.ledger.arrive(ticket.fingerprint, now)
        if first is None:
            first = again
        self._budget.arrive(retry=first is not None, now=now)
        return first

    def exhausted(self, ticket: Ticket) -> bool:
        """Whether it may not be tried on another backend: too many were, of late, over the whole gateway."""
        return ticket.tried > 0 and self._failovers.exceeds(self._budget.recent)

    def overloaded(self, group: Group, priority: Priority, lane: int, now: float) -> bool:
        """Whether much more has come to this lane of this priority than could be served, and for long."""
        return group.flow.overloaded(priority, lane, self._config.shed.overload_after, now)

    def prospect(
        self, ticket: Ticket, group: Group, index: int, first: float | None, now: float, *, serial: bool = False
    ) -> Prospect:
        """What ``ticket`` may expect in lane ``index``. ``serial``: it must wait for the long prompt before it.

        ``first``: when its client asked first, where it did before. Users count from then: a retry that could not
        start in time for its TTFT objective any more would only take the place of one that can.
        """
        priority = ticket.priority
        queued = group.queue.priorities[priority].lanes[index]
        lane = queued.config
        patience = lane.max_wait
        if serial and lane.ttft_objective is None:
            # Inside the engine it would wait for that prompt to be read just as long.
            prompt = ticket.work.prompt_tokens
            patience = max(patience, min(SERIAL_PATIENCE, prompt / SERIAL_PACE * (2 if prompt >= HUGE_PROMPT else 1)))
        gone = ticket.read_timeout
        if first is not None and ticket.shape.stream and lane.ttft_objective is not None:
            left = first + (1.0 - START_SHARE) * lane.ttft_objective - now
            gone = max(0.0, left if gone is None else min(gone, left))
        bound, limit = (lane.max_wait, patience) if gone is None else (min(lane.max_wait, gone), min(patience, gone))
        wait = group.flow.wait(_ahead(ticket, queued), group.queue, priority, index)
        return Prospect(bound, limit, wait, index, first)

    def reason(self, ticket: Ticket, group: Group, backlog: Backlog, prospect: Prospect, now: float) -> Reason | None:
        """Why ``ticket`` may not wait; None where it may."""
        queue = self._config.queue
        room, waiting = ROOM[ticket.priority], len(backlog)
        if waiting >= room * queue.max_requests or (waiting and backlog.size + size(ticket) > room * queue.max_bytes):
            return Reason.QUEUE_FULL
        if self._spent(prospect) and group.queue.depth and self.overloaded(group, ticket.priority, prospect.lane, now):
            return Reason.RETRY_BUDGET  # it would take the place of a first attempt
        return Reason.DEADLINE if prospect.wait > prospect.limit or prospect.limit <= 0.0 else None

    def _spent(self, prospect: Prospect) -> bool:
        return prospect.first is not None and self._budget.exceeded

    def lingers(self, entry: Entry, group: Group, backlog: Backlog) -> float:
        """Until when one may stay that has waited for too long; a time gone by where it may not.

        Clients wait for minutes, and an engine that idles must not refuse a burst that it can work off. It only gets a
        place that nobody in time can take, on a backend that is far from full: in an overload there is none.
        """
        queue, lane = self._config.queue, self._config.queue.lanes[entry.lane]
        if not lane.lingers or lane.ttft_objective is not None:
            return entry.arrived
        if len(backlog) > LINGERING * queue.max_requests or backlog.size > LINGERING * queue.max_bytes:
            return entry.arrived
        gone = entry.ticket.read_timeout
        longest = LINGER if gone is None else min(LINGER, 0.5 * gone)  # it must be answered in what is left
        return min(entry.arrived + longest, group.spare_at + SPARE_LAPSE)

    def turn_away(
        self, ticket: Ticket, group: Group, reason: Reason, prospect: Prospect, now: float, came: float | None = None
    ) -> Rejection:
        """Refuse it at the door, or after its time in the queue; ``came``: when its client asked first, if not now."""
        hopeless = ticket.read_timeout is not None and prospect.wait > ticket.read_timeout
        discouraged = hopeless or self._spent(prospect) or self.overloaded(group, ticket.priority, prospect.lane, now)
        wait = min(prospect.wait - prospect.bound / 2, REACH * group.flow.age(now))
        return self.refuse(ticket, reason, wait, now, prospect.first if came is None else came, discouraged=discouraged)

    def give_up(self, entry: Entry, group: Group, now: float) -> Rejection:
        """Throw out of the queue who has waited for too long."""
        priority, lane = entry.ticket.priority, entry.lane
        wait = group.flow.wait(group.queue.priorities[priority].lanes[lane].cost, group.queue, priority, lane)
        waited = entry.deadline - entry.arrived
        prospect = Prospect(waited, waited, wait, lane, entry.first)
        return self.turn_away(entry.ticket, group, Reason.QUEUE_TIMEOUT, prospect, now, entry.came)

    def refuse(
        self,
        ticket: Ticket,
        reason: Reason,
        wait: float,
        now: float,
        first: float | None = None,
        *,
        discouraged: bool = False,
    ) -> Rejection:
        """Word a refusal. ``wait``: seconds until it would be worth coming back, before jitter."""
        most = self._config.shed.retry_after_max
        if reason is Reason.NO_BACKEND:
            after = self._uniform(*NO_BACKEND_WAIT)
        else:
            # The cap comes before the jitter: a thousand clients told exactly a minute would come back as one.
            after = min(max(wait, 1.0), most / JITTER) * self._uniform(1.0, JITTER)
        after = max(1.0, min(after, most))
        self.ledger.refuse(ticket.fingerprint, now + after, now if first is None else first)
        return Rejection(ticket, reason, after, False if discouraged else None)


def size(ticket: Ticket) -> int:
    """Bytes that ``ticket`` holds while it waits."""
    return max(ticket.body_bytes, ticket.shape.prompt_bytes)


def _ahead(ticket: Ticket, lane: Lane) -> float:
    """Cost that must leave the lane before ``ticket`` starts, taking fair turns with the other clients."""
    if not lane.depth:
        return 0.0
    own = lane.queued_by(ticket.client)
    everybody = lane.weight if own else lane.weight + ticket.weight
    return min((own + ticket.work.cost) * everybody / ticket.weight, lane.cost)
