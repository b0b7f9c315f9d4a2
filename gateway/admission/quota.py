"""What the holder of an API key may do: requests and tokens a minute, requests at once, which models.

The two rates are held by the generic cell rate algorithm (GCRA, ITU-T I.371 annex A): a bucket of a minute's worth
that refills evenly, kept as the one instant at which it will be full again. So the wait until a request fits is known
exactly. Tokens are reserved by the estimate when a request begins, and put right by the engine's own count at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor
from typing import Final

from gateway.model import Priority, Reason, Usage

_MINUTE: Final = 60.0
_ROUNDING: Final = 1e-6  # seconds: who comes back at the very instant that was told is not refused for it
_SOON: Final = 1.0  # seconds after which a place may be free again: when it will be, nobody knows


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a key's holder may do; None is no bound, no ``models`` are all models. ``name`` is the operator's.

    ``weight`` is the holder's share of a lane, against that of another; no header raises its ``priority``.
    """

    name: str
    weight: float = 1.0
    priority: Priority = Priority.STANDARD
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_in_flight: int | None = None
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a request may not begin now, and after how many seconds it may."""

    reason: Reason
    wait: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One rate of a key: what it is, its bound, what is left of it, and the seconds until all of it is there again."""

    what: str  # requests | tokens
    limit: int
    remaining: int
    reset: float


class Revoked(Exception):  # noqa: N818 - not an error: its holder is told so
    """A key that was good when its request came is good no more."""


class Gcra:
    """A bucket of ``limit`` units that refills in a minute."""

    __slots__ = ("_full_at", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._full_at = 0.0

    def wait(self, units: float, now: float) -> float:
        """Seconds until ``units`` may be taken, 0 where they may be now.

        What is more than the whole bucket needs the whole bucket: else it would be told to come back for ever. The
        debt that it leaves keeps the rate.
        """
        wait = max(self._full_at, now) + self._seconds(min(units, self.limit)) - _MINUTE - now
        return wait if wait > _ROUNDING else 0.0

    def take(self, units: float, now: float) -> None:
        """Take ``units``, or give them back where they are below 0."""
        self._full_at = max(self._full_at, now) + self._seconds(units)

    def empty(self, now: float) -> float:
        """Seconds until all of it is there again."""
        return max(0.0, self._full_at - now)

    def set_empty(self, seconds: float, now: float) -> None:
        """All of it will be there again after so many seconds."""
        self._full_at = now + seconds

    def left(self, now: float) -> int:
        """Whole units that may be taken at ``now``."""
        return max(0, floor((_MINUTE - self.empty(now) + _ROUNDING) * self.limit / _MINUTE))

    def standing(self, what: str, now: float) -> Standing:
        """How it stands at ``now``."""
        return Standing(what, floor(self.limit), self.left(now), self.empty(now))

    def _seconds(self, units: float) -> float:
        return units * _MINUTE / self.limit


class Account:
    """What the holder of a key has used of it."""

    def __init__(self, terms: KeyTerms) -> None:
        self.terms = terms
        self.in_flight = 0
        self._requests = _bucket(terms.requests_per_minute)
        self._tokens = _bucket(terms.tokens_per_minute)

    def retune(self, terms: KeyTerms) -> None:
        """Go on with other terms. A rate that changed begins anew; what is in flight stays counted."""
        if terms.requests_per_minute != self.terms.requests_per_minute:
            self._requests = _bucket(terms.requests_per_minute)
        if terms.tokens_per_minute != self.terms.tokens_per_minute:
            self._tokens = _bucket(terms.tokens_per_minute)
        self.terms = terms

    def may_use(self, model: str | None) -> bool:
        """Whether the key is good for ``model``; one that is for some models is for none that cannot be read."""
        return not self.terms.models or model in self.terms.models

    def enter(self, tokens: int, now: float) -> Shortage | None:
        """Begin a request of ``tokens`` estimated tokens, or say why not; then nothing has happened."""
        most = self.terms.max_in_flight
        if most is not None and self.in_flight >= most:
            return Shortage(Reason.KEY_IN_FLIGHT, _SOON)
        for bucket, units, reason in (
            (self._requests, 1, Reason.KEY_REQUESTS),
            (self._tokens, tokens, Reason.KEY_TOKENS),
        ):
            if bucket is not None and (wait := bucket.wait(units, now)) > 0.0:
                return Shortage(reason, wait)
        self._take(1, tokens, now)
        self.in_flight += 1
        return None

    def leave(self, reserved: int, used: int, now: float, *, refused: bool = False) -> None:
        """End a request that ``enter`` began with ``reserved`` tokens and that took ``used``.

        One that was ``refused`` after all gives everything back: it had nothing.
        """
        self.in_flight -= 1
        self._take(-1 if refused else 0, -reserved if refused else used - reserved, now)

    def _take(self, requests: int, tokens: int, now: float) -> None:
        if self._requests is not None and requests:
            self._requests.take(requests, now)
        if self._tokens is not None and tokens:
            self._tokens.take(tokens, now)

    def standings(self, now: float) -> Iterator[Standing]:
        """How each of its rates stands."""
        if self._requests is not None:
            yield self._requests.standing("requests", now)
        if self._tokens is not None:
            yield self._tokens.standing("tokens", now)


def _bucket(limit: int | None) -> Gcra | None:
    return None if limit is None else Gcra(limit)


def used_tokens(usage: Usage | None, reserved: int, put_out: int) -> int:
    """Tokens that a request took: as the engine counted them; else no fewer than reserved, nor than were put out."""
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens + (usage.completion_tokens or 0)
    return max(reserved, put_out)
