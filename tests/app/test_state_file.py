"""The state file: written whole or not at all, and whatever is at its path never keeps the gateway from starting."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from gateway.admission.memory import BackendMemory, Memory, OutputMemory, PromptMemory
from gateway.app.state_file import StateFile
from tests.proxy.helpers import wait_until

LEARNED = Memory(
    (BackendMemory("a", "http://a", 80.5, None, 0.02, None, 0.3, (100.0, 2_000.0)),),
    (PromptMemory("qwen", True, (0.25, 0.4, 0.8, 0.25), 21.0, 12),),
    (OutputMemory("qwen", 8, -1, 40, 187.5),),
)
NOW = 1_000_000.0


class Learner:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.recalled: Memory | None = None

    def remember(self) -> Memory:
        return self.memory

    def recall(self, memory: Memory) -> tuple[str, ...]:
        self.recalled = memory
        return tuple(backend.name for backend in memory.of([("a", "http://a")]))


def saved(path: Path, memory: Memory = LEARNED, now: float = NOW) -> None:
    begun_and_ended(StateFile(str(path), Learner(memory), lambda: now))


def begun_and_ended(file: StateFile) -> None:
    async def both() -> None:
        file.start()
        await file.stop()

    asyncio.run(both())


def loaded(path: Path, caplog: pytest.LogCaptureFixture, now: float = NOW + 60.0) -> tuple[Memory | None, str]:
    """What was made of the file, and what the log says of it."""
    learner = Learner(LEARNED)
    with caplog.at_level(logging.INFO, "gateway.state_file"):
        StateFile(str(path), learner, lambda: now).load()
    return learner.recalled, caplog.text


def test_what_is_saved_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path / "state.json")
    recalled, log = loaded(tmp_path / "state.json", caplog)
    assert recalled == LEARNED
    assert "saved 60 s ago, knows of a" in log
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert (tmp_path / "state.json").stat().st_mode & 0o077 == 0


def test_without_a_file_everything_is_learned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recalled, log = loaded(tmp_path / "state.json", caplog)
    assert recalled is None
    assert "none yet" in log


def test_one_of_other_backends_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path / "state.json", Memory((BackendMemory("b", "http://b", 9.0),)))
    assert "none of these backends" in loaded(tmp_path / "state.json", caplog)[1]


def test_one_that_is_too_old_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path / "state.json")
    recalled, log = loaded(tmp_path / "state.json", caplog, NOW + 8 * 86_400.0)
    assert recalled is None
    assert "not used" in log
    assert "8 days old" in log


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version"),
        ({"saved_at": "yesterday"}, "saved_at"),
        ({"memory": {"backends": [{"name": "a", "url": "http://a", "limit": -5}]}}, "limit is -5"),
        ({"memory": {"backends": [{"name": "a", "url": "http://a", "limit": 1e999}]}}, "limit"),
        ({"memory": {"backends": [{"name": "a"}]}}, "memory.backends.0.url"),
        ({"memory": {"prompts": [[]]}}, "memory.prompts.0"),
        ({"memory": []}, "memory"),
        ({"more": 1}, "more"),
    ],
)
def test_what_is_wrong_in_it_is_named_and_nothing_of_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object], told: str
) -> None:
    path = tmp_path / "state.json"
    saved(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    recalled, log = loaded(path, caplog)
    assert recalled is None
    assert "not used" in log
    assert told in log
    saved(path)
    caplog.clear()
    assert loaded(path, caplog)[0] == LEARNED, "and it is written anew"


def test_one_that_was_cut_short_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.json"
    saved(path)
    path.write_bytes(path.read_bytes()[:-40])
    recalled, log = loaded(path, caplog)
    assert recalled is None
    assert "not used" in log


@pytest.mark.parametrize("content", [b"", b"GATEWAY_PORT=8080\n", b'{"version": 1}', b"\xff" * 300])
def test_what_is_no_state_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    path = tmp_path / "gateway.env"
    path.write_bytes(content)
    learner = Learner(LEARNED)
    file = StateFile(str(path), learner, lambda: NOW)
    with caplog.at_level(logging.INFO, "gateway.state_file"):
        file.load()
    begun_and_ended(file)
    assert path.read_bytes() == content
    assert learner.recalled is None
    assert "left alone" in caplog.text


async def test_a_path_that_cannot_be_used_is_told_once_and_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner(LEARNED)
    file = StateFile(str(tmp_path / "none" / "state.json"), learner, lambda: NOW, every=0.001)
    with caplog.at_level(logging.INFO, "gateway.state_file"):
        file.load()
        file.start()
        await asyncio.sleep(0.05)
        await file.stop()
    assert caplog.text.count("cannot be written: No such file or directory") == 1
    with caplog.at_level(logging.INFO, "gateway.state_file"):
        StateFile(str(tmp_path), learner).load()
    assert "not used, everything is learned from the start: Is a directory" in caplog.text


async def test_it_is_written_every_so_often_where_something_was_learned(tmp_path: Path) -> None:
    learner = Learner(LEARNED)
    file = StateFile(str(tmp_path / "state.json"), learner, lambda: NOW, every=0.001)
    file.start()
    await wait_until((tmp_path / "state.json").exists)
    before = (tmp_path / "state.json").stat().st_ino
    await asyncio.sleep(0.02)
    assert (tmp_path / "state.json").stat().st_ino == before, "nothing new: the disk is spared"
    learner.memory = Memory()
    await wait_until(lambda: (tmp_path / "state.json").stat().st_ino != before)
    await file.stop()
    await file.stop()


def test_a_gateway_that_never_started_writes_nothing(tmp_path: Path) -> None:
    asyncio.run(StateFile(str(tmp_path / "state.json"), Learner(LEARNED)).stop())
    assert not list(tmp_path.iterdir())
