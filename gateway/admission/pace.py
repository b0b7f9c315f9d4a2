"""The pace: seconds per output token, smoothed, and what it is on an unloaded engine."""

from __future__ import annotations

from typing import Final


class LowBase:
    """The unloaded pace: a low percentile of samples taken at low concurrency.

    Fewer than 5 samples tell nothing; fewer than 30 give their P10; each full batch of 30 gives its P10 and may raise
    the value by at most a tenth, or lower it at once. P10 and not the mean: a cold start has other prompts' prefill in
    its samples. P10 and not the minimum: one freak sample must not stand for the engine.

    Samples that are doubted (others load the engine too) are better than none, and never more than that: where a sound
    value is known they are left out, and the first sound ones take the place of all of them.
    """

    __slots__ = ("_batch", "_before", "_value", "doubtful")

    FEW: Final = 5
    BATCH: Final = 30
    RISE: Final = 1.1

    def __init__(self) -> None:
        self._batch: list[float] = []
        self._value: float | None = None
        self._before: float | None = None  # what holds until there are enough samples
        self.doubtful = False

    def recall(self, value: float) -> None:
        """Go on from a value that was learned before."""
        self._batch.clear()
        self._value, self.doubtful = value, False

    def add(self, sample: float, *, doubtful: bool = False) -> None:
        """Take one sample in seconds per token."""
        if doubtful is not self.doubtful:
            if doubtful and self.value is not None:
                return
            self._before, self._value, self.doubtful = self.value, None, doubtful
            self._batch.clear()
        batch = self._batch
        batch.append(sample)
        if len(batch) >= self.BATCH:
            low = self._low()
            self._value = low if self._value is None else min(low, self._value * self.RISE)
            batch.clear()

    def _low(self) -> float:
        return sorted(self._batch)[len(self._batch) // 10]

    @property
    def value(self) -> float | None:
        """Seconds per token, None before there are enough samples."""
        if self._value is None:
            return self._low() if len(self._batch) >= self.FEW else self._before
        return self._value


class Ratio:
    """Exponentially smoothed ratio of sums: seconds over tokens, each smoothed by itself.

    A mean of window means would give a window with few tokens (stretched by one long prefill) the weight of a full
    one. The ratio of sums is the token-weighted mean, and by Little's law concurrency over throughput.
    """

    __slots__ = ("alpha", "seconds", "tokens")

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.seconds = 0.0
        self.tokens = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        """Take one window's sums."""
        keep = 1.0 - self.alpha
        self.seconds = self.seconds * keep + seconds * self.alpha
        self.tokens = self.tokens * keep + tokens * self.alpha

    @property
    def value(self) -> float | None:
        """Seconds per token, None before the first token."""
        return self.seconds / self.tokens if self.tokens > 0 else None
