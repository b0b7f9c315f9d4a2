"""Whether an engine is suddenly much slower than it was: told within a second or two, long before answers end.

The law holds a pace against what is wanted of it and takes its time, for a single prompt stretches every gap. Where
there are other engines to go to, no more need be known than that this one gives far less than it lately did, and that
needs no target: seconds that passed against the seconds that what came in them used to take. The difference is summed
and never falls below nothing (CUSUM: Page 1954), so that one long step counts as much as many that are a little long.
"""

from __future__ import annotations

from math import exp
from typing import Final

from gateway.admission.window import LOW_CONCURRENCY, TICK, Window

TOLERATED: Final = 2.5  # times as slow as before: so much other traffic may do
BEHIND: Final = 0.75  # seconds of a sum beyond that
STEPS: Final = 3.0  # or so many times what a token took, where that is more: a slow engine says little in a second
SPAN: Final = 20.0  # seconds that the pace of before goes back, in the mean
KEEP: Final = exp(-TICK / SPAN)
ENOUGH: Final = 100.0  # tokens after which there is a pace of before


class Lag:
    """One engine. ``behind``: it is far slower than it was."""

    __slots__ = ("_read", "_seconds", "_seen", "_sum", "_tokens", "_weighted", "behind")

    def __init__(self) -> None:
        self._seconds = 0.0  # of all streams that had begun, tokens in them, and these times the streams: they fade
        self._tokens = 0.0
        self._weighted = 0.0
        self._seen = 0  # tokens and prompt tokens as of the last tick
        self._read = 0.0
        self._sum = 0.0
        self.behind = False

    def tick(self, window: Window, streams: int) -> None:
        """Judge the last 100 ms. ``streams``: those in flight that had their first token."""
        tokens, read = window.stream_tokens - self._seen, window.read - self._read
        self._seen, self._read = window.stream_tokens, window.read
        if streams and self._tokens >= ENOUGH:
            self._judge(window, streams, tokens, read)
        else:
            self._sum = max(0.0, self._sum - TICK)
            self.behind = self._sum > BEHIND
        if streams:
            self._seconds = KEEP * self._seconds + streams * TICK
            self._tokens = KEEP * self._tokens + tokens
            self._weighted = KEEP * self._weighted + streams * tokens

    def _judge(self, window: Window, streams: int, tokens: int, read: float) -> None:
        """Count what came by what it used to take, and prompts by the pace at which they are read alone.

        A pace is at most in proportion to the streams, for it is affine in them.
        """
        reading, unread = window.reading_pace.value, window.unread_tokens
        if reading is None:
            if read or unread:
                self._sum, self.behind = 0.0, False  # nobody knows what they take
                return
            reading = 0.0
        each = max(self._seconds / self._tokens, streams * self._seconds / self._weighted)
        took = tokens * each / streams + read * reading
        least = max(BEHIND, STEPS * each)
        excused = TOLERATED * unread * reading  # they are being read
        more = TICK - TOLERATED * took
        if streams < LOW_CONCURRENCY:
            more = min(more, 0.0)  # a few may be silent of their own
        self._sum = max(0.0, min(self._sum + more, 2.0 * least + excused))
        self.behind = self._sum > least + excused
