"""``gateway limits``: show what can be changed while the gateway runs, and change it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gateway.app.admin import AdminError, Ask, admin_port
from gateway.app.exits import EXIT_START, EXIT_USAGE
from gateway.settings.values import parse_duration, show_duration

_NONE: Final = frozenset({"none", "off"})
_Kind: TypeAlias = tuple[Callable[[str], Any], str]  # reads a value, and says what was expected where it cannot


def run_limits(arguments: argparse.Namespace) -> int:
    """Change what is asked for, then print what is in effect; the exit code is one of those that ``cli`` lists."""
    try:
        sys.stdout.write(asyncio.run(_limits(arguments)))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except AdminError as failure:
        sys.stderr.write(f"{failure}\n")
        return EXIT_START
    return 0


async def _limits(arguments: argparse.Namespace) -> str:
    change = change_of(arguments)
    async with admin_port(arguments.admin, arguments.env_file) as ask:
        if change:
            found = json.loads(await ask("PATCH", "/limits", (), change))
        else:
            found = json.loads(await ask("GET", "/limits", ()))
        if arguments.json:
            return f"{json.dumps(found, indent=2)}\n"
        return "".join(f"{line}\n" for line in _told(found, await _states(ask)))


async def _states(ask: Ask) -> dict[str, Any]:
    return {backend["name"]: backend for backend in json.loads(await ask("GET", "/state", ()))["backends"]}


# ------------------------------------------------------------------------------------------------------- the change


def change_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The change as /limits takes it; empty where nothing is to change.

    Raises:
        ValueError: an argument cannot be read.
    """
    change: dict[str, Any] = {}
    if arguments.tpot_objective is not None:
        change["tpot_objective_seconds"] = _read("--tpot-objective", arguments.tpot_objective, _TIME)
    lanes: dict[str, dict[str, Any]] = {}
    for option, field, kind in (
        ("ttft_objective", "ttft_objective_seconds", _TIME),
        ("lane_threshold", "threshold", _WHOLE),
        ("lane_weight", "weight", _NUMBER),
        ("max_wait", "max_wait_seconds", _TIME),
    ):
        for lane, value in _pairs(f"--{option.replace('_', '-')}", getattr(arguments, option), kind):
            lanes.setdefault(lane, {})[field] = value
    backends: dict[str, dict[str, Any]] = {}
    for backend, limit in _pairs("--pin", arguments.pin, _WHOLE):
        backends.setdefault(backend, {})["limit"] = limit
    for names, field, value in (
        (arguments.unpin, "limit", None),
        (arguments.drain, "drained", True),
        (arguments.undrain, "drained", False),
    ):
        for backend in names:
            backends.setdefault(backend, {})[field] = value
    parts = {"lanes": lanes, "backends": backends}
    return change | {name: part for name, part in parts.items() if part}


def _pairs(option: str, texts: Sequence[str], kind: _Kind) -> Iterator[tuple[str, Any]]:
    for text in texts:
        for item in text.split(","):
            name, found, value = item.rpartition("=")
            if not found or not name.strip():
                raise ValueError(f"{option}: got {item!r}, expected NAME=VALUE")
            yield name.strip(), _read(option, value.strip(), kind)


def _read(option: str, text: str, kind: _Kind) -> Any:
    read, expected = kind
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{option}: got {text!r}, expected {expected}") from None


def _seconds(text: str) -> float | None:
    return None if text.lower() in _NONE else float(str(parse_duration(text)))


_TIME: Final = (_seconds, "a duration such as 50ms or 1.5s, or none")
_WHOLE: Final = (int, "a whole number")
_NUMBER: Final = (float, "a number")


# ------------------------------------------------------------------------------------------------------- what is so


def _told(found: Mapping[str, Any], states: Mapping[str, Any]) -> Iterator[str]:
    for sentence in found.get("changed", ()):
        yield f"changed: {sentence}"
    if "changed" in found:
        yield "" if found["changed"] else "nothing changed: it was so already\n"
    yield f"TPOT objective  {_shown(found['tpot_objective_seconds'])}"
    yield ""
    lanes = [
        (name, _bound(lane["threshold"]), f"{lane['weight']:g}", *map(_shown, _times(lane)))
        for name, lane in found["lanes"].items()
    ]
    yield from _aligned(("LANE", "TOKENS", "WEIGHT", "TTFT OBJECTIVE", "LONGEST WAIT"), lanes)
    yield ""
    backends = [_backend(name, backend, states.get(name)) for name, backend in found["backends"].items()]
    yield from _aligned(("BACKEND", "HEALTH", "RUNNING", "LIMIT", ""), backends)


def _times(lane: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return lane["ttft_objective_seconds"], lane["max_wait_seconds"]


def _bound(threshold: int | None) -> str:
    return "longer" if threshold is None else f"to {threshold}"


def _shown(seconds: float | None) -> str:
    return "none" if seconds is None else show_duration(seconds)


def _backend(name: str, backend: Mapping[str, Any], state: Mapping[str, Any] | None) -> tuple[str, ...]:
    pinned = "found by itself" if backend["limit"] is None else "pinned"
    if state is None:
        return name, "", "", "" if backend["limit"] is None else str(backend["limit"]), pinned
    return name, state["health"], str(state["running"]), f"{state['limit']:.1f}", pinned


def _aligned(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
