"""Conversations, whose prompts begin with what was said before: what a prefix cache, and affinity to it, lives from."""

from __future__ import annotations

import csv
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from gateway.simulator.workload import BLOCK_TOKENS, DATA, WORKLOADS, Arrival, Want

MOONCAKE_BLOCK = 512  # tokens under one of its hashes
_SYSTEM, _CHAT, _TRACE = range(3)  # what a block is of: numbers, for the hash of a text differs from process to process


@dataclass(frozen=True, slots=True)
class Chats:
    """Users who talk in turns, each prompt with all that was said before.

    A turn says as much, and is answered as long, as the ``workload`` draws. There are ``turns`` in the mean
    (geometrically), and ``think`` seconds in the mean (exponentially) between an answer and the next question. Before
    them all stands one of ``systems`` system prompts of ``system_tokens`` (from, to); number k is 1/k as popular as the
    first (Zipf). A conversation ends before it would have more than ``at_most`` tokens.
    """

    workload: str = "sharegpt"
    turns: float = 5.0
    think: float = 12.0
    systems: int = 16
    system_tokens: tuple[int, int] = (200, 2000)
    at_most: int = 16_000


class Turn(NamedTuple):
    """One turn to come: seconds before it is said, and tokens."""

    think: float
    said: int
    answered: int


@dataclass(slots=True)
class Chat:
    """One conversation: all of it is drawn at its start, so that it does not hang on how it is served."""

    id: int
    system: int
    system_tokens: int
    turns: deque[Turn]
    stream: bool
    client: str
    tokens: int = 0  # so far

    def ask(self) -> Want:
        """The next turn; whoever is not answered does not ask again."""
        turn = self.turns.popleft()
        prompt = (self.tokens or self.system_tokens) + turn.said
        self.tokens = prompt + turn.answered
        number = self.id + len(self.turns)
        blocks = tuple(map(self._block, range(self.tokens // BLOCK_TOKENS)))
        return Want(number, prompt, turn.answered, self.stream, self.client, blocks, str(self.id))

    def _block(self, place: int) -> int:
        shared = (place + 1) * BLOCK_TOKENS <= self.system_tokens
        return hash((_SYSTEM, self.system, place) if shared else (_CHAT, self.id, place))


_LONGEST = 100  # turns


def chats(kind: Chats, seed: str, *, clients: int, streamed: float, first_id: int, label: str) -> Iterator[Chat]:
    """Draw conversations for ever."""
    chance = Random(f"chats/{seed}")
    lengths = WORKLOADS[kind.workload]()
    systems = range(kind.systems)
    sizes = [Random(number).randint(*kind.system_tokens) for number in systems]
    popularity = [1.0 / (number + 1) for number in systems]
    for number in itertools.count(first_id, _LONGEST):
        system = chance.choices(systems, popularity)[0]
        turns: deque[Turn] = deque()
        tokens = sizes[system]
        while len(turns) < _LONGEST:
            said, answered = chance.choice(lengths)
            tokens += said + answered
            if tokens > kind.at_most:
                break
            turns.append(Turn(chance.expovariate(1.0 / kind.think), said, answered))
            if chance.random() < 1.0 / kind.turns:
                break
        client = f"{label}-{chance.randrange(clients)}"
        if turns:
            yield Chat(number, system, sizes[system], turns, chance.random() < streamed, client)


class _Row(NamedTuple):
    at: float
    prompt_tokens: int
    output_tokens: int
    root: int  # the row with which the conversation began
    blocks: tuple[int, ...]  # of MOONCAKE_BLOCK tokens


@cache
def _trace() -> Sequence[_Row]:
    """Mooncake's conversations; ``data/README.md`` says how a row's predecessor is known."""
    rows: list[_Row] = []
    with (DATA / "mooncake_turns.csv").open() as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            prompt, output, shared = int(row["input_tokens"]), int(row["output_tokens"]), int(row["shared_blocks"])
            before = rows[int(row["follows"] or 0)] if number else None
            had = () if before is None else before.blocks[:shared]
            new = (hash((_TRACE, number, place)) for place in range(len(had), prompt // MOONCAKE_BLOCK))
            root = before.root if before is not None and row["follows"] else number
            rows.append(_Row(float(row["arrival_s"]), prompt, output, root, (*had, *new)))
    return rows


def mooncake(rate: float, until: float, seed: int, *, at_most: float = math.inf, speed: float = 4.0) -> list[Arrival]:
    """Whole conversations of Mooncake's trace, so many of them, and so much faster, that ``rate`` a second come.

    They go ``speed`` times as fast as they were recorded, or faster where all of them are too few; which are left out
    hangs on ``seed``. The trace has 987 s of its own time. Requests of more than ``at_most`` tokens are left out.
    """
    rows = [row for row in _trace() if row.prompt_tokens + row.output_tokens <= at_most]
    natural = len(rows) / rows[-1].at
    speed = max(speed, rate / natural / 0.9)
    kept = rate / natural / speed
    chance = Random(f"mooncake/{seed}")
    taken = {root: chance.random() < kept for root in sorted({row.root for row in rows})}
    return [
        Arrival(row.at / speed, row.prompt_tokens, row.output_tokens, _halved(row.blocks), f"trace-{row.root}")
        for row in rows
        if taken[row.root] and row.at / speed < until
    ]


def _halved(blocks: Sequence[int]) -> tuple[int, ...]:
    """In blocks of ``BLOCK_TOKENS``."""
    return tuple(hash((block, part)) for block in blocks for part in range(MOONCAKE_BLOCK // BLOCK_TOKENS))
