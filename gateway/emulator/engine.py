"""A continuous-batching engine as a pure model: told the time, returns what it emitted.

Stands in for an accelerator in the tests, the simulation and the demo; ``server.py`` puts real HTTP on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Emission:
    """``tokens`` output tokens of request ``key`` at ``at``; ``finished`` on its last."""

    key: int
    tokens: int
    finished: bool
    at: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants of one engine; times in seconds, sizes in tokens."""

    name: str


class Engine:
    """One engine. ``now`` never decreases."""

    def __init__(self, profile: Profile) -> None:
        """Start idle."""
        self.profile = profile
        self.preemptions = 0

    def submit(self, key: int, prompt_tokens: int, output_tokens: int, now: float) -> bool:
        """Take a request; False where the engine's own queue limit refuses it."""
        raise NotImplementedError

    def abort(self, key: int, now: float) -> None:
        """Forget a request and free what it holds; unknown keys are ignored."""
        raise NotImplementedError

    def next_event(self) -> float | None:
        """When the step under way ends; None while idle."""
        raise NotImplementedError

    def advance(self, now: float) -> list[Emission]:
        """End every step that is due by ``now``."""
        raise NotImplementedError

    @property
    def running(self) -> int:
        """Requests in the batch."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Requests in the engine's own queue."""
        raise NotImplementedError

    @property
    def kv_tokens(self) -> int:
        """KV tokens in use."""
        raise NotImplementedError
