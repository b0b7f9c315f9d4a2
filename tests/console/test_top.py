"""``gateway top``'s picture: eighty columns, whatever is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from gateway.console.status import status_view
from gateway.console.top import WIDTH, TopView
from gateway.model import GatewayState, LaneState, Reason
from gateway.telemetry.history import History
from tests.telemetry.helpers import backend_state, gateway_state, record, refused, timeline

STYLES = {"bold red": "[1;31m", "bold yellow": "[1;33m", "bold green": "[1;32m"}


def status(state: GatewayState | None = None, seconds: int = 3, *findings: dict[str, Any]) -> dict[str, Any]:
    """What /status says of ``state`` after some seconds with a request each."""
    shown = state or gateway_state()
    now = 1_796_042_000.0
    clock = iter(range(seconds + 1))
    history = History(lambda: shown, lambda: now + next(clock))
    for number in range(seconds):
        history.observe(record(timeline=timeline(queued=0.1 * number)))
        history.observe(refused(reason=Reason.DEADLINE))
        history.sample()
    return status_view(history, "1.2.3", findings=findings)


def drawn(view: TopView | None = None, *, colour: bool = False, width: int = WIDTH, **options: Any) -> str:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None)
    arguments = {"status": status(), **options}
    with console.capture() as captured:
        console.print((view or TopView("gpu:8081")).picture(**arguments))
    return captured.get()


def line(text: str, begins: str) -> str:
    (found,) = [each for each in text.splitlines() if each.startswith(begins)]
    return found


def event(number: int, **changes: Any) -> dict[str, Any]:
    made = {"id": number, "at": 1_796_042_000.0 + number, "kind": "x", "severity": "info", "backend": None}
    return {**made, "text": f"event {number}", **changes}


def test_what_matters_is_on_it() -> None:
    text = drawn(events=[event(1, backend="gpu1", text="limit 40 -> 28: pace")])
    assert text.startswith("Inference Gateway 1.2.3  gpu:8081  up 3s\n50% of the requests are refused\n")
    assert line(text, "goodput") == "goodput 1/s (100%)  refused 1/s  TTFT short 603ms · 703ms  TPOT 20ms · 20ms"
    assert line(text, "gpu1").split() == [
        *("gpu1", "up", "7", "/", "12", "████████░░░░░░", "31ms", "/", "60ms", "42%", "0"),
    ]
    short = line(text, "short")
    assert short.split() == [
        *("short", "(to", "1000)", "3", "400ms", "/", "1.00s", "██████░░░░░░░░", "100ms", "·", "200ms"),
    ]
    assert line(text, "long (longer)")
    assert line(text, "refused in 60 s: deadline 3")
    assert "gpu1: limit 40 -> 28: pace" in text


@pytest.mark.parametrize("count", [1, 4, 40])
@pytest.mark.parametrize("height", [10, 24, 50])
def test_it_fits_whatever_there_is_to_show(count: int, height: int) -> None:
    backends = [
        backend_state(f"a-backend-with-a-rather-long-name-{number}", limit=1024.0, running=1024, pace=123.4)
        for number in range(count)
    ]
    findings = [{"severity": "warning", "title": "a finding " * 20} for _ in range(9)]
    text = drawn(
        status=status(gateway_state(*backends)),
        findings=findings,
        events=[event(number, text="word " * 40) for number in range(30)],
        height=height,
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= max(height, 15)


@pytest.mark.parametrize("health", ["up", "unknown", "half_open"])
@pytest.mark.parametrize("name", ["gpu1", "127.0.0.1:48621", "a-backend-with-a-rather-long-name"])
@pytest.mark.parametrize("limit_min", [1, None])
def test_no_title_and_no_figure_is_cut(health: str, name: str, limit_min: int | None) -> None:
    full = backend_state(name, health=health, limit=512.0, running=256, pace=0.9, limit_min=limit_min)
    for text in (drawn(status=status(gateway_state(full))), drawn(status=status(gateway_state(full)), width=200)):
        title = line(text, "BACKEND")
        assert re.split(" {2,}", title) == ["BACKEND", "HEALTH", "RUNNING / LIMIT", "PACE / TARGET", "KV", "QUEUE"]
        row = line(text, name[:4])
        assert re.search(r"256 / 512( pinned)? +(█+)(░+) +900ms / 60ms +42% +0$", row)
        meter = re.findall("[█░]+", row)[0]
        assert meter.count("█") == round(len(meter) / 2), "half of it, however wide it is"


def test_backends_without_room_are_counted() -> None:
    many = [backend_state(f"gpu{number}", health="down" if number > 17 else "up") for number in range(20)]
    text = drawn(status=status(gateway_state(*many)), height=24)
    assert line(text, "gpu0")
    assert "more, 2 of them out" in text


def test_a_backend_is_not_named_twice() -> None:
    text = drawn(events=[event(1, backend="gpu1", text="gpu1 is out")])
    assert " gpu1 is out" in text
    assert "gpu1: gpu1" not in text


def test_the_youngest_events_come_first_and_the_rest_is_left_out() -> None:
    text = drawn(events=[event(number) for number in range(1, 41)], height=24)
    numbers = [int(each.rpartition(" ")[2]) for each in text.splitlines() if " event " in each]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == 40
    assert 0 < len(numbers) < 15


@pytest.mark.parametrize(
    ("changes", "shown", "style"),
    [
        ({"health": "down"}, "down", "bold red"),
        ({"health": "open"}, "failing", "bold red"),
        ({"health": "half_open"}, "on trial", "bold yellow"),
        ({"pace": 0.09}, "90ms / 60ms", "bold yellow"),
    ],
)
def test_trouble_of_a_backend_is_in_colour(changes: dict[str, Any], shown: str, style: str) -> None:
    text = drawn(colour=True, status=status(gateway_state(backend_state("zz", **changes))))
    row = next(each for each in text.splitlines() if each.startswith("zz"))
    assert re.search(rf"{re.escape(STYLES[style])} *{shown}", row)


def test_a_backend_that_hangs_is_in_colour_and_one_that_is_only_silent_is_not() -> None:
    state = gateway_state(backend_state("zz", silence=42.0))
    finding = {"cause": "backend_hung", "backend": "zz", "severity": "critical", "title": "zz hangs", "advice": []}
    assert f"{STYLES['bold red']}silent 42s" in drawn(colour=True, status=status(state, 3, finding))
    assert "silent" not in drawn(status=status(state))


def test_gauges_that_are_old_or_never_came_are_not_shown() -> None:
    for changes in ({"hints_age": 60.0}, {"hints_age": None}):
        row = line(drawn(status=status(gateway_state(backend_state("zz", **changes)))), "zz")
        assert row.split()[-2:] == ["-", "-"]


def test_a_pinned_limit_says_so() -> None:
    assert "7 / 12 pinned" in drawn(status=status(gateway_state(backend_state(limit_min=None))))


def test_a_limit_without_a_pace_has_no_target() -> None:
    row = line(drawn(status=status(gateway_state(backend_state("zz", pace=None, pace_target=None)))), "zz")
    assert row.split()[-3:] == ["-", "42%", "0"]


def test_a_gateway_that_does_not_answer() -> None:
    assert drawn(status=None) == "asking gpu:8081 ...\n"
    assert drawn(status=None, trouble="refused") == "No answer from gpu:8081: refused\n"
    text = drawn(trouble="timeout")
    assert text.splitlines()[1] == "No answer from gpu:8081: timeout"
    assert line(text, "gpu1")  # what was seen last stays


def test_a_quiet_gateway() -> None:
    text = drawn(status=status(seconds=0))
    assert "No traffic at the moment." in text
    assert line(text, "goodput") == "goodput 0/s (-)  refused 0/s  TTFT short - · -  TPOT - · -"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = drawn(TopView("gpu:8081", plain=True))
    assert text.isascii()
    assert "########......" in text


def test_several_troubles_are_named() -> None:
    lanes = (LaneState("short", 0, 0.0, 0.0, 1.0),)
    text = drawn(status=status(gateway_state(backend_state("a"), backend_state("b", health="down"), lanes=lanes)))
    assert text.splitlines()[1:3] == ["b is out", "Also: 50% of the requests are refused"]
