from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.model import GatewayState
from gateway.telemetry.events import KEPT, Event, EventLog, differences
from tests.telemetry.helpers import backend_state, gateway_state


def test_the_log_numbers_what_happens_and_keeps_the_last_thousand() -> None:
    clock = iter(range(10_000))
    log = EventLog(lambda: float(next(clock)))
    assert log.view() == {"last": 0, "events": []}
    for number in range(KEPT + 5):
        log.add(Event("draining", f"event {number}"))
    view = log.view(limit=KEPT + 5)
    assert view["last"] == KEPT + 5
    assert len(view["events"]) == KEPT
    assert view["events"][0] == {
        "id": 6,
        "at": 5.0,
        "kind": "draining",
        "severity": "info",
        "backend": None,
        "text": "event 5",
        "data": {},
    }


def test_only_later_ones_are_given_and_of_these_the_youngest() -> None:
    log = EventLog()
    for number in range(10):
        log.add(Event("draining", f"{number}"))
    assert [event["id"] for event in log.view(since=7)["events"]] == [8, 9, 10]
    assert [event["id"] for event in log.view(since=2, limit=2)["events"]] == [9, 10]
    assert log.view(since=10) == {"last": 10, "events": []}
    assert log.view(limit=0)["events"] == []


def between(before: dict[str, Any], after: dict[str, Any]) -> list[Event]:
    first, second = (gateway_state(backend_state(**{"limit_changes": {}, **each})) for each in (before, after))
    return list(differences(first, second))


CUT = {("down", "pace"): 1}


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({}, {}, []),
        ({"limit": 40.0, "limit_changes": CUT}, {"limit": 28.0, "limit_changes": {("down", "pace"): 2}}, ["limit_cut"]),
        ({"limit": 40.0, "limit_changes": CUT}, {"limit": 38.0, "limit_changes": {("down", "pace"): 2}}, []),
        ({"limit": 40.0}, {"limit": 39.0, "limit_changes": CUT}, ["limit_found"]),
        ({"limit": 40.0}, {"limit": 20.0, "limit_changes": CUT}, ["limit_found", "limit_cut"]),
        ({"limit": 40.0}, {"limit": 20.0}, []),  # the operator pinned it
        ({"limit": 4.0}, {"limit": 8.0, "limit_changes": {("up", "slow_start"): 1}}, []),
        (
            {"limit_changes": {("down", "kv"): 1}},
            {"limit_changes": {("down", "kv"): 2}, "token_limit": 60_000.0},
            ["token_limit_cut"],
        ),
        ({"limit_changes": {("down", "kv"): 1}}, {"limit_changes": {("down", "kv"): 2}, "token_limit": None}, []),
        ({"health": "up"}, {"health": "open"}, ["breaker_opened"]),
        ({"health": "open"}, {"health": "half_open"}, []),
        ({"health": "half_open"}, {"health": "open"}, []),
        ({"health": "half_open"}, {"health": "up"}, ["breaker_closed"]),
        ({"health": "up"}, {"health": "down"}, ["backend_down"]),
        ({"health": "down"}, {"health": "down"}, []),
        ({"health": "open"}, {"health": "down"}, ["breaker_closed", "backend_down"]),
        ({"health": "down"}, {"health": "up"}, ["backend_up"]),
        ({"health": "unknown"}, {"health": "up"}, []),
        ({"name": "gpu1"}, {"name": "gpu2", "health": "down"}, []),  # it was not there before
    ],
)
def test_differences_between_two_looks(before: dict[str, Any], after: dict[str, Any], wanted: list[str]) -> None:
    assert [event.kind for event in between(before, after)] == wanted


def test_a_cut_says_from_where_to_where_and_why() -> None:
    after = {("down", "pace"): 2, ("down", "standing"): 1}
    (event,) = between({"limit": 40.0, "limit_changes": CUT}, {"limit": 28.0, "limit_changes": after})
    assert event.text == "limit 40.0 -> 28.0: pace, standing"
    assert (event.backend, event.data) == ("gpu1", {"from": 40.0, "to": 28.0, "reasons": ["pace", "standing"]})


@pytest.mark.parametrize(("had", "text"), [(None, "none -> 60000"), (90_000.0, "90000 -> 60000")])
def test_a_cut_of_the_token_limit_says_so_too(had: float | None, text: str) -> None:
    kept = {("down", "kv"): 1}
    (event,) = between(
        {"token_limit": had, "limit_changes": kept},
        {"token_limit": 60_000.0, "limit_changes": {("down", "kv"): 2}},
    )
    assert event.text == f"token limit {text}: KV cache full"
    assert event.data == {"from": had, "to": 60_000}


def told(before: GatewayState, **changes: Any) -> list[tuple[str, str]]:
    return [(event.kind, event.severity) for event in differences(before, replace(before, **changes))]


def test_overload_and_draining() -> None:
    calm = gateway_state()
    assert told(calm, overloaded=True) == [("overload_began", "warning")]
    assert told(replace(calm, overloaded=True), overloaded=False) == [("overload_ended", "info")]
    assert told(calm, draining=True) == [("draining", "info")]
    assert told(replace(calm, draining=True), overloaded=False) == []
