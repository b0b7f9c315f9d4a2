"""The laws of others behind the gateway's Limit protocol, to compare with: each as its source has it, bounds 1 to 1024.

All of them judge by the latency of whole requests (``rtt``: from being sent to the last byte), one sample a request, as
their libraries do. ``inflight`` is how many were in flight when it was sent, itself included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.admission.config import AdmissionConfig, LimitConfig
from gateway.admission.limit import FixedLimit
from gateway.admission.window import Window
from gateway.model import Backend, Outcome, Permit, Usage
from gateway.simulator.clients import Attempt
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Gateway
from gateway.simulator.world import World

LEAST, MOST = 1.0, 1024.0
IGNORED = frozenset({Outcome.CLIENT_GONE, Outcome.CLIENT_ERROR})  # says nothing of the backend (Netflix: onIgnore)


class Law(FixedLimit):
    """A limit that only samples move; what else the protocol asks of it is what a fixed limit answers."""

    def __init__(self, initial: float) -> None:
        super().__init__(1, LimitConfig(), Counter())
        self.value = initial

    def sample(self, rtt: float, inflight: int, now: float, *, dropped: bool) -> None:
        """One request ended."""
        raise NotImplementedError

    def _move(self, value: float) -> None:
        self.value = min(max(value, LEAST), MOST)


class Aimd(Law):
    """``AIMDLimit`` of Netflix/concurrency-limits (00f751f): initial 10, backoff .9, timeout 5 s.

    A drop, or an answer slower than the timeout, costs a tenth of the limit; any other adds one where at least half of
    the limit was in use.
    """

    def __init__(self, timeout: float = 5.0) -> None:
        super().__init__(10.0)
        self._timeout = timeout

    def sample(self, rtt: float, inflight: int, now: float, *, dropped: bool) -> None:
        del now
        if dropped or rtt > self._timeout:
            self._move(float(min(self.value - 1, int(self.value * 0.9))))
        elif inflight * 2 >= self.value:
            self._move(self.value + 1)


class Vegas(Law):
    """``VegasLimit`` of Netflix/concurrency-limits (1412141): queue = limit * (1 - rtt_noload / rtt), in requests.

    With l = log10(limit): +6l where it is at most l, +l below 3l, -l beyond 6l; rtt_noload is the least sample, and
    each 30 * limit samples (less up to half, at random) whatever the present one is.
    """

    def __init__(self) -> None:
        super().__init__(20.0)
        self._noload = 0.0
        self._count = 0
        self._chance = Random("vegas")
        self._jitter = self._chance.uniform(0.5, 1.0)

    def sample(self, rtt: float, inflight: int, now: float, *, dropped: bool) -> None:
        del now
        self._count += 1
        if self._jitter * 30 * self.value <= self._count:
            self._jitter = self._chance.uniform(0.5, 1.0)
            self._count = 0
            self._noload = rtt
        elif not self._noload or rtt < self._noload:
            self._noload = rtt
        else:
            self._judge(rtt, inflight, dropped=dropped)

    def _judge(self, rtt: float, inflight: int, *, dropped: bool) -> None:
        queue = math.ceil(self.value * (1.0 - self._noload / rtt))
        step = max(1, int(math.log10(int(self.value))))
        if dropped:
            self._move(self.value - step)
        elif inflight * 2 < self.value:
            return
        elif queue <= step:
            self._move(self.value + 6 * step)
        elif queue < 3 * step:
            self._move(self.value + step)
        elif queue > 6 * step:
            self._move(self.value - step)


class Gradient2(Law):
    """``Gradient2Limit`` of Netflix/concurrency-limits (14ddfa2) over means of at least a second and ten samples.

    (``WindowedLimit`` throws away a second with fewer: with answers that take ten, it would never move.)

    limit * clamp(long / short, .5, 1) + 4, a fifth of the way; long is an exponential mean over 600 windows (plain over
    the first 10), cut by a tenth where it is over twice the present one. Drops are not heeded.
    """

    WINDOW = 600
    WARM = 10
    ENOUGH = 10

    def __init__(self) -> None:
        super().__init__(20.0)
        self._rtts: list[float] = []
        self._most = 0
        self._due = 0.0
        self._long = 0.0
        self._windows = 0

    def sample(self, rtt: float, inflight: int, now: float, *, dropped: bool) -> None:
        del dropped
        self._rtts.append(rtt)
        self._most = max(self._most, inflight)
        if now > self._due and len(self._rtts) >= self.ENOUGH:
            self._due = now + 1.0
            self._judge(sum(self._rtts) / len(self._rtts), self._most)
            self._rtts, self._most = [], 0

    def _judge(self, short: float, inflight: int) -> None:
        self._windows += 1
        if self._windows <= self.WARM:
            self._long += (short - self._long) / self._windows
        else:
            self._long += 2.0 / (self.WINDOW + 1) * (short - self._long)
        long = self._long
        if long / short > 2.0:
            self._long *= 0.9
        if inflight >= self.value / 2:
            wanted = self.value * max(0.5, min(1.0, long / short)) + 4.0
            self._move(self.value * 0.8 + wanted * 0.2)


class Envoy(Law):
    """Envoy's ``adaptive_concurrency`` (gradient_controller.cc at 054694f, figures of its documentation).

    Each 0.1 s: limit * g + sqrt(limit * g), g = clamp(1.25 * minRTT / p50, .5, 2). Each 60 s, or after five updates at
    the least, it falls to 3 until 50 samples have given the minRTT anew.
    """

    PINNED = 3.0
    SAMPLES = 50
    INTERVAL = 60.0
    UPDATE = 0.1

    def __init__(self) -> None:
        super().__init__(self.PINNED)
        self._rtts: list[float] = []
        self._noload = 0.0
        self._epoch = 0.0
        self._probing = True
        self._kept = self.PINNED
        self._probe_at = 0.0
        self._update_at = 0.0
        self._at_least = 0
        self._chance = Random("envoy")

    def sample(self, rtt: float, inflight: int, now: float, *, dropped: bool) -> None:
        del inflight, dropped
        if now - rtt < self._epoch:
            return
        self._rtts.append(rtt)
        if self._probing and len(self._rtts) >= self.SAMPLES:
            self._noload = self._median()
            self._probing = False
            self.value = self._kept
            self._probe_at = now + self.INTERVAL * (1.0 + self._chance.random() * 0.15)
            self._update_at = now + self.UPDATE

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        super().tick(window, kv_usage, now)
        if self._probing:
            return
        if now >= self._probe_at:
            self._probing, self._kept, self._epoch, self._at_least = True, self.value, now, 0
            self.value = self.PINNED
            self._rtts.clear()
        elif now >= self._update_at and self._rtts:
            self._update_at = now + self.UPDATE
            limit = self.value * max(0.5, min(2.0, 1.25 * self._noload / self._median()))
            before = self.value
            self.value = float(max(self.PINNED, min(MOST, int(limit + math.sqrt(limit)))))
            self._at_least = self._at_least + 1 if before == self.value == self.PINNED else 0
            if self._at_least >= 5:
                self._probe_at = now

    def _median(self) -> float:
        ranked = sorted(self._rtts)
        self._rtts.clear()
        return ranked[len(ranked) // 2]


LAWS: dict[str, Callable[[], Law]] = {"aimd": Aimd, "vegas": Vegas, "gradient2": Gradient2, "envoy": Envoy}


class Ruled(Gateway):
    """The gateway with another law in place of its own: the same queue, lanes, door and retries."""

    def __init__(
        self,
        world: World,
        nodes: Sequence[Node],
        backends: Sequence[Backend],
        config: AdmissionConfig,
        seed: str,
        law: Callable[[], Law],
    ) -> None:
        super().__init__(world, nodes, backends, config, seed)
        self._held: dict[Attempt, int] = {}
        for books in self.controller._pool.books:
            books.limit = law()
            books._set_caps()

    def _start(self, attempt: Attempt, permit: Permit) -> None:
        self._held[attempt] = self.controller._pool.by_name[permit.backend].window.inflight
        super()._start(attempt, permit)

    def _end(self, attempt: Attempt, outcome: Outcome, usage: Usage | None) -> None:
        permit, now = self._running[attempt], self._world.now
        held = self._held.pop(attempt)
        books = self.controller._pool.by_name[permit.backend]
        if outcome not in IGNORED and isinstance(books.limit, Law):
            books.limit.sample(now - permit.granted_at, held, now, dropped=outcome is not Outcome.COMPLETED)
            books._set_caps()
        super()._end(attempt, outcome, usage)


@dataclass(frozen=True, slots=True)
class Under:
    """Makes gateways that are ruled by a law."""

    law: Callable[[], Law] = field()

    def __call__(
        self, world: World, nodes: Sequence[Node], backends: Sequence[Backend], config: AdmissionConfig, seed: str
    ) -> Gateway:
        return Ruled(world, nodes, backends, config, seed, self.law)
