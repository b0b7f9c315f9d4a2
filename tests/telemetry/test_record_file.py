"""The record file: what is in it, what is read back, and how it rotates."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Entry
from gateway.telemetry.record_file import RecordFile, RotatingSink, Unreadable, entries_in, entry_in, line
from gateway.telemetry.report import Heading, result
from gateway.telemetry.tally import Tally, tallied
from tests.telemetry.entries import ended, entry, refused

BIG = 1 << 30


def record_file(path: Path, size: int = BIG, keep: int = 2, on_trouble: Callable[[str], None] = print) -> RecordFile:
    return RecordFile(str(path), size, keep, on_trouble=on_trouble, clock=lambda: 500.0, wall_clock=lambda: 1_500.25)


def read(*paths: Path) -> list[Entry]:
    return [each for path in paths for each in entries_in(path, pytest.fail)]


def told(problem: object) -> None:
    raise AssertionError(problem)


# ------------------------------------------------------------------------------------------------------------ lines


def test_a_line_is_json_with_microseconds_and_what_is_known() -> None:
    made = entry(100.123456, (500_000, 600_000), unheard=array("I", [500_000]), finished=601_000)
    assert json.loads(line(made, 1_000.0)) == {
        "version": 1,
        "received": 1100.123456,
        "request_id": "req-1",
        "route": "chat",
        "model": "qwen3-8b",
        "lane": "short",
        "backend": "gpu1",
        "outcome": "completed",
        "status": 200,
        "stream": True,
        "generates": True,
        "retry": 0,
        "attempts": 1,
        "prompt_tokens": 40,
        "output_tokens": 2,
        "estimated_prompt_tokens": 50,
        "estimated_output_tokens": 60,
        "read_us": 1_000,
        "offered_us": 2_000,
        "admitted_us": 102_000,
        "sent_us": 103_000,
        "last_output_us": 600_000,
        "finished_us": 601_000,
        "output_events": 2,
        "stamps_us": [500_000, 600_000],
        "blanks_us": [500_000],
        "unheard_us": [500_000],
    }
    assert line(made, 0.0).endswith(b"}\n")


def test_the_documents_name_every_field() -> None:
    described = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    full = entry(cached_tokens=1, reason=Reason.DEADLINE, unheard=array("I", [500_000]))
    for name in json.loads(line(full, 0.0)):
        assert f"`{name}`" in described, name
    for outcome in Outcome:
        assert f"`{outcome.value}`" in described, outcome


OPTIONAL = st.none() | st.integers(0, 10**12)
ENTRIES = st.builds(
    Entry,
    received=st.integers(0, 10**12).map(lambda number: number / 64),
    request_id=st.text(max_size=20).filter(lambda text: text.isprintable()),
    route=st.sampled_from(["chat", "completions"]),
    model=st.none() | st.just("qwen"),
    lane=st.none() | st.just("short"),
    priority=st.none() | st.just("critical"),
    backend=st.none() | st.just("gpu1"),
    outcome=st.sampled_from(Outcome),
    status=st.integers(0, 599),
    reason=st.none() | st.sampled_from(Reason),
    stream=st.booleans(),
    generates=st.booleans(),
    retry=st.integers(0, 9),
    attempts=st.integers(0, 3),
    prompt_tokens=OPTIONAL,
    output_tokens=OPTIONAL,
    cached_tokens=OPTIONAL,
    estimated_prompt_tokens=st.integers(0, 10**9),
    estimated_output_tokens=st.integers(0, 10**9),
    read=OPTIONAL,
    offered=OPTIONAL,
    admitted=OPTIONAL,
    sent=OPTIONAL,
    last_output=OPTIONAL,
    finished=st.integers(0, 10**12),
    output_events=st.integers(0, 10**6),
    stamps=st.lists(st.integers(0, 2**32 - 1), max_size=5).map(lambda stamps: array("I", stamps)),
    blanks=st.none() | st.just(array("I", [7])),
    unheard=st.none() | st.just(array("I", [7])),
)


@given(ENTRIES)
def test_what_is_written_is_read_back(made: Entry) -> None:
    assert entry_in(line(made, 0.0)) == made


def test_a_name_that_is_no_utf_8_is_written_all_the_same() -> None:
    assert entry_in(line(entry(model="m\udc80"), 0.0)).model == "m?"


def test_a_line_may_be_short() -> None:
    found = entry_in(b'{"version":1,"received":5,"outcome":"completed","finished_us":7}')
    assert (found.received, found.route, found.generates, found.stream, found.retry) == (5.0, "chat", True, False, 0)
    assert (found.stamps, found.blanks, found.sent, found.model) == (array("I"), None, None, None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"version": None}, "KeyError: 'version'"),
        ({"received": "x"}, "could not convert"),
        ({"received": None}, "KeyError: 'received'"),
        ({"outcome": "nice"}, "'nice' is not a valid Outcome"),
        ({"reason": "nice"}, "'nice' is not a valid Reason"),
        ({"finished_us": None}, "KeyError: 'finished_us'"),
        ({"finished_us": 1.5}, "got 1.5, expected int"),
        ({"retry": "2"}, "got '2', expected int"),
        ({"model": 5}, "got 5, expected str"),
        ({"sent_us": "5"}, "got '5', expected int"),
        ({"stamps_us": [-1]}, "OverflowError"),
        ({"stamps_us": ["x"]}, "TypeError"),
    ],
)
def test_a_line_that_is_wrong_says_where(change: dict[str, Any], why: str) -> None:
    document = json.loads(line(entry(), 0.0)) | change
    text = json.dumps({name: value for name, value in document.items() if value is not None})
    with pytest.raises(ValueError, match=why):
        entry_in(text.encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"5", b"\xff"])
def test_what_is_no_object_is_no_line(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the parser says
        entry_in(text)


# ------------------------------------------------------------------------------------------------------------ files


def test_entries_go_to_the_file_with_the_time_of_the_wall(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    file = record_file(path)
    file.take(entry(100.0))
    file.take(refused(101.0))
    file.stop()
    first, second = read(path)
    assert (first.received, second.received) == (1_100.25, 1_101.25)
    assert second.reason is Reason.DEADLINE
    assert file.dropped() == 0


def test_the_figures_of_a_file_are_those_of_the_live_report(tmp_path: Path) -> None:
    live = [
        entry(100.0 + number / 7, [(number + 1) * 1_000 * step for step in range(1, 40)], output_tokens=45)
        for number in range(30)
    ]
    live += [refused(103.0), ended(Outcome.CLIENT_GONE, 104.0), ended(Outcome.BACKEND_LOST, 104.5)]
    file = record_file(tmp_path / "records")
    for each in live:
        file.take(each)
    file.stop()
    options: dict[str, Any] = {"objectives": {"ttft": 0.015}, "percents": (50.0, 99.0)}
    there = result(tallied(read(tmp_path / "records"), Tally(**options)), Heading())
    here = result(tallied(live, Tally(**options)), Heading(offset=1_000.25))
    assert there["duration"] == pytest.approx(here["duration"], abs=2e-6)
    for name in ("completed", "failed", "total_output_tokens", "max_concurrent_requests", "max_output_tokens_per_s"):
        assert there[name] == here[name], name
    for name in here:
        if name.endswith("_ms"):
            assert there[name] == here[name], name
    assert there["gateway"] == here["gateway"]
    assert there["date"] == here["date"]


def test_lines_that_cannot_be_read_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "records"
    good = line(entry(), 0.0)
    path.write_bytes(good + good[:50] + b"\n" + good + b"{")
    problems: list[str] = []
    assert len(list(entries_in(path, problems.append))) == 2
    (problem,) = problems
    assert problem.startswith(f"{path}: 2 of 4 lines cannot be read, the first: {path}, line 2: ")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    path.write_text('{"time":"2026"}\n')
    with pytest.raises(Unreadable, match=r"line 1: KeyError: 'version'; expected lines of GATEWAY_RECORDS_FILE"):
        list(entries_in(path, told))


def test_an_empty_file_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "records").touch()
    assert read(tmp_path / "records") == []
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


# --------------------------------------------------------------------------------------------------------- rotation


class Sink(RotatingSink):
    """Turns when a test says so, not when its thread gets to it."""

    def _run(self) -> None:
        return

    def turn(self, text: bytes) -> None:
        self.write(text)
        self._turn()


def test_a_full_file_makes_room_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "records"
    sink = Sink(str(path), 10, 2, told)
    for number in range(1, 6):
        sink.turn(b"line %d, long enough\n" % number)
        sink.turn(b"x\n")
    sink.stop()
    assert {file.name: file.read_text().splitlines() for file in tmp_path.iterdir()} == {
        "records": ["x"],
        "records.1": ["x", "line 5, long enough"],
        "records.2": ["x", "line 4, long enough"],
    }


def test_without_others_kept_a_full_file_goes_itself(tmp_path: Path) -> None:
    path = tmp_path / "records"
    sink = Sink(str(path), 10, 0, told)
    sink.turn(b"line 1, long enough\n")
    sink.turn(b"x\n")
    sink.stop()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"records": "x\n"}


def test_a_file_that_somebody_took_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "records"
    sink = Sink(str(path), 10, 1, told)
    sink.write(b"line 1, long enough\n")
    path.unlink()
    sink.turn(b"")
    sink.turn(b"x\n")
    sink.stop()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"records": "x\n"}


def test_where_no_room_can_be_made_the_file_grows_and_the_log_says_so(tmp_path: Path) -> None:
    path, problems = tmp_path / "records", list[str]()
    (tmp_path / "records.1" / "in the way").mkdir(parents=True)
    sink = Sink(str(path), 10, 1, problems.append)
    sink.turn(b"line 1, long enough\n")
    sink.turn(b"line 2\n")
    sink.stop()
    assert path.read_text() == "line 1, long enough\nline 2\n"
    assert problems
    assert problems[0].startswith(f"cannot rename {path}, it goes on growing: ")


def test_a_standard_stream_does_not_rotate(capfd: pytest.CaptureFixture[str]) -> None:
    sink = Sink("stdout", 1, 1, told)
    sink.turn(b"line\n")
    sink.stop()
    assert capfd.readouterr().out == "line\n"


def test_the_writer_rotates_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "records"
    for _ in range(3):
        file = record_file(path, size=100, keep=5)
        file.take(entry())
        file.stop()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["records", "records.1", "records.2", "records.3"]
    assert len(read(*(tmp_path / f"records.{number}" for number in (1, 2, 3)))) == 3


def test_the_file_may_be_reopened_after_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "records"
    file = record_file(path)
    path.rename(tmp_path / "moved")
    file.reopen()
    file.take(entry())
    file.stop()
    assert len(read(path)) == 1
    assert read(tmp_path / "moved") == []


def test_a_path_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record_file(tmp_path / "no" / "folder")
