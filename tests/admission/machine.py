"""Whatever happens in whatever order: the books balance, nobody is forgotten, no place stays empty while one waits.

Contention is cheap here (limits of 1 to 3, a queue of five) and time steps exactly to ``next_wakeup``: without these,
and without looking for liveness as well as balance, planted faults are missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import floor
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.config import AdmissionConfig, BreakerConfig, LaneConfig, LimitConfig, QueueConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.tuning import changed
from gateway.model import Backend, Health, Hints, Outcome, Permit, Priority, Reason, Ticket, Usage, Verdict
from tests.admission.helpers import ticket

BACKENDS = (
    Backend("a", "http://a", models=("m", "n")),
    Backend("b", "http://b", models=("m",), weight=2.0),
    Backend("c", "http://c"),
    Backend("d", "http://d", models=("n",), limit=2),
)
NAMES = [backend.name for backend in BACKENDS]
SETTLED = [outcome for outcome in Outcome if outcome is not Outcome.REFUSED]
SHORT_MOST = 300  # tokens of the first lane
LONG_PROMPT = 9_000  # goes one after another
SLACK = 0.0101  # deadlines are kept to the next hundredth of a second

Make = Callable[[AdmissionConfig], AdmissionController]


def make(config: AdmissionConfig) -> AdmissionController:
    return AdmissionController(config, BACKENDS, lambda low, _high: low)


def serving(model: str | None) -> set[str]:
    """Worked out from the configuration, not from the code under test."""
    lists = {b.name for b in BACKENDS if model in b.models}
    anything = {b.name for b in BACKENDS if not b.models}
    return lists | anything if lists else anything


REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from([40, 200, 800, LONG_PROMPT]),
        "output": st.sampled_from([10, 90]),
        "stream": st.booleans(),
        "model": st.sampled_from(["m", "n", "unknown", None]),
        "client": st.sampled_from(["x", "y", "z"]),
        "read_timeout": st.sampled_from([None, None, 0.1, 30.0]),
        "avoid": st.sampled_from([*[frozenset[str]()] * 6, frozenset("a"), frozenset("c"), frozenset("abcd")]),
        "fingerprint": st.integers(0, 3),
        "attempt": st.sampled_from([0, 0, 1]),
        "priority": st.sampled_from([Priority.STANDARD, *Priority]),
    }
)


class AdmissionMachine(RuleBasedStateMachine):
    """Keeps books of its own and compares."""

    make: Make = staticmethod(make)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waiting: dict[int, tuple[Ticket, float]] = {}  # ticket, latest time of its verdict
        self.running: dict[int, Permit] = {}
        self.started: set[int] = set()

    @initialize(
        initial=st.sampled_from([1, 1, 3]),
        maximum=st.sampled_from([1, 1, 3]),
        token_limit=st.sampled_from([None, 600]),
        reserve=st.sampled_from([0.0, 0.4]),
        reserve_critical=st.sampled_from([0.0, 0.0, 0.4]),
        floor=st.sampled_from([0.0, 0.3]),
        queue=st.integers(1, 5),
        drains=st.booleans(),
    )
    def begin(
        self,
        initial: int,
        maximum: int,
        token_limit: int | None,
        reserve: float,
        reserve_critical: float,
        floor: float,
        queue: int,
        drains: bool,
    ) -> None:
        self.drains = drains
        lanes = (LaneConfig("short", SHORT_MOST, 2.0, 0.5, 0.25), LaneConfig("long", None, 1.0, None, 1.0))
        config = AdmissionConfig(
            limit=LimitConfig(initial=initial, maximum=maximum, window=0.3, token_limit=token_limit),
            queue=QueueConfig(
                lanes=lanes,
                max_requests=queue,
                max_bytes=150_000,
                reserve_short=reserve,
                reserve_critical=reserve_critical,
                floor=floor,
            ),
            breaker=BreakerConfig(failures=2, cooldown=0.3, cooldown_max=0.6, silence=1.5),
        )
        self.free = token_limit is None and not reserve and not reserve_critical  # a free place is free for anybody
        self.owed = bool(floor)  # a lower priority may go before a higher one
        self.short_wait = 0.25
        self.drained: set[str] = set()
        self.admission = type(self).make(config)

    # ------------------------------------------------------------------------------------------------- rules

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=8))
    def offer(self, requests: list[dict[str, Any]]) -> None:
        for fields in requests:
            request = ticket(**fields)
            self.waiting[request.id] = (request, self.latest(request))
            self.apply(self.admission.offer(request, self.now))

    def latest(self, request: Ticket) -> float:
        """When its verdict must be there. A long prompt may wait longer for the one that is being read."""
        short = request.work.tokens <= SHORT_MOST
        bound = self.short_wait if short else 1.0
        if request.work.prompt_tokens == LONG_PROMPT and request.shape.stream:
            bound = LONG_PROMPT / 2048
        gone = request.read_timeout
        return self.now + (bound if gone is None else min(bound, gone)) + SLACK

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*sorted(self.waiting), 0]))
        self.waiting.pop(number, None)
        self.apply(self.admission.withdraw(number, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), events=st.integers(1, 60))
    def output(self, data: st.DataObject, events: int) -> None:
        permit = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        permit.progress.output(events, self.now)
        if permit.ticket.shape.stream:
            self.started.add(permit.id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([*SETTLED, *[Outcome.COMPLETED] * 6]), tokens=st.integers(0, 50))
    def settle(self, data: st.DataObject, outcome: Outcome, tokens: int) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.running))), outcome, tokens)

    def end(self, number: int, outcome: Outcome, tokens: int) -> None:
        permit = self.running.pop(number)
        self.started.discard(number)
        usage = Usage(completion_tokens=tokens) if tokens else None
        self.apply(self.admission.settle(permit, outcome, usage, self.now))

    @rule(name=st.sampled_from(NAMES), health=st.sampled_from(list(Health)))
    def health(self, name: str, health: Health) -> None:
        self.apply(self.admission.note_health(name, health, self.now))

    @rule(
        name=st.sampled_from(NAMES),
        usage=st.sampled_from([None, 0.2, 1.0]),
        capacity=st.sampled_from([None, 500, 100_000]),
    )
    def hints(self, name: str, usage: float | None, capacity: int | None) -> None:
        self.free = False  # a capacity bounds the tokens
        hints = Hints(kv_usage=usage, kv_capacity_tokens=capacity, preemptions_total=self.now)
        self.apply(self.admission.note_hints(name, hints, self.now))

    @rule(wakeups=st.integers(1, 12))
    def wake(self, wakeups: int) -> None:
        """Step exactly to the next wake-up, a few times."""
        for _ in range(wakeups):
            if not self.step():
                return

    @rule(seconds=st.sampled_from([0.003, 0.04, 0.7]))
    def wait(self, seconds: float) -> None:
        """Let time pass, with every wake-up in it."""
        end = self.now + seconds
        while (due := self.admission.next_wakeup()) is not None and due <= end:
            self.step()
        self.now = end

    def step(self) -> bool:
        due = self.admission.next_wakeup()
        if due is None:
            return False
        self.now = max(self.now, due)
        self.apply(self.admission.tick(self.now))
        return True

    @precondition(lambda self: self.drains and self.now > 2.0)
    @rule()
    def drain(self) -> None:
        self.apply(self.admission.drain(self.now))

    @rule(
        name=st.sampled_from(NAMES),
        limit=st.sampled_from([None, 1, 2, 3]),
        drained=st.sampled_from([False, False, True]),
        weight=st.sampled_from([0.5, 2.0]),
        wait=st.sampled_from([0.1, 0.25]),
        tpot=st.sampled_from([None, 0.05]),
    )
    def retune(
        self, name: str, limit: int | None, drained: bool, weight: float, wait: float, tpot: float | None
    ) -> None:
        """As an operator does; who waits keeps the deadline it came with."""
        change = {
            "tpot_objective_seconds": tpot,
            "lanes": {"short": {"weight": weight, "max_wait_seconds": wait}},
            "backends": {name: {"limit": limit, "drained": drained}},
        }
        self.short_wait = wait
        (self.drained.add if drained else self.drained.discard)(name)
        self.apply(self.admission.retune(changed(self.admission.tuning, change), self.now))

    def eligible(self, request: Ticket) -> set[str]:
        return serving(request.shape.model) - request.avoid - self.drained

    # ---------------------------------------------------------------------------------------------- verdicts

    def apply(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            request, _ = self.waiting.pop(verdict.ticket.id)  # exactly one verdict, and only for who waits
            if isinstance(verdict, Permit):
                assert verdict.backend in self.eligible(request)
                assert self.in_order(verdict)
                self.running[verdict.id] = verdict
            else:
                assert 1.0 <= verdict.retry_after <= 60.0
                assert (verdict.reason is Reason.NO_BACKEND) <= (not self.eligible(request))

    def in_order(self, permit: Permit) -> bool:
        """Whether no critical request was left waiting that could have gone there, where nobody is owed anything."""
        if permit.ticket.priority is Priority.CRITICAL or self.owed or not self.free:
            return True
        waiting = [request for request, _ in self.waiting.values() if request.priority is Priority.CRITICAL]
        return not any(
            permit.backend in self.eligible(request) and request.work.tokens <= SHORT_MOST for request in waiting
        )

    # -------------------------------------------------------------------------------------------- invariants

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "admission"):
            return
        state = self.admission.state(self.now)
        for backend in state.backends:
            here = [permit for permit in self.running.values() if permit.backend == backend.name]
            assert backend.running == len(here) <= 3
            assert backend.tokens == sum(permit.ticket.work.tokens for permit in here)
            silent = [permit for permit in here if permit.ticket.shape.stream and permit.id not in self.started]
            assert backend.unstarted == len(silent)
            assert 1 <= backend.limit <= 3
        assert sum(lane.depth for lane in state.lanes) == len(self.waiting)
        costs = sum(request.work.cost for request, _ in self.waiting.values())
        assert abs(sum(lane.cost for lane in state.lanes) - costs) < 1e-6

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for _, latest in self.waiting.values():
            assert self.now <= latest
        if self.waiting or self.running:
            assert self.admission.next_wakeup() is not None

    @invariant()
    def no_place_stays_empty_while_somebody_waits_for_it(self) -> None:
        if not self.waiting:
            return
        for backend in self.admission.state(self.now).backends:
            if backend.health not in {"up", "unknown"}:
                continue
            room = floor(backend.limit) if self.free else 1
            if backend.running < room:
                for request, _ in self.waiting.values():
                    held = self.free and request.work.prompt_tokens == LONG_PROMPT and backend.running
                    assert held or backend.name not in self.eligible(request)

    @invariant()
    def idle_lanes_keep_no_credit(self) -> None:
        if hasattr(self, "admission"):
            for group in self.admission._backlog.groups:
                lanes = [lane for queue in group.queue.priorities for lane in queue.lanes]
                assert all(lane.credit <= 0.0 for lane in lanes if not lane.depth)

    def teardown(self) -> None:
        """In the end everything is served or refused, and nothing is left."""
        if not hasattr(self, "admission"):
            return
        for _ in range(100):
            for number in sorted(self.running):
                self.end(number, Outcome.COMPLETED, 1)
            if not self.step():
                break
        assert not self.waiting
        assert not self.running
        state = self.admission.state(self.now)
        assert [(b.running, b.tokens, b.unstarted) for b in state.backends] == [(0, 0, 0)] * len(BACKENDS)
        assert self.admission.next_wakeup() is None
        assert self.admission._backlog.size == 0
