"""The writer never makes its caller wait, loses as little as it can, and counts what it loses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from gateway.telemetry.sink import CAPACITY, LineSink


class Make(Protocol):
    def __call__(
        self, target: Path | str, *, capacity: int = CAPACITY, on_trouble: Callable[[str], None] | None = None
    ) -> LineSink: ...


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[LineSink] = []

    def build(
        target: Path | str, *, capacity: int = CAPACITY, on_trouble: Callable[[str], None] | None = None
    ) -> LineSink:
        made.append(LineSink(str(target), capacity=capacity, on_trouble=on_trouble))
        return made[-1]

    yield build
    for each in made:
        each.stop(timeout=10.0)


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("the writer did not come to it within 20 s")


def test_lines_arrive_in_order_and_stop_flushes(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path / "log")
    lines = [f"{number}\n".encode() for number in range(5000)]
    for line in lines:
        sink.write(line)
    sink.stop()
    assert (tmp_path / "log").read_bytes() == b"".join(lines)
    assert sink.dropped == 0


def test_lines_are_written_without_a_stop(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path / "log")
    sink.write(b"first\n")
    wait_for(lambda: (tmp_path / "log").read_bytes() == b"first\n")
    sink.write(b"second\n")
    wait_for(lambda: (tmp_path / "log").read_bytes() == b"first\nsecond\n")


def test_it_appends_to_what_is_there(make: Make, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before\n")
    sink = make(tmp_path / "log")
    sink.write(b"after\n")
    sink.stop()
    assert (tmp_path / "log").read_bytes() == b"before\nafter\n"


def test_lines_of_many_threads_stay_whole(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path / "log")

    def work(name: str) -> None:
        for number in range(500):
            sink.write(f"{name}-{number}\n".encode())

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sink.stop()
    written = (tmp_path / "log").read_text().splitlines()
    assert sorted(written) == sorted(f"{name}-{number}" for name in "abcd" for number in range(500))


def test_a_full_disk_drops_and_counts_and_tells_once(make: Make) -> None:
    told: list[str] = []
    sink = make("/dev/full", on_trouble=told.append)
    sink.write(b"one\n")
    wait_for(lambda: sink.dropped == 1)
    sink.write(b"two\n")
    wait_for(lambda: sink.dropped == 2)
    sink.stop()
    assert len(told) == 1
    assert "cannot write to /dev/full" in told[0]
    assert "No space left" in told[0]


class FakeDisk:
    """Stands in for os.write: takes so many bytes, then fails until there is room again."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written = b""

    def write(self, _: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.written += taken
        return len(taken)


@pytest.mark.parametrize(
    ("room", "written", "dropped"),
    [
        (0, b"five\n", 2),
        (4, b"one\nfive\n", 1),
        (6, b"one\ntw\nfive\n", 1),
        (7, b"one\ntwo\nfive\n", 0),  # only its line feed was missing: the line is saved
        (8, b"one\ntwo\nfive\n", 0),
    ],
)
def test_a_disk_that_fills_in_the_middle_breaks_at_most_one_line(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, written: bytes, dropped: int
) -> None:
    told: list[str] = []
    sink = make(tmp_path / "log", on_trouble=told.append)
    disk = FakeDisk(room)
    monkeypatch.setattr(os, "write", disk.write)
    sink._write(b"one\ntwo\n")
    disk.room = 100
    sink._write(b"five\n")
    monkeypatch.undo()
    assert disk.written == written
    assert sink.dropped == dropped
    assert len(told) == (2 if room < 8 else 0)
    assert not told or "No space left" in told[0]
    assert not told or told[1].endswith("works again")


def test_a_half_written_line_stays_known_over_several_failures(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(tmp_path / "log")
    disk = FakeDisk(2)
    monkeypatch.setattr(os, "write", disk.write)
    for line in (b"one\n", b"two\n", b"three\n"):
        sink._write(line)
    disk.room = 100
    sink._write(b"four\n")
    monkeypatch.undo()
    assert disk.written == b"on\nfour\n"
    assert sink.dropped == 3


def test_a_reader_that_does_not_read_costs_lines_and_not_time(make: Make, tmp_path: Path) -> None:
    """A pipe that nobody reads fills at 64 KiB: the writer waits, whoever logs does not, what is lost is counted."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    read = bytearray()

    def take() -> bool:
        with contextlib.suppress(BlockingIOError):
            read.extend(os.read(reader, 4096))
        return len(read) > 150_000

    try:
        sink = make(tmp_path / "pipe", capacity=500_000)
        for _ in range(600):
            sink.write(b"x" * 999 + b"\n")
        refused = sink.dropped
        assert refused >= 100
        wait_for(take)  # it goes on as soon as somebody reads
        wait_for(lambda: fcntl.ioctl(reader, termios.FIONREAD, b"1234") != bytes(4))
        sink.stop(timeout=30.0)
        while chunk := os.read(reader, 65_536):
            read.extend(chunk)
    finally:
        os.close(reader)
    assert sink.dropped > refused
    assert read.count(b"\n") + sink.dropped == 600


def test_the_memory_it_takes_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(_: int, data: memoryview) -> int:
        entered.set()
        release.wait(30.0)
        return len(data)

    sink = make("/dev/null", capacity=1000)
    monkeypatch.setattr(os, "write", hang)
    sink.write(b"y" * 9 + b"\n")
    assert entered.wait(30.0)
    for _ in range(500):
        sink.write(b"y" * 9 + b"\n")
    assert sum(map(len, sink._lines)) == 1000
    assert sink.dropped == 400
    sink.stop(timeout=0.01)  # comes back although the writer hangs
    assert sink.dropped == 500
    release.set()


def test_a_stopped_sink_counts_what_comes_too_late(make: Make, tmp_path: Path) -> None:
    sink = make(tmp_path / "log")
    sink.stop()
    sink.stop()
    sink.write(b"late\n")
    assert sink.dropped == 1
    assert (tmp_path / "log").read_bytes() == b""


def test_logrotate_moves_the_file_and_reopen_begins_a_new_one(make: Make, tmp_path: Path) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    sink = make(path)
    sink.write(b"one\n")
    wait_for(lambda: path.read_bytes() == b"one\n")
    path.rename(rotated)
    sink.write(b"two\n")
    wait_for(lambda: rotated.read_bytes() == b"one\ntwo\n")
    sink.reopen()
    wait_for(path.exists)
    sink.write(b"three\n")
    sink.stop()
    assert rotated.read_bytes() == b"one\ntwo\n"
    assert path.read_bytes() == b"three\n"
    assert sink.dropped == 0


def test_where_reopening_fails_the_old_file_stays_in_use(make: Make, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    told: list[str] = []
    sink = make(tmp_path / "logs" / "log", on_trouble=told.append)
    (tmp_path / "logs").rename(tmp_path / "gone")
    sink.reopen()
    wait_for(lambda: bool(told))
    sink.write(b"still\n")
    sink.stop()
    assert "the old file stays in use" in told[0]
    assert (tmp_path / "gone" / "log").read_bytes() == b"still\n"


def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file or directory: .*nowhere"):
        LineSink(str(tmp_path / "nowhere" / "log"))


def test_a_pipe_without_a_reader_does_not_hold_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device or address"):
        LineSink(str(tmp_path / "pipe"))


def test_files_are_not_open_to_everybody(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize(("target", "index"), [("stdout", 0), ("stderr", 1)])
def test_standard_streams(make: Make, capfd: pytest.CaptureFixture[str], target: str, index: int) -> None:
    sink = make(target)
    sink.write(b"hello\n")
    sink.reopen()
    sink.stop()
    assert capfd.readouterr()[index] == "hello\n"
    os.fstat(index + 1)  # still open
