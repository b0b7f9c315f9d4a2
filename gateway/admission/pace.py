"""The pace: seconds per output token, smoothed, and what it is on an unloaded engine."""

from __future__ import annotations

from math import sqrt
from typing import Final, NamedTuple


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


class Slope:
    """How much each request in flight adds to the pace, smoothed.

    The pace is affine in flight, ``base + slope * n``, so what was measured at one count holds at every other, and a
    change of the limit makes nothing of it stale.
    """

    __slots__ = ("_seconds", "_tokens", "_weighted", "alpha")

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self._seconds = 0.0
        self._tokens = 0.0
        self._weighted = 0.0  # tokens, each by the count in flight

    def add(self, seconds: float, tokens: float, inflight: float, weight: float = 1.0) -> None:
        """Take one window's sums, and how many were in flight. ``weight``: of the memory, as much as it says."""
        alpha = self.alpha * weight
        keep = 1.0 - alpha
        self._seconds = self._seconds * keep + seconds * alpha
        self._tokens = self._tokens * keep + tokens * alpha
        self._weighted = self._weighted * keep + inflight * tokens * alpha

    def rescale(self, share: float) -> None:
        """What is in flight here stands for ``share`` times as many at the same pace: others came or went."""
        self._weighted *= share

    def slow(self, times: float) -> None:
        """The engine takes so many times as long for everything."""
        self._seconds *= times

    def take(self, other: Slope) -> None:
        """Go on from what another one says."""
        self._seconds, self._tokens, self._weighted = other._seconds, other._tokens, other._weighted

    def __bool__(self) -> bool:
        """Whether it says anything yet."""
        return self._weighted > 0.0

    def beyond(self, base: float) -> float:
        """Seconds per token for each request in flight, beyond ``base``; at least a hundredth of a base among all."""
        return max(self._seconds - base * self._tokens, 0.01 * base * self._tokens) / self._weighted


class Start(NamedTuple):
    """What a line says: seconds to the first token, and seconds per token after it; ``doubt``: the former's error.

    ``steepest``: the pace where the line begins lower, by twice that.
    """

    start: float
    pace: float
    doubt: float
    steepest: float


class Line:
    """The straight line through answers in one piece: seconds over output tokens, by least squares; old ones fade.

    All streams of an engine go at one pace, so an answer takes ``start + pace * tokens``. The slope is the pace, and
    where the line begins is the time to the first token, which nobody saw.
    """

    __slots__ = ("_count", "_keep", "_spread", "_x", "_xx", "_xy", "_y", "_yy")

    ENOUGH: Final = 4.0  # answers, old ones counting less
    RECALLED: Final = 6
    SHORT: Final = 8  # tokens of the shortest of these; each further one is twice as long
    SPREAD: Final = 0.02  # of the tokens: variance over squared mean; with less there is no line

    def __init__(self, keep: float, spread: float = SPREAD) -> None:
        self._keep = keep
        self._spread = spread
        self._count = self._x = self._y = self._xx = self._xy = self._yy = 0.0  # sums: x tokens, y seconds

    def recall(self, start: float, pace: float) -> None:
        """Go on from a line that was found before, as if ``RECALLED`` answers had told it again."""
        for number in range(self.RECALLED):
            tokens = float(self.SHORT << number)
            self.add(tokens, start + pace * tokens)

    def fade(self) -> None:
        """Give what was added so far less weight."""
        keep = self._keep
        self._count *= keep
        self._x *= keep
        self._y *= keep
        self._xx *= keep
        self._xy *= keep
        self._yy *= keep

    def add(self, tokens: float, seconds: float) -> None:
        """Take one answer."""
        self._count += 1.0
        self._x += tokens
        self._y += seconds
        self._xx += tokens * tokens
        self._xy += tokens * seconds
        self._yy += seconds * seconds

    @property
    def value(self) -> Start | None:
        """None where it cannot be told: few answers, or all of one length."""
        count, x, y, xx, xy, yy = self._count, self._x, self._y, self._xx, self._xy, self._yy
        if count < self.ENOUGH:
            return None
        x, y = x / count, y / count
        variance = xx / count - x * x
        if variance < self._spread * x * x:
            return None
        slope = (xy / count - x * y) / variance
        pace = min(slope, y / x)
        if pace <= 0.0:
            return None
        scatter = max(0.0, yy / count - y * y - slope * slope * variance)
        start, doubt = y - pace * x, sqrt(scatter / count * (1.0 + x * x / variance))
        return Start(start, pace, doubt, (y - max(0.0, start - 2.0 * doubt)) / x)
