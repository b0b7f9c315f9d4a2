"""What an operator may change while the gateway runs, and the check of a change.

A change is a mapping as it comes from JSON. Only what it names changes; null takes an objective or a pin away::

    {
        "tpot_objective_seconds": 0.05,
        "lanes": {"short": {"threshold": 800, "weight": 3, "ttft_objective_seconds": 1, "max_wait_seconds": 0.5}},
        "backends": {"gpu1": {"limit": 32, "drained": true}},
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from math import isfinite
from typing import Final, TypeVar

from gateway.admission.config import LaneConfig

MOST: Final = 1_000_000  # of a pinned limit or a lane's threshold

_Value = TypeVar("_Value")
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class BackendTuning:
    """``limit`` is the pinned one, None while it is found by itself. A drained backend gets no new request."""

    limit: int | None = None
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """Everything that can be changed, as it stands or as it is wanted. Seconds, tokens, ratios."""

    tpot_objective: float | None
    lanes: tuple[LaneConfig, ...]
    backends: Mapping[str, BackendTuning]
    replicas: int = 1  # gateways that share the backends; counted, never told by an operator


def changed(tuning: Tuning, change: object) -> Tuning:
    """``tuning`` with ``change`` made in it.

    Raises:
        ValueError: with the field, what was given and what is expected. Nothing of the change is made then.
    """
    fields = _fields(change, "", ("tpot_objective_seconds", "lanes", "backends"))
    lanes = _entries(fields.get("lanes", {}), "lanes", {lane.name: lane for lane in tuning.lanes}, _lane)
    return replace(
        tuning,
        tpot_objective=_given(fields, "", "tpot_objective_seconds", _seconds_or_none, tuning.tpot_objective),
        lanes=_ascending(tuple(lanes.values())),
        backends=_entries(fields.get("backends", {}), "backends", tuning.backends, _backend),
    )


def differences(before: Tuning, after: Tuning) -> Iterator[tuple[str | None, str]]:
    """What changed, one short sentence each, with the backend that it is about (None: all)."""
    if before.tpot_objective != after.tpot_objective:
        yield None, _told("TPOT objective", before.tpot_objective, after.tpot_objective, " s")
    for old, new in zip(before.lanes, after.lanes, strict=True):
        name = f"lane {new.name}"
        for what, unit in (("threshold", " tokens"), ("weight", ""), ("ttft_objective", " s"), ("max_wait", " s")):
            was, now = getattr(old, what), getattr(new, what)
            if was != now:
                yield None, _told(f"{name}: {_WORDS[what]}", was, now, unit)
    for backend, wanted in after.backends.items():
        had = before.backends[backend]
        if had.limit != wanted.limit and wanted.limit is not None:
            yield backend, f"limit pinned at {wanted.limit}"
        elif had.limit != wanted.limit:
            yield backend, "limit unpinned: it is found by itself again"
        if had.drained is not wanted.drained:
            yield backend, "drained: no new request goes to it" if wanted.drained else "drained no longer"


_WORDS: Final = {
    "threshold": "threshold",
    "weight": "weight",
    "ttft_objective": "TTFT objective",
    "max_wait": "longest wait",
}


def _told(what: str, before: float | None, after: float | None, unit: str) -> str:
    old, new = ("none" if value is None else f"{value:g}{unit}" for value in (before, after))
    return f"{what} {old} -> {new}"


# --------------------------------------------------------------------------------------------------------------
# The parts of a change
# --------------------------------------------------------------------------------------------------------------


def _lane(lane: LaneConfig, path: str, change: object) -> LaneConfig:
    fields = _fields(change, path, ("threshold", "weight", "ttft_objective_seconds", "max_wait_seconds"))
    threshold = _threshold if lane.threshold is not None else _no_threshold
    objective = _given(fields, path, "ttft_objective_seconds", _seconds_or_none, lane.ttft_objective)
    wait = lane.max_wait
    if objective is not None and "ttft_objective_seconds" in fields:
        wait = objective / 2.0  # as at the start, where none is given
    return replace(
        lane,
        threshold=_given(fields, path, "threshold", threshold, lane.threshold),
        weight=_given(fields, path, "weight", _positive, lane.weight),
        ttft_objective=objective,
        max_wait=_given(fields, path, "max_wait_seconds", _positive, wait),
        lingers=lane.lingers and "max_wait_seconds" not in fields,
    )


def _backend(backend: BackendTuning, path: str, change: object) -> BackendTuning:
    fields = _fields(change, path, ("limit", "drained"))
    return BackendTuning(
        _given(fields, path, "limit", _limit, backend.limit),
        _given(fields, path, "drained", _flag, backend.drained),
    )


def _ascending(lanes: tuple[LaneConfig, ...]) -> tuple[LaneConfig, ...]:
    for lane, following in pairwise(lanes):
        if lane.threshold is not None and following.threshold is not None and lane.threshold >= following.threshold:
            raise ValueError(
                f"lanes.{lane.name}.threshold: got {lane.threshold}, expected less than {following.threshold}, "
                f"that of {following.name}"
            )
    return lanes


# --------------------------------------------------------------------------------------------------------------
# Values
# --------------------------------------------------------------------------------------------------------------


def _given(
    fields: Mapping[str, object], path: str, name: str, parse: Callable[[object], _Value], otherwise: _Value
) -> _Value:
    if name not in fields:
        return otherwise
    try:
        return parse(fields[name])
    except ValueError as error:
        raise ValueError(f"{_joined(path, name)}: got {_shown(fields[name])}, expected {error}") from None


def _seconds_or_none(value: object) -> float | None:
    if value is None:
        return None
    if not _is_positive(value):
        raise ValueError("seconds above 0, or null for none")
    return float(str(value))


def _positive(value: object) -> float:
    if not _is_positive(value):
        raise ValueError("a number above 0")
    return float(str(value))


def _threshold(value: object) -> int | None:
    if not _is_count(value):
        raise ValueError(f"a whole number of tokens, 1 to {MOST}")
    return int(str(value))


def _no_threshold(value: object) -> int | None:
    if value is not None:
        raise ValueError("null: the last lane takes whatever is longer than the others'")
    return None


def _limit(value: object) -> int | None:
    if value is None:
        return None
    if not _is_count(value):
        raise ValueError(f"a whole number, 1 to {MOST}, or null to have it found")
    return int(str(value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - the caller tells it with the field's name
    return value


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _fields(value: object, path: str, known: tuple[str, ...]) -> Mapping[str, object]:
    """``value`` as an object whose names are all among ``known``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path or 'change'}: got {_shown(value)}, expected an object")  # noqa: TRY004 - one kind
    for name in value:
        if name not in known:
            raise ValueError(f"{_joined(path, str(name))}: no such field, expected {_choice(str(name), known)}")
    return value


def _entries(
    value: object, path: str, entries: Mapping[str, _Entry], changed_entry: Callable[[_Entry, str, object], _Entry]
) -> dict[str, _Entry]:
    """``entries`` with those changed that ``value`` names."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: got {_shown(value)}, expected an object by name")  # noqa: TRY004 - one kind
    after = dict(entries)
    for name, change in value.items():
        if name not in entries:
            raise ValueError(f"{_joined(path, str(name))}: unknown, expected {_choice(str(name), tuple(entries))}")
        after[name] = changed_entry(entries[name], _joined(path, name), change)
    return after


def _choice(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, 1)
    return f"one of {', '.join(known)}{f' (did you mean {near[0]}?)' if near else ''}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."  # noqa: PLR2004 - a line
