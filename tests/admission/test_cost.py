"""What a request costs does not grow with how many wait. Calls are counted, not seconds: the figure is exact."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from gateway.admission.config import LaneConfig
from gateway.model import Outcome, Priority
from tests.admission.helpers import Driver, config, fixed, ticket

PATIENT = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))


def _calls(queued: int, clients: int, priorities: Sequence[Priority] = (Priority.STANDARD,)) -> int:
    """Function calls, C functions included, of two hundred requests that come and go while ``queued`` others wait."""
    of = cycle(priorities)
    driver = Driver(*(fixed(4, f"backend-{i}") for i in range(16)), admission=config(lanes=PATIENT, max_requests=10**6))
    requests = iter(
        [
            ticket(100 if i % 3 else 2_000, client=f"client-{i % clients}", priority=next(of))
            for i in range(queued + 300)
        ]
    )
    for _ in range(64 + queued):
        driver.offer(next(requests))
    driver.run(0.5)
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    for _ in range(200):
        request = next(requests)
        permit = next(iter(driver.permits.values()))
        sys.setprofile(count)
        verdicts = driver.admission.offer(request, driver.now)
        verdicts += driver.admission.settle(permit, Outcome.COMPLETED, None, driver.now)
        driver.admission.next_wakeup()
        sys.setprofile(None)
        del driver.permits[permit.ticket.id]
        driver.take(verdicts)
    assert len(driver.permits) == 64
    return counted


def test_the_cost_of_a_request_does_not_grow_with_the_queue() -> None:
    few, many = _calls(100, 20), _calls(5_000, 20)
    assert many < 1.1 * few


def test_nor_with_the_clients_that_wait() -> None:
    few, many = _calls(2_000, 5), _calls(2_000, 1_500)
    assert many < 1.3 * few


def test_nor_with_priorities_that_wait() -> None:
    few, many = _calls(300, 20, tuple(Priority)), _calls(5_000, 20, tuple(Priority))
    assert many < 1.1 * few


def test_nor_does_a_withdrawal_or_a_deadline() -> None:
    assert _departures(5_000) < 1.2 * _departures(300)


def _departures(queued: int) -> int:
    """Function calls of a hundred that leave the queue and a hundred whose time is up, while ``queued`` others wait."""
    lanes = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1.0))
    driver = Driver(fixed(1), admission=config(lanes=lanes, max_requests=10**6))
    driver.offer(ticket())
    for number in range(queued):
        driver.offer(ticket(client=str(number % 20)))
    leaving = [driver.queue(ticket(client=str(number % 20))) for number in range(100)]
    late = [driver.queue(ticket(2_000, client=str(number % 20))) for number in range(100)]
    driver.run(0.5)
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    sys.setprofile(count)
    for request in leaving:
        driver.admission.withdraw(request.id, driver.now)
    verdicts = driver.admission.tick(driver.now + 2.0)
    sys.setprofile(None)
    assert len(verdicts) == len(late)
    return counted
