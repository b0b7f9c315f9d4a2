"""The two ends of a run: its engines, and the clients who send."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gateway.emulator.engine import Engine
from gateway.simulator.clients import Call, Ending, Front
from gateway.simulator.fleet import Node
from gateway.simulator.setup import Load, Setup
from gateway.simulator.turns import Chat, chats
from gateway.simulator.workload import Want, arrivals, traced, wants
from gateway.simulator.world import World


def engines(world: World, setup: Setup) -> list[Node]:
    """The fleet, idle."""
    return [
        Node(
            world,
            machine.name,
            Engine(machine.profile),
            machine.speeds,
            refuses_inside=machine.refuses_inside,
            dies=machine.dies,
        )
        for machine in setup.fleet
    ]


def crowds(world: World, front: Front, around: Front, setup: Setup, ended: list[Call]) -> None:
    """Let all of the load arrive at ``front``, or ``around`` it; calls to ``front`` go to ``ended`` as they end."""
    for number, kind in enumerate(setup.load):
        seed = f"{setup.seed}/{kind.label}/{number}"
        place, ends = (around, []) if kind.around else (front, ended)
        Crowd(world, place, kind, seed, number, setup.horizon, ends)


class Crowd:
    """One kind of traffic: draws wants, and turns each into a call."""

    def __init__(
        self, world: World, front: Front, kind: Load, seed: str, number: int, until: float, ended: list[Call]
    ) -> None:
        """Let it begin; ``number`` tells its wants from those of other kinds."""
        self._world = world
        self._front = front
        self._kind = kind
        self._ended = ended
        self._chance = Random(f"clients/{seed}")
        clients, streamed, first = kind.clients, kind.streamed, number * 1_000_000
        if kind.trace:
            self._follow(traced(kind.trace, seed, clients=clients, streamed=streamed, first_id=first, label=kind.label))
            return
        if kind.chats is not None:
            new = chats(kind.chats, seed, clients=clients, streamed=streamed, first_id=first, label=kind.label)
            for at, chat in zip(arrivals(kind.rates, seed, until), new, strict=False):
                world.at(at, lambda chat=chat: self._turn(chat))  # type: ignore[misc]
            return
        self._wants = wants(kind.workload, seed, clients=clients, streamed=streamed, first_id=first, label=kind.label)
        if kind.rates:
            self._follow((at, None) for at in arrivals(kind.rates, seed, until))
        for (at, users), (_, before) in zip(kind.users, [(0.0, 0.0), *kind.users], strict=False):
            for _ in range(round(users - before)):
                world.at(at + self._chance.random() * 0.1, self._call)

    def _follow(self, times: Iterator[tuple[float, Want | None]]) -> None:
        due, want = next(times, (None, None))
        if due is not None:
            self._world.at(due, lambda: self._arrive(want, times))

    def _arrive(self, want: Want | None, times: Iterator[tuple[float, Want | None]]) -> None:
        self._call(want)
        self._follow(times)

    def _call(self, want: Want | None = None) -> None:
        want = want or next(self._wants)
        kind = self._kind
        Call(self._world, self._front, want, kind.habits, self._chance, self._end, kind.label, kind.priority)

    def _turn(self, chat: Chat) -> None:
        kind = self._kind

        def ended(call: Call) -> None:
            self._ended.append(call)
            if call.ending is Ending.ANSWERED and chat.turns:
                self._world.after(chat.turns[0].think, lambda: self._turn(chat))

        Call(self._world, self._front, chat.ask(), kind.habits, self._chance, ended, kind.label, kind.priority)

    def _end(self, call: Call) -> None:
        self._ended.append(call)
        if self._kind.users:
            self._world.after(self._kind.think, self._call)
