"""The pace at every count in flight, ``base + slope * n``: how steep it is, and whether the engine became slower.

The base is seen at low concurrency only, and an engine that is throttled under load shows none. It shows it when it
drains: while nothing is sent and no prompt is read, the pace of each window lies on a line, and where the line begins
is the base. A slower engine takes longer for everything, so its slope is the one before, as many times steeper.
"""

from __future__ import annotations

from typing import Final

from gateway.admission.pace import Line, Slope
from gateway.admission.window import Window

MEMORY: Final = 0.15  # weight of the last window in the slope
USUAL: Final = 0.03  # and in the slope that an engine is known to have
DRAIN_SPREAD: Final = 0.002  # variance over squared mean of the counts in flight from which on they make a line
SLOWER: Final = 1.3  # times the base that is known, beyond doubt
FELT: Final = 1.25  # times the usual pace at this count: what makes a base higher makes the pace higher


class Growth:
    """What is known of one engine's pace as more run. Paces and bases in seconds per token."""

    def __init__(self) -> None:
        self._slope = Slope(MEMORY)
        self._usual = Slope(USUAL)
        self._drain = Line(1.0, DRAIN_SPREAD)
        self._slowed: float | None = None  # the base of an engine that became slower than the base that is known

    def forget(self) -> None:
        """Many more run from now on: what the last windows say is no measure."""
        self._slope = Slope(MEMORY)

    def rescale(self, share: float) -> None:
        """What is in flight here stands for ``share`` times as many at the same pace: others came or went."""
        self._slope.rescale(share)
        self._usual.rescale(share)

    def add(self, window: Window, inflight: float, base: float, *, climbs: bool, drains: bool) -> float:
        """Take one window, with the unloaded pace that is known (0: none); gives the one to reckon with.

        ``climbs``: more come than leave, below the limit. ``drains``: more are in flight than may be.
        """
        seconds, tokens = window.new_seconds, float(window.new_tokens)
        base = self._find_base(inflight, base, seconds / tokens, drains=drains and window.decodes)
        rest = window.resting if climbs else window.refilled
        self._usual.add(seconds, tokens, inflight, rest)
        self._slope.add(seconds, tokens, inflight, rest if climbs or self._slowed else 1.0)
        return base

    def beyond(self, base: float) -> float:
        """Seconds per token for each request in flight, beyond ``base``."""
        return self._slope.beyond(base)

    def _find_base(self, inflight: float, known: float, pace: float, *, drains: bool) -> float:
        if self._slowed is not None and known and (pace < self._slowed or known > self._slowed):
            if pace < self._slowed:
                self._change(self._slowed, known)
            self._slowed = None
        base = known if self._slowed is None else self._slowed
        if not drains:
            self._drain = Line(1.0, DRAIN_SPREAD)
            return base
        self._drain.add(inflight, pace)
        line = self._drain.value
        if line is None or not base or not self._usual:
            return base
        found = line.start - 2.0 * line.doubt
        felt = pace > FELT * (base + self._usual.beyond(base) * inflight)
        if found > SLOWER * base and felt:
            self._change(base, line.start)
            self._slowed = base = line.start
        return base

    def _change(self, before: float, after: float) -> None:
        self._usual.slow(after / before)
        self._slope.take(self._usual)
