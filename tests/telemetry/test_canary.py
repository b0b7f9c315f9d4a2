from __future__ import annotations

from gateway.telemetry.canary import PROMPTS, CanaryLog
from gateway.telemetry.events import EventLog

FOX = "The quick brown fox jumps over the lazy dog."


def kinds(log: EventLog) -> list[str]:
    return [event["kind"] for event in log.view()["events"]]


def test_the_first_answer_is_what_later_ones_are_held_against() -> None:
    log = EventLog()
    canaries = CanaryLog(log)
    assert canaries.compare("a", 0, FOX)
    assert canaries.compare("a", 0, f" {FOX}\n")
    assert canaries.compare("b", 0, "1, 2, 3")  # another backend, another first answer
    assert canaries.compare("a", 1, "1, 2, 3")  # another prompt
    assert (log.last, canaries.failing(), dict(canaries.failures)) == (0, [], {})


def test_a_word_that_differs_is_no_fault() -> None:
    canaries = CanaryLog(EventLog())
    canaries.compare("a", 0, FOX)
    assert canaries.compare("a", 0, FOX.replace("lazy", "sleepy"))


def test_another_answer_twice_in_a_row_is_an_alarm() -> None:
    log = EventLog()
    canaries = CanaryLog(log)
    canaries.compare("a", 0, FOX)
    assert not canaries.compare("a", 0, "!" * 32)
    assert (canaries.failing(), log.last) == ([], 0)
    assert not canaries.compare("a", 0, "!" * 32)
    ((backend, how),) = canaries.failing()
    assert backend == "a"
    assert how == f"Prompt 1 was answered {FOX!r} at first and {'!' * 32!r} now: 0% alike."
    assert canaries.failures == {"a": 2}
    (event,) = log.view()["events"]
    assert (event["kind"], event["severity"], event["backend"]) == ("canary_failed", "critical", "a")
    assert event["data"] == {"prompt": PROMPTS[0]}


def test_one_odd_answer_between_good_ones_alarms_nobody() -> None:
    canaries = CanaryLog(EventLog())
    for _ in range(3):
        canaries.compare("a", 0, FOX)
        canaries.compare("a", 0, "")
    assert canaries.failing() == []
    assert canaries.failures == {"a": 3}


def test_the_alarm_ends_when_every_prompt_is_answered_as_before() -> None:
    log = EventLog()
    canaries = CanaryLog(log)
    for number in (0, 1):
        canaries.compare("a", number, FOX)
        for _ in range(2):
            canaries.compare("a", number, "?")
    assert kinds(log) == ["canary_failed"]
    canaries.compare("a", 0, FOX)
    assert len(canaries.failing()) == 1
    canaries.compare("a", 1, FOX)
    assert canaries.failing() == []
    assert kinds(log) == ["canary_failed", "canary_passed"]
