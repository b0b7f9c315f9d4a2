"""What is asked for: lengths of real requests, and when they arrive."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

Lengths = tuple[int, int]  # prompt tokens, output tokens
A_DOCUMENT = 4_000  # tokens, at least
DATA = Path(__file__).parent / "data"
BLOCK_TOKENS = 128  # under one hash of a prompt: what ``model.BLOCK_BYTES`` are at four bytes a token


class Arrival(NamedTuple):
    """One request of a trace: when, seconds from its start, and how long. Tokens.

    ``blocks`` and ``session`` as in ``Want``.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: str = ""


@cache
def _table(name: str) -> tuple[Arrival, ...]:
    with (DATA / f"{name}.csv").open() as lines:
        return tuple(
            Arrival(float(row.get("arrival_s", 0)), int(row["input_tokens"]), int(row["output_tokens"]))
            for row in csv.DictReader(lines)
        )


def rows(name: str) -> tuple[Lengths, ...]:
    """The lengths of one file of ``data/``."""
    return tuple((row.prompt_tokens, row.output_tokens) for row in _table(name))


def _scaled(name: str, prompt: float, output: float, at_most: float = math.inf) -> Sequence[Lengths]:
    taken = [row for row in rows(name) if row[0] <= at_most]
    return [(max(1, round(p * prompt)), max(1, round(o * output))) for p, o in taken]


def _uniform(prompt: tuple[int, int], output: tuple[int, int]) -> Sequence[Lengths]:
    """A fixed sample of evenly spread lengths, drawn once: the same for every run."""
    chance = Random(0)
    return [(chance.randint(*prompt), chance.randint(*output)) for _ in range(1000)]


WORKLOADS: dict[str, Callable[[], Sequence[Lengths]]] = {
    # First turns as vLLM's benchmark samples them from ShareGPT: mean 215 in, 198 out (vllm/benchmarks, 1000 prompts).
    "sharegpt": lambda: _scaled("sharegpt_lengths_short", 0.57, 0.475),
    # Turns with their history: mean 2313 in, 441 out.
    "sharegpt-history": lambda: _scaled("sharegpt_lengths", 1.0, 1.0),
    # Documents: 4K to 16K in, a chat's answer out.
    "documents": lambda: [row for row in _scaled("mooncake_conversation", 1.0, 1.0, 16_000) if row[0] >= A_DOCUMENT],
    # Long context: mean 14,000 in, up to 120,000; mean 345 out.
    "long-context": lambda: rows("mooncake_conversation"),
    # Code completion: long prompt, a line or two of output (mean 2073 in, 29 out).
    "code": lambda: rows("azure2023_code"),
    "conversation": lambda: rows("azure2023_conv"),
    # A small model's production traffic: mean 124 in, 21 out.
    "short-calls": lambda: rows("servegen_m-small"),
    # A reasoning model's: mean 1027 in, 800 out, up to 34,000 together.
    "reasoning": lambda: rows("servegen_deepseek-r1"),
    # Five to eight seconds of speech at 13 tokens a second, and its transcript (as gateway/emulator/scenario.py).
    "asr": lambda: _uniform((60, 109), (12, 21)),
    # A line or two in, a few lines out.
    "notes": lambda: _uniform((50, 200), (20, 80)),
    # The context window of Llama 3 filled: one of these is half a minute of prefill on one A100.
    "128k": lambda: _uniform((120_000, 128_000), (100, 300)),
    # Every request the same: for figures that can be worked out by hand.
    "constant": lambda: [(100, 100)],
}

RECORDED = {
    "long-context": "mooncake_conversation",
    "code": "azure2023_code",
    "conversation": "azure2023_conv",
    "short-calls": "servegen_m-small",
    "reasoning": "servegen_deepseek-r1",
}
"""The workloads whose arrivals are recorded as well, and in which file."""


def recorded(
    workload: str, rate: float, until: float, at_most: float = math.inf, *, first: int = 0
) -> Iterator[Arrival]:
    """Arrivals as they were recorded, over again from the start at the end, so much faster that ``rate`` a second come.

    ``first``: the request to begin with. Requests of more than ``at_most`` tokens, prompt and output together, are
    left out, as an engine would refuse them.
    """
    taken = [row for row in _table(RECORDED[workload]) if row.prompt_tokens + row.output_tokens <= at_most]
    count = len(taken)
    span = taken[-1].at * count / (count - 1)
    slower = count / rate / span
    start = taken[first % count].at
    for number in itertools.count(first % count):
        row = taken[number % count]
        due = (number // count * span + row.at - start) * slower
        if due >= until:
            return
        yield row._replace(at=due)


@dataclass(frozen=True, slots=True)
class Want:
    """What a user wants, however many attempts it takes. Tokens are the true ones, which only the engine knows.

    ``blocks`` are chained hashes of the whole blocks of ``BLOCK_TOKENS`` of its prompt and, where they can be part of a
    later prompt, of its answer; empty: it has nothing in common with any other. ``session``: what it belongs to.
    """

    id: int
    prompt_tokens: int
    output_tokens: int
    stream: bool
    client: str
    blocks: tuple[int, ...] = ()
    session: str = ""


def wants(workload: str, seed: str, *, clients: int, streamed: float, first_id: int, label: str) -> Iterator[Want]:
    """Draw from ``workload`` for ever; ``streamed`` is the share of streams."""
    chance = Random(f"wants/{seed}")
    lengths = WORKLOADS[workload]()
    while True:
        prompt, output = chance.choice(lengths)
        client = f"{label}-{chance.randrange(clients)}"
        yield Want(first_id, prompt, output, chance.random() < streamed, client)
        first_id += 1


def traced(
    trace: Sequence[Arrival], seed: str, *, clients: int, streamed: float, first_id: int, label: str
) -> Iterator[tuple[float, Want]]:
    """The requests of a trace as they come; who asks, and whether for a stream, is drawn."""
    chance = Random(f"wants/{seed}")
    for number, (at, prompt, output, blocks, session) in enumerate(trace, first_id):
        client = f"{label}-{chance.randrange(clients)}"
        yield at, Want(number, prompt, output, chance.random() < streamed, client, blocks, session)


def arrivals(rates: Sequence[tuple[float, float]], seed: str, until: float) -> Iterator[float]:
    """Times of a Poisson process whose rate changes: ``rates`` are (from, per second), in order of time."""
    chance = Random(f"arrivals/{seed}")
    for (start, rate), end in zip(rates, [*(at for at, _ in rates[1:]), until], strict=True):
        now = start
        while rate > 0.0 and (now := now + chance.expovariate(rate)) < min(end, until):
            yield now
