"""Scenarios are data: a TOML file says who asks for what, of which engines, and where each figure must lie.

why = "what it shows"
horizon = 60.0                  # seconds simulated
measure_from = 10.0             # what ended before is not counted
oracle_limit = 24               # the best limit set by hand (python -m tests.sim --sweep prints it)

[fleet.a]                       # any field of the engine's profile may be set besides
profile = "c550-asr"
speeds = [[20.0, 0.5]]          # from second 20 on at half speed

[[load]]                        # any number of them, each with its habits (clients.Habits)
workload = "asr"
rates = [[0.0, 140.0]]          # from second 0 on 140 requests a second; or users = [[0.0, 50]] that ask in turn
habits = { timeout = 10.0 }

[restart]                       # another gateway takes over, which knows nothing
at = 30.0

[objectives]                    # what counts as served in time; the gateway is told in mode "objectives" only
tpot = 0.15

[bands.gateway]                 # what runs (see run.MODES) and the figures it is held to
"short.in_objective" = [0.9, 1.0]
[bands."gateway/oracle"]        # the one run's figure over the other's
goodput_tokens = [0.9, 1.3]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gateway.emulator.profiles import PROFILES
from gateway.model import Priority
from gateway.simulator.clients import Habits
from gateway.simulator.setup import Hinting, Load, Machine, Objectives, Restart, Setup, Steps

Band = tuple[float, float]
FOLDER = Path(__file__).parent / "scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Setup):
    """One file."""

    name: str
    why: str
    bands: dict[str, dict[str, Band]]
    oracle_limit: int = 0
    cases: tuple[str, ...] = ()


def load(path: Path) -> Scenario:
    """Read one file.

    Raises:
        TypeError: a key that nobody knows.
        KeyError: an unknown profile.
    """
    table = tomllib.loads(path.read_text())
    return Scenario(
        name=path.stem,
        fleet=tuple(_machine(name, dict(machine)) for name, machine in table.pop("fleet").items()),
        load=tuple(_load(dict(kind)) for kind in table.pop("load")),
        objectives=Objectives(**table.pop("objectives", {})),
        hints=Hinting(**table.pop("hints")) if "hints" in table else None,
        restart=Restart(**table.pop("restart")) if "restart" in table else None,
        bands=_bands(table.pop("bands")),
        cases=tuple(table.pop("cases", ())),
        **table,
    )


def everything() -> list[Scenario]:
    """All of the folder, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.toml"))]


def _machine(name: str, table: dict[str, Any]) -> Machine:
    own = {key: table.pop(key) for key in ("speeds", "limit", "refuses_inside") if key in table}
    profile = replace(PROFILES[table.pop("profile")], **table)
    return Machine(
        name, profile, _steps(own.get("speeds", ())), own.get("limit"), refuses_inside=own.get("refuses_inside", False)
    )


def _load(table: dict[str, Any]) -> Load:
    known = {entry.name for entry in fields(Load)}
    for key in ("rates", "users"):
        table[key] = _steps(table.get(key, ()))
    if unknown := table.keys() - known:
        raise TypeError(f"load: {sorted(unknown)} given, some of {sorted(known)} expected")
    priority = Priority[table.get("priority", "standard").upper()]
    return Load(**table | {"habits": Habits(**table.get("habits", {})), "priority": priority})


def _steps(table: Any) -> Steps:
    return tuple((float(at), float(value)) for at, value in table)


def _bands(table: dict[str, Any]) -> dict[str, dict[str, Band]]:
    return {runs: {name: (low, high) for name, (low, high) in bands.items()} for runs, bands in table.items()}
