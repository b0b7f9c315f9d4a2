"""What stands between the clients and the engines: the gateway's own admission, or what people have without it."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.model import (
    BLOCKS_MAX,
    Access,
    Backend,
    Health,
    Hints,
    Outcome,
    Permit,
    Route,
    Shape,
    Ticket,
    Usage,
    Verdict,
)
from gateway.simulator.clients import Attempt
from gateway.simulator.fleet import Node
from gateway.simulator.setup import Restart
from gateway.simulator.workload import BLOCK_TOKENS, Want
from gateway.simulator.world import World

ROUTE = Route("chat", Access.ADMIT)
BUSY_AFTER = 0.002  # seconds until an engine's own refusal, or that of a connection, is back
CONNECT_ATTEMPTS = 3  # engines that one request is tried on (gateway/proxy/config.py)
TIMER_SLACK = 0.001  # seconds that the gate's timer fires late (gateway/proxy/gate.py)


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict: when, on which ticket, after how long a wait, and what: the backend or the reason."""

    at: float
    ticket: int
    wait: float
    what: str


class Gateway:
    """The production admission controller, driven as the proxy's gate drives it."""

    def __init__(
        self, world: World, nodes: Sequence[Node], backends: Sequence[Backend], config: AdmissionConfig, seed: str
    ) -> None:
        self._estimator = Estimator(config.estimator)
        self.controller = AdmissionController(config, backends, Random(f"gateway/{seed}").uniform, self._estimator)
        self.decisions: list[Decision] = []
        self.deepest = 0  # most that ever waited at once
        self.sent: Counter[int] = Counter()  # wants: how often to an engine, whether or not it was there
        self.first_tokens: list[tuple[float, float]] = []  # of streams: (when, seconds after the permit)
        self._world = world
        self._nodes = {node.name: node for node in nodes}
        self._known = {backend.name for backend in backends}
        self._due = math.inf
        self._ids = itertools.count(1)
        self._queued: dict[int, tuple[Attempt, float]] = {}
        self._tickets: dict[Attempt, int] = {}
        self._running: dict[Attempt, Permit] = {}
        self._keys: dict[Attempt, int] = {}  # on the engine

    def send(self, attempt: Attempt) -> None:
        """Offer it to the controller."""
        self._present(attempt, self._ticket(attempt))

    def _present(self, attempt: Attempt, ticket: Ticket) -> None:
        self._queued[ticket.id] = (attempt, self._world.now)
        self._tickets[attempt] = ticket.id
        self._offer(ticket)
        self.deepest = max(self.deepest, len(self._queued))

    def leave(self, attempt: Attempt) -> None:
        """The client hung up: withdraw it, or abort it on the engine."""
        permit = self._running.get(attempt)
        if permit is not None:
            if attempt in self._keys:
                self._nodes[permit.backend].abort(self._keys[attempt])
            self._end(attempt, Outcome.CLIENT_GONE, None)
        elif attempt in self._tickets:
            ticket = self._tickets.pop(attempt)
            del self._queued[ticket]
            self._withdraw(ticket)

    @property
    def present(self) -> int:
        """Requests that wait or run."""
        return len(self._queued) + len(self._running)

    def hint(self, backend: str, hints: Hints) -> None:
        """The prober read an engine's gauges."""
        if backend not in self._known:
            return
        self._apply(self.controller.note_hints(backend, hints, self._world.now))

    def note_health(self, backend: str, health: Health) -> None:
        """The prober found an engine alive or dead."""
        self._apply(self.controller.note_health(backend, health, self._world.now))

    def add(self, backend: Backend) -> None:
        """One engine more."""
        self._known.add(backend.name)
        self._apply(self.controller.add_backend(backend, self._world.now))

    def _offer(self, ticket: Ticket) -> None:
        self._apply(self.controller.offer(ticket, self._world.now))

    def _withdraw(self, ticket: int) -> None:
        self._apply(self.controller.withdraw(ticket, self._world.now))

    def _settle(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        self._apply(self.controller.settle(permit, outcome, usage, self._world.now))

    def _apply(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            self._take(verdict)
        self._arm()

    def _arm(self) -> None:
        due = self.controller.next_wakeup()
        if due is not None and due < self._due:
            self._due = due
            self._world.at(due + TIMER_SLACK, lambda: self._tick(due))

    def _tick(self, set_for: float) -> None:
        if set_for == self._due:  # else it was moved
            self._due = math.inf
            due, now = self.controller.next_wakeup(), self._world.now
            self._apply(self.controller.tick(now) if due is not None and due <= now else ())

    def _ticket(self, attempt: Attempt) -> Ticket:
        call = attempt.call
        shape = _shape(call.want)
        return Ticket(
            id=next(self._ids),
            shape=shape,
            work=self._estimator.estimate(shape, call.want.client),
            client=call.want.client,
            attempt=attempt.number if call.habits.counts else 0,
            read_timeout=call.habits.timeout if call.habits.tells_timeout else None,
            fingerprint=call.want.id + 1,
            priority=call.priority,
            session=call.want.session,
        )

    def _take(self, verdict: Verdict) -> None:
        now = self._world.now
        if verdict.ticket.id not in self._queued:  # its client hung up at the instant at which its time was up
            assert not isinstance(verdict, Permit)  # noqa: S101 - nobody would ever give it back
            return
        attempt, since = self._queued.pop(verdict.ticket.id)
        del self._tickets[attempt]
        what = verdict.backend if isinstance(verdict, Permit) else verdict.reason.value
        self.decisions.append(Decision(now, verdict.ticket.id, now - since, what))
        if isinstance(verdict, Permit):
            self._start(attempt, verdict)
        else:
            attempt.refused(verdict.retry_after, verdict.should_retry)

    def _start(self, attempt: Attempt, permit: Permit) -> None:
        self._running[attempt] = permit
        self.sent[attempt.call.want.id] += 1
        want, node = attempt.call.want, self._nodes[permit.backend]
        if node.dead:
            self._world.after(BUSY_AFTER, lambda: self._unreachable(attempt))
            return
        key = node.submit(
            want.prompt_tokens,
            want.output_tokens,
            lambda: self._complete(attempt),
            attempt.prefix,
            lambda: self._lost(attempt),
        )
        if key is None:
            self._world.after(BUSY_AFTER, lambda: self._busy(attempt, node))
            return
        self._keys[attempt] = key
        if want.stream:
            node.listen(key, lambda events, now: self._begin(attempt, permit, events, now))

    def _begin(self, attempt: Attempt, permit: Permit, events: int, now: float) -> None:
        """The first token; the further ones concern nobody but the window that measures their pace."""
        self.first_tokens.append((now, now - permit.granted_at))
        permit.progress.output(events, now)
        attempt.begun()
        self._nodes[permit.backend].listen(self._keys[attempt], permit.progress.output)

    def _complete(self, attempt: Attempt) -> None:
        permit, now = self._running[attempt], self._world.now
        if attempt.call.want.stream:
            if not attempt.started:  # its first token is its last
                self.first_tokens.append((now, now - permit.granted_at))
                attempt.begun()
            permit.progress.output(1, now)
        self._end(attempt, Outcome.COMPLETED, _usage(attempt))
        attempt.complete()

    def _busy(self, attempt: Attempt, node: Node) -> None:
        if attempt in self._running:
            self._end(attempt, Outcome.BACKEND_BUSY, None)
            _turn_away(attempt, node)

    def _unreachable(self, attempt: Attempt) -> None:
        """No connection: nothing of it was processed, so another engine may have it (gateway/proxy/handler.py)."""
        if attempt not in self._running:
            return
        permit = self._running[attempt]
        self._end(attempt, Outcome.CONNECT_FAILED, None)
        tried = permit.ticket.avoid | {permit.backend}
        if len(tried) == CONNECT_ATTEMPTS:
            attempt.refused()
        else:
            self._present(attempt, replace(permit.ticket, avoid=tried))

    def _lost(self, attempt: Attempt) -> None:
        """The engine died on it."""
        if attempt in self._running:
            self._end(attempt, Outcome.BACKEND_LOST, None)
            if attempt.started and attempt.call.want.stream:
                attempt.failed()
            else:
                attempt.refused()

    def _end(self, attempt: Attempt, outcome: Outcome, usage: Usage | None) -> None:
        self._keys.pop(attempt, None)
        self._settle(self._running.pop(attempt), outcome, usage)

    def drain(self) -> None:
        """Take nothing new; what is here goes on."""
        self._apply(self.controller.drain(self._world.now))

    def crash(self) -> None:
        """Lose every connection."""
        for attempt in (*self._tickets, *self._running):
            if attempt not in self._tickets and attempt not in self._running:
                continue  # refused meanwhile: another's end was its turn
            self.leave(attempt)
            if attempt.started and attempt.call.want.stream:
                attempt.failed()
            else:
                attempt.refused()


def _turn_away(attempt: Attempt, node: Node) -> None:
    """The engine's own queue is full."""
    if node.refuses_inside and attempt.call.want.stream:
        attempt.failed()
    else:
        attempt.refused()


def _shape(want: Want) -> Shape:
    """The request as its bytes show it: about 4.2 bytes a token, more or less by prompt."""
    size = round(want.prompt_tokens * 4.2 * Random(want.id).uniform(0.85, 1.15))
    blocks = want.blocks[: min(want.prompt_tokens // BLOCK_TOKENS, BLOCKS_MAX)]
    return Shape(ROUTE, stream=want.stream, prompt_bytes=size, messages=1, blocks=blocks)


def _usage(attempt: Attempt) -> Usage:
    want, prefix = attempt.call.want, attempt.prefix
    return Usage(want.prompt_tokens, want.output_tokens, None if prefix is None else prefix.cached)


def _listen_once(node: Node, key: int, attempt: Attempt) -> None:
    """Tell the client of the first token of a stream; nobody measures the further ones."""

    def begun(_events: int, _now: float) -> None:
        attempt.begun()
        node.listen(key, None)

    if attempt.call.want.stream:
        node.listen(key, begun)


class Succession:
    """A gateway that another one takes over from, as in a deployment: whoever asked the first is answered by it."""

    def __init__(self, world: World, first: Gateway, restart: Restart, successor: Callable[[Gateway], Gateway]) -> None:
        """``successor`` makes the second, from the first as it stands then."""
        self.gateways = [first]
        self._restart = restart
        self._successor = successor
        self._whose: dict[Attempt, Gateway] = {}
        world.at(restart.at, self._take_over)

    @property
    def controller(self) -> AdmissionController:
        """Who decides on what arrives now."""
        return self.gateways[-1].controller

    def send(self, attempt: Attempt) -> None:
        """Give it to whoever is there now."""
        self._whose[attempt] = self.gateways[-1]
        self.gateways[-1].send(attempt)

    def leave(self, attempt: Attempt) -> None:
        """The client hung up."""
        self._whose[attempt].leave(attempt)

    def _take_over(self) -> None:
        first = self.gateways[0]
        self.gateways.append(self._successor(first))
        if self._restart.graceful:
            first.drain()
        else:
            first.crash()


class Direct:
    """No gateway: a load balancer that takes turns, as a Kubernetes Service or nginx does."""

    def __init__(self, world: World, nodes: Sequence[Node]) -> None:
        self._world = world
        self._turns = itertools.cycle(nodes)
        self._running: dict[Attempt, tuple[Node, int]] = {}

    @property
    def present(self) -> int:
        """Requests that the engines have."""
        return len(self._running)

    def send(self, attempt: Attempt) -> None:
        """Give it to the next engine."""
        node, want = next(self._turns), attempt.call.want

        def ended() -> None:
            del self._running[attempt]
            attempt.complete()

        key = node.submit(want.prompt_tokens, want.output_tokens, ended, attempt.prefix)
        if key is None:
            self._world.after(BUSY_AFTER, lambda: _turn_away(attempt, node))
            return
        self._running[attempt] = (node, key)
        _listen_once(node, key, attempt)

    def leave(self, attempt: Attempt) -> None:
        """The client hung up: the engine forgets it."""
        node, key = self._running.pop(attempt, (None, 0))
        if node is not None:
            node.abort(key)


@dataclass(slots=True)
class _Place:
    """One engine behind the static limit."""

    node: Node
    inflight: int = 0


@dataclass(slots=True)
class StaticFifo:
    """A limit set by hand for each engine, one queue in order of arrival, and a bound on the wait."""

    world: World
    nodes: Sequence[Node]
    limit: int
    max_wait: float = 1.0
    _places: list[_Place] = field(init=False)
    _queue: deque[Attempt] = field(default_factory=deque)
    _running: dict[Attempt, tuple[_Place, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = [_Place(node) for node in self.nodes]

    def send(self, attempt: Attempt) -> None:
        """Let it wait for its turn."""
        self._queue.append(attempt)
        self.world.after(self.max_wait, lambda: self._expire(attempt))
        self._dispatch()

    def leave(self, attempt: Attempt) -> None:
        """The client hung up."""
        if attempt in self._running:
            place, key = self._running[attempt]
            if key is not None:
                place.node.abort(key)
            self._release(attempt)
        elif attempt in self._queue:
            self._queue.remove(attempt)

    def _expire(self, attempt: Attempt) -> None:
        if attempt in self._queue:
            self._queue.remove(attempt)
            attempt.refused()

    def _dispatch(self) -> None:
        while self._queue:
            place = min(self._places, key=lambda place: place.inflight)
            if place.inflight >= self.limit:
                return
            self._start(self._queue.popleft(), place)

    def _start(self, attempt: Attempt, place: _Place) -> None:
        want = attempt.call.want
        place.inflight += 1

        def ended() -> None:
            self._release(attempt)
            attempt.complete()

        key = place.node.submit(want.prompt_tokens, want.output_tokens, ended, attempt.prefix)
        self._running[attempt] = (place, key)
        if key is None:
            self.world.after(BUSY_AFTER, lambda: self._busy(attempt))
        else:
            _listen_once(place.node, key, attempt)

    def _busy(self, attempt: Attempt) -> None:
        if attempt in self._running:
            node = self._running[attempt][0].node
            self._release(attempt)
            _turn_away(attempt, node)

    def _release(self, attempt: Attempt) -> None:
        place, _ = self._running.pop(attempt)
        place.inflight -= 1
        self._dispatch()
