"""Routers as others have them: the engine is chosen when a request arrives, by a rule that knows of no limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from gateway.admission.config import AdmissionConfig
from gateway.model import BLOCK_BYTES, Backend
from gateway.simulator.clients import Attempt, Front
from gateway.simulator.fleet import Node
from gateway.simulator.fronts import Gateway
from gateway.simulator.workload import BLOCK_TOKENS, Want
from gateway.simulator.world import World


class Rule(Protocol):
    """Chooses one of the engines, which are numbered."""

    def choose(self, loads: Sequence[int], want: Want) -> int:
        """``loads``: requests that each engine has, those that wait for it included."""


class RoundRobin:
    """Each in its turn."""

    def __init__(self, _chance: Random) -> None:
        self._last = -1

    def choose(self, loads: Sequence[int], want: Want) -> int:  # noqa: ARG002
        self._last = (self._last + 1) % len(loads)
        return self._last


class LeastLoad:
    """The fewest requests; of equals, any."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def choose(self, loads: Sequence[int], want: Want) -> int:  # noqa: ARG002
        least = min(loads)
        return self._chance.choice([place for place, load in enumerate(loads) if load == least])


class RandomOfTwo:
    """Of two that are drawn the one with fewer requests (Mitzenmacher 2001)."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def choose(self, loads: Sequence[int], want: Want) -> int:  # noqa: ARG002
        return min(self._chance.sample(range(len(loads)), 2), key=lambda place: loads[place])


class PrefixAffinity:
    """Rendezvous hashing of the conversation, without a bound: nothing else finds more in the caches."""

    def __init__(self, _chance: Random) -> None:
        """Nothing is drawn."""

    def choose(self, loads: Sequence[int], want: Want) -> int:
        session = int(want.session.rpartition("-")[2] or want.id)
        return max(range(len(loads)), key=lambda place: hash((session, place, 0x9E3779B97F4A7C15)))


class CacheAware:
    """SGLang's router, as documented (docs/router/router.md; the thresholds are those of its successor, smg).

    Balanced: the worker whose tree of earlier requests has most of the prompt, if that is more than
    ``cache_threshold`` of it, else the one with the smallest tree. Imbalanced (the most loaded has over
    ``balance_abs_threshold`` more requests than the least loaded, and over ``balance_rel_threshold`` times as many):
    the least loaded.
    """

    cache_threshold: Final = 0.3
    balance_abs_threshold: Final = 64
    balance_rel_threshold: Final = 1.5
    max_tree_size: Final = (1 << 24) // BLOCK_BYTES  # its default, in characters

    def __init__(self, _chance: Random) -> None:
        self._trees: dict[int, OrderedDict[int, None]] = {}

    def choose(self, loads: Sequence[int], want: Want) -> int:
        blocks = want.blocks[: want.prompt_tokens // BLOCK_TOKENS]
        place = self._place(loads, blocks)
        tree = self._trees[place]
        for block in reversed(blocks):
            tree[block] = None
            tree.move_to_end(block)
        while len(tree) > self.max_tree_size:
            tree.popitem(last=False)
        return place

    def _place(self, loads: Sequence[int], blocks: Sequence[int]) -> int:
        places = range(len(loads))
        trees = [self._trees.setdefault(place, OrderedDict()) for place in places]
        most, least = max(loads), min(loads)
        if most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least:
            return loads.index(least)
        matches = [next((n for n, block in enumerate(blocks) if block not in tree), len(blocks)) for tree in trees]
        if blocks and max(matches) > self.cache_threshold * len(blocks):
            return max(places, key=lambda place: (matches[place], -loads[place]))
        return min(places, key=lambda place: len(trees[place]))


class Split:
    """Shares that are set by hand: smooth weighted round robin, as nginx has it."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self._credit = [0.0] * len(weights)

    def choose(self, loads: Sequence[int], want: Want) -> int:  # noqa: ARG002
        self._credit = [credit + weight for credit, weight in zip(self._credit, self._weights, strict=True)]
        place = max(range(len(loads)), key=self._credit.__getitem__)
        self._credit[place] -= sum(self._weights)
        return place


RIVALS: Final[dict[str, Callable[[Random], Rule]]] = {
    "round robin": RoundRobin,
    "least load": LeastLoad,
    "random of two": RandomOfTwo,
    "prefix affinity": PrefixAffinity,
    "cache_aware": CacheAware,
}


class Engine(Front, Protocol):
    """One engine as a router sees it, with a gateway of its own or without."""

    @property
    def present(self) -> int:
        """Requests that it has, those that wait for it included."""


class Router:
    """A router before engines."""

    def __init__(self, engines: Sequence[Engine], rule: Rule) -> None:
        self._engines = engines
        self._rule = rule
        self._whose: dict[Attempt, Engine] = {}

    def send(self, attempt: Attempt) -> None:
        place = self._rule.choose([engine.present for engine in self._engines], attempt.call.want)
        self._whose[attempt] = engine = self._engines[place]
        engine.send(attempt)

    def leave(self, attempt: Attempt) -> None:
        self._whose[attempt].leave(attempt)


def guarded(world: World, nodes: Sequence[Node], config: AdmissionConfig) -> dict[str, Gateway]:
    """Before each engine the same admission as ours, its own: what differs is who chooses, by what, and when."""
    return {
        node.name: Gateway(world, [node], [Backend(node.name, f"http://{node.name}")], config, node.name)
        for node in nodes
    }
