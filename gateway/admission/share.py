"""What the holder of an API key may do at several gateways together.

A store that all of them reach keeps the buckets of GCRA (``quota``) and who holds how many places. A gateway claims
units there ahead of the requests that take them, so a request waits for the store only where its gateway has none left,
and each that is let in rests on units that were claimed for it: the sum over all gateways is what one alone would let
in. Without the store each keeps to its share, the quota over the gateways that there were.

Units that a gateway has and nobody takes are missing elsewhere. So it claims no more than a block, no more than an
eighth of what is left, and gives back what it has had no use for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique
from math import floor, inf
from typing import Final, Literal

from gateway.admission.quota import Gcra, KeyTerms, Shortage, Standing
from gateway.model import Reason

IDLE: Final = 1.0
"""Seconds without a request after which the units of a holder are given back."""
_FRESH: Final = 0.02  # seconds for which the store's word is good enough to refuse by
_KNOWN: Final = 1.0  # seconds after which a busy holder hears anew what the others have left
_SHY: Final = 8  # of what is left, at most this part is claimed ahead
_SOON: Final = 1.0  # seconds after which a place may be free again: when it will be, nobody knows
_MINUTE: Final = 60.0


@unique
class Pending(Enum):
    """What is known here of a request before the store was asked."""

    ASK = "ask"  # only the store can tell


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of one bound, in its units.

    ``need`` must be there, else nothing is taken of any bound of the holder. Then ``cost`` is taken (below 0: given
    back), of ``more`` what is there, and of ``ahead`` no more than an eighth of what is left. ``empty``: a bucket lacks
    so many seconds at least, whatever the store remembers.
    """

    limit: int
    need: int = 0
    cost: int = 0
    more: int = 0
    ahead: int = 0
    empty: float = 0.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What is asked of the store for one holder in one step; ``held`` places are its own already."""

    places: Ask | None
    held: int
    requests: Ask | None
    tokens: Ask | None


@dataclass(frozen=True, slots=True)
class Word:
    """The store's answer about one bound: units taken; and what is left, seconds until a bucket is full or places."""

    granted: int
    state: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The store's answer to a claim, bound by bound."""

    places: Word | None
    requests: Word | None
    tokens: Word | None


class _Purse(ABC):
    """Units of one bound that were claimed and not taken; below 0: taken without a claim, to be settled."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.have = 0
        self.heard = -inf  # when the store last told how it stands

    @abstractmethod
    def left(self, now: float) -> int:
        """Units that the store has, as far as is known."""

    @abstractmethod
    def wait(self, units: int, now: float) -> float:
        """Seconds until the store has what the purse lacks of ``units``."""

    def hear(self, word: Word, now: float) -> None:
        """Take the store's answer; what was given back was gone when that was said."""
        self.heard = now
        self.have += max(0, word.granted)

    def give_back(self, units: int, now: float) -> None:  # noqa: ARG002 - for rates
        """Let ``units`` go."""
        self.have -= units

    def target(self, block: float, now: float) -> int:
        """Units to have at hand."""
        return min(floor(block * self.limit), self.left(now) // _SHY)

    def ask(self, waiting: Sequence[int], target: int) -> Ask:
        """For those who wait, else what it takes to come to the target."""
        have = self.have
        if waiting:
            lacking = waiting[0] - have
            spare = max(0, -lacking)
            more = max(0, sum(waiting[1:]) - spare)
            cost = max(0, lacking)
            return Ask(self.limit, min(cost, self.limit), cost, more, max(0, target - spare))
        if have < 0:
            return Ask(self.limit, cost=-have, ahead=target)
        if 2 * have < target:
            return Ask(self.limit, ahead=target - have)
        return Ask(self.limit, cost=target - have if have > 2 * target else 0)

    def is_restless(self, target: int) -> bool:
        """Whether there is too little of it, or too much."""
        return self.have < 0 or 2 * self.have < target or self.have > 2 * target


class _Places(_Purse):
    """Requests that may run at once. ``free``: places that no gateway has."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.free = limit

    def left(self, now: float) -> int:  # noqa: ARG002 - as a rate's
        return max(0, self.free)

    def wait(self, units: int, now: float) -> float:  # noqa: ARG002 - the same
        return 0.0 if units - self.have <= self.free else _SOON

    def hear(self, word: Word, now: float) -> None:
        super().hear(word, now)
        self.free = int(word.state)

    def give_back(self, units: int, now: float) -> None:
        super().give_back(units, now)
        self.free += units  # who comes now asks, and is not refused by an older word


class _Rate(_Purse):
    """A bucket; ``alone`` is this gateway's share of it while there is no store, ``spent`` what was taken of that."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.known = Gcra(limit)
        self.alone = self.known
        self.spent = 0

    def left(self, now: float) -> int:
        return self.known.left(now)

    def wait(self, units: int, now: float) -> float:
        lacking = units - self.have
        return self.known.wait(lacking, now) if lacking > 0 else 0.0

    def hear(self, word: Word, now: float) -> None:
        super().hear(word, now)
        self.known.set_empty(word.state, now)

    def give_back(self, units: int, now: float) -> None:
        super().give_back(units, now)
        self.known.take(-units, now)

    def part(self, gateways: int, now: float) -> None:
        """Go on alone: a share is as empty as all of it was, and what the purse has is of it."""
        self.alone = Gcra(self.limit / gateways)
        self.alone.set_empty(self.known.empty(now), now)
        self.spent = 0
        self.take_alone(-self.have, now)
        self.have = 0

    def take_alone(self, units: int, now: float) -> None:
        """Take ``units`` of the share, or give them back."""
        self.alone.take(units, now)
        self.spent += units

    def rejoin(self, now: float) -> None:
        """Go on with the store: to be settled is what it did not see and time has not made good."""
        missing = floor(self.alone.empty(now) * self.alone.limit / _MINUTE)
        self.have = -min(self.spent, missing)


class Shared:
    """What the holder of ``terms`` has used at this gateway, and what was claimed for it of what all gateways share.

    ``gateways``: how many keep to a share each, as there is no store; None where there is.
    """

    def __init__(self, terms: KeyTerms, gateways: int | None, now: float) -> None:
        self.terms = terms
        self.in_flight = 0
        self.active = now  # when it was last asked for
        self._gateways: int | None = None
        self._doubted = False  # the store may have lost what it knew, and is to be told
        self._places = None if terms.max_in_flight is None else _Places(terms.max_in_flight)
        self._requests = None if terms.requests_per_minute is None else _Rate(terms.requests_per_minute)
        self._tokens = None if terms.tokens_per_minute is None else _Rate(terms.tokens_per_minute)
        if gateways is not None:
            self.part(gateways, now)

    def retune(self, terms: KeyTerms, now: float) -> None:
        """Go on with other terms. A bound that changed begins anew; what is in flight stays counted."""
        fresh, old = Shared(terms, self._gateways, now), self.terms
        if terms.max_in_flight != old.max_in_flight:
            self._places = fresh._places
            if self._places is not None and self._gateways is None:
                self._places.have = -self.in_flight
        if terms.requests_per_minute != old.requests_per_minute:
            self._requests = fresh._requests
        if terms.tokens_per_minute != old.tokens_per_minute:
            self._tokens = fresh._tokens
        self.terms = terms

    # -- requests ----------------------------------------------------------------------------------------------------

    def enter(self, tokens: int, now: float) -> Shortage | Literal[Pending.ASK] | None:
        """Begin a request of ``tokens`` estimated tokens, or say why not; then nothing has happened."""
        self.active = now
        alone = self._gateways
        if alone is not None and self._places is not None and self.in_flight >= max(1, self._places.limit // alone):
            return Shortage(Reason.KEY_IN_FLIGHT, _SOON)
        short = False
        for purse, units, reason in self._wanted(tokens):
            wait = 0.0
            if alone is not None:
                wait = purse.alone.wait(units, now) if isinstance(purse, _Rate) else 0.0
            elif purse.have < units:
                short = True
                wait = purse.wait(units, now) if now - purse.heard < _FRESH else 0.0
            if wait > 0.0:
                return Shortage(reason, wait)
        if short:
            return Pending.ASK
        self.in_flight += 1
        self._take(1, 1, tokens, now)
        return None

    def _wanted(self, tokens: int) -> Iterator[tuple[_Purse, int, Reason]]:
        if self._places is not None:
            yield self._places, 1, Reason.KEY_IN_FLIGHT
        if self._requests is not None:
            yield self._requests, 1, Reason.KEY_REQUESTS
        if self._tokens is not None:
            yield self._tokens, tokens, Reason.KEY_TOKENS

    def _take(self, places: int, requests: int, tokens: int, now: float) -> None:
        """Take so many units of each, or give them back."""
        if self._places is not None and self._gateways is None:
            self._places.have -= places
        for rate, units in ((self._requests, requests), (self._tokens, tokens)):
            if rate is None:
                continue
            if self._gateways is None:
                rate.have -= units
            elif units:
                rate.take_alone(units, now)

    def leave(self, reserved: int, used: int, now: float, *, refused: bool = False) -> None:
        """End a request that ``enter`` began with ``reserved`` tokens and that took ``used``.

        One that was ``refused`` after all gives everything back: it had nothing.
        """
        self.in_flight -= 1
        self._take(-1, -1 if refused else 0, -reserved if refused else used - reserved, now)

    def abandon(self, requests: int, now: float) -> None:
        """So many requests are gone, and nobody can say what they took."""
        self.in_flight -= requests
        self._take(-requests, 0, 0, now)

    def standings(self, now: float) -> Iterator[Standing]:
        """How each of its rates stands, as far as is known here."""
        for what, rate in (("requests", self._requests), ("tokens", self._tokens)):
            if rate is None:
                continue
            bucket, have = (rate.known, rate.have) if self._gateways is None else (rate.alone, 0)
            yield Standing(what, rate.limit, min(rate.limit, max(0, bucket.left(now) + have)), bucket.empty(now))

    # -- the store ---------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether all that is known of it the store knows as well."""
        kept = self.in_flight or self._doubted or self._gateways is not None
        return not kept and not any(purse.have for purse in self._purses())

    def _purses(self) -> Iterator[_Purse]:
        for purse in (self._places, self._requests, self._tokens):
            if purse is not None:
                yield purse

    def _target(self, purse: _Purse, block: float, now: float) -> int:
        return purse.target(block, now) if now - self.active < IDLE else 0

    def is_restless(self, block: float, now: float) -> bool:
        """Whether there is something to claim or to give back. ``block`` is the part of a bound to claim ahead."""
        return any(purse.is_restless(self._target(purse, block, now)) for purse in self._purses())

    def is_stale(self, now: float) -> bool:
        """Whether it is busy, and the store's last word is old."""
        return now - self.active < IDLE and any(now - purse.heard > _KNOWN for purse in self._purses())

    def claim(self, waiting: Sequence[int], block: float, now: float) -> Claim | None:
        """What to ask of the store now, for requests of so many ``waiting`` tokens and for those to come, if anything.

        What is given back is gone here at once.
        """
        if not (waiting or self._doubted or self.is_restless(block, now) or self.is_stale(now)):
            return None
        if not any(self._purses()):
            self._doubted = False
            return None

        def ask(purse: _Purse | None, units: Sequence[int]) -> Ask | None:
            if purse is None:
                return None
            asked = purse.ask(units, self._target(purse, block, now))
            if asked.cost < 0:
                purse.give_back(-asked.cost, now)
            return asked

        one_each = (1,) * len(waiting)
        places, requests, tokens = (
            ask(self._places, one_each),
            ask(self._requests, one_each),
            ask(self._tokens, waiting),
        )
        held = self.in_flight + (0 if self._places is None else self._places.have)
        return Claim(
            places, held, self._reminded(requests, self._requests, now), self._reminded(tokens, self._tokens, now)
        )

    def _reminded(self, ask: Ask | None, rate: _Rate | None, now: float) -> Ask | None:
        if ask is None or rate is None or not self._doubted:
            return ask
        return replace(ask, empty=rate.known.empty(now))

    def hear(self, claim: Claim, reply: Reply, now: float) -> None:
        """Take the store's answer to ``claim``."""
        self._doubted = False
        for purse, ask, word in (
            (self._places, claim.places, reply.places),
            (self._requests, claim.requests, reply.requests),
            (self._tokens, claim.tokens, reply.tokens),
        ):
            if purse is not None and ask is not None and word is not None and ask.limit == purse.limit:
                purse.hear(word, now)

    def part(self, gateways: int, now: float) -> None:
        """Go on without the store, as one of so many."""
        if self._gateways is not None:
            return
        self._gateways = gateways
        if self._places is not None:
            self._places.have = 0
        for rate in (self._requests, self._tokens):
            if rate is not None:
                rate.part(gateways, now)

    def rejoin(self, now: float) -> None:
        """Go on with the store."""
        self._gateways = None
        for rate in (self._requests, self._tokens):
            if rate is not None:
                rate.rejoin(now)
        self.doubt()

    def doubt(self) -> None:
        """Have the store told what is known here: it may have forgotten, or given up on this gateway."""
        self._doubted = True
        for purse in self._purses():
            purse.heard = -inf
