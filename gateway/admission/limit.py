"""How many requests, and how many predicted KV tokens, may be in flight on one backend.

The adaptive law is additive increase, multiplicative decrease on the *pace*: stream-seconds per output token. Request
latency would be output length in disguise. The unloaded pace is learned at low concurrency; for a continuous-batching
engine pace = A + B*n, so at five times the unloaded pace throughput is 80 % of its maximum and more concurrency buys
little but waiting. Beside the pace it heeds: streams that stand in the engine without a first token, the TTFT objective
where one is set, refusals and failures, and the signs of a full KV cache.

One decision a window, one cut per drain: after a cut, nothing is judged until the excess has left the engine, and the
pace that was measured with the excess inside is forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from gateway.admission.config import LimitConfig
from gateway.admission.window import TTFT_SPAN, LowBase, Ratio, Window

ENOUGH_TOKENS: Final = 100  # a decision needs tokens, not only time
ENOUGH_TTFT: Final = 10
ENOUGH_DROPS: Final = 3
PATIENCE: Final = 5  # windows after which a decision is made on whatever is there
STALE_WINDOWS: Final = 5
KV_FULL: Final = 0.95

Change = tuple[str, str]  # (direction, reason): ("down", "pace")


class Limit(Protocol):
    """A number of requests and a number of tokens, and what moves them."""

    value: float
    tokens: float
    changes: Counter[Change]
    pace: Ratio
    target: float | None

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Decide if a decision is due. ``kv_usage``: the engine's own gauge, None where unknown or old."""

    def learn_capacity(self, kv_tokens: int) -> None:
        """The engine says how many tokens its KV cache holds."""

    def reopen(self) -> None:
        """The backend was dead and lives again."""


class FixedLimit:
    """A limit that the operator set. It only measures."""

    def __init__(self, value: int, config: LimitConfig) -> None:
        self._period = config.window
        self.value = float(value)
        self.tokens = inf if config.token_limit is None else float(config.token_limit)
        self.changes: Counter[Change] = Counter()
        self.pace = Ratio(0.25)
        self.target: float | None = None

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Keep the measured pace current."""
        del kv_usage
        if now - window.start >= self._period:
            if window.new_tokens:
                self.pace.add(window.new_seconds, window.new_tokens)
            elif window.whole_tokens:
                self.pace.add(window.whole_seconds, window.whole_tokens)
            window.restart(now)

    def learn_capacity(self, kv_tokens: int) -> None:
        """It stays as set."""

    def reopen(self) -> None:
        """It stays as set."""


@dataclass(slots=True)
class Reading:
    """What one window says. ``over``: measured over wanted, above 1 is too much, 0 says nothing."""

    over: float = 0.0
    reason: str = "pace"
    bound: bool = False  # the limit, and nothing else, kept more from running

    def worsen(self, over: float, reason: str) -> None:
        """Take a second signal: the worse one counts."""
        if over > self.over:
            self.over, self.reason = over, reason


class AdaptiveLimit:
    """The adaptive law. All constants were measured in simulation; the evidence is in ARCHITECTURE.md."""

    def __init__(self, config: LimitConfig) -> None:
        self._config = config
        self._slow = True  # doubling, until the first cut
        self._settling = False  # a cut is draining
        self._stale = 0  # windows at the floor with the pace still over
        self._whole = False  # most answers come in one piece
        self._period = config.window
        self._guard = TokenGuard(config.token_limit)
        self.value = float(min(max(config.initial, config.minimum), config.maximum))
        self.tokens = self._guard.value
        self.changes: Counter[Change] = Counter()
        self.pace = Ratio(0.25)
        self.target: float | None = None

    def learn_capacity(self, kv_tokens: int) -> None:
        """Bound the predicted tokens by nine tenths of the engine's KV cache, unless a bound was learned already."""
        self._guard.learn_capacity(kv_tokens)
        self.tokens = self._guard.value

    def reopen(self) -> None:
        """Grow fast again: what drove the limit down was the backend's death, not its load."""
        self._slow = True

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Decide if a decision is due."""
        age = now - window.start
        if age < self._period or not (self._enough(window) or age > PATIENCE * self._period):
            return
        self._decide(window, kv_usage, now)
        window.restart(now)

    def _enough(self, window: Window) -> bool:
        return (
            window.new_tokens >= ENOUGH_TOKENS
            or (self._whole and window.whole_tokens >= ENOUGH_TOKENS)
            or len(window.ttft) >= ENOUGH_TTFT
            or window.drops >= ENOUGH_DROPS
        )

    def _decide(self, window: Window, kv_usage: float | None, now: float) -> None:
        self._choose_mode(window)
        reading = self._read_pace(window)
        self._read_standing(window, reading)
        self._read_ttft(window, reading, now)
        settled = not self._settling
        if self._settling and window.inflight <= self.value + 1:
            self._settling = False
            self.pace = Ratio(0.25)
        window.count_silent(now)
        if change := self._guard.decide(window, kv_usage):
            self.changes[change] += 1
        self.tokens = self._guard.value
        if settled:
            self._move(window, reading, now)
        self._refresh_stale_base(window, reading)

    def _choose_mode(self, window: Window) -> None:
        answers = window.stream_answers + window.whole_answers
        if answers:
            whole = window.whole_answers > window.stream_answers
            if whole is not self._whole:
                self._whole = whole
                self.pace = Ratio(0.25)
        self._period = max(self._config.window, 0.5 * window.e2e) if self._whole and window.e2e else self._config.window

    def _read_pace(self, window: Window) -> Reading:
        seconds, tokens = window.new_seconds, float(window.new_tokens)
        base, tolerance = window.base_stream.value, self._config.tolerance
        if self._whole and tokens < ENOUGH_TOKENS:
            seconds, tokens = window.whole_seconds, window.whole_tokens
            base, tolerance = window.base_whole.value, self._config.tolerance_non_streamed
        self.target = self._target(base, tolerance)
        if tokens <= 0 or not self.target:
            if tokens > 0:
                self.pace.add(seconds, tokens)
            return Reading()
        if window.blameless and seconds / tokens > self.target:
            return Reading()
        self.pace.add(seconds, tokens)
        pace = self.pace.seconds / self.pace.tokens
        return Reading(pace / self.target, bound=self._bound(window, base, pace, self.target))

    def _target(self, base: float | None, tolerance: float) -> float | None:
        if self._config.tpot_objective is not None:
            return self._config.objective_headroom * self._config.tpot_objective
        return None if base is None else tolerance * base

    def _bound(self, window: Window, base: float | None, pace: float, target: float) -> bool:
        if window.full and window.full >= 0.3 * window.arrivals:
            return True
        n = window.busy_sum / window.ticks if window.ticks else 0.0
        if base is None or n <= 0 or n < 0.4 * self.value:
            return False
        return base + (pace - base) * self.value / n < 0.85 * target  # pace is affine in n: room beyond the limit

    @staticmethod
    def _read_standing(window: Window, reading: Reading) -> None:
        # The least of the window: a queue inside the engine that never empties is useless for throughput.
        inflight = window.inflight
        if window.standing < inf and window.standing >= max(1.0, 0.02 * inflight):
            moving = inflight - window.standing
            reading.worsen(inflight / moving if moving > 0 else inf, "standing")

    @staticmethod
    def _read_ttft(window: Window, reading: Reading, now: float) -> None:
        ttft = window.ttft
        while ttft and ttft[0][0] < now - TTFT_SPAN:
            ttft.popleft()
        if len(ttft) >= ENOUGH_TTFT:
            # At most a tenth: long prompts that collide are not cured by a deep cut.
            ratios = sorted(ratio for _, ratio in ttft)
            reading.worsen(min(1.1, ratios[int(0.9 * (len(ratios) - 1))]), "ttft")

    def _move(self, window: Window, reading: Reading, now: float) -> None:
        answers = window.stream_answers + window.whole_answers
        if window.drops >= ENOUGH_DROPS and window.drops > 0.1 * (window.drops + answers):
            self._cut(0.7, "drops", window, now)
        elif reading.over > 1:
            self._cut(min(max(1 / reading.over, 0.7), 0.95), reading.reason, window, now)
        elif reading.over > 0 and reading.bound:
            self._raise(reading.over, window, now)

    def _cut(self, factor: float, reason: str, window: Window, now: float) -> None:
        self._slow = False
        self._settling = True
        window.cut_at = now
        window.ttft.clear()
        self._set(self.value * factor, ("down", reason))

    def _raise(self, over: float, window: Window, now: float) -> None:
        if self._slow:
            step = 2.0 if over < 0.5 else 1.2 if over < 0.8 else 1.05  # noqa: PLR2004 - the law's own steps
            if self._whole:
                window.cut_at = now  # completions lag: count only answers to what is sent from now on
            self._set(self.value * step, ("up", "slow_start"))
        else:
            share = 1.0 if over < 0.8 else 0.4  # noqa: PLR2004 - the law's own steps
            self._set(self.value + max(1.0, 0.05 * self.value) * share, ("up", "room"))

    def _set(self, value: float, change: Change) -> None:
        value = min(max(value, float(self._config.minimum)), float(self._config.maximum))
        if value != self.value:
            self.value = value
            self.changes[change] += 1

    def _refresh_stale_base(self, window: Window, reading: Reading) -> None:
        at_floor = self.value <= max(2, self._config.minimum) and reading.over > 1
        self._stale = self._stale + 1 if at_floor and self._config.tpot_objective is None else 0
        if self._stale >= STALE_WINDOWS:
            # So few cannot be too many: it is the base that is wrong.
            window.base_stream, window.base_whole = LowBase(), LowBase()
            self._stale = 0


class TokenGuard:
    """The bound on predicted KV tokens in flight: a count of requests cannot bound what they hold.

    Without the engine's word it is infinite until streams stall while others go on (preemption seen from outside).
    """

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed is not None
        self.value = inf if fixed is None else float(fixed)
        self._bad = inf  # where it last went wrong

    FLOOR: Final = 2000.0

    def learn_capacity(self, kv_tokens: int) -> None:
        """The engine's KV cache in tokens; counts only where nothing is known yet."""
        if self.value == inf and kv_tokens > 0:
            self.value = max(self.FLOOR, 0.9 * kv_tokens)

    def decide(self, window: Window, kv_usage: float | None) -> Change | None:
        """Lower it where the cache is full, raise it slowly where it held requests back."""
        if self._fixed:
            return None
        few = max(1.0, 0.03 * window.inflight)
        thrash = window.stalls > few or window.preemptions > few or (kv_usage is not None and kv_usage > KV_FULL)
        if thrash and window.tokens <= 1.05 * self.value:
            self._bad = min(self.value, window.tokens)
            return self._to(max(self.FLOOR, 0.75 * self._bad), "down")
        if not thrash and self.value < inf and window.held_ticks >= 0.3 * window.ticks > 0:
            return self._to(self.value * (1.01 if self.value < 0.9 * self._bad else 1.002), "up")
        return None

    def _to(self, value: float, direction: str) -> Change | None:
        changed = value != self.value
        self.value = value
        return (direction, "kv") if changed else None
