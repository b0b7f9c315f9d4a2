"""Which requests a report is about."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.telemetry.selection import Selection, duration, instant
from tests.telemetry.entries import entry

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(since=100.0), True),
        (Selection(since=100.1), False),
        (Selection(until=100.1), True),
        (Selection(until=100.0), False),
        (Selection(prefix="bench-"), True),
        (Selection(prefix="bench-2"), False),
        (Selection(model="qwen3-8b"), True),
        (Selection(model="qwen3"), False),
        (Selection(since=99.0, until=101.0, prefix="bench-1", model="qwen3-8b"), True),
    ],
)
def test_an_entry_is_taken_where_all_of_it_holds(selection: Selection, taken: bool) -> None:
    assert selection.takes(entry(100.0, request_id="bench-1")) is taken


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("500ms", 0.5), ("10m", 600.0), ("1.5h", 5400.0), (" 1D ", 86400.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0.0s", "-1", "m", "10 min", "1h30m", "inf", "1e3"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90s, 10m"):
        duration(text)


def test_instants_of_the_epoch_and_of_iso_8601() -> None:
    assert instant("1796042131", NOON) == 1796042131.0
    assert instant("1796042131.5", NOON) == 1796042131.5
    assert instant("2026-11-30T13:00:00+01:00", 0.0) == NOON
    assert instant(" 2026-11-30T12:00Z ", 0.0) == NOON


@pytest.mark.parametrize(
    ("text", "hour", "minute", "second"), [("9:05", 9, 5, 0), ("15:04", 15, 4, 0), ("15:04:06", 15, 4, 6)]
)
def test_a_time_of_day_is_todays_here(text: str, hour: int, minute: int, second: int) -> None:
    today = datetime.fromtimestamp(NOON).astimezone()
    wanted = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
    assert instant(text, NOON) == wanted.timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "12", "0001-01-01"])
def test_what_is_no_instant_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a time such as 15:04, .* or seconds since the epoch"):
        instant(text, NOON)
