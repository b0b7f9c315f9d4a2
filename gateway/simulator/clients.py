"""Clients as real SDKs behave: they wait, give up, come back, and multiply the load.

The facts are those of openai-python (``openai/_base_client.py``): two retries on 408, 409, 429, 5xx and timeouts;
``x-should-retry`` is obeyed before anything else; a ``Retry-After`` of at most 120 s is waited for exactly, after a
longer one it gives up; otherwise 0.5 s doubling up to 8 s, less up to a quarter at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from random import Random
from typing import Protocol

from gateway.emulator.blocks import Prefix
from gateway.model import Priority
from gateway.simulator.workload import Want
from gateway.simulator.world import World

LONGEST_RETRY_AFTER = 120.0


@dataclass(frozen=True, slots=True)
class Habits:
    """How a client behaves. Seconds.

    ``timeout`` is the SDK's: up to the first byte, which is the whole answer where it is not streamed. ``patience`` is
    the user's, from the first attempt to the last token. ``obeys``: it heeds Retry-After and x-should-retry.
    ``counts``: it tells the number of its retry. ``tells_timeout``: it sends its read timeout along.
    """

    timeout: float = 600.0
    retries: int = 2
    patience: float = math.inf
    obeys: bool = True
    counts: bool = True
    tells_timeout: bool = True


@unique
class Ending(Enum):
    """What the user got."""

    ANSWERED = "answered"
    SHED = "shed"  # refused, and no retry left
    TIMED_OUT = "timed out"
    ABANDONED = "abandoned"
    FAILED = "failed"  # an error inside a stream, upon which SDKs do not try again


class Front(Protocol):
    """What clients send to: the gateway, or the engines themselves."""

    def send(self, attempt: Attempt) -> None:
        """Take one attempt; its answer comes through the attempt's methods."""

    def leave(self, attempt: Attempt) -> None:
        """The client hung up."""


class Call:
    """One want until its end: the attempts, and what the user saw of them."""

    def __init__(
        self,
        world: World,
        front: Front,
        want: Want,
        habits: Habits,
        chance: Random,
        ended: Callable[[Call], None],
        label: str = "",
        priority: Priority = Priority.STANDARD,
    ) -> None:
        self.want = want
        self.habits = habits
        self.label = label
        self.priority = priority
        self.arrived = world.now
        self.first_output = math.inf
        self.ended_at = math.inf
        self.ending: Ending | None = None
        self.attempts = 0
        self.refusals = 0
        self._world = world
        self._front = front
        self._chance = chance
        self._ended = ended
        self._attempt: Attempt | None = None
        if habits.patience < math.inf:
            world.after(habits.patience, self._abandon)
        self._try()

    def _try(self) -> None:
        if self.ending is not None:
            return
        attempt = Attempt(self, self.attempts)
        self.attempts += 1
        self._attempt = attempt
        if self.habits.timeout < math.inf:
            self._world.after(self.habits.timeout, lambda: self._time_out(attempt))
        self._front.send(attempt)

    def started(self, attempt: Attempt) -> None:
        """Output began."""
        if attempt is self._attempt and self.want.stream:
            self.first_output = self._world.now

    def answered(self, attempt: Attempt) -> None:
        """The answer is complete."""
        if attempt is self._attempt:
            self._end(Ending.ANSWERED)

    def refused(self, attempt: Attempt, retry_after: float | None, should_retry: bool | None) -> None:
        """The answer was a refusal: come back, or give up."""
        if attempt is not self._attempt:
            return
        self._attempt = None
        self.refusals += 1
        told = retry_after if self.habits.obeys else None
        forbidden = self.habits.obeys and should_retry is False
        if forbidden or (told or 0.0) > LONGEST_RETRY_AFTER or self.attempts > self.habits.retries:
            self._end(Ending.SHED)
        else:
            self._world.after(told or self._backoff(), self._try)

    def failed(self, attempt: Attempt) -> None:
        """The answer began and was an error."""
        if attempt is self._attempt:
            self._end(Ending.FAILED)

    def _backoff(self) -> float:
        return min(8.0, 0.5 * 2.0 ** (self.attempts - 1)) * (1.0 - 0.25 * self._chance.random())

    def _time_out(self, attempt: Attempt) -> None:
        if attempt is not self._attempt or self.first_output < math.inf:
            return
        self._hang_up()
        if self.attempts > self.habits.retries:
            self._end(Ending.TIMED_OUT)
        else:
            self._world.after(self._backoff(), self._try)

    def _abandon(self) -> None:
        if self.ending is None:
            self._hang_up()
            self._end(Ending.ABANDONED)

    def _hang_up(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._front.leave(attempt)

    def _end(self, ending: Ending) -> None:
        self._attempt = None
        self.ending = ending
        self.ended_at = self._world.now
        self._ended(self)


class Attempt:
    """One request on the wire."""

    __slots__ = ("call", "number", "prefix", "started")

    def __init__(self, call: Call, number: int) -> None:
        """``number``: 0 for the first of the call."""
        self.call = call
        self.number = number
        self.prefix = Prefix(call.want.blocks) if call.want.blocks else None
        self.started = False

    def begun(self) -> None:
        """Its first output event reached the client."""
        if not self.started:
            self.started = True
            self.call.started(self)

    def complete(self) -> None:
        """The whole answer reached the client."""
        self.begun()
        self.call.answered(self)

    def failed(self) -> None:
        """An error came inside the answer."""
        self.call.failed(self)

    def refused(self, retry_after: float | None = None, should_retry: bool | None = None) -> None:
        """The answer was 429 or 503."""
        self.call.refused(self, retry_after, should_retry)
