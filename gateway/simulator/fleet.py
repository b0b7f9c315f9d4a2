"""The engines of a run: the emulator's pure engine on simulated time, with what befalls real ones.

An engine slows down by slowing its clock, which holds for any engine model: at speed 0.5 a step takes twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gateway.emulator.blocks import Prefix
from gateway.emulator.engine import Engine
from gateway.simulator.workload import BLOCK_TOKENS
from gateway.simulator.world import Alarm, World

Output = Callable[[int, float], object]  # told of output events, and when
Ended = Callable[[], object]


class Node:
    """One engine. ``speeds`` are (at, speed) pairs; at speed 0 it hangs.

    ``refuses_inside``: where it is full it says so in the first event of a stream that began with 200. When it
    ``dies`` it loses what it has, and is ``dead``.
    """

    def __init__(
        self,
        world: World,
        name: str,
        engine: Engine,
        speeds: Sequence[tuple[float, float]] = (),
        *,
        refuses_inside: bool = False,
        dies: float = math.inf,
    ) -> None:
        self.name = name
        self.engine = engine
        self.refuses_inside = refuses_inside
        self._key = 0
        self._world = world
        self._speed = 1.0
        self._since = (0.0, 0.0)  # the world's time and the engine's, when the speed last changed
        self.dead = False
        self._ends: dict[int, Ended] = {}
        self._losses: dict[int, Ended] = {}
        self._outputs: dict[int, Output] = {}  # of those who listen to every token, which most of a run's time goes to
        self._step = Alarm(world, self._advance)
        world.at(dies, self._die)
        for at, speed in speeds:
            world.at(at, lambda speed=speed: self._set_speed(speed))  # type: ignore[misc]

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        ended: Ended,
        prefix: Prefix | None = None,
        lost: Ended | None = None,
    ) -> int | None:
        """Start a request and tell ``ended`` of its last token; its key, None where the engine is full and says so.

        ``prefix`` is in blocks of ``BLOCK_TOKENS``, and is made one of the engine's own. ``lost``: told if it dies.
        """
        key = self._key
        if prefix is not None:
            prefix.blocks = refined(prefix.blocks, self.engine.profile.block_size)
        if not self.engine.submit(key, prompt_tokens, output_tokens, self._engine_now(), prefix):
            return None
        self._key += 1
        self._ends[key] = ended
        if lost is not None:
            self._losses[key] = lost
        self._schedule()
        return key

    def listen(self, key: int, output: Output | None) -> None:
        """Tell ``output`` of each token of a request but its last; None: nobody from now on."""
        if output is None:
            self._outputs.pop(key, None)
        else:
            self._outputs[key] = output

    def abort(self, key: int) -> None:
        """The other side hung up: the engine forgets the request."""
        self._outputs.pop(key, None)
        self._losses.pop(key, None)
        if self._ends.pop(key, None) is not None:
            self.engine.abort(key, self._engine_now())
            self._schedule()

    def _die(self) -> None:
        self.dead = True
        losses = list(self._losses.values())
        for key in list(self._ends):
            self.abort(key)
        for lost in losses:
            lost()

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
        engine_now, now = self._engine_now(), self._world.now
        outputs = self._outputs
        # Rounding must not lose a step.
        for key, _, finished, _ in self.engine.advance(engine_now if due is None else max(engine_now, due)):
            if not finished:
                if key in outputs:
                    outputs[key](1, now)
                continue
            outputs.pop(key, None)
            self._losses.pop(key, None)
            ended = self._ends.pop(key, None)  # None: hung up upon an earlier emission of the same step
            if ended is not None:
                ended()
        self._schedule()


def refined(blocks: Sequence[int], size: int) -> Sequence[int]:
    """Blocks of ``BLOCK_TOKENS`` as blocks of ``size`` tokens.

    Raises:
        ValueError: ``size`` does not divide them.
    """
    if size == BLOCK_TOKENS:
        return blocks
    parts, rest = divmod(BLOCK_TOKENS, size)
    if rest:
        raise ValueError(f"block_size: {size} given, a divisor of {BLOCK_TOKENS} expected")
    return [hash((block, part)) for block in blocks for part in range(parts)]
