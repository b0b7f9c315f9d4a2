"""The engine on the event loop: one timer ends its steps, and every emission goes to the answer it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.emulator.blocks import Prefix
from gateway.emulator.engine import Emission, Engine, Profile

Sink = Callable[[Emission], None]


class Driver:
    """Runs an engine in real time, or ``speed`` times as fast.

    A late timer does not stretch emulated time: every step that is due by then ends at its own instant.
    """

    def __init__(self, profile: Profile, speed: float = 1.0) -> None:
        """Start idle; needs a running loop.

        Raises:
            ValueError: ``speed`` is not above 0.
        """
        if speed <= 0:
            raise ValueError(f"speed: {speed} given, more than 0 expected")
        self.engine = Engine(profile)
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._epoch = self._loop.time()
        self._timer: asyncio.Handle | None = None
        self._sinks: dict[int, Sink] = {}
        self._next_key = 0

    def now(self) -> float:
        """Engine seconds since the start."""
        return (self._loop.time() - self._epoch) * self._speed

    def submit(
        self, work: Sequence[tuple[int, int]], sink: Sink, prefixes: Sequence[Prefix | None] = ()
    ) -> range | None:
        """Take one engine request per (prompt, output) tokens, all or none; None where its queue limit refuses them.

        The keys are those of ``work`` in its order, and so are ``prefixes`` where they are known. ``sink`` must not
        raise.
        """
        keys = range(self._next_key, self._next_key + len(work))
        self._next_key = keys.stop
        now = self.now()
        for key, (prompt, output), prefix in zip(keys, work, prefixes or (None,) * len(work), strict=True):
            if not self.engine.submit(key, prompt, output, now, prefix):
                self.abort(keys)
                return None
            self._sinks[key] = sink
        self._arm()
        return keys

    def abort(self, keys: Sequence[int]) -> None:
        """Forget what is left of these requests; finished and unknown ones are ignored."""
        left = [key for key in keys if self._sinks.pop(key, None) is not None]
        now = self.now()
        for key in left:
            self.engine.abort(key, now)
        self._arm()

    def close(self) -> None:
        """Forget everything and stop the timer."""
        self.abort(list(self._sinks))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass_on(self, emission: Emission) -> None:
        sink = self._sinks.pop(emission.key, None) if emission.finished else self._sinks.get(emission.key)
        if sink is not None:
            sink(emission)

    def _arm(self) -> None:
        due = self.engine.next_event()
        if self._timer is None and due is not None:  # an engine never gives up a step it has begun
            self._timer = self._loop.call_at(self._epoch + due / self._speed, self._fire)

    def _fire(self) -> None:
        self._timer = None
        due = self.engine.next_event() or 0.0
        for emission in self.engine.advance(max(due, self.now())):  # uvloop's timers may ring half a millisecond early
            self._pass_on(emission)
        self._arm()
