"""The queue: priorities, in each of them lanes by deficit round robin, clients inside a lane, arrival inside a client.

Deficit round robin after Shreedhar and Varghese (1996), on predicted cost instead of bytes, one quantum a visit. What
is served is paid afterwards (surplus round robin), new clients go to the front once, as new flows do in fq_codel
(RFC 8290). No ageing: it becomes strict priority for long requests under overload, and a round robin cannot starve.

Every operation costs the same however many wait. The rounds of a round robin are not walked: a lane's turn is computed
(`LaneQueue.turn`), a client stands in a calendar under the round in which its next request is due.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import floor
from typing import Final, Generic, TypeVar

from gateway.admission.config import LaneConfig, QueueConfig
from gateway.admission.spot import Hold, Keen, Spot
from gateway.model import Priority, Ticket

T = TypeVar("T")
CRITICAL, STANDARD, SHEDDABLE = Priority
AHEAD: Final = 64  # requests behind the next in turn that are looked at where they may have a better use for a place
Place = Callable[["Entry", bool], Spot | Hold]  # True: only a place that it is keen on is asked for


class Calendar(Generic[T]):
    """Items under integer dates: the earliest date first, in order of entry within a date.

    All operations are O(1) but for a heap over the distinct dates, whose number does not depend on the items'.
    """

    def __init__(self) -> None:
        self._dates: dict[int, OrderedDict[int, T]] = {}
        self._heap: list[int] = []

    def add(self, date: int, key: int, item: T) -> None:
        """Enter ``item`` under ``date``; ``key`` is unique within it."""
        items = self._dates.get(date)
        if items is None:
            items = self._dates[date] = OrderedDict()
            heapq.heappush(self._heap, date)
        items[key] = item

    def discard(self, date: int, key: int) -> None:
        """Forget the item; no fault if it is not there."""
        items = self._dates.get(date)
        if items is not None:
            items.pop(key, None)

    def date(self) -> int | None:
        """The earliest date with an item."""
        heap, dates = self._heap, self._dates
        while heap:
            if dates[heap[0]]:
                return heap[0]
            del dates[heapq.heappop(heap)]
        return None

    def __iter__(self) -> Iterator[T]:
        """All items, by date, and in order of entry within it."""
        for date in sorted(self._dates):
            yield from self._dates[date].values()

    def first(self) -> T | None:
        """The first item of the earliest date."""
        date = self.date()
        return None if date is None else next(iter(self._dates[date].values()))


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting request."""

    ticket: Ticket
    lane: int
    size: int  # bytes held in memory while it waits
    arrived: float
    deadline: float
    limit: float  # when it is thrown out even if only a long prompt before it holds it
    first: float | None  # when its client asked first, where it did before
    date: int = 0  # under which its deadline is entered
    passed: int = 0  # times that one behind it went first, which was drawn to the place that there was
    overdue: bool = False  # it has waited for as long as one should: it goes when nobody else can

    @property
    def came(self) -> float:
        """When its client asked first: that it waited counts, too."""
        return self.arrived if self.first is None else self.first


@dataclass(slots=True, eq=False)
class Client:
    """One client's requests in one lane."""

    name: str
    key: int
    due: float  # the round from which on it may be served
    date: int  # under which it is entered
    weight: float = 1.0  # its share, against that of another client
    cost: float = 0.0
    entries: OrderedDict[int, Entry] = field(default_factory=OrderedDict)


class Lane:
    """One lane of one queue: its clients in fair order."""

    def __init__(self, config: LaneConfig, queue: QueueConfig) -> None:
        self.config = config
        self.grant = queue.lane_quantum * config.weight
        self.credit = 0.0  # cost units; below zero it has been served ahead of its turn
        self.depth = 0
        self._quantum = queue.client_quantum
        self._reset()

    def _reset(self) -> None:
        # An idle lane keeps no credit, but pays its debt; its clients keep neither.
        self.credit = min(self.credit, 0.0)
        self.cost = 0.0
        self.weight = 0.0  # of all clients with a request waiting
        self._round = 0.0
        self._clients: dict[str, Client] = {}
        self._rounds: Calendar[Client] = Calendar()
        self._keys = 0
        self._head: Entry | None = None

    def queued_by(self, client: str) -> float:
        """Cost that ``client`` has waiting here."""
        known = self._clients.get(client)
        return known.cost if known is not None else 0.0

    def push(self, entry: Entry) -> None:
        """Let a request wait."""
        client = self._clients.get(entry.ticket.client)
        if client is None:
            client = self._newcomer(entry.ticket.client)
        if not client.entries:
            client.weight = entry.ticket.weight
            self.weight += client.weight
            self._head = None  # it may be due before the present head
        client.entries[entry.ticket.id] = entry
        client.cost += entry.ticket.work.cost
        self.depth += 1
        self.cost += entry.ticket.work.cost

    def _newcomer(self, name: str) -> Client:
        self._keys += 1
        client = Client(name, self._keys, self._round, int(self._round) - 1)
        self._head = None  # a new client goes to the front once
        self._clients[name] = client
        self._rounds.add(client.date, client.key, client)
        return client

    @property
    def head(self) -> Entry | None:
        """The request that is next in fair order."""
        if self._head is None and self.depth:
            self._head = self._find_head()
        return self._head

    def _find_head(self) -> Entry:
        while True:
            client = self._rounds.first()
            assert client is not None  # noqa: S101 - whoever waits is in the calendar
            if client.entries:
                return next(iter(client.entries.values()))
            self._rounds.discard(client.date, client.key)  # served, and its debt is paid
            del self._clients[client.name]

    def behind(self, entry: Entry) -> Iterator[Entry]:
        """Those who come after ``entry``, the next in turn, in about the order in which they would."""
        for client in self._rounds:
            for other in client.entries.values():
                if other is not entry:
                    yield other

    def serve(self, entry: Entry) -> None:
        """The request is dispatched: its client pays for it."""
        self._head = None
        client = self._clients[entry.ticket.client]
        rounds = entry.ticket.work.cost / self._quantum
        start = max(client.due, self._round)
        client.due = start + rounds / client.weight
        self._round += rounds / self.weight
        self.remove(entry)
        if self.depth:
            self._rounds.discard(client.date, client.key)
            client.date = int(client.due)
            self._rounds.add(client.date, client.key, client)

    def remove(self, entry: Entry) -> None:
        """The request no longer waits."""
        client = self._clients[entry.ticket.client]
        del client.entries[entry.ticket.id]
        client.cost -= entry.ticket.work.cost
        self.cost -= entry.ticket.work.cost
        self.depth -= 1
        if not client.entries:
            self.weight -= client.weight
            client.cost = 0.0
        if entry is self._head:
            self._head = None
        if not self.depth:
            self._reset()


def _keenest(lane: Lane, head: Entry, found: Spot, place: Place) -> tuple[Entry, Spot | Hold]:
    """Who takes a place that was ``found`` for the next in turn, and that another one may have a better use for.

    The keenest of those right behind it, of equals the one that has most of its prompt there, of those again the first;
    nobody where all rather wait.
    """
    best: tuple[Entry, Spot | Hold] = head, Hold.LANE
    most, passed = (Keen.PATIENT, 1.0), 0
    seen: list[Entry] = []
    for entry in chain((head,), islice(lane.behind(head), AHEAD)):
        spot = found if entry is head else place(entry, most[0] > Keen.PATIENT)
        if isinstance(spot, Hold):
            continue
        rank = (spot.keen, spot.matched / max(1, len(entry.ticket.shape.blocks)))
        if rank > most:
            best, most, passed = (entry, spot), rank, len(seen)
            if spot.keen is Keen.KEEN:
                break
        seen.append(entry)
    if most[0] > Keen.RELUCTANT:
        for each in seen[:passed]:
            each.passed += 1
    return best


class LaneQueue:
    """The lanes of one priority."""

    def __init__(self, config: QueueConfig) -> None:
        self.lanes = tuple(Lane(lane, config) for lane in config.lanes)
        self.depth = 0
        self._turn = len(self.lanes) - 1  # so that the first lane has the first turn
        count = len(self.lanes)
        self._orders = [[(turn + step) % count for step in range(1, count + 1)] for turn in range(count)]

    def push(self, entry: Entry) -> None:
        """Let a request wait."""
        self.lanes[entry.lane].push(entry)
        self.depth += 1

    def remove(self, entry: Entry) -> None:
        """The request no longer waits."""
        self.lanes[entry.lane].remove(entry)
        self._left()

    def _left(self) -> None:
        self.depth -= 1
        if not self.depth:
            self._turn = len(self.lanes) - 1
            for lane in self.lanes:
                lane.credit = 0.0  # nobody was kept waiting by what it was served

    def next(self, place: Place) -> tuple[Entry, Spot] | Hold:
        """Take out the request whose turn it is, together with the place that ``place`` found for it.

        A request that must wait for its own lane's reason lets the other lanes go on; any other that finds no place
        holds the dispatch, or a long one would starve behind small holes. One that is drawn to another place lets one
        behind it go that is drawn to this one. Returns why nobody can go, where that is so.
        """
        passed: list[Lane] = []
        while (lane := self._next_lane(passed)) is not None:
            entry = lane.head
            assert entry is not None  # noqa: S101 - a lane without a request has no turn
            spot = place(entry, False)
            if not isinstance(spot, Hold) and spot.keen is not Keen.KEEN:
                entry, spot = _keenest(lane, entry, spot, place)
            if spot is Hold.LANE:
                lane.credit = min(lane.credit, lane.grant)
                passed.append(lane)
                continue
            if isinstance(spot, Hold):
                return spot
            lane.credit -= entry.ticket.work.cost
            lane.serve(entry)
            self._left()
            return entry, spot
        return Hold.LANE

    def _next_lane(self, passed: Sequence[Lane]) -> Lane | None:
        """Give the turn to the lane that has credit first, as if round after round had been walked.

        A lane with any credit at all may serve its head and pays afterwards: one that must first save for a dear
        request would let it wait for the whole of its own cost.
        """
        current = self.lanes[self._turn]
        if current.depth and current.credit > 0.0 and current not in passed:
            return current
        order, winner, rounds = self._orders[self._turn], None, 0
        for index in order:
            lane = self.lanes[index]
            if lane.depth and lane not in passed:
                visits = 1 if lane.credit > -lane.grant else floor(-lane.credit / lane.grant) + 1
                if winner is None or visits < rounds:
                    winner, rounds, self._turn = lane, visits, index
        if winner is None:
            return None
        earned = rounds
        for index in order:
            lane = self.lanes[index]
            if not lane.depth:
                lane.credit = min(0.0, lane.credit + lane.grant * rounds)
            elif lane not in passed:
                lane.credit += lane.grant * earned
            if lane is winner:
                earned -= 1  # the last round ends with it
        return winner


class PriorityQueue:
    """All that waits for one set of backends: the higher priority goes first, but to each lower one its floor is owed.

    The floor is a share of all that is served. What is owed is saved while nobody claims it, up to a lane's quantum;
    what the others left is never held against a lower priority, beyond the one request that was served last.
    """

    def __init__(self, config: QueueConfig) -> None:
        self.priorities = tuple(LaneQueue(config) for _ in Priority)
        self.depth = 0
        self._standard = self.priorities[STANDARD]
        self._floor = config.floor
        self._most = config.lane_quantum
        self._owed = [0.0] * len(Priority)  # cost units

    def retune(self, config: QueueConfig) -> None:
        """Go on with other thresholds, weights and waits; who waits keeps the lane and the deadline it came with."""
        for queue in self.priorities:
            for lane, tuned in zip(queue.lanes, config.lanes, strict=True):
                lane.config = tuned
                lane.grant = config.lane_quantum * tuned.weight

    def push(self, entry: Entry) -> None:
        """Let a request wait."""
        self.priorities[entry.ticket.priority].push(entry)
        self.depth += 1

    def remove(self, entry: Entry) -> None:
        """The request no longer waits."""
        self.priorities[entry.ticket.priority].remove(entry)
        self.depth -= 1

    @property
    def critical(self) -> int:
        """How many of the highest priority wait."""
        return self.priorities[CRITICAL].depth

    def next(self, place: Place) -> tuple[Entry, Spot] | Hold:
        """Take out the request whose turn it is, as ``LaneQueue.next`` does.

        One that finds no place holds whoever comes after it, but never a critical request.
        """
        hold = Hold.LANE
        for priority in self._in_turn():
            if hold is not Hold.LANE and priority is not CRITICAL:
                continue
            found = self.priorities[priority].next(place)
            if not isinstance(found, Hold):
                self.depth -= 1
                self._pay(priority, found[0].ticket.work.cost)
                return found
            if found is not Hold.LANE:
                hold = found
        return hold

    def debt(self, priority: Priority) -> float:
        """Cost that the others must be served before anything is owed to ``priority`` again, times its floor."""
        return max(0.0, -self._owed[priority])

    def _in_turn(self) -> Sequence[Priority]:
        if self._standard.depth == self.depth:
            return (STANDARD,)
        waiting = [priority for priority in Priority if self.priorities[priority].depth]
        return sorted(waiting, key=lambda priority: self._owed[priority] <= 0.0)

    def _pay(self, served: Priority, cost: float) -> None:
        owed, share = self._owed, self._floor * cost
        for priority in (STANDARD, SHEDDABLE):
            after = owed[priority] + share
            if priority is served:
                owed[priority] = after - cost if after > 0.0 else -cost
            else:
                owed[priority] = min(self._most, after)
