"""The engines of a run: the emulator's pure engine on simulated time, with what befalls real ones.

An engine slows down by slowing its clock, which holds for any engine model: at speed 0.5 a step takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.emulator.engine import Engine
from gateway.simulator.world import Alarm, World

Sink = Callable[[bool], None]  # told of each output event of one request; True with its last


class Node:
    """One engine. ``speeds`` are (at, speed) pairs; at speed 0 it hangs."""

    def __init__(self, world: World, name: str, engine: Engine, speeds: Sequence[tuple[float, float]] = ()) -> None:
        self.name = name
        self.engine = engine
        self._world = world
        self._speed = 1.0
        self._since = (0.0, 0.0)  # the world's time and the engine's, when the speed last changed
        self._sinks: dict[int, Sink] = {}
        self._step = Alarm(world, self._advance)
        for at, speed in speeds:
            world.at(at, lambda speed=speed: self._set_speed(speed))  # type: ignore[misc]

    def submit(self, key: int, prompt_tokens: int, output_tokens: int, sink: Sink) -> bool:
        """Start a request; False where the engine is full and says so."""
        if not self.engine.submit(key, prompt_tokens, output_tokens, self._engine_now()):
            return False
        self._sinks[key] = sink
        self._schedule()
        return True

    def abort(self, key: int) -> None:
        """The other side hung up: the engine forgets the request."""
        if self._sinks.pop(key, None) is not None:
            self.engine.abort(key, self._engine_now())
            self._schedule()

    def _engine_now(self) -> float:
        world_then, engine_then = self._since
        return engine_then + (self._world.now - world_then) * self._speed

    def _set_speed(self, speed: float) -> None:
        self._since = (self._world.now, self._engine_now())
        self._speed = speed
        self._schedule()

    def _schedule(self) -> None:
        due = self.engine.next_event()
        if due is None or self._speed == 0.0:
            self._step.set(None)
            return
        world_then, engine_then = self._since
        self._step.set(world_then + (due - engine_then) / self._speed)

    def _advance(self) -> None:
        due = self.engine.next_event()
        now = self._engine_now()
        for emission in self.engine.advance(now if due is None else max(now, due)):  # rounding must not lose a step
            sink = self._sinks.get(emission.key)
            if sink is None:
                continue  # hung up upon an earlier emission of the same step
            if emission.finished:
                del self._sinks[emission.key]
            sink(emission.finished)
        self._schedule()
