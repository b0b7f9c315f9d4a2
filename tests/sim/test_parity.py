"""One trace through the event heap and through asyncio gives the same verdicts: the simulation stays honest.

Clients and engines are the same in both; the gateway is the controller on the event heap in one, and the proxy's
gate with its futures, tasks and timer in the other, on an event loop whose time is simulated.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Sequence
from dataclasses import replace

from gateway.admission.config import AdmissionConfig
from gateway.emulator.profiles import PROFILES
from gateway.model import Backend, Outcome, Permit, Ticket, Usage
from gateway.proxy.gate import Gate
from gateway.simulator.clients import Habits
from gateway.simulator.crowd import crowds, engines
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Decision, Gateway
from gateway.simulator.setup import Load, Machine, Setup
from gateway.simulator.world import Action, World

# Two engines, one with a small queue of its own; overload, impatient users, streams and whole answers.
TRACE = Setup(
    horizon=30.0,
    fleet=(
        Machine("a", replace(PROFILES["910b-qwen3-8b"], max_num_queued_reqs=12)),
        Machine("b", PROFILES["910b-qwen3-8b"], speeds=((12.0, 0.5),)),
    ),
    load=(
        Load("sharegpt", "chats", rates=((0.0, 12.0),), streamed=0.7, habits=Habits(timeout=8.0, patience=20.0)),
        Load("documents", "documents", rates=((0.0, 1.0),), clients=2, habits=Habits(timeout=10.0, obeys=False)),
    ),
)


class _Selector(selectors.SelectSelector):
    """Never waits: where the loop would, time jumps to the next timer."""

    loop: _Loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0.0:
            self.loop.jump()
        return ready


class _Loop(asyncio.SelectorEventLoop):
    """An event loop on simulated time."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._now = 0.0
        self._clock_resolution = 1e-12  # or timers due at almost the same time would fire in one batch

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._now = scheduled[0].when()


class LoopWorld(World):
    """The event heap's interface on the loop's own timers."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._loop.time()

    def at(self, when: float, action: Action) -> None:
        if when < float("inf"):
            self._loop.call_at(max(when, self.now), action)


class ThroughGate(Gateway):
    """The gate in place of the direct calls: a task for each request that waits in ``enter``."""

    def __init__(
        self, world: LoopWorld, nodes: Sequence[Node], backends: Sequence[Backend], seed: str, loop: _Loop
    ) -> None:
        super().__init__(world, nodes, backends, AdmissionConfig(), seed)
        self.gate = Gate(self.controller, loop.time)
        self._loop = loop
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def _offer(self, ticket: Ticket) -> None:
        self._tasks[ticket.id] = self._loop.create_task(self._enter(ticket))

    async def _enter(self, ticket: Ticket) -> None:
        self._take(await self.gate.enter(ticket))

    def _withdraw(self, ticket: int) -> None:
        self._tasks[ticket].cancel()

    def _settle(self, permit: Permit, outcome: Outcome, usage: Usage | None) -> None:
        self.gate.leave(permit, outcome, usage)


def _on_the_heap(scenario: Setup) -> Gateway:
    world = World()
    nodes = engines(world, scenario)
    front = Gateway(world, nodes, _backends(scenario), AdmissionConfig(), str(scenario.seed))
    crowds(world, front, front, scenario, [])
    world.run(scenario.horizon)
    return front


def _through_asyncio(scenario: Setup) -> Gateway:
    loop = _Loop()
    world = LoopWorld(loop)
    nodes = engines(world, scenario)
    front = ThroughGate(world, nodes, _backends(scenario), str(scenario.seed), loop)
    crowds(world, front, front, scenario, [])
    try:
        loop.run_until_complete(asyncio.sleep(scenario.horizon))
        front.gate.close()
        waiting = asyncio.all_tasks(loop)
        for task in waiting:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
    finally:
        loop.close()
    return front


def _backends(scenario: Setup) -> list[Backend]:
    return [Backend(machine.name, f"http://{machine.name}") for machine in scenario.fleet]


def test_the_gate_gives_the_verdicts_of_the_event_heap() -> None:
    heap, gate = _by_ticket(_on_the_heap(TRACE)), _by_ticket(_through_asyncio(TRACE))
    assert {"a", "b", "deadline", "queue_timeout"} <= {decision.what for decision in heap}
    for one, other in zip(heap, gate, strict=True):
        assert (one.ticket, one.what) == (other.ticket, other.what)
        assert math.isclose(one.at, other.at, abs_tol=1e-6)


def _by_ticket(front: Gateway) -> list[Decision]:
    """In order of tickets: verdicts of one instant wake their tasks in an order of asyncio's own."""
    return sorted(front.decisions, key=lambda decision: decision.ticket)
