"""Which backend, chosen at the moment of dispatch.

Without affinity it is the one among those with room that is the least full for its limit and has the least to read
(join the shortest queue, in requests and in prompt tokens that are not cached). With affinity a request is drawn to
where its session or the beginning of its prompt is (``affinity.py``), within bounds: a backend that has more in flight
than 1 + c times its fair share, and the root of that share for chance, draws nobody (consistent hashing with bounded
loads: Mirrokni, Thorup and Zadimoghaddam 2018), so a popular prefix spreads over as many backends as its load takes.
The share is by what each can hold, which the limits have learned.

A place is not given away blindly either. Where a backend has room for one request and the next in turn is drawn
elsewhere, one of those right behind it that is drawn here goes first: no work is lost, and the order changes by a few.
Where nobody is, the next in turn waits a moment for its own backend, if that will sooner have a place than a cold
prefill would be over. And one that must read most of its prompt anywhere lets those right behind it go first who have
most of theirs at hand: at overload somebody is refused, and it should not be the eighth turn of a chat, which costs a
tenth of a first one and whose cache is lost with it. This goes on for a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import groupby
from math import inf, sqrt
from operator import attrgetter, or_
from typing import Final, NamedTuple

from gateway.admission.affinity import CacheMap, digest, rendezvous
from gateway.admission.config import Affinity, BalanceConfig, QueueConfig
from gateway.admission.pool import Books
from gateway.admission.queue import Entry
from gateway.admission.spot import Hold, Keen, Spot
from gateway.admission.window import LONG_PROMPT, LOW_CONCURRENCY
from gateway.model import Choice, Priority, Ticket

RECENT: Final = 10.0  # seconds that another lane's traffic counts as present
PASSES: Final = 32  # times as many as there are backends that one in turn is passed over
WORTH: Final = 0.06  # of a prompt's blocks: fewer that are cached there and not elsewhere draw nobody
WARM: Final = 0.8  # of a prompt's blocks: where so many are cached it costs little to serve it
LATE: Final = 0.8  # of the time that it may wait at all: then it takes any place


class Field(NamedTuple):
    """The backends that a request may be drawn to: those of the first tier, their bits, and all that is on them."""

    sound: Sequence[Books]
    everyone: int
    inflight: int
    share: float
    waiting: int  # requests in the queue before them


class Names:
    """What never changes of a set of backends: their bits, and the digests of their names."""

    __slots__ = ("by_bit", "digests", "everyone", "of")

    def __init__(self, of: Sequence[Books] = ()) -> None:
        self.of = of
        self.by_bit = {books.cache.bit: books for books in of}
        self.everyone = sum(self.by_bit)
        self.digests = [books.digest for books in of]


class Scene:
    """Where a request finds itself: the backends that are sound, by tier, and how many wait; looked at when asked."""

    __slots__ = ("_field", "_sound", "_waiting")

    def __init__(self, sound: Sequence[Books], waiting: int = 0) -> None:
        self._sound = sound
        self._waiting = waiting
        self._field: Field | None = None

    def field(self, names: Callable[[Sequence[Books]], Names]) -> Field:
        """Those of the first tier, for one glance at all of them however many requests are looked at."""
        if self._field is None:
            sound = self._sound
            if sound[0].tier != sound[-1].tier:
                sound = [books for books in sound if books.tier == sound[0].tier]
            inflight = sum([books.window.inflight for books in sound])
            share = sum([books.share for books in sound])
            self._field = Field(sound, names(sound).everyone, inflight, share, self._waiting)
        return self._field


class Draw(NamedTuple):
    """Where a request is drawn to: bits of backends, why, and how many blocks of its prompt they have."""

    home: int
    choice: Choice
    depth: int


class Balancer:
    """Picks the emptiest (``_load``); ties go to the backend that was chosen least recently."""

    def __init__(
        self,
        config: QueueConfig,
        balance: BalanceConfig | None = None,
        caches: CacheMap | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """``caches``: the pool's own; without them nothing is known of any cache.

        ``shared``: other gateways send to the same engines. What these have of a prompt then is not known here, so
        where no backend is thought to have any of it, all gateways agree on one by the session's name.
        """
        self.config = config
        self._balance = balance or BalanceConfig()
        self._caches = caches or CacheMap()
        self._names = Names()  # of those that were looked at last
        self._draws = self._balance.affinity is not Affinity.NONE
        self._by_prefix = self._balance.affinity is Affinity.PREFIX
        self._by_session = shared or not self._by_prefix

    def pick(
        self,
        candidates: Sequence[Books],
        ticket: Ticket,
        lane: int,
        now: float,
        scene: Scene | None = None,
        entry: Entry | None = None,
        *,
        keenly: bool = False,
    ) -> Spot | Hold:
        """A place for ``ticket`` on one of ``candidates``, or why there is none; ``entry`` where it waits already.

        Nothing draws it without a ``scene``. ``keenly``: one that it is drawn elsewhere from is none.
        ``candidates`` are in the order of their tiers: one is used while none of those before it has room.
        """
        found, draw, field = Hold.FULL, None, None
        if scene is not None and self._draws and (ticket.shape.blocks or ticket.session):
            field = scene.field(self._names_of)
            draw = self._draw(field, ticket) if len(field.sound) > 1 else None
        elif not candidates or not candidates[-1].tier:
            return self._least(candidates, ticket, lane, now)
        for tier in _tiers(candidates):
            if draw is None or field is None:
                spot = self._least(tier, ticket, lane, now)
                if field is not None and not isinstance(spot, Hold):
                    spot.keen = self._at_hand(0, field, ticket, entry)
            else:
                spot = self._drawn(draw, field, tier, ticket, lane, entry, now, keenly=keenly)
            if not isinstance(spot, Hold):
                if spot.books.tier:
                    spot.choice = Choice.SPILL
                return spot
            found = _worse(found, spot)
        return found

    # ------------------------------------------------------------------------------------------------- the emptiest

    def _least(self, candidates: Sequence[Books], ticket: Ticket, lane: int, now: float) -> Spot | Hold:
        """The emptiest of those with room. One loop over all of them, for there may be many."""
        critical = ticket.priority is Priority.CRITICAL
        if len(candidates) == 1:
            only = candidates[0]
            inflight = only.window.inflight
            if inflight >= (only.cap if critical else only.cap_common):
                return Hold.FULL
            return self._hold(only, ticket, lane, now) or Spot(only, inflight + 1 < only.cap)
        best, low, more = None, inf, False
        for books in candidates:
            window = books.window
            inflight = window.inflight
            if inflight < (books.cap if critical else books.cap_common):
                more = best is not None
                # as in ``_load``, without a call for each engine
                load = (inflight + 1) / books.room + window.unread_tokens * books.reading
                if load < low or (load == low and best is not None and books.turn < best.turn):
                    best, low = books, load
        if best is None:
            return Hold.FULL
        hold = self._hold(best, ticket, lane, now)
        if hold is not None:
            return self._least_free(candidates, ticket, lane, now, hold, more=more)
        return Spot(best, more=more or best.window.inflight + 1 < best.cap)

    def _least_free(
        self, candidates: Sequence[Books], ticket: Ticket, lane: int, now: float, hold: Hold, *, more: bool
    ) -> Spot | Hold:
        """The same where the emptiest of all cannot take it, for ``hold``."""
        critical = ticket.priority is Priority.CRITICAL
        free: list[Books] = []
        for books in candidates:
            if books.window.inflight < (books.cap if critical else books.cap_common):
                found = self._hold(books, ticket, lane, now)
                if found is None:
                    free.append(books)
                else:
                    hold = _worse(hold, found)
        if not free:
            return hold
        best = min(free, key=_load)
        return Spot(best, more=more or best.window.inflight + 1 < best.cap)

    def _hold(self, books: Books, ticket: Ticket, lane: int, now: float) -> Hold | None:
        """Why a backend that has a place cannot take this request into it."""
        window = books.window
        inflight = window.inflight
        if not inflight:
            return None
        if (lane and inflight >= books.cap_others) or (self.reads_serially(ticket, lane) and self.reading(books, now)):
            return Hold.LANE
        if window.tokens + ticket.work.tokens > books.limit.tokens:
            window.held = True
            return Hold.TOKENS
        return None

    # ------------------------------------------------------------------------------------------------- affinity

    def _names_of(self, sound: Sequence[Books]) -> Names:
        if sound is not self._names.of:
            self._names = Names(sound)
        return self._names

    def _draw(self, field: Field, ticket: Ticket) -> Draw | None:
        """Where it is drawn to: where most of its prompt is cached, or where its session belongs.

        A prompt that is cached nowhere gains nothing by its session's home; but while others wait it waits for that,
        and so leaves places to those who cost less.
        """
        blocks, caches = ticket.shape.blocks, self._caches
        if blocks and self._by_prefix:
            trusted = field.everyone & ~caches.doubted
            depth, home = caches.longest(blocks, trusted)
            if depth and home & (home - 1) and ticket.session:  # of several, where its last turn was answered
                home = caches.home(ticket.session) & home or home
            if depth and depth >= WORTH * len(blocks) and home != trusted:
                return Draw(home, Choice.PREFIX, depth)
        if ticket.session and (self._by_session or field.waiting):
            digests, pulls = self._names_of(field.sound).digests, [books.pull for books in field.sound]
            bit = field.sound[rendezvous(digest(ticket.session), digests, pulls)].cache.bit
            return Draw(bit, Choice.SESSION, caches.longest(blocks, bit)[0] if blocks else 0)
        return None

    def _drawn(
        self,
        draw: Draw,
        field: Field,
        candidates: Sequence[Books],
        ticket: Ticket,
        lane: int,
        entry: Entry | None,
        now: float,
        *,
        keenly: bool,
    ) -> Spot | Hold:
        """At home, if there is a place and it is within the share; else where else there is one."""
        home = draw.home
        there = self._least(self._at(home, field, candidates), ticket, lane, now)
        if not isinstance(there, Hold) and self._fair(there.books, field):
            return self._at_home(there, draw, candidates, self._at_hand(draw.depth, field, ticket, entry))
        if keenly:
            return Hold.LANE
        elsewhere = [books for books in candidates if books.window.inflight < books.cap and not books.cache.bit & home]
        spot = self._second(elsewhere, field, ticket, lane, now)
        if isinstance(spot, Hold):
            if isinstance(there, Hold):
                return _worse(there, spot)
            return self._at_home(there, draw, candidates, self._at_hand(draw.depth, field, ticket, entry))
        keen = self._keen(draw, spot, field, ticket, entry, now) if isinstance(there, Hold) else Keen.KEEN
        return Spot(spot.books, more=True, choice=Choice.SPILL, keen=keen, matched=spot.matched)

    def _at(self, home: int, field: Field, candidates: Sequence[Books]) -> Sequence[Books]:
        """Those of the bits ``home``; the one that it mostly is, is not sought among many."""
        only = self._names_of(field.sound).by_bit.get(home)
        if only is None:
            return [books for books in candidates if books.cache.bit & home]
        return (only,) if only.tier == candidates[0].tier else ()

    @staticmethod
    def _at_home(there: Spot, draw: Draw, candidates: Sequence[Books], keen: Keen) -> Spot:
        return Spot(there.books, there.more or len(candidates) > 1, draw.choice, keen, draw.depth)

    @staticmethod
    def _at_hand(depth: int, field: Field, ticket: Ticket, entry: Entry | None) -> Keen:
        """How keen one is that has so many blocks cached: where they are few, it lets those go first who cost less."""
        passed = 0 if entry is None else entry.passed
        warm = depth >= WARM * len(ticket.shape.blocks)  # of a prompt without blocks nobody can tell
        return Keen.KEEN if warm or passed >= PASSES * len(field.sound) else Keen.COLD

    def _fair(self, books: Books, field: Field) -> bool:
        """Whether a backend is within 1 + c of its fair share, and what chance has come and go beside it."""
        inflight = books.window.inflight
        if inflight < min(LOW_CONCURRENCY, 0.25 * books.limit.value):
            return True
        fair = (field.inflight + 1) * books.share / field.share if field.share else 0.0
        return inflight < (1.0 + self._balance.bound) * fair + sqrt(fair)

    def _second(self, candidates: Sequence[Books], field: Field, ticket: Ticket, lane: int, now: float) -> Spot | Hold:
        """The next best place, and how much is cached there: of those within their share, else the emptiest."""
        blocks = ticket.shape.blocks
        fair = [books for books in candidates if self._fair(books, field)]
        if blocks and fair and self._by_prefix:
            depth, bits = self._caches.longest(blocks, reduce(or_, [books.cache.bit for books in fair]))
            spot = self._least([books for books in fair if books.cache.bit & bits], ticket, lane, now)
            if not isinstance(spot, Hold):
                spot.matched = depth
                return spot
        return self._least(candidates, ticket, lane, now)

    def _keen(self, draw: Draw, spot: Spot, field: Field, ticket: Ticket, entry: Entry | None, now: float) -> Keen:
        """Whether it takes a place that was found elsewhere, while its home is full."""
        if entry is not None and entry.passed >= PASSES * len(field.sound):
            return Keen.KEEN
        homes = [home for home in field.sound if home.cache.bit & draw.home]
        window = spot.books.window
        pace = window.reading_pace.value
        if pace is None or not any(self._fair(home, field) for home in homes):
            return Keen.RELUCTANT
        lost = (draw.depth - spot.matched) / max(1, len(ticket.shape.blocks)) if self._by_prefix else 1.0
        # A place that stays empty for a moment costs its part of the engine, a prompt that is read again all of it.
        worth = min(lost * ticket.work.prompt_tokens * pace * max(1, window.inflight), self._balance.patience)
        waited = 0.0
        if entry is not None:
            worth = min(worth, LATE * (entry.deadline - entry.arrived))
            waited = now - entry.arrived
        wait = min(home.interval for home in homes) * (1.0 + field.waiting / len(field.sound))
        return Keen.PATIENT if waited < worth and wait < worth else Keen.RELUCTANT

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


def _tiers(candidates: Sequence[Books]) -> Iterable[Sequence[Books]]:
    if not candidates or candidates[0].tier == candidates[-1].tier:
        return (candidates,)
    return [list(tier) for _, tier in groupby(candidates, attrgetter("tier"))]


def _load(books: Books) -> tuple[float, int]:
    """(In flight + 1) / (limit * weight), and the part of a request's stay that unread prompts take to be read."""
    window = books.window
    return (window.inflight + 1) / books.room + window.unread_tokens * books.reading, books.turn


def _worse(one: Hold, other: Hold) -> Hold:
    """Of two reasons the one that counts: tokens before a lane's own, before no room at all."""
    return min(one, other, key=_COUNTS.index)


_COUNTS: Final = (Hold.TOKENS, Hold.LANE, Hold.FULL)
