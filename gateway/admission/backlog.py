"""Everything that waits: one queue for each set of backends, and across them deadlines, count and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from gateway.admission.config import QueueConfig
from gateway.admission.flow import Flow
from gateway.admission.pool import Books
from gateway.admission.queue import Calendar, Entry, PriorityQueue
from gateway.admission.spot import Hold
from gateway.model import Priority, Ticket

DATE: Final = 0.01  # seconds; deadlines are kept to the next hundredth


class Group:
    """The queue of one set of backends. One model's full backends never block another model's queue."""

    def __init__(self, books: tuple[Books, ...], config: QueueConfig) -> None:
        self.books = books
        self.queue = PriorityQueue(config)
        self.overdue = PriorityQueue(config)  # who has waited for too long, and gets what nobody else can take
        self.spare_at = -inf  # when a backend was last far from full
        self.flow = Flow(len(config.lanes), config.floor)
        self.served = 0.0  # cost, for turns between queues that share a backend
        self.arrivals = 0  # since the last tick
        self.full = 0  # of those, the ones that found every backend full
        self.shut: Hold | None = None  # why nobody found a place, while none can have come free since

    @property
    def depth(self) -> int:
        """How many wait, in time or not."""
        return self.queue.depth + self.overdue.depth

    def line(self, entry: Entry) -> PriorityQueue:
        """Where a request waits."""
        return self.overdue if entry.overdue else self.queue

    @property
    def capacity(self) -> float:
        """Cost units a second that its backends could serve."""
        return sum(books.capacity for books in self.books)

    def note_arrival(self, ticket: Ticket, lane: int, now: float) -> None:
        """Count an arrival, refused or not: arrivals see what time sees."""
        self.flow.arrive(ticket.priority, lane, ticket.work.cost, now)
        self.arrivals += 1
        critical = ticket.priority is Priority.CRITICAL
        if self.shut is Hold.FULL and not critical:
            self.full += 1
            return
        for books in self.books:
            if critical:
                books.note_critical(now)
            if books.window.inflight >= (books.cap if critical else books.cap_common):
                books.window.full += 1

    def note_spare(self, now: float) -> None:
        """See whether a backend is far from full."""
        if any(books.spare for books in self.books):
            self.spare_at = now

    def report_arrivals(self) -> None:
        """Tell the backends' windows."""
        for books in self.books:
            books.window.arrivals += self.arrivals
            books.window.full += self.full
        self.arrivals = self.full = 0


class Backlog:
    """All waiting requests. Adding and removing cost the same however many there are."""

    def __init__(self, sets: Iterable[tuple[Books, ...]], config: QueueConfig) -> None:
        self._config = config
        self._groups = {key: Group(key, config) for key in sets}
        self._passing: dict[tuple[Books, ...], Group] = {}  # sets that exist only while somebody waits for them
        self._entries: dict[int, tuple[Entry, Group]] = {}
        self._deadlines: Calendar[Entry] = Calendar()
        self.queued: dict[Group, None] = {}  # those with somebody waiting, in the order of their first
        self.size = 0  # bytes
        self.quiet_until = inf  # no deadline passes before

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ticket_id: int) -> bool:
        return ticket_id in self._entries

    @property
    def lines(self) -> Sequence[PriorityQueue]:
        """All in which somebody may wait."""
        return [line for group in self.queued for line in (group.queue, group.overdue)]

    @property
    def groups(self) -> Sequence[Group]:
        """All queues."""
        return [*self._groups.values(), *self._passing.values()]

    def group(self, books: tuple[Books, ...]) -> Group:
        """The queue of this set of backends."""
        group = self._groups.get(books) or self._passing.get(books)
        return group or Group(books, self._config)

    def regroup(self, sets: Iterable[tuple[Books, ...]]) -> None:
        """Have a queue for each of these sets; one of a set that is no more goes when nobody waits in it."""
        known = self._groups | self._passing
        self._groups = {key: known.get(key) or Group(key, self._config) for key in sets}
        self._passing = {key: group for key, group in known.items() if key not in self._groups and group.depth}

    def add(self, entry: Entry, group: Group) -> None:
        """Let a request wait."""
        if group not in self.queued:
            # Whoever was idle starts level with the rest: no credit for the past.
            least = min((other.served for other in self.queued), default=group.served)
            group.served = max(group.served, least)
            self.queued[group] = None
            if group.books not in self._groups:
                self._passing[group.books] = group
        group.line(entry).push(entry)
        if entry.ticket.priority is Priority.CRITICAL:
            group.shut = None  # there may be a place that only it can take
        self._entries[entry.ticket.id] = (entry, group)
        self.size += entry.size
        self._date(entry)

    def remove(self, ticket_id: int) -> tuple[Entry, Group]:
        """Take a request out wherever it stands."""
        entry, group = self._entries[ticket_id]
        group.line(entry).remove(entry)
        group.shut = None
        self.left(entry)
        return entry, group

    def left(self, entry: Entry) -> None:
        """A request was taken out of its queue: clear the rest of the books."""
        _, group = self._entries.pop(entry.ticket.id)
        self.size -= entry.size
        self._deadlines.discard(entry.date, entry.ticket.id)
        if not group.depth:
            group.shut = None
            del self.queued[group]
            if self._passing:
                self._passing.pop(group.books, None)

    def waiting(self) -> list[tuple[Ticket, tuple[Books, ...]]]:
        """Everybody who waits, and for which backends, in the order of arrival."""
        return [(entry.ticket, group.books) for entry, group in self._entries.values()]

    def retune(self, config: QueueConfig) -> None:
        """Go on with other thresholds, weights and waits of the same lanes."""
        self._config = config
        for group in self.groups:
            group.queue.retune(config)
            group.overdue.retune(config)

    def reopen(self) -> None:
        """A place may have come free anywhere."""
        for group in self.queued:
            group.shut = None

    def in_turn(self) -> Sequence[Group]:
        """Queues whose requests may find a place: those with a critical one first, then the least served."""
        queued = self.queued
        if not queued:
            return ()
        if len(queued) == 1:
            (group,) = queued
            return (group,) if group.shut is None else ()
        hopeful = [group for group in queued if group.shut is None]
        if len(hopeful) > 1:
            hopeful.sort(key=lambda group: (not group.queue.critical, group.served))
        return hopeful

    def pass_over(self, entry: Entry, group: Group, until: float) -> None:
        """Let a request stay that has waited for too long, for a place that nobody in time can take."""
        if not entry.overdue:
            group.queue.remove(entry)
            entry.overdue = True
            group.overdue.push(entry)
            group.shut = None
        self.postpone(entry, until)

    def postpone(self, entry: Entry, deadline: float) -> None:
        """Move a deadline."""
        self._deadlines.discard(entry.date, entry.ticket.id)
        entry.deadline = deadline
        self._date(entry)

    def _date(self, entry: Entry) -> None:
        entry.date = -int(-entry.deadline // DATE)
        self._deadlines.add(entry.date, entry.ticket.id, entry)
        self.quiet_until = min(self.quiet_until, entry.date * DATE)

    def due(self) -> float | None:
        """The next deadline, rounded up to a hundredth."""
        date = self._deadlines.date()
        return None if date is None else date * DATE

    def expired(self, now: float) -> tuple[Entry, Group] | None:
        """One request whose deadline has passed."""
        due = self.due()
        if due is None or due > now:
            self.quiet_until = inf if due is None else due
            return None
        entry = self._deadlines.first()
        return None if entry is None else self._entries[entry.ticket.id]

    def oldest(self, lane: int) -> float | None:
        """When the one that has waited longest in ``lane`` arrived. Walks: for /state, not for decisions."""
        return next((entry.arrived for entry, _ in self._entries.values() if entry.lane == lane), None)
