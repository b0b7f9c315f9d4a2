"""Which backend, chosen at the moment of dispatch.

Without affinity it is the one among those with room that is the least full for its limit. With affinity a request is
drawn to where its session or the beginning of its prompt is (``affinity.py``), within bounds: a backend that has more
in flight than 1 + c times its fair share draws nobody (consistent hashing with bounded loads: Mirrokni, Thorup and
Zadimoghaddam 2018), so a popular prefix spreads over as many backends as its load takes. The share is by what each can
hold, which the limits have learned.

A place is not given away blindly either. Where a backend has room for one request and the next in turn is drawn
elsewhere, one of those right behind it that is drawn here goes first: no work is lost, and the order changes by a few.
Where nobody is, the next in turn waits a moment for its own backend, if that will sooner have a place than a cold
prefill would be over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.admission.affinity import CacheMap, digest, rendezvous
from gateway.admission.config import Affinity, BalanceConfig, QueueConfig
from gateway.admission.pool import Books
from gateway.admission.queue import Entry
from gateway.admission.spot import Hold, Keen, Spot
from gateway.admission.window import LONG_PROMPT, LOW_CONCURRENCY
from gateway.model import Choice, Priority, Ticket

RECENT: Final = 10.0  # seconds that another lane's traffic counts as present
PASSES: Final = 4  # times as many as there are backends that one in turn is passed over
WORTH: Final = 0.06  # of a prompt's blocks: fewer that are cached there and not elsewhere draw nobody
LATE: Final = 0.8  # of the time that it may wait at all: then it takes any place


class Field(NamedTuple):
    """The backends that a request may be drawn to: those of the first tier, their bits, and all that is on them."""

    sound: Sequence[Books]
    everyone: int
    inflight: int
    share: float
    waiting: int  # requests in the queue before them


class Place(NamedTuple):
    """A backend with room; the least of several is the one to take. ``number`` keeps any two apart."""

    score: float
    turn: int
    number: int
    books: Books


class Draw(NamedTuple):
    """Where a request is drawn to: bits of backends, why, and how many blocks of its prompt they have."""

    home: int
    choice: Choice
    depth: int


class Balancer:
    """Picks by (in flight + 1) / (limit * weight); ties go to the backend that was chosen least recently."""

    def __init__(
        self, config: QueueConfig, balance: BalanceConfig | None = None, caches: CacheMap | None = None
    ) -> None:
        """``caches``: the pool's own; without them nothing is known of any cache."""
        self.config = config
        self._balance = balance or BalanceConfig()
        self._caches = caches or CacheMap()
        self.draws = self._balance.affinity is not Affinity.NONE

    def field(self, sound: Sequence[Books], waiting: int = 0) -> Field | None:
        """What ``pick`` must know of all backends that are sound; None where nothing draws anybody."""
        if not self.draws or len(sound) <= 1:
            return None
        if sound[0].tier != sound[-1].tier:
            sound = [books for books in sound if books.tier == sound[0].tier]
        everyone = 0
        for books in sound:
            everyone |= books.cache.bit
        inflight = sum([books.window.inflight for books in sound])
        return Field(sound, everyone, inflight, sum([books.share for books in sound]), waiting)

    def pick(
        self,
        candidates: Sequence[Books],
        ticket: Ticket,
        lane: int,
        now: float,
        field: Field | None = None,
        entry: Entry | None = None,
    ) -> Spot | Hold:
        """A place for ``ticket`` on one of ``candidates``, or why there is none; ``entry`` where it waits already.

        ``candidates`` are in the order of their tiers: one is used while none of those before it has room.
        """
        if not candidates or candidates[0].tier == candidates[-1].tier:
            return self._pick(candidates, ticket, lane, now, field, entry)
        spot: Spot | Hold = Hold.FULL
        for _, tier in groupby(candidates, attrgetter("tier")):
            found = self._pick(list(tier), ticket, lane, now, field, entry)
            if not isinstance(found, Hold):
                return found
            spot = spot if spot is Hold.TOKENS else found
        return spot

    def _pick(
        self,
        candidates: Sequence[Books],
        ticket: Ticket,
        lane: int,
        now: float,
        field: Field | None,
        entry: Entry | None,
    ) -> Spot | Hold:
        best, best_score, hold, roomy = None, inf, Hold.FULL, 0
        serial = self.reads_serially(ticket, lane)
        critical, tokens = ticket.priority is Priority.CRITICAL, ticket.work.tokens
        places: list[Place] = []
        for books in candidates:
            window = books.window
            inflight = window.inflight
            if inflight >= (books.cap if critical else books.cap_common):
                continue
            roomy += 1
            if inflight:
                if (lane and inflight >= books.cap_others) or (serial and self.reading(books, now)):
                    hold = hold if hold is Hold.TOKENS else Hold.LANE
                    continue
                if window.tokens + tokens > books.limit.tokens:
                    window.held = True
                    hold = Hold.TOKENS
                    continue
            score = (inflight + 1) / books.room
            if field is not None:
                places.append(Place(score, books.turn, len(places), books))
            if score < best_score or (score == best_score and best is not None and books.turn < best.turn):
                best, best_score = books, score
        if best is None:
            return hold
        spot = None if field is None else self._drawn(field, places, best, ticket, entry, now)
        if spot is None:
            spot = Spot(best, more=True, choice=Choice.SPILL if best.tier else Choice.HEADROOM)
        return spot if roomy > 1 or spot.books.window.inflight + 1 < spot.books.cap else spot._replace(more=False)

    # ------------------------------------------------------------------------------------------------- affinity

    def _drawn(
        self,
        field: Field,
        places: Sequence[Place],
        least: Books,
        ticket: Ticket,
        entry: Entry | None,
        now: float,
    ) -> Spot | None:
        """One of ``places``, of which ``least`` is the emptiest; None where the request is drawn to none of them."""
        draw = self._draw(field, ticket, least)
        if draw is None:
            return None
        home = draw.home
        at_home = [place for place in places if place.books.cache.bit & home]
        if at_home:
            books = min(at_home).books
            if self._fair(books, field) or len(at_home) == len(places):
                return Spot(books, more=True, choice=draw.choice, matched=draw.depth)
            places = [place for place in places if not place.books.cache.bit & home]
        books, depth = self._second(places, field, ticket)
        keen = Keen.KEEN if at_home else self._keen(draw, books, depth, field, ticket, entry, now)
        return Spot(books, more=True, choice=Choice.SPILL, keen=keen, matched=depth)

    def _draw(self, field: Field, ticket: Ticket, least: Books) -> Draw | None:
        """Where it is drawn to: where most of its prompt is cached, else where its session belongs."""
        blocks, caches = ticket.shape.blocks, self._caches
        if blocks and self._balance.affinity is Affinity.PREFIX:
            trusted = field.everyone & ~caches.doubted
            depth, home = caches.longest(blocks, trusted)
            if depth and home != trusted:
                there = 0 if home & least.cache.bit else depth - caches.longest(blocks, least.cache.bit)[0]
                if there >= WORTH * len(blocks) or home & least.cache.bit:
                    return Draw(home, Choice.PREFIX, depth)
        if ticket.session:
            places = [(books.digest, books.pull) for books in field.sound]
            books = field.sound[rendezvous(digest(ticket.session), places)]
            return Draw(books.cache.bit, Choice.SESSION, caches.longest(blocks, books.cache.bit)[0] if blocks else 0)
        return None

    def _fair(self, books: Books, field: Field) -> bool:
        """Whether one request more leaves a backend within 1 + c of its fair share.

        A few in flight harm nobody, however few the others have.
        """
        inflight = books.window.inflight + 1
        if inflight <= min(LOW_CONCURRENCY, 0.25 * books.limit.value):
            return True
        return inflight * field.share <= (1.0 + self._balance.bound) * (field.inflight + 1) * books.share

    def _second(self, places: Sequence[Place], field: Field, ticket: Ticket) -> tuple[Books, int]:
        """The next best place and how much is cached there: of those within their share, else the emptiest."""
        blocks = ticket.shape.blocks
        fair = [place for place in places if self._fair(place.books, field)]
        if not blocks or not fair or self._balance.affinity is not Affinity.PREFIX:
            return min(places).books, 0
        bits = 0
        for place in fair:
            bits |= place.books.cache.bit
        depth, bits = self._caches.longest(blocks, bits)
        return min(place for place in fair if place.books.cache.bit & bits).books, depth

    def _keen(
        self, draw: Draw, books: Books, depth: int, field: Field, ticket: Ticket, entry: Entry | None, now: float
    ) -> Keen:
        """Whether it takes a place on ``books``, where ``depth`` blocks are cached, while its home is full."""
        if entry is not None and entry.passed >= PASSES * len(field.sound):
            return Keen.KEEN
        homes = [home for home in field.sound if home.cache.bit & draw.home]
        pace = books.window.reading_pace.value
        if pace is None or not any(self._fair(home, field) for home in homes):
            return Keen.RELUCTANT
        lost = 1.0 if draw.choice is Choice.SESSION else (draw.depth - depth) / len(ticket.shape.blocks)
        # A place that stays empty for a moment costs its part of the engine, a prompt that is read again all of it.
        saved = min(lost * ticket.work.prompt_tokens * pace * max(1, books.window.inflight), self._balance.patience)
        waited = 0.0 if entry is None else now - entry.arrived
        if entry is not None:
            saved = min(saved, LATE * (entry.deadline - entry.arrived))
        wait = min(home.interval for home in homes) * (1.0 + field.waiting / len(field.sound))
        return Keen.PATIENT if waited < saved and wait < saved else Keen.RELUCTANT

    # ------------------------------------------------------------------------------------------------- long prompts

    def reads_serially(self, ticket: Ticket, lane: int) -> bool:
        """Whether ``ticket`` must wait for the long prompt before it to be read.

        Prefill is serial compute: a second long prompt inside the engine gains nothing and delays every short one.
        """
        return (
            ticket.work.prompt_tokens >= LONG_PROMPT
            and ticket.shape.stream
            and self.config.long_prefills > 0
            and lane == len(self.config.lanes) - 1 > 0
        )

    def reading(self, books: Books, now: float) -> bool:
        """Whether a backend reads as many long prompts as it should while others want to be served."""
        window = books.window
        return window.long >= self.config.long_prefills and now - window.others_at < RECENT
