"""Whether an engine has become slower at the same load: throttling, fragmentation, a neighbour on the machine.

The pace of each level of requests in flight is remembered in blocks of half a minute. A block of now is held against
the blocks of before at the same level or the next higher one: an engine that is slower with fewer requests in flight
has surely become slower. Where only lower levels were seen before, as when a slower engine has let requests pile up,
their pace is carried on to the level of now as a continuous-batching engine's goes, in a straight line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

BLOCK: Final = 30.0  # seconds
ENOUGH: Final = 10  # answers of a block
RECENT: Final = 120.0  # seconds that count as now
BEFORE: Final = 180.0  # and from how long ago on as before
_KEPT: Final = 1_000  # blocks
_OPEN: Final = 256  # answers kept of a block under way
_ALIKE: Final = 1.3  # requests whose contexts differ by more are no comparison
_BLOCKS: Final = 2  # of either time, at least
_FARTHEST: Final = 2.0  # times a level that was seen before: a straight line holds no further


class _Block(NamedTuple):
    at: float
    whole: bool  # of answers that were not streamed
    level: int
    pace: float
    context: float


@dataclass(slots=True)
class _Open:
    began: float
    last: float
    paces: list[float] = field(default_factory=list)
    contexts: list[float] = field(default_factory=list)


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

    def note(self, level: int, at: float, pace: float, context: float, *, whole: bool) -> None:
        """Take an answer: seconds per output token, and the tokens of prompt and output.

        ``level``: requests in flight meanwhile; levels that are to count as one have one number.
        """
        key = whole, level
        block = self._open.setdefault(key, _Open(at, at))
        if at - block.began >= BLOCK:
            if len(block.paces) >= ENOUGH:
                self._blocks.append(_Block(block.last, *key, median(block.paces), median(block.contexts)))
            block = self._open[key] = _Open(at, at)
        block.last = at
        if len(block.paces) < _OPEN:
            block.paces.append(pace)
            block.contexts.append(context)

    def slowdown(self, now: float, base: float | None) -> Slowdown | None:
        """How much slower the same load goes now; None where there is no comparison.

        ``base``: the pace of one stream alone, where it is known.
        """
        before = [block for block in self._blocks if block.at < now - BEFORE]
        pairs = [
            (then, block.pace)
            for block in self._blocks
            if block.at >= now - RECENT and (then := _expected(block, before, base)) is not None
        ]
        if len(pairs) < _BLOCKS:
            return None
        then, pace = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
        return Slowdown(pace / then, then, pace)


def _expected(block: _Block, before: Sequence[_Block], base: float | None) -> float | None:
    """The pace that the level of ``block`` had before."""
    alike = [
        each
        for each in before
        if each.whole is block.whole and block.context / _ALIKE <= each.context <= block.context * _ALIKE
    ]
    higher = [each.level for each in alike if each.level >= block.level]
    level = min(higher) if higher else max((each.level for each in alike), default=0)
    paces = [each.pace for each in alike if each.level == level]
    if len(paces) < _BLOCKS or block.level > _FARTHEST * level:
        return None
    pace = median(paces)
    if level >= block.level:
        return pace
    if base is None or block.whole or level == 1:
        return pace * block.level / level  # at most: as if a step cost nothing by itself
    return base + max(0.0, pace - base) * (block.level - 1) / (level - 1)
