"""The presets of config/: each is taken as it is, says why, and holds its objectives at twice what its engine serves.

The engines are the emulated ones, in simulated time, under clients that time out and retry; the production admission
with the preset's settings decides. What counts is goodput: answers a second inside the preset's own objectives. Each
floor is a tenth below what was measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from gateway.app.configs import load_all
from gateway.cli import main
from gateway.emulator.engine import Profile
from gateway.emulator.profiles import (
    C550_ASR,
    DUO_310P,
    LLAMA3_8B_A100,
    MINDIE_910B,
    QWEN3_8B_910B,
    QWEN3_8B_H100,
)
from gateway.settings import Settings
from gateway.settings.plain import admission_config
from gateway.simulator.clients import Habits
from gateway.simulator.run import gateway
from gateway.simulator.setup import Load, Machine, Objectives, Setup
from tests.deploy.helpers import ROOT

FOLDER: Final = ROOT / "config"
PRESETS: Final = sorted(path for path in FOLDER.glob("*.env") if path.name != "example.env")


@dataclass(frozen=True)
class Trial:
    """What a preset is put to, and the least goodput that must come of it, requests a second."""

    engines: tuple[Profile, ...]
    load: tuple[Load, ...]
    horizon: float
    measure_from: float
    goodput: float


def _at(rate: float, workload: str = "sharegpt", *, timeout: float = 60.0, streamed: float = 1.0) -> Load:
    return Load(workload, label=workload, rates=((0.0, rate),), streamed=streamed, habits=Habits(timeout=timeout))


_MIXED: Final = (_at(4.8), _at(0.8, "documents"))
TRIALS: Final = {
    "c550-qwen3-asr": Trial((C550_ASR,), (_at(58.0, "asr", timeout=10.0, streamed=0.5),), 40.0, 10.0, 25.0),
    "910b-vllm-ascend": Trial((QWEN3_8B_910B,), (_at(18.0),), 120.0, 50.0, 8.0),
    "910b-mindie": Trial((MINDIE_910B,), (_at(30.0),), 100.0, 40.0, 12.8),
    "310p-vllm-ascend": Trial((DUO_310P,), (_at(0.12, timeout=600.0),), 1500.0, 500.0, 0.045),
    "gpustack": Trial((QWEN3_8B_910B,), _MIXED, 200.0, 60.0, 3.3),
    "h100-latency": Trial((QWEN3_8B_H100,), (_at(49.0), _at(0.8, "documents")), 60.0, 20.0, 20.7),
    "h100-throughput": Trial((QWEN3_8B_H100,), (_at(70.0),), 40.0, 20.0, 30.7),
    "mixed-gpu-npu": Trial((LLAMA3_8B_A100, QWEN3_8B_910B, QWEN3_8B_910B), (_at(60.0),), 60.0, 25.0, 26.0),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("GATEWAY_")]:
        monkeypatch.delenv(name)


def test_each_has_its_trial() -> None:
    assert {path.stem for path in PRESETS} == TRIALS.keys()


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_the_gateway_takes_it_without_a_word(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--env-file", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[OK]") for line in lines)
    written = [line for line in path.read_text().splitlines() if line.startswith("GATEWAY_")]
    assert sum(line.endswith(" env file") for line in lines) == len(written)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_line_says_why(path: Path) -> None:
    before = ""
    for line in path.read_text().splitlines():
        assert not line or line.startswith(("#", "GATEWAY_"))
        if line.startswith("GATEWAY_"):
            assert before.startswith(("#", "GATEWAY_")), line
        before = line


@pytest.mark.parametrize("name", TRIALS)
def test_it_holds_its_objectives_at_twice_the_load(name: str) -> None:
    trial = TRIALS[name]
    settings = load_all(str(FOLDER / f"{name}.env")).settings
    figures = gateway(_setup(trial, settings), config=admission_config(settings)).figures
    assert figures["goodput"] >= trial.goodput


def _setup(trial: Trial, settings: Settings) -> Setup:
    ttft = settings.ttft_objective
    return Setup(
        horizon=trial.horizon,
        measure_from=trial.measure_from,
        fleet=tuple(Machine(f"engine{n}", profile) for n, profile in enumerate(trial.engines)),
        load=trial.load,
        objectives=Objectives(ttft.get("short"), ttft.get("long"), settings.tpot_objective),
    )
