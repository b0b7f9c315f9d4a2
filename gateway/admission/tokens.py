"""How many predicted KV tokens may be in flight on one backend."""

from __future__ import annotations

from math import inf
from typing import Final

from gateway.admission.window import Window

KV_FULL: Final = 0.95

Change = tuple[str, str]  # (direction, reason): ("down", "pace")


class TokenGuard:
    """The bound on predicted KV tokens in flight: a count of requests cannot bound what they hold.

    Two bounds, and the lower one counts. One is learned from what was seen: streams that stall while others go on,
    preemptions counted. The other rests on the engine's gauges, and is forgotten when they are no longer heard.
    """

    FLOOR: Final = 2000.0

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed is not None
        self._seen = inf if fixed is None else float(fixed)
        self._bad = inf  # where it last went wrong
        self._capacity: float | None = None
        self._hinted = inf

    @property
    def value(self) -> float:
        """Predicted tokens that may be in flight."""
        return min(self._seen, self._hinted)

    @property
    def learned(self) -> float | None:
        """What was learned from what was seen; None where nothing was."""
        return None if self._fixed or self._seen == inf else self._seen

    def recall(self, learned: float) -> None:
        """Go on from what was learned before."""
        if not self._fixed:
            self._seen = self._bad = max(self.FLOOR, learned)

    def rescale(self, share: float, fixed: int | None) -> None:
        """Bound ``share`` times as much from now on; ``fixed`` is the new bound where one is set."""
        if fixed is not None:
            self._seen = float(fixed)
            return
        self._seen, self._bad, self._hinted = self._seen * share, self._bad * share, self._hinted * share
        if self._capacity is not None:
            self._capacity *= share

    def learn_capacity(self, kv_tokens: int) -> None:
        """The engine's KV cache in tokens."""
        if not self._fixed and kv_tokens > 0:
            self._capacity = float(kv_tokens)
            self._hinted = min(self._hinted, self._most_hinted)

    @property
    def _most_hinted(self) -> float:
        return inf if self._capacity is None else max(self.FLOOR, 0.9 * self._capacity)

    def decide(self, window: Window, kv_usage: float | None) -> Change | None:
        """Lower it where the cache is full, raise it slowly where it held requests back."""
        if self._fixed:
            return None
        before = self.value
        few = max(1.0, 0.03 * window.inflight)
        if window.preemptions > few or (window.stalls > few and self._could_be_full(window)):
            if window.tokens <= 1.05 * before:
                self._bad = min(before, window.tokens)
                self._seen = max(self.FLOOR, 0.75 * self._bad)
        elif self._seen < inf and window.held_ticks >= 0.3 * window.ticks:
            self._seen *= 1.01 if self._seen < 0.9 * self._bad else 1.002
        self._heed(window, kv_usage)
        after = self.value
        return None if after == before else ("down" if after < before else "up", "kv")

    def _could_be_full(self, window: Window) -> bool:
        """A stall is a sign of a full cache only where what we hold could fill it; otherwise it is the network's."""
        return self._capacity is None or window.tokens >= 0.5 * self._capacity

    def _heed(self, window: Window, kv_usage: float | None) -> None:
        """A gauge alone never halts: it is believed only while we ourselves could have filled half of the cache."""
        if kv_usage is None:
            self._hinted = self._most_hinted
        elif kv_usage <= KV_FULL:
            self._hinted = min(self._hinted * 1.05, self._most_hinted)
        elif self._capacity is not None and self._could_be_full(window) and window.tokens <= 1.05 * self.value:
            self._hinted = 0.75 * min(self._hinted, window.tokens)
