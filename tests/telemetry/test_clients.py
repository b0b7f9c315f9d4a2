from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.model import Outcome
from gateway.telemetry import clients as module
from gateway.telemetry.clients import ClientCounts, Clients
from tests.telemetry.helpers import asked, record, refused, timeline


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_are_counted_by_client_and_how_they_ended() -> None:
    clients = Clients(60.0, Clock())
    line = replace(timeline(), admitted=100.0, finished=102.0, paused=0.5)
    clients.observe(record(ticket=asked(client="a"), timeline=line))
    clients.observe(record(ticket=asked(client="a"), outcome=Outcome.CLIENT_GONE, timeline=line))
    clients.observe(record(ticket=asked(client="a"), outcome=Outcome.CLIENT_ERROR, timeline=line))
    clients.observe(refused(ticket=asked(client="b")))
    clients.observe(record(ticket=None))
    a, b = clients.counts()
    assert a == ClientCounts("a", ended=3, completed=1, gone=1, errors=1, held=6.0, paused=1.5)
    assert b == ClientCounts("b", ended=1)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = Clock()
    clients = Clients(60.0, clock)
    for second in range(0, 100, 5):
        clock.now = float(second)
        clients.observe(record(ticket=asked(client="a")))
    (counts,) = clients.counts()
    assert 12 <= counts.ended <= 16
    clock.now = 1000.0
    assert clients.counts() == []


def test_a_crowd_of_clients_shares_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS", 3)
    clients = Clients(60.0, Clock())
    for number in (*range(10), 0):
        clients.observe(record(ticket=asked(client=f"c{number}")))
    assert {each.name: each.ended for each in clients.counts()} == {"c0": 2, "c1": 1, "c2": 1, "other": 7}
