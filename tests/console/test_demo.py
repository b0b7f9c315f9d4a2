"""The demo's two sides on a terminal and in a file."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from gateway.console.demo import DemoView, Scene, bars, recent

SCENE = Scene("c550-asr", best=28.0, rate=140.0, timeout=5.0, retries=2)
IDLE = {"running": 0, "waiting": 0, "finished": 0, "aborted": 0}


@dataclass(frozen=True)
class Figures:
    elapsed: float
    duration: float
    offered: int
    attempts: int
    good: int
    refusals: int
    timeouts: int
    per_second: tuple[int, ...]
    latency_p50: float | None
    latency_p99: float | None


DIRECT = Figures(10.0, 10.0, 1400, 2100, 3, 0, 700, (0, 1, 2, 0, 0, 0, 0, 0, 0, 0), None, None)
GATED = Figures(16.0, 16.0, 2240, 3100, 370, 2800, 0, (*range(11), 26, 27, 28, 27, 27), 1.85, 4.123)


def played(console: Console) -> None:
    with DemoView(SCENE, console) as view:
        for second in range(1, 10):
            view.show(0, replace(DIRECT, elapsed=float(second)), IDLE | {"running": 256, "waiting": 1300})
        view.show(0, DIRECT, IDLE)
        for half in range(33):
            view.show(1, replace(GATED, elapsed=half / 2), IDLE | {"running": 24})


def file_console(encoding: str = "utf-8", **options: object) -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, highlight=False, **options), file  # type: ignore[arg-type]


def text(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()


def test_plain_lines_where_there_is_no_terminal() -> None:
    console, file = file_console(width=80)
    played(console)
    lines = text(file).splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "The emulated engine c550-asr can serve 28.0 requests a second."
    assert lines[1] == "140 arrive, from clients that wait 5 s and try 3 times."
    progress = [line.split()[:2] for line in lines if line.endswith(" in engine")]
    assert progress == [["direct", second] for second in ("1", "2", "4", "6", "8", "10")] + [
        ["gateway", second] for second in ("1", "2", "4", "6", "8", "10", "12", "14", "16")
    ]
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == [
        "Same engine, same load, last 5 seconds: 0.0 answers a second without the",
        "gateway, 27.0 with it: 96% of what the engine can do.",
    ]


@pytest.mark.parametrize(
    ("name", "direct", "gated"),
    [
        ("seconds", "10 of 10", "16 of 16"),
        ("answered in time (last 5 s)", "0.0/s", "27.0/s"),
        ("of the engine's best", "0%", "96%"),
        ("answered in time, all", "3 of 1400", "370 of 2240"),
        ("latency P50", "-", "1.85 s"),
        ("latency P99", "-", "4.12 s"),
        ("attempts per request", "1.50", "1.38"),
        ("told to come back later", "0", "2800"),
        ("timed out", "700", "0"),
        ("engine: running + waiting", "256 + 1300", "24 + 0"),
    ],
)
def test_the_two_sides_stand_beside_each_other(name: str, direct: str, gated: str) -> None:
    console, file = file_console(width=80)
    played(console)
    (row,) = [line for line in text(file).splitlines() if line.strip().startswith(name)]
    first, second = (part.strip() for part in (row[: -len(gated)].strip().removeprefix(name), row[-len(gated) :]))
    assert (first, second) == (direct, gated)


def test_a_live_table_of_eighty_columns_on_a_terminal() -> None:
    console, file = file_console(width=80, height=40, force_terminal=True, legacy_windows=False)
    played(console)
    screen = text(file)
    assert screen.count("straight at the engine") > 30  # drawn again and again
    assert "▁▁▁▁▁▁▁▁▁▁" in screen
    assert "gateway, 27.0 with it: 96%" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("straight at the engine")  # the cursor is back


def test_bars_without_unicode() -> None:
    console, file = file_console("ascii", width=80)
    played(console)
    assert "__________" in text(file)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_demo_that_is_broken_off_gives_no_verdict(terminal: bool) -> None:
    console, file = file_console(width=80, force_terminal=terminal)

    def broken() -> None:
        with DemoView(SCENE, console) as view:
            view.show(0, DIRECT, IDLE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert "Same engine" not in text(file)
    assert ("\x1b[?25h" in text(file)) == terminal


def test_one_side_alone_gives_no_verdict() -> None:
    console, file = file_console(width=80)
    states: Mapping[str, int] = IDLE
    with DemoView(SCENE, console) as view:
        view.show(0, DIRECT, states)
    assert "3 of 1400" in text(file)
    assert "Same engine" not in text(file)


def test_the_mean_of_the_last_seconds() -> None:
    assert recent(()) == 0.0
    assert recent((4, 6)) == 5.0
    assert recent((100, 1, 2, 3, 4, 5)) == 3.0


def test_bars_reach_the_top_at_the_best() -> None:
    assert bars((0, 14, 28, 99), 28.0) == "▁▅██"
