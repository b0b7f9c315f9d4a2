from __future__ import annotations

from typing import Any

from gateway.telemetry.causes import Cause, Finding, Severity
from gateway.telemetry.events import EventLog
from gateway.telemetry.findings import Findings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def finding(cause: Cause = Cause.STALLS, name: str = "gpu1", severity: Severity = Severity.WARNING) -> Finding:
    return Finding(cause, f"{name} stands still", severity, ("6 times.", "2.0 s."), ("Its log.",), name)


def kept() -> tuple[Findings, EventLog, Clock]:
    log, clock = EventLog(), Clock()
    return Findings(log, clock), log, clock


def kinds(log: EventLog) -> list[tuple[str, str, str]]:
    return [(event["kind"], event["severity"], event["text"]) for event in log.view()["events"]]


def test_before_the_first_diagnosis_nothing_is_said() -> None:
    findings, log, _ = kept()
    assert findings.view() == {
        "at": 1000.0,
        "window_seconds": 0.0,
        "findings": [],
        "unknown": ["The gateway has only just started: nothing was judged yet."],
    }
    assert (findings.causes(), log.last) == ([], 0)


def test_a_finding_is_told_with_the_instant_it_began() -> None:
    findings, _, clock = kept()
    findings.take([finding()], ["gpu2 tells no gauges"], 60.0)
    clock.now = 1010.0
    findings.take([finding()], ["gpu2 tells no gauges"], 60.0)
    assert findings.view() == {
        "at": 1010.0,
        "window_seconds": 60.0,
        "findings": [
            {
                "cause": "stalls",
                "title": "gpu1 stands still",
                "severity": "warning",
                "backend": "gpu1",
                "since": 1000.0,
                "evidence": ["6 times.", "2.0 s."],
                "advice": ["Its log."],
            }
        ],
        "unknown": ["gpu2 tells no gauges"],
    }
    assert findings.causes() == [("stalls", "gpu1")]


def test_it_begins_once_and_ends_when_it_was_out_of_sight_for_a_while() -> None:
    findings, log, clock = kept()
    for _ in range(3):
        findings.take([finding()], [], 60.0)
        clock.now += 10.0
    findings.take([], [], 60.0)
    assert findings.causes() == []
    clock.now += 10.0
    findings.take([finding()], [], 60.0)  # it was the same
    assert findings.view()["findings"][0]["since"] == 1000.0
    clock.now += 31.0
    findings.take([finding(name="gpu2", severity=Severity.CRITICAL)], [], 60.0)
    assert kinds(log) == [
        ("finding_began", "warning", "gpu1 stands still"),
        ("finding_began", "critical", "gpu2 stands still"),
        ("finding_ended", "info", "no longer: gpu1 stands still"),
    ]
    assert log.view()["events"][0]["data"] == {"cause": "stalls"}
    clock.now += 10.0
    findings.take([finding()], [], 60.0)
    assert findings.view()["findings"][0]["since"] == clock.now  # it is another one


def text(found: list[Finding], unknown: list[str], age: float = 0.0, **_: Any) -> list[str]:
    findings, _log, clock = kept()
    findings.take(found, unknown, 60.0)
    if age:
        clock.now += age
        findings.take(found, unknown, 60.0)
    return findings.text().splitlines()


def test_the_text_for_people() -> None:
    assert text([finding()], ["gpu2 tells no gauges"], age=90.0) == [
        "In the last 60 s:",
        "",
        "WARNING  gpu1 stands still  [stalls, for 90 s]",
        "    6 times.",
        "    2.0 s.",
        "  What to turn:",
        "    - Its log.",
        "",
        "Not judged:",
        "    gpu2 tells no gauges",
    ]


def test_long_ages_are_minutes() -> None:
    assert text([finding()], [], age=600.0)[2].endswith("[stalls, for 10 min]")


def test_good_news() -> None:
    assert text([], []) == ["Nothing is wrong, as far as the last 60 s show."]
