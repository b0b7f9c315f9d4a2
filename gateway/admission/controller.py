"""The admission controller: one synchronous, pure object that decides everything and waits for nothing.

How it works. Each set of backends that may serve a request has one queue (``Group``); a request is bound to a backend
when it is dispatched, never when it arrives. Whatever may free a place (an arrival, a settled permit, a finding of the
prober, time) ends in one loop, ``_dispatch``, which lets requests go as long as any queue finds a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gateway.admission.backlog import Backlog, Group
from gateway.admission.balancer import Balancer, Scene
from gateway.admission.config import AdmissionConfig, Affinity
from gateway.admission.estimator import Estimator
from gateway.admission.memory import Memory
from gateway.admission.pool import Books, Pool
from gateway.admission.queue import Entry, PriorityQueue
from gateway.admission.session import Session
from gateway.admission.shedder import Prospect, Shedder, size
from gateway.admission.spot import Hold, Keen, Spot
from gateway.admission.tuning import Tuning
from gateway.admission.window import TICK, Running, Streaming
from gateway.model import (
    Backend,
    Choice,
    GatewayState,
    Health,
    Hints,
    LaneState,
    Outcome,
    Permit,
    Priority,
    PriorityState,
    Reason,
    Rejection,
    Ticket,
    Usage,
    Verdict,
    Watcher,
)


class AdmissionController:
    """Told what happens and when; returns verdicts. All changes of one call happen before it returns.

    ``now`` is in seconds and never decreases. ``uniform(a, b)`` is the only chance in it (jitter of Retry-After).
    ``estimator`` learns from the usage that backends report. ``watcher`` is told of every permit.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        backends: Sequence[Backend],
        uniform: Callable[[float, float], float],
        estimator: Estimator | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._config = config
        self._estimator = estimator
        self._watcher = watcher
        self._pool = Pool(backends, config)
        self._backlog = Backlog(self._pool.sets, config.queue)
        self._balancer = self._balancer_of(config)
        self._drawn = config.balance.affinity is not Affinity.NONE  # what was sent where may matter
        self._shedder = Shedder(config, uniform)
        self._permits = 0  # granted so far
        self._sample_at: float | None = None  # None while nothing runs or waits
        self._draining = False

    def _balancer_of(self, config: AdmissionConfig) -> Balancer:
        return Balancer(config.queue, config.balance, self._pool.caches, shared=config.limit.replicas > 1)

    # ------------------------------------------------------------------------------------------- what happens

    def offer(self, ticket: Ticket, now: float) -> list[Verdict]:
        """Take a request: its own verdict may be among those returned, or come later."""
        verdicts = self._expire(now)
        verdict = self._admit(ticket, now)
        if verdict is not None:
            verdicts.append(verdict)
        return self._dispatch(now, verdicts)

    def knock(self, ticket: Ticket, now: float) -> Rejection | None:
        """Refuse what ``offer`` would refuse at once; None where it would not, and then nothing has happened.

        For a client that waits to be asked for its body: ``ticket`` is then a guess from the body's length.
        """
        books = self._pool.serving(ticket.shape.model, ticket.avoid)
        if books and not self._draining and self._would_take(ticket, self._backlog.group(books), now):
            return None
        verdict = self._admit(ticket, now)
        return verdict if isinstance(verdict, Rejection) else None

    def withdraw(self, ticket_id: int, now: float) -> list[Verdict]:
        """Forget a queued ticket whose client left; unknown ids are ignored."""
        verdicts = self._expire(now)
        if ticket_id in self._backlog:
            self._backlog.remove(ticket_id)
        return self._dispatch(now, verdicts)

    def settle(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        """``release`` and ``learn``."""
        verdicts = self.release(permit, outcome, usage, now)
        self.learn(permit, outcome, usage)
        return verdicts

    def release(self, permit: Permit, outcome: Outcome, usage: Usage | None, now: float) -> list[Verdict]:
        """Take a permit back, exactly once, with what became of it.

        Raises:
            KeyError: the permit is unknown or was settled before (a programmer's error).
        """
        self._pool.leave(permit.backend, permit.id, outcome, usage, now)
        if self._watcher is not None:
            self._watcher.settled(permit, outcome, self._pool.by_name[permit.backend].window.outputs, now)
        return self._reopen(now)

    def learn(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        """Take what a request was for later estimates: nobody waits for that."""
        if outcome is Outcome.COMPLETED and usage is not None and self._estimator is not None:
            self._estimator.learn(permit.ticket.shape, usage, permit.ticket.client)

    def adopt(self, ticket: Ticket, backend: str, now: float) -> Permit:
        """Take a request that runs already into the books.

        It has a place, and is not measured: when it began, and beside what, nobody here saw.

        Raises:
            KeyError: there is no such backend.
        """
        self._permits += 1
        books = self._pool.by_name[backend]
        session = replace(ticket, shape=replace(ticket.shape, session=True))
        running = Session(self._permits, session, books.window, now)
        self._pool.enter(books, running, now)
        self._stay_awake(now)
        return Permit(self._permits, session, backend, now, running)

    def rest(self, backend: str, seconds: float, now: float) -> None:
        """An engine asked not to be sent anything for so long (its Retry-After): while others are sound, it is not."""
        self._pool.rest(backend, seconds, now)

    def note_health(self, backend: str, health: Health, now: float) -> list[Verdict]:
        """Take the prober's finding."""
        self._pool.note_health(backend, health)
        return self._reopen(now)

    def note_hints(self, backend: str, hints: Hints, now: float) -> list[Verdict]:
        """Take an engine's own gauges; they only ever lower a limit, and lapse when they grow old."""
        self._pool.by_name[backend].note_hints(hints, now)
        return self._reopen(now)

    def note_models(self, backend: str, models: Iterable[str], now: float) -> list[Verdict]:
        """Take the models that a backend says it serves: requests for them go to those that name them."""
        if self._pool.note_models(backend, models):
            self._backlog.regroup(self._pool.sets)
        return self._reopen(now)

    def serving(self, model: str | None) -> tuple[str, ...]:
        """Names of the backends that requests for ``model`` may go to."""
        return tuple(books.name for books in self._pool.serving(model, frozenset()))

    @property
    def routes(self) -> dict[str | None, tuple[str, ...]]:
        """Model -> names of the backends that serve it; under None those for models that nobody lists."""
        return self._pool.routes

    def drain(self, now: float) -> list[Verdict]:
        """Refuse what arrives from now on; what is queued or running goes on."""
        self._draining = True
        return self._reopen(now)

    def retune(self, tuning: Tuning, now: float) -> list[Verdict]:
        """Go on with other objectives, lanes and limits; what waits or runs is not touched."""
        before = self._config
        self._config = config = replace(
            before,
            limit=replace(before.limit, tpot_objective=tuning.tpot_objective, replicas=tuning.replicas),
            queue=replace(before.queue, lanes=tuning.lanes),
        )
        self._pool.retune(config.limit, tuning.backends)
        self._backlog.retune(config.queue)
        self._balancer = self._balancer_of(config)
        self._shedder.retune(config)
        return self._reopen(now)

    def add_backend(self, backend: Backend, now: float) -> list[Verdict]:
        """One backend more, for what arrives from now on."""
        self._pool.add(backend, self._config)
        return self._regroup(now)

    def change_backend(self, backend: Backend, now: float) -> list[Verdict]:
        """Go on with other models and another weight of a backend.

        Raises:
            KeyError: there is none of this name.
        """
        self._pool.change(backend)
        return self._regroup(now)

    def remove_backend(self, name: str, now: float) -> list[Verdict]:
        """Forget a backend on which nothing runs; ``retune`` drains it before.

        Raises:
            KeyError: there is none of this name.
            ValueError: something runs there.
        """
        self._pool.remove(name)
        return self._regroup(now)

    def _regroup(self, now: float) -> list[Verdict]:
        """Have everybody who waits wait for the backends that there are now."""
        self._backlog.regroup(self._pool.sets)
        verdicts: list[Verdict] = []
        for ticket, waits_for in self._backlog.waiting():
            books = self._pool.serving(ticket.shape.model, ticket.avoid)
            if books == waits_for:
                continue
            entry, _ = self._backlog.remove(ticket.id)
            if books:
                self._backlog.add(entry, self._backlog.group(books))
            else:
                verdicts.append(self._shedder.refuse(ticket, Reason.NO_BACKEND, 0.0, now, entry.came))
        return verdicts + self._reopen(now)

    def inflight(self, backend: str) -> int:
        """Requests that run on a backend."""
        return self._pool.by_name[backend].window.inflight

    def remember(self) -> Memory:
        """What was learned so far, to be known again after a restart."""
        prompts, outputs = ((), ()) if self._estimator is None else self._estimator.remember()
        return Memory(tuple(books.remember() for books in self._pool.books), prompts, outputs)

    def recall(self, memory: Memory) -> tuple[str, ...]:
        """Go on from what an earlier gateway learned; names of the backends of which it knew something."""
        known = memory.of((books.name, books.backend.url) for books in self._pool.books)
        for backend in known:
            self._pool.by_name[backend.name].recall(backend)
        if self._estimator is not None:
            self._estimator.recall(memory.prompts, memory.outputs)
        return tuple(backend.name for backend in known)

    def tick(self, now: float) -> list[Verdict]:
        """Do what is due by ``now``: expire, sample, decide."""
        if self._sample_at is not None and now >= self._sample_at:
            self._sample(now)
        verdicts = self._reopen(now)
        if not self._pool.running and not len(self._backlog):
            self._sample_at = None
        return verdicts

    def _sample(self, now: float) -> None:
        for group in self._backlog.groups:
            group.report_arrivals()
        self._pool.tick(now)
        for group in self._backlog.groups:
            group.note_spare(now)
            group.flow.refresh(group.capacity, self._config.shed, now)
        self._sample_at = now + TICK

    def _reopen(self, now: float) -> list[Verdict]:
        """Go on after something that may have freed a place."""
        self._backlog.reopen()
        return self._dispatch(now, self._expire(now))

    def next_wakeup(self) -> float | None:
        """When ``tick`` must next be called; None: not before something else happens."""
        deadline = self._backlog.due()
        if deadline is None or self._sample_at is None:
            return self._sample_at
        return min(self._sample_at, deadline)

    # --------------------------------------------------------------------------------------------- what is so

    def lane(self, ticket: Ticket) -> str:
        """Name of the lane this ticket belongs to."""
        return self._config.queue.lanes[self._lane_of(ticket)].name

    def _lane_of(self, ticket: Ticket) -> int:
        tokens = ticket.work.tokens
        lanes = self._config.queue.lanes
        for index, lane in enumerate(lanes):
            if lane.threshold is None or tokens <= lane.threshold:
                return index
        return len(lanes) - 1

    @property
    def patient(self) -> bool:
        """Whether who finds no place may wait for one."""
        queue = self._config.queue
        return queue.max_requests > 0 and all(lane.max_wait > 0.0 for lane in queue.lanes)

    @property
    def tuning(self) -> Tuning:
        """What ``retune`` can change, as it stands."""
        limit = self._config.limit
        return Tuning(limit.tpot_objective, self._config.queue.lanes, self._pool.tunings, limit.replicas)

    def state(self, now: float) -> GatewayState:
        """Everything, for /state and the metrics."""
        return GatewayState(
            backends=tuple(books.state(now) for books in self._pool.books),
            lanes=tuple(self._lane_state(i, now) for i in range(len(self._config.queue.lanes))),
            draining=self._draining,
            overloaded=any(
                self._shedder.overloaded(group, priority, lane, now)
                for group in self._backlog.groups
                for priority in Priority
                for lane in range(len(self._config.queue.lanes))
            ),
            retries_seen=dict(self._shedder.ledger.seen),
            tpot_objective=self._config.limit.tpot_objective,
            priorities=tuple(self._priority_state(priority) for priority in Priority),
            replicas=self._config.limit.replicas,
        )

    def _priority_state(self, priority: Priority) -> PriorityState:
        return PriorityState(priority.label, sum(line.priorities[priority].depth for line in self._backlog.lines))

    def _lane_state(self, index: int, now: float) -> LaneState:
        config = self._config.queue.lanes[index]
        queues = [queue for line in self._backlog.lines for queue in line.priorities]
        lanes = [queue.lanes[index] for queue in queues]
        oldest = self._backlog.oldest(index)
        return LaneState(
            name=config.name,
            depth=sum(lane.depth for lane in lanes),
            cost=sum(lane.cost for lane in lanes),
            oldest_wait=0.0 if oldest is None else now - oldest,
            max_wait=config.max_wait,
            threshold=config.threshold,
            weight=config.weight,
            ttft_objective=config.ttft_objective,
        )

    # ----------------------------------------------------------------------------------------------- the door

    def _admit(self, ticket: Ticket, now: float) -> Verdict | None:
        """The verdict that can be given at once; None where the request waits."""
        first = self._shedder.attempt(ticket, now)
        if self._draining or self._shedder.exhausted(ticket):
            reason = Reason.DRAINING if self._draining else Reason.RETRY_BUDGET
            return self._shedder.refuse(ticket, reason, 1.0, now, first)
        books = self._pool.serving(ticket.shape.model, ticket.avoid)
        if not books:  # where the last one was only full, that is the answer
            reason = Reason.RETRY_BUDGET if ticket.refused else Reason.NO_BACKEND
            return self._shedder.refuse(ticket, reason, 0.0, now, first)
        group = self._backlog.group(books)
        lane = self._lane_of(ticket)
        group.note_arrival(ticket, lane, now)
        spot = self._place(ticket, group, lane, now)
        if spot is not None:
            waits = spot.keen is Keen.PATIENT and not self._turned_away(ticket, group, lane, first, now)
            if not waits:
                return self._grant(ticket, group, lane, spot, now)
        return self._wait(ticket, group, lane, first, now)

    def _place(self, ticket: Ticket, group: Group, lane: int, now: float) -> Spot | None:
        """Where the request can go at once; nowhere while others wait, but for those who are overdue."""
        if any(other.queue.depth for other in self._backlog.queued):
            return None
        sound = self._pool.sound(group.books, now)
        spot = self._balancer.pick(sound, ticket, lane, now, Scene(sound) if len(sound) > 1 else None)
        return None if isinstance(spot, Hold) else spot

    def _wait(self, ticket: Ticket, group: Group, lane: int, first: float | None, now: float) -> Rejection | None:
        """Let it wait, or refuse it at the door."""
        if ticket.refused:
            return self._shedder.refuse(ticket, Reason.RETRY_BUDGET, 1.0, now, first)  # only a place at once is better
        prospect = self._prospect(ticket, group, lane, first, now)
        reason = self._shedder.reason(ticket, group, self._backlog, prospect, now)
        if reason is not None:
            return self._shedder.turn_away(ticket, group, reason, prospect, now)
        entry = Entry(ticket, lane, size(ticket), now, now + prospect.bound, now + prospect.limit, first)
        self._backlog.add(entry, group)
        self._stay_awake(now)
        return None

    def _prospect(self, ticket: Ticket, group: Group, lane: int, first: float | None, now: float) -> Prospect:
        serial = self._balancer.reads_serially(ticket, lane)
        return self._shedder.prospect(ticket, group, lane, first, now, serial=serial)

    def _would_take(self, ticket: Ticket, group: Group, now: float) -> bool:
        lane = self._lane_of(ticket)
        if self._place(ticket, group, lane, now) is not None:
            return True
        return not self._turned_away(ticket, group, lane, now if ticket.attempt else None, now)

    def _turned_away(self, ticket: Ticket, group: Group, lane: int, first: float | None, now: float) -> bool:
        """Whether it may not wait."""
        prospect = self._prospect(ticket, group, lane, first, now)
        return self._shedder.reason(ticket, group, self._backlog, prospect, now) is not None

    # ---------------------------------------------------------------------------------------------- the queue

    def _expire(self, now: float) -> list[Verdict]:
        """Throw out whoever has waited for too long."""
        verdicts: list[Verdict] = []
        if now < self._backlog.quiet_until:
            return verdicts
        while (expired := self._backlog.expired(now)) is not None:
            entry, group = expired
            if now < entry.limit and any(self._balancer.reading(books, now) for books in group.books):
                again = max(TICK, self._config.queue.lanes[entry.lane].max_wait)
                self._backlog.postpone(entry, min(entry.limit, now + again))
            elif now < (until := self._shedder.lingers(entry, group, self._backlog)):
                self._backlog.pass_over(entry, group, until)
            else:
                self._backlog.remove(entry.ticket.id)
                verdicts.append(self._shedder.give_up(entry, group, now))
        return verdicts

    def _dispatch(self, now: float, verdicts: list[Verdict]) -> list[Verdict]:
        """Let requests go for as long as any queue finds a place; adds their permits to ``verdicts``."""
        while (groups := self._backlog.in_turn()) and (permit := self._first(groups, now)) is not None:
            verdicts.append(permit)
        return verdicts

    def _first(self, groups: Sequence[Group], now: float) -> Permit | None:
        """Let one request go: one that is overdue only where no other can."""
        for group in groups:
            if (permit := self._next(group, now)) is not None:
                return permit
        for group in groups:
            if group.overdue.depth and group.shut is None and (permit := self._late(group, now)) is not None:
                return permit
        return None

    def _next(self, group: Group, now: float) -> Permit | None:
        sound = self._pool.sound(group.books, now)
        roomy = [books for books in sound if books.window.inflight < books.cap]
        if not roomy:
            group.shut = Hold.FULL  # nobody's turn is spent on it
            return None
        found = self._from(group.queue, group, sound, roomy, now)
        if isinstance(found, Hold):
            group.shut = None if found is Hold.LANE else found
            return None
        return found

    def _late(self, group: Group, now: float) -> Permit | None:
        """One that is overdue goes to a backend that is far from full."""
        sound = self._pool.sound(group.books, now)
        spare = [books for books in sound if books.window.inflight < books.cap and books.spare]
        found = self._from(group.overdue, group, sound, spare, now) if spare else Hold.FULL
        return None if isinstance(found, Hold) else found

    def _from(
        self, line: PriorityQueue, group: Group, sound: Sequence[Books], among: Sequence[Books], now: float
    ) -> Permit | Hold:
        """Let the next of a line of ``group`` go to one of ``among`` its ``sound`` backends; else why none can."""
        pick, scene = self._balancer.pick, Scene(sound, line.depth) if len(sound) > 1 else None
        found = line.next(lambda entry, keenly: pick(among, entry.ticket, entry.lane, now, scene, entry, keenly=keenly))
        if isinstance(found, Hold):
            return found
        entry, spot = found
        group.shut = None if spot.more else Hold.FULL
        self._backlog.left(entry)
        return self._grant(entry.ticket, group, entry.lane, spot, now)

    def _grant(self, ticket: Ticket, group: Group, lane: int, spot: Spot, now: float) -> Permit:
        self._permits += 1
        books = spot.books
        running = self._running(ticket, lane, books, now)
        if self._drawn and (ticket.shape.blocks or (ticket.session and len(group.books) > 1)):
            books.note_prompt(running, spot.matched)
        self._pool.enter(books, running, now)
        if lane < len(self._config.queue.lanes) - 1:
            books.window.others_at = now
        group.flow.dispatch(ticket.priority, lane, ticket.work.cost, now)
        group.served += ticket.work.cost
        self._stay_awake(now)
        choice = Choice.FAILOVER if ticket.tried else spot.choice
        why = choice._value_  # `value` is a call
        books.choices[why] = books.choices.get(why, 0) + 1
        permit = Permit(self._permits, ticket, books.name, now, running, choice)
        if self._watcher is not None:
            self._watcher.granted(permit, books.window.outputs)
        return permit

    def _stay_awake(self, now: float) -> None:
        if self._sample_at is None:
            self._sample_at = now + TICK

    def _running(self, ticket: Ticket, lane: int, books: Books, now: float) -> Running:
        if ticket.shape.session:
            return Session(self._permits, ticket, books.window, now)
        if not ticket.shape.stream:
            return Running(self._permits, ticket, books.window, now)
        objective = self._config.queue.lanes[lane].ttft_objective
        return Streaming(self._permits, ticket, books.window, now, objective)
