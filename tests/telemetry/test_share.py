"""What is told of shared quotas: one event for each change, and series."""

from __future__ import annotations

import logging

import pytest

from gateway.model import ShareFailure, ShareWay
from gateway.telemetry.events import EventLog
from gateway.telemetry.share import ShareLog
from tests.telemetry.helpers import metrics, scrape


def test_each_change_is_one_event_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = EventLog()
    share = ShareLog(events)
    share.changed(True, 3, "")
    share.failed(ShareFailure.TIMEOUT)
    share.changed(False, 3, "timeout: no answer in time")
    for _ in range(5):
        share.failed(ShareFailure.UNREACHABLE)
        share.decided(ShareWay.ALONE)
    told = [(event["kind"], event["severity"]) for event in events.view()["events"]]
    assert told == [("share_found", "info"), ("share_lost", "warning")]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [
        ("INFO", "quotas of API keys are shared: gateways that share: 3"),
        (
            "WARNING",
            "quotas of API keys are not shared: each gateway keeps to one part in 3: timeout: no answer in time",
        ),
    ]


def test_what_the_store_says_is_cut() -> None:
    events = EventLog()
    ShareLog(events).changed(False, 1, "x" * 10_000)
    assert len(events.view()["events"][0]["text"]) < 300


def test_series() -> None:
    share = ShareLog(EventLog())
    source = metrics(more=(share.collect,))
    samples = scrape(source)
    assert set(samples["gateway_share_up"].values()) == {0.0}
    assert len(samples["gateway_share_decisions_total"]) == len(ShareWay)
    assert len(samples["gateway_share_failures_total"]) == len(ShareFailure)
    assert {*samples["gateway_share_decisions_total"].values(), *samples["gateway_share_failures_total"].values()} == {
        0
    }
    share.changed(True, 2, "")
    share.counted(4)
    share.answered(3, 0.0004)
    share.decided(ShareWay.AHEAD)
    samples = scrape(source)
    assert set(samples["gateway_share_up"].values()) == {1.0}
    assert set(samples["gateway_share_gateways"].values()) == {4.0}
    assert set(samples["gateway_share_claims_total"].values()) == {3.0}
    assert set(samples["gateway_share_round_trip_seconds_count"].values()) == {1.0}
    assert sorted(samples["gateway_share_decisions_total"].values()) == [0.0, 0.0, 1.0]
