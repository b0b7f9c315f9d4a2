"""What is worth knowing again after a restart, as plain values: what was learned of each backend and of each model.

A gateway that starts under full load cannot see an engine's unloaded pace, and one that starts from the lowest limit
refuses for a while what the engine could serve. Nothing of a client is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final

MOST: Final = 1e9  # of any figure; more is nonsense


def _check(what: str, **figures: float | None) -> None:
    """Refuse what is no figure. Those of which there are many look first, for words are made here."""
    for name, figure in figures.items():
        if figure is not None and not (isfinite(figure) and 0.0 <= figure <= MOST):
            raise ValueError(f"{what}: {name} is {figure}, expected a number from 0 to {MOST:g}")


@dataclass(frozen=True, slots=True)
class BackendMemory:
    """One backend; its URL has no credentials.

    Bases are unloaded seconds: per output token of streams and of whole answers, to a first token. ``line``: seconds to
    the first token, and per token, of whole answers with few beside them. ``served`` are request-seconds and cost units
    of finished requests, whose ratio tells what it can serve; ``start_rate`` are first tokens a second while streams
    wait for theirs.
    """

    name: str
    url: str
    limit: float
    token_limit: float | None = None
    base_stream: float | None = None
    base_whole: float | None = None
    base_ttft: float | None = None
    served: tuple[float, float] = (0.0, 0.0)
    line: tuple[float, float] | None = None
    start_rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: with the figure, and what is expected.
        """
        bases = {"base_stream": self.base_stream, "base_whole": self.base_whole, "base_ttft": self.base_ttft}
        seconds, cost = self.served
        _check(f"backend {self.name}", limit=self.limit, token_limit=self.token_limit, seconds=seconds, cost=cost)
        start, pace = self.line or (None, None)
        _check(f"backend {self.name}", **bases, start=start, pace=pace, start_rate=self.start_rate)
        known = [*bases.values(), self.token_limit, pace, self.start_rate]
        if not self.limit >= 1.0 or 0.0 in known:
            raise ValueError(f"backend {self.name}: nothing is 0 of a backend, and its limit is at least 1")


@dataclass(frozen=True, slots=True)
class PromptMemory:
    """Tokens a byte by sort of byte, and what the chat template adds, of one model's prompts."""

    model: str
    generates: bool
    rates: tuple[float, ...]
    template: float
    seen: int

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: with the figure, and what is expected.
        """
        if not all(0.0 <= figure <= MOST for figure in (self.template, self.seen, *self.rates)):
            _check(f"model {self.model!r}", template=self.template, seen=self.seen)
            for rate in self.rates:
                _check(f"model {self.model!r}", rate=rate)


@dataclass(frozen=True, slots=True)
class OutputMemory:
    """The mean output of ``count`` answers: of one model, and of prompts and caps of about one size (-1: of any)."""

    model: str
    prompt_bits: int
    cap_bits: int
    count: int
    tokens: float

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: with the figure, and what is expected.
        """
        if not (0 <= self.count <= MOST and 0.0 <= self.tokens <= MOST):
            _check(f"outputs of model {self.model!r}", count=self.count, tokens=self.tokens)


def place(url: str) -> str:
    """``url`` without credentials."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class Memory:
    """All of it; of models the latest first."""

    backends: tuple[BackendMemory, ...] = ()
    prompts: tuple[PromptMemory, ...] = ()
    outputs: tuple[OutputMemory, ...] = ()

    def of(self, names: Iterable[tuple[str, str]]) -> tuple[BackendMemory, ...]:
        """What is known of the backends of these names and URLs; under another URL is another engine."""
        known = {(backend.name, backend.url): backend for backend in self.backends}
        return tuple(known[name, place(url)] for name, url in names if (name, place(url)) in known)
