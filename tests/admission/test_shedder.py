from __future__ import annotations

from random import Random

import pytest

from gateway.admission.backlog import Backlog, Group
from gateway.admission.config import LaneConfig, ShedConfig
from gateway.admission.pool import Pool
from gateway.admission.queue import Entry
from gateway.admission.shedder import Prospect, Shedder
from gateway.model import Priority, Reason, Ticket
from tests.admission.helpers import LONG, adaptive, config, ticket


class Door:
    """A shedder, the queue of one backend, and a drain of ``rate`` cost units a second."""

    def __init__(self, *, rate: float = 100.0, jitter: float = 0.0, **changes: object) -> None:
        self.config = config(**changes)  # type: ignore[arg-type]
        pool = Pool([adaptive()], self.config)
        self.backlog = Backlog(pool.sets, self.config.queue)
        self.group: Group = self.backlog.groups[0]
        self.group.flow.total = rate
        self.group.flow.arrive(Priority.STANDARD, 0, 0.0, 0.0)
        self.shedder = Shedder(self.config, lambda low, high: low + jitter * (high - low))

    def queue(self, request: Ticket, lane: int = 0) -> Entry:
        entry = Entry(request, lane, 0, 0.0, 9.0, 9.0, first=None)
        self.backlog.add(entry, self.group)
        return entry

    def prospect(self, request: Ticket, lane: int = 0, *, serial: bool = False, retry: bool = False) -> Prospect:
        return self.shedder.prospect(request, self.group, lane, 100.0 if retry else None, 100.0, serial=serial)

    def reason(self, request: Ticket, lane: int = 0, *, retry: bool = False) -> Reason | None:
        prospect = self.prospect(request, lane, retry=retry)
        return self.shedder.reason(request, self.group, self.backlog, prospect, 100.0)

    def overload(self, lane: int = 0) -> None:
        self.group.flow._over_since[2 * Priority.STANDARD + lane] = 0.0


# ---------------------------------------------------------------------------------------------- how long to wait


def test_it_may_wait_as_long_as_its_lane_or_its_client_allows() -> None:
    door = Door()
    assert door.prospect(ticket()).bound == 1.0
    assert door.prospect(ticket(read_timeout=600.0)).bound == 1.0
    assert door.prospect(ticket(read_timeout=0.2)).bound == 0.2
    assert door.prospect(ticket(), 1).bound == 4.0


@pytest.mark.parametrize(
    ("prompt", "timeout", "limit"),
    [
        (1_000_000, None, 120.0),
        (65_536, None, 64.0),
        (20_480, None, 10.0),
        (8_192, None, 4.0),
        (128_000, 30.0, 30.0),
        (128_000, 2.0, 2.0),
    ],
)
def test_a_long_prompt_waits_longer_for_the_one_that_is_read(prompt: int, timeout: float | None, limit: float) -> None:
    door = Door()
    assert door.prospect(ticket(prompt, read_timeout=timeout), 1, serial=True).limit == limit


def test_with_an_objective_of_its_own_it_does_not() -> None:
    door = Door(lanes=(LaneConfig("all", None, 1.0, ttft_objective=6.0, max_wait=3.0),))
    assert door.prospect(ticket(128_000), serial=True).limit == 3.0


def test_a_newcomer_waits_for_its_fair_turns_and_a_hog_behind_itself() -> None:
    door = Door()
    for _ in range(20):
        door.queue(ticket(0, 100, client="hog"))
    assert door.prospect(ticket(0, 100, client="hog")).wait == pytest.approx(20.0)
    assert door.prospect(ticket(0, 100, client="other")).wait == pytest.approx(2.0)


def test_among_many_clients_with_one_request_each_the_wait_is_the_queue() -> None:
    door = Door()
    for number in range(20):
        door.queue(ticket(0, 100, client=str(number)))
    assert door.prospect(ticket(0, 100, client="new")).wait == pytest.approx(20.0)


# --------------------------------------------------------------------------------------------------------- reasons


def test_the_door_refuses_what_could_not_start_in_time() -> None:
    door = Door()
    assert door.reason(ticket(0, 50)) is None
    door.queue(ticket(0, 99))
    assert door.reason(ticket(0, 50)) is None
    door.queue(ticket(0, 2))
    assert door.reason(ticket(0, 50)) is Reason.DEADLINE
    assert door.reason(ticket(0, 50, client="another", read_timeout=0.5)) is Reason.DEADLINE


def test_a_queue_is_full_by_count() -> None:
    door = Door(rate=1e6, max_requests=2)
    door.queue(ticket())
    assert door.reason(ticket()) is None
    door.queue(ticket())
    assert door.reason(ticket()) is Reason.QUEUE_FULL


def test_while_overloaded_retries_beyond_their_share_are_refused() -> None:
    door = Door(rate=1e6)
    for attempt in (0, 1, 1, 1, 1):
        first = door.shedder.attempt(ticket(attempt=attempt), 100.0)
        assert first == (100.0 if attempt else None)
    assert door.reason(ticket(), retry=True) is None
    door.overload()
    assert door.reason(ticket(), retry=True) is None, "nobody waits whose place it would take"
    door.queue(ticket())
    assert door.reason(ticket(), retry=True) is Reason.RETRY_BUDGET
    assert door.reason(ticket(), retry=False) is None


def test_a_retry_waits_for_no_longer_than_its_ttft_objective_still_allows() -> None:
    lane = LaneConfig("all", None, 1.0, ttft_objective=4.0, max_wait=2.0)
    door = Door(rate=1e6, lanes=(lane,))
    door.queue(ticket())
    for ago, bound in ((0.5, 2.0), (1.5, 1.5), (2.9, pytest.approx(0.1)), (3.0, 0.0), (60.0, 0.0)):
        prospect = door.shedder.prospect(ticket(), door.group, 0, 100.0 - ago, 100.0)
        assert (prospect.bound, prospect.limit) == (bound, bound)  # three quarters of it, a quarter is the engine's
        reason = door.shedder.reason(ticket(), door.group, door.backlog, prospect, 100.0)
        assert reason is (None if prospect.bound else Reason.DEADLINE)


def test_a_retry_without_an_objective_and_one_of_an_answer_in_one_piece_wait_as_others_do() -> None:
    lane = LaneConfig("all", None, 1.0, ttft_objective=4.0, max_wait=2.0)
    assert Door().shedder.prospect(ticket(), Door().group, 0, 0.0, 100.0).bound == 1.0
    whole = ticket(stream=False)
    assert Door(lanes=(lane,)).shedder.prospect(whole, Door(lanes=(lane,)).group, 0, 0.0, 100.0).bound == 2.0


def test_it_is_remembered_when_a_call_came_first_however_often_it_is_refused() -> None:
    shedder = Door().shedder
    assert shedder.attempt(ticket(fingerprint=9), 100.0) is None
    shedder.refuse(ticket(fingerprint=9), Reason.DEADLINE, 1.0, 100.5, 100.0)
    first = shedder.attempt(ticket(fingerprint=9), 102.0)
    assert first == 100.0
    shedder.refuse(ticket(fingerprint=9), Reason.DEADLINE, 1.0, 102.0, first)
    assert shedder.attempt(ticket(fingerprint=9), 104.0) == 100.0


def test_the_time_that_a_call_waited_before_it_was_refused_counts_too() -> None:
    door = Door()
    entry = door.queue(ticket(fingerprint=9))  # at 0.0
    door.shedder.give_up(entry, door.group, 9.0)
    first = door.shedder.attempt(ticket(fingerprint=9), 10.0)
    assert first == 0.0
    entry = Entry(ticket(fingerprint=9), 0, 0, 10.0, 12.0, 12.0, first=first)
    door.backlog.add(entry, door.group)
    door.shedder.give_up(entry, door.group, 12.0)
    assert door.shedder.attempt(ticket(fingerprint=9), 13.0) == 0.0


# ------------------------------------------------------------------------------------------------------- the words


def turned_away(door: Door, request: Ticket, *, wait: float = 3.0, retry: bool = False) -> bool | None:
    prospect = Prospect(1.0, 1.0, wait, 0, 100.0 if retry else None)
    return door.shedder.turn_away(request, door.group, Reason.DEADLINE, prospect, 100.0).should_retry


def test_a_client_is_told_not_to_retry_where_it_is_pointless() -> None:
    door = Door()
    assert turned_away(door, ticket(read_timeout=600.0)) is None
    assert turned_away(door, ticket(read_timeout=2.0)) is False
    for _ in range(4):
        door.shedder.attempt(ticket(attempt=1), 100.0)
    assert turned_away(door, ticket(), retry=True) is False
    assert turned_away(door, ticket(), retry=False) is None
    door.overload()
    assert turned_away(door, ticket()) is False


def test_it_is_told_to_come_back_when_half_of_its_patience_would_do() -> None:
    door = Door()
    prospect = Prospect(4.0, 4.0, 12.0, 1, first=None)
    refusal = door.shedder.turn_away(ticket(), door.group, Reason.DEADLINE, prospect, 100.0)
    assert refusal.retry_after == pytest.approx(10.0)


def test_whoever_waited_in_vain_is_told_how_long_the_queue_is() -> None:
    door = Door()
    entry = door.queue(ticket(0, 100))
    door.queue(ticket(0, 900))
    refusal = door.shedder.give_up(entry, door.group, 9.0)
    assert refusal.reason is Reason.QUEUE_TIMEOUT
    assert refusal.retry_after == pytest.approx(10.0 - 9.0 / 2)


@pytest.mark.parametrize(("seen", "told"), [(0.1, 1.0), (2.0, 8.0), (14.0, 56.0), (15.0, 57.0), (100.0, 57.0)])
def test_nobody_is_told_a_wait_that_lies_further_ahead_than_what_was_seen(seen: float, told: float) -> None:
    """Who is told a minute from what two seconds showed leaves the engine idle where it turns out to be faster."""
    door = Door()
    prospect = Prospect(4.0, 4.0, 59.0, 1, first=None)
    refusal = door.shedder.turn_away(ticket(), door.group, Reason.DEADLINE, prospect, seen)
    assert refusal.retry_after == pytest.approx(min(told, 40.0)), "forty seconds are a minute before jitter"


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("wait", [-3.0, 0.0, 0.3, 5.0, 90.0, 600.0, 1e9])
def test_O24_O26_the_told_wait_lies_within_a_second_and_a_minute(wait: float, reason: Reason, jitter: float) -> None:
    door = Door(jitter=jitter)
    refusal = door.shedder.refuse(ticket(), reason, wait, 100.0)
    assert 1.0 <= refusal.retry_after <= 60.0


def test_O24_clients_are_spread_even_at_the_longest_wait() -> None:
    chance = Random(1)
    shedder = Shedder(config(), chance.uniform)
    told = {round(shedder.refuse(ticket(), Reason.DEADLINE, 600.0, 0.0).retry_after, 3) for _ in range(100)}
    assert len(told) > 90
    assert min(told) >= 40.0


def test_the_longest_wait_is_a_setting() -> None:
    door = Door(jitter=1.0, shed=ShedConfig(retry_after_max=12.0))
    assert door.shedder.refuse(ticket(), Reason.DEADLINE, 600.0, 0.0).retry_after == 12.0
    assert door.shedder.refuse(ticket(), Reason.NO_BACKEND, 0.0, 0.0).retry_after == 12.0


def test_where_nobody_can_serve_clients_come_back_within_half_a_minute() -> None:
    waits = [Door(jitter=j).shedder.refuse(ticket(), Reason.NO_BACKEND, 0.0, 0.0).retry_after for j in (0.0, 1.0)]
    assert waits == [5.0, 30.0]


def test_whoever_was_refused_is_recognised_when_it_comes_back() -> None:
    door = Door()
    refusal = door.shedder.refuse(ticket(fingerprint=9), Reason.DEADLINE, 3.0, 100.0)
    assert door.shedder.attempt(ticket(fingerprint=9), 100.0 + refusal.retry_after)
    assert door.shedder.ledger.seen == {True: 1, False: 0}
    assert not door.shedder.attempt(ticket(fingerprint=9), 200.0)


def test_the_long_lane_s_bound_is_its_own() -> None:
    assert Door().prospect(ticket(), 1).bound == LONG.max_wait
