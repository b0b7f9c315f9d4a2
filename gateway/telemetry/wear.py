"""Whether an engine has become slower at the same load: throttling, fragmentation, a neighbour on the machine.

The pace at about so many requests in flight is remembered in blocks of half a minute. A block of now is held against
those of before, each carried to its level. The pace of a higher level stands as it is: an engine that is slower with
fewer in flight has surely become slower. That of a lower one, as when a slower engine has let requests pile up, goes on
as a continuous-batching engine's does, in a straight line. Of all these the better quarter is what the engine could do:
one that wears off slowly is not excused by what it was just before. Longer requests excuse as much more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from gateway.telemetry.ladder import rung

BLOCK: Final = 30.0  # seconds
ENOUGH: Final = 10  # answers of a block
RECENT: Final = 120.0  # seconds that count as now
BEFORE: Final = 180.0  # and from how long ago on as before
LONGEST: Final = 1800.0  # and up to when
_STEPS: Final = 4  # rungs to an octave
_KEPT: Final = 1_000  # blocks
_OPEN: Final = 256  # answers kept of a block under way
_BLOCKS: Final = 2  # of either time, at least
_FARTHEST: Final = 3.0  # times a level that was seen before: a straight line holds no further


class _Block(NamedTuple):
    """Medians of half a minute."""

    at: float
    whole: bool  # of answers that were not streamed
    level: float
    pace: float
    length: float


@dataclass(slots=True)
class _Open:
    began: float
    last: float
    answers: list[tuple[float, float, float]] = field(default_factory=list)  # level, pace, length


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Seconds per output token ``before`` and ``now`` at the same load, and their ``ratio``; a lower bound."""

    ratio: float
    before: float
    now: float


class PaceLog:
    """The paces of one backend."""

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque(maxlen=_KEPT)
        self._open: dict[tuple[bool, int], _Open] = {}

    def note(self, level: float, at: float, pace: float, length: float, *, whole: bool) -> None:
        """Take an answer: requests in flight meanwhile, its seconds a token, and the KV tokens of each of those."""
        key = whole, rung(max(1, int(level + 0.5)), _STEPS)
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = _Open(at, at)
        elif at - block.began >= BLOCK:
            if len(block.answers) >= ENOUGH:
                self._blocks.append(_Block(block.last, whole, *map(median, zip(*block.answers, strict=True))))
            block = self._open[key] = _Open(at, at)
        block.last = at
        if len(block.answers) < _OPEN:
            block.answers.append((level, pace, length))

    def slowdown(self, now: float, base: float | None) -> Slowdown | None:
        """How much slower the same load goes now; None where there is no comparison.

        ``base``: the pace of one stream alone, where it is known.
        """
        before = [block for block in self._blocks if now - LONGEST <= block.at < now - BEFORE]
        recent = [block for block in self._blocks if block.at >= now - RECENT]
        pairs = [(then, block.pace) for block in recent if (then := _expected(block, before, base)) is not None]
        if len(pairs) < _BLOCKS:
            return None
        longer = max(1.0, _length(recent) / max(1.0, _length(before)))
        then, pace = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
        return Slowdown(pace / then / longer, then * longer, pace)


def _length(blocks: Sequence[_Block]) -> float:
    return median(block.length for block in blocks)


def _expected(block: _Block, before: Sequence[_Block], base: float | None) -> float | None:
    """The pace that the level of ``block`` had before."""
    alike = [each for each in before if each.whole is block.whole and block.level <= _FARTHEST * each.level]
    if len(alike) < _BLOCKS:
        return None
    return sorted(_carried(each, block.level, None if block.whole else base) for each in alike)[len(alike) // 4]


def _carried(then: _Block, level: float, base: float | None) -> float:
    """The pace of ``then`` at ``level``."""
    if level <= then.level:
        return then.pace
    if base is None or then.level <= 1.0:
        return then.pace * level / then.level  # at most: as if a step cost nothing by itself
    return base + max(0.0, then.pace - base) * (level - 1.0) / (then.level - 1.0)
