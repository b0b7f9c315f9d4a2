"""What draws a request to one backend before others: a name that belongs there, or a prompt that is cached there.

*Sessions* are placed by rendezvous hashing (Thaler and Ravishankar 1998), weighted (Schindelhauer and Schomaker 2005):
each backend draws a number from its name and the session's, and the highest has it. One that joins takes its share
from all others, one that leaves gives its own to all of them, and nobody else moves. No table, so that several gateways
agree without a word.

*Prefixes* need to be known: an engine has in its cache what was sent to it last. ``CacheMap`` has an approximate
picture of that, one LRU of block hashes for each backend, no larger than its engine's cache, and one index over all, so
that the longest match among any number of backends is found by bisection. Replies that count cached tokens correct it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from math import log
from typing import Final

HELD_MOST: Final = 16_384  # blocks of one backend's picture: 8 MiB of text, two million tokens
HELD_UNKNOWN: Final = 4_096  # where the engine does not say how much its cache holds
HELD_LEAST: Final = 64
SESSIONS: Final = 16_384  # whose last backend is remembered
SURE: Final = 0.5  # of the tokens expected: fewer were cached, and what was thought to be there was not
SHRINK: Final = 0.9  # of the picture, each time
GROW: Final = 1.02
TRUST: Final = 0.1  # weight of the last reply in how much of what is expected is found
BELIEVED: Final = 0.1  # of what is expected: where less is found, nothing is looked for
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_SPAN: Final = float(1 << 64)


def digest(name: str) -> int:
    """64 bits of a name, the same in every process and on every machine."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def rendezvous(session: int, names: Sequence[int], weights: Sequence[float]) -> int:
    """Index of the place that ``session`` belongs to; names are digests, weights above 0.

    The weighted form: the least of exponential variates, each with its weight for its rate. A variate is drawn by
    multiplicative hashing (Knuth 6.4) of what the session's digest and the name's differ in.

    Raises:
        ValueError: there is no place.
    """
    golden, mask = _GOLDEN, _MASK
    draws = [(session ^ name) * golden & mask for name in names]
    if names and weights.count(weights[0]) == len(weights):
        return draws.index(max(draws))
    costs = [-log((draw + 0.5) / _SPAN) / weight for draw, weight in zip(draws, weights, strict=True)]
    return costs.index(min(costs))


class Cache:
    """The picture of one engine's cache: hashes of blocks, the last used last. ``bit`` is its place in the index."""

    __slots__ = ("bit", "blocks", "capacity", "known", "trust")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.capacity = float(HELD_UNKNOWN)
        self.known: float | None = None  # what the engine says that it can hold
        self.trust = 1.0  # share of what is expected that is found, lately


class CacheMap:
    """Which backends have which blocks, as far as can be told from what was sent to them."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # block -> bits of the backends that have it
        self._free: list[int] = []
        self.doubted = 0  # bits of engines in whose caches next to nothing was found of what was thought to be there
        self._homes: OrderedDict[str, int] = OrderedDict()  # session -> bit of the backend that had its last request
        self._next = 0

    def join(self) -> Cache:
        """A picture of one engine more, empty."""
        if self._free:
            return Cache(self._free.pop())
        self._next += 1
        return Cache(1 << (self._next - 1))

    def leave(self, cache: Cache) -> None:
        """Forget an engine."""
        self.clear(cache)
        for session in [session for session, bit in self._homes.items() if bit == cache.bit]:
            del self._homes[session]
        self.doubted &= ~cache.bit
        self._free.append(cache.bit)

    def clear(self, cache: Cache) -> None:
        """The engine lost what it had: it died."""
        for block in cache.blocks:
            self._drop(block, cache.bit)
        cache.blocks.clear()

    def home(self, session: str) -> int:
        """Bit of the backend that had the last request of a session, 0 where that is not known."""
        return self._homes.get(session, 0)

    def settle(self, session: str, cache: Cache) -> None:
        """A request of this session was sent to the engine."""
        homes = self._homes
        homes[session] = cache.bit
        homes.move_to_end(session)
        if len(homes) > SESSIONS:
            homes.popitem(last=False)

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]

    def longest(self, blocks: Sequence[int], among: int) -> tuple[int, int]:
        """How many leading blocks any backend of the bits ``among`` has, and the bits of those that have them all.

        By bisection: engines and pictures drop the end of a prefix before its beginning.
        """
        holders = self._holders
        low, high, found = 0, len(blocks), among
        while low < high:
            middle = (low + high) >> 1
            here = holders.get(blocks[middle], 0) & among
            if here:
                low, found = middle + 1, here
            else:
                high = middle
        return low, found

    def note(self, cache: Cache, blocks: Sequence[int]) -> None:
        """A prompt was sent to the engine: it has these blocks now, and has dropped what was used longest ago."""
        held, bit, holders = cache.blocks, cache.bit, self._holders
        for block in reversed(blocks):  # the end of a prefix goes first, as engines have it
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                holders[block] = holders.get(block, 0) | bit
        self._trim(cache)

    def _trim(self, cache: Cache) -> None:
        held = cache.blocks
        for _ in range(len(held) - int(cache.capacity)):
            block, _ = held.popitem(last=False)
            self._drop(block, cache.bit)

    def hold(self, cache: Cache, blocks: float) -> None:
        """The engine's cache has room for so many blocks."""
        if cache.known != blocks:
            cache.known = blocks
            cache.capacity = min(max(blocks, HELD_LEAST), HELD_MOST)
            self._trim(cache)

    def correct(self, cache: Cache, expected: float, reported: float) -> None:
        """A reply counts ``reported`` cached tokens where ``expected`` ones were thought to be there.

        An engine that has less has dropped more than is thought: the oldest goes from the picture. One that has all of
        it, or what nothing is known of, may hold more. One that never has what is expected does not cache at all.
        """
        most = HELD_MOST if cache.known is None else min(max(cache.known, HELD_LEAST), HELD_MOST)
        if expected > 0.0:
            found = min(1.0, reported / expected)
            cache.trust += TRUST * (found - cache.trust)
            doubted = self.doubted & ~cache.bit
            self.doubted = doubted if cache.trust >= BELIEVED else doubted | cache.bit
            if found < SURE:
                cache.capacity = max(min(cache.capacity, len(cache.blocks)) * SHRINK, HELD_LEAST)
                self._trim(cache)
                return
        if reported > 0.0 and reported >= expected:
            cache.capacity = min(cache.capacity * GROW, most)
