"""``gateway emulate``: what its flags make of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.app import emulate
from gateway.cli import main
from gateway.emulator.mindie import EmulatedMindIE
from gateway.emulator.server import EmulatedServer
from tests.real.cases import STREAM, chat
from tests.real.process import Program, free_port
from tests.real.wire import exchange, opened

Emulated = EmulatedServer | EmulatedMindIE


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Emulated]:
    """The servers that would have been run."""
    servers: list[Emulated] = []

    def keep(make: Callable[[], Emulated], _place: str, _model: str) -> int:
        servers.append(make())
        return 0

    monkeypatch.setattr(emulate, "_run", keep)
    return servers


@pytest.mark.parametrize("kind", ["vllm", "mindie"])
@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("--stall", "2.5"), "stall", 2.5),
        (("--stall-every", "30"), "stall_every", 30.0),
        (("--wear", "0.1"), "wear", 0.1),
        (("--hangs-at", "60"), "hangs_at", 60.0),
        (("--max-queued", "32"), "max_num_queued_reqs", 32),
    ],
)
def test_a_fault_is_one_of_the_profile(
    made: list[Emulated], kind: str, flags: tuple[str, ...], field: str, value: Any
) -> None:
    assert main(["emulate", "--kind", kind, "--profile", "flat", *flags]) == 0
    assert main(["emulate", "--kind", kind, "--profile", "flat"]) == 0
    ailing, sound = (server._profile for server in made)
    assert getattr(ailing, field) == value != getattr(sound, field)


def test_the_prefix_cache_can_be_switched_off(made: list[Emulated]) -> None:
    assert main(["emulate", "--profile", "c550-asr", "--no-prefix-cache"]) == 0
    assert main(["emulate", "--profile", "c550-asr"]) == 0
    assert [server._profile.prefix_cache for server in made] == [False, True]


@pytest.mark.parametrize(
    "flags", [("--stall", "0"), ("--wear", "x"), ("--hangs-at", "-1"), ("--max-queued", "0"), ("--max-queued", "1.5")]
)
def test_a_fault_that_is_none_is_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["emulate", *flags])
    assert f"argument {flags[0]}: got '{flags[1]}'" in capsys.readouterr().err


def test_an_engine_that_ails_is_served(tmp_path: Path) -> None:
    port = free_port()
    flags = ["--profile", "flat", "--port", str(port), "--model", "tiny", "--polluted", "--max-queued", "1"]
    program = Program("engine", ["gateway", "emulate", *flags], tmp_path / "log", {})
    try:
        program.wait_until_ready(port, "/health")
        assert set(exchange(port, chat()).json()["choices"][0]["message"]["content"]) == {"!"}
        with opened(port, chat(STREAM, {"max_tokens": 30_000})) as (_, held):
            assert held.read1()
            assert exchange(port, chat()).status == 503
    finally:
        assert program.stop() == 0
