from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.config import LaneConfig, QueueConfig
from gateway.admission.queue import Calendar, Entry, LaneQueue
from gateway.admission.spot import Hold, Spot
from tests.admission.helpers import HERE, LONG, SHORT, ticket

# ------------------------------------------------------------------------------------------------------- calendar


def test_the_earliest_date_comes_first_and_within_it_the_first_in() -> None:
    calendar: Calendar[str] = Calendar()
    for date, key, item in ((5, 1, "e"), (2, 2, "b"), (2, 3, "c"), (9, 4, "f")):
        calendar.add(date, key, item)
    assert (calendar.date(), calendar.first()) == (2, "b")
    calendar.discard(2, 2)
    assert calendar.first() == "c"
    calendar.discard(2, 3)
    assert (calendar.date(), calendar.first()) == (5, "e")


def test_what_is_not_there_may_be_discarded() -> None:
    calendar: Calendar[str] = Calendar()
    calendar.discard(1, 1)
    calendar.add(1, 1, "a")
    calendar.discard(1, 2)
    assert calendar.first() == "a"
    calendar.discard(1, 1)
    assert calendar.date() is None
    assert calendar.first() is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5))))
def test_the_calendar_agrees_with_a_sorted_list(steps: list[tuple[bool, int, int]]) -> None:
    calendar: Calendar[int] = Calendar()
    model: dict[tuple[int, int], int] = {}
    for number, (add, date, key) in enumerate(steps):
        if add and (date, key) not in model:
            calendar.add(date, key, number)
            model[date, key] = number
        elif not add:
            calendar.discard(date, key)
            model.pop((date, key), None)
        dates = [date for date, _ in model]
        assert calendar.date() == min(dates, default=None)
        first = [item for (date, _), item in model.items() if date == min(dates)]
        assert calendar.first() == (min(first) if first else None)


# ---------------------------------------------------------------------------------------------------------- lanes


class Queue:
    """A queue with a place for everybody, unless said otherwise."""

    def __init__(self, *lanes: LaneConfig, **config: float) -> None:
        self.config = QueueConfig(lanes=lanes or (SHORT, LONG), **config)  # type: ignore[arg-type]
        self.queue = LaneQueue(self.config)
        self.cost: Counter[str] = Counter()

    def push(self, cost: int, client: str = "", lane: int = 0, weight: float = 1.0) -> Entry:
        entry = Entry(ticket(0, cost, client=client, weight=weight), lane, 0, 0.0, 0.0, 0.0, first=None)
        self.queue.push(entry)
        return entry

    def pop(self, place: Callable[[Entry, bool], Spot | Hold] = lambda _entry, _keenly: HERE) -> Entry | Hold:
        found = self.queue.next(place)
        if isinstance(found, Hold):
            return found
        entry, _ = found
        self.cost[self.config.lanes[entry.lane].name] += entry.ticket.work.output_tokens
        self.cost[entry.ticket.client] += entry.ticket.work.output_tokens
        return entry


def test_inside_a_client_the_first_in_is_the_first_out() -> None:
    queue = Queue()
    entries = [queue.push(100, "x") for _ in range(5)]
    assert [queue.pop() for _ in range(5)] == entries
    assert queue.pop() is Hold.LANE


@pytest.mark.parametrize(("weights", "short"), [((2.0, 1.0), 0.667), ((1.0, 1.0), 0.5), ((4.0, 1.0), 0.8)])
def test_lanes_share_by_weight_on_cost(weights: tuple[float, float], short: float) -> None:
    queue = Queue(LaneConfig("short", 1000, weights[0]), LaneConfig("long", None, weights[1]))
    for _ in range(3000):
        queue.push(100)
    for _ in range(100):
        queue.push(3000, lane=1)
    while sum(queue.cost[name] for name in ("short", "long")) < 200_000:
        queue.pop()
    assert queue.cost["short"] / (queue.cost["short"] + queue.cost["long"]) == pytest.approx(short, abs=0.02)


def test_a_lane_alone_gets_everything() -> None:
    queue = Queue()
    entries = [queue.push(5000, lane=1) for _ in range(3)]
    assert [queue.pop() for _ in range(3)] == entries


def test_a_rare_long_request_is_served_in_its_first_round() -> None:
    queue = Queue()
    for _ in range(100):
        queue.push(250)
    queue.pop()
    rare = queue.push(32_000, lane=1)
    served = [queue.pop() for _ in range(5)]
    assert rare in served


def test_what_was_served_ahead_is_paid_before_the_next() -> None:
    queue = Queue()
    for _ in range(400):
        queue.push(250)
    first, second = queue.push(10_000, lane=1), queue.push(10_000, lane=1)
    order = [queue.pop() for _ in range(200)]
    between = order.index(second) - order.index(first)
    assert between == pytest.approx(2 * 10_000 / 250, abs=6)  # short has twice its weight


def test_an_idle_lane_keeps_its_debt_and_no_credit() -> None:
    queue = Queue()
    for _ in range(400):
        queue.push(250)
    first = queue.push(10_000, lane=1)
    order = [queue.pop() for _ in range(10)]
    second = queue.push(10_000, lane=1)
    order += [queue.pop() for _ in range(200)]
    assert order.index(second) - order.index(first) >= 70
    for _ in range(500):
        queue.pop()
    assert [lane.credit for lane in queue.queue.lanes] == [0.0, 0.0]


def test_debt_fades_while_the_lane_stays_idle() -> None:
    queue = Queue()
    for _ in range(400):
        queue.push(250)
    queue.push(10_000, lane=1)
    for _ in range(120):
        queue.pop()
    late = queue.push(10_000, lane=1)
    assert late in [queue.pop() for _ in range(6)]


def test_a_head_that_does_not_fit_the_tokens_holds_the_dispatch() -> None:
    queue = Queue()
    large = queue.push(500, lane=1)
    queue.push(10)

    def place(entry: Entry, _keenly: bool) -> Spot | Hold:
        return Hold.TOKENS if entry is large else HERE

    served = [queue.pop(place) for _ in range(3)]
    assert served.count(Hold.TOKENS) >= 2
    assert queue.queue.depth >= 1
    assert large in [queue.pop() for _ in range(2)]


def test_a_lane_that_is_held_for_its_own_reason_lets_the_others_go() -> None:
    queue = Queue()
    held = queue.push(500, lane=1)
    shorts = [queue.push(10) for _ in range(5)]

    def place(entry: Entry, _keenly: bool) -> Spot | Hold:
        return Hold.LANE if entry is held else HERE

    assert [queue.pop(place) for _ in range(5)] == shorts
    assert queue.pop(place) is Hold.LANE
    assert queue.queue.lanes[1].credit <= 500.0  # it does not save up while it is held
    assert queue.pop() is held


def test_a_withdrawn_entry_is_gone_at_once() -> None:
    queue = Queue()
    first, second, third = (queue.push(100, "x") for _ in range(3))
    queue.queue.remove(first)
    queue.queue.remove(third)
    assert (queue.queue.depth, queue.queue.lanes[0].cost) == (1, 100.0)
    assert queue.pop() is second
    assert queue.queue.lanes[0].cost == 0.0


# -------------------------------------------------------------------------------------------------------- clients


def test_clients_share_a_lane_on_cost_however_much_each_sends() -> None:
    queue = Queue()
    for _ in range(2000):
        queue.push(100, "hog")
    for _ in range(300):
        queue.push(300, "large")
        queue.push(100, "small")
    for _ in range(400):
        queue.pop()
    assert queue.cost["hog"] == pytest.approx(queue.cost["small"], rel=0.05)
    assert queue.cost["hog"] == pytest.approx(queue.cost["large"], rel=0.05)


@pytest.mark.parametrize("weight", [0.25, 0.5, 2.0, 3.0, 10.0])
def test_clients_share_a_lane_by_weight_on_cost(weight: float) -> None:
    queue = Queue()
    for _ in range(2000):
        queue.push(100, "heavy", weight=weight)
        queue.push(300, "plain")
    while queue.cost["heavy"] + queue.cost["plain"] < 100_000:
        queue.pop()
    assert queue.cost["heavy"] / queue.cost["plain"] == pytest.approx(weight, rel=0.1)


def test_a_lane_that_is_empty_again_counts_no_weight() -> None:
    queue = Queue()
    for weight in (0.1, 0.2, 0.7, 3.0):
        queue.push(100, f"{weight}", weight=weight)
    while isinstance(queue.pop(), Entry):
        pass
    assert queue.queue.lanes[0].weight == 0.0


def test_a_client_that_had_nothing_waiting_goes_to_the_front_once() -> None:
    queue = Queue()
    hog = [queue.push(300, "hog") for _ in range(20)]
    assert queue.pop() is hog[0]
    first, second = queue.push(300, "new"), queue.push(300, "new")
    assert queue.pop() is first
    assert second not in (queue.pop(), hog[1])


def test_coming_back_with_one_request_at_a_time_gains_nothing() -> None:
    queue = Queue()
    for _ in range(2000):
        queue.push(100, "patient")
    for _ in range(400):
        if not any(entry.ticket.client == "sly" for entry in _waiting(queue)):
            queue.push(300, "sly")
        queue.pop()
    assert queue.cost["sly"] == pytest.approx(queue.cost["patient"], rel=0.05)


def test_a_stream_of_newcomers_does_not_starve_the_old() -> None:
    queue = Queue()
    old = [queue.push(100, "old") for _ in range(5)]
    served: list[Entry | Hold] = []
    newcomers: list[Entry] = []
    for number in range(400):
        newcomers += [queue.push(100, f"new {number}"), queue.push(100, f"newer {number}")]
        served.append(queue.pop())
        newcomers = [entry for entry in newcomers if entry is not served[-1]]
        if len(newcomers) > 20:
            queue.queue.remove(newcomers.pop(0))  # its time is up
    assert all(entry in served for entry in old)


def test_an_idle_lane_forgets_what_its_clients_had() -> None:
    queue = Queue()
    queue.push(5000, "x")
    queue.pop()
    first, other = queue.push(100, "x"), queue.push(100, "y")
    assert [queue.pop(), queue.pop()] == [first, other]


def test_the_queued_cost_of_a_client_is_known() -> None:
    queue = Queue()
    lane = queue.queue.lanes[0]
    queue.push(100, "x")
    entry = queue.push(50, "x")
    assert (lane.queued_by("x"), lane.queued_by("nobody"), lane.weight) == (150.0, 0.0, 1.0)
    queue.queue.remove(entry)
    queue.pop()
    assert (lane.queued_by("x"), lane.weight) == (0.0, 0.0)


def _waiting(queue: Queue) -> list[Entry]:
    return [e for lane in queue.queue.lanes for client in lane._clients.values() for e in client.entries.values()]


@given(st.data())
def test_nothing_is_lost_and_nothing_comes_twice(data: st.DataObject) -> None:
    queue = Queue()
    waiting: list[Entry] = []
    numbers = count()
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["push", "push", "pop", "withdraw"]))
        if step == "push":
            cost = data.draw(st.sampled_from([1, 90, 4000]))
            client = data.draw(st.sampled_from(["x", "y", f"z{next(numbers)}"]))
            waiting.append(queue.push(cost, client, data.draw(st.integers(0, 1))))
        elif step == "pop":
            entry = queue.pop()
            assert isinstance(entry, Hold) is not bool(waiting)
            if isinstance(entry, Entry):
                waiting.remove(entry)
        elif waiting:
            queue.queue.remove(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        assert queue.queue.depth == len(waiting)
        for index, lane in enumerate(queue.queue.lanes):
            mine = [entry for entry in waiting if entry.lane == index]
            assert lane.cost == sum(entry.ticket.work.cost for entry in mine)
            assert lane.weight == len({entry.ticket.client for entry in mine})
            assert lane.head is None or lane.head in mine
