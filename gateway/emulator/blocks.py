"""The KV pool of an engine in blocks, with vLLM's prefix cache on it.

A block that is full has a hash, which stands for its tokens and all before them; whoever asks for a prompt that begins
with the same blocks shares them. A block that nobody uses any more keeps what it holds until it is needed: of those the
one least recently used goes first, and of one request the last blocks before the first ones, for a prefix is of use
without what follows it and not the other way round (vllm/v1/core/block_pool.py, kv_cache_manager.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Prefix:
    """What a request has in common with others, as far as anybody knows: a chained hash for each full block.

    ``blocks`` are of the engine's block size and cover the prompt and, where it is known, the answer that will follow
    it. ``cached`` is set by the engine when it first reads the prompt: the tokens of it that it had.
    """

    blocks: Sequence[int]
    cached: int = 0


def chained(tokens: Sequence[Hashable], size: int) -> list[int]:
    """The chained hash of each full block of ``size`` tokens; the same in one process only."""
    blocks, block = [], 0
    for start in range(0, len(tokens) - size + 1, size):
        block = hash((block, *tokens[start : start + size]))
        blocks.append(block)
    return blocks


class Blocks:
    """``free`` of them can be taken, those that still hold something among them."""

    def __init__(self, count: int) -> None:
        """All free, and blank."""
        self.free = count
        self._users: dict[int, int] = {}  # of those that are known: how many requests use them
        self._idle: OrderedDict[int, None] = OrderedDict()  # known and free, the least recently used first

    def known(self, blocks: Sequence[int], most: int) -> int:
        """How many of the first ``most`` of ``blocks`` are here, in one piece from the start."""
        users, idle = self._users, self._idle
        for count, block in enumerate(blocks[:most]):
            if block not in users and block not in idle:
                return count
        return min(most, len(blocks))

    def left(self, shared: Sequence[int]) -> int:
        """How many can be taken beside ``shared``, which are known."""
        return self.free - sum(block in self._idle for block in shared)

    def share(self, blocks: Sequence[int]) -> None:
        """Use blocks that are known."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
                self.free -= 1
            self._users[block] = self._users.get(block, 0) + 1

    def take(self, count: int) -> None:
        """Take blank ones; where there are too few, forget what was not used for longest."""
        self.free -= count
        while len(self._idle) > self.free:
            self._idle.popitem(last=False)

    def publish(self, block: int) -> bool:
        """Let others find one of those taken under this hash; False where another is found under it."""
        if block in self._users or block in self._idle:
            return False
        self._users[block] = 1
        return True

    def give_back(self, known: Sequence[int], others: int) -> None:
        """Use them no longer: those shared or published, and so many others."""
        for block in reversed(known):
            users = self._users.pop(block) - 1
            if users:
                self._users[block] = users
            else:
                self._idle[block] = None
                self.free += 1
        self.free += others
