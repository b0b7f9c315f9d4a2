"""What is asked of the law, one line each: asked, have, and where it is worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.control.compare import Cell, Side

Found = tuple[float, str]  # a figure, and whose
LONG_PROMPTS = ("910b/azure-code", "a100/mooncake")  # with short answers
KV = "kv8b/history"
STEP = {"load_steps": ("a load step", 10.0), "engine_degrades": ("an engine at half its speed, and back", 30.0)}


@dataclass(frozen=True, slots=True)
class Target:
    """``least``: the figure is to be so much at least, else so much at most."""

    name: str
    asked: float
    least: bool
    found: tuple[Found, ...]

    @property
    def worst(self) -> Found:
        """NaN where nothing was measured."""
        known = [each for each in self.found if not math.isnan(each[0])]
        return (min if self.least else max)(known, default=(math.nan, "not measured"))

    @property
    def holds(self) -> bool | None:
        """As printed, to two digits; None where nothing was measured."""
        value = round(self.worst[0], 2)
        return None if math.isnan(value) else value >= self.asked if self.least else value <= self.asked


def targets(cells: Sequence[Cell], scenarios: Sequence[Cell]) -> Iterator[Target]:
    """All of them; those of which nothing was run say so."""
    yield from _shares(cells)
    both = ("told", "untold")
    yield Target("shed below 0.8x", 0.0, False, _figures(cells, "shed", both, lambda load: load < 0.8))
    yield Target("shed at 1x", 0.03, False, _figures(cells, "shed", both, lambda load: load == 1.0))
    yield Target("limit CV, 1x+", 0.12, False, _figures(cells, "limit_cv", both, lambda load: load >= 1.0))
    yield Target("amplification, 2x+", 1.1, False, _figures(cells, "amplification", both, lambda load: load >= 2.0))
    yield Target("preempted, 1x+", 0.02, False, _figures(cells, "preempted", both, lambda load: load >= 1.0))
    mixed = [cell for cell in cells if cell.name.endswith("/bimodal")]
    for lane, asked in (("short", 0.55), ("long", 0.15)):
        found = _figures(mixed, f"{lane}.in_objective", ("told",), lambda load: load == 5.0)
        yield Target(f"{lane} in objective, chats and documents 5x, told", asked, True, found)
    yield from _events({cell.name: cell for cell in scenarios})


def table(cells: Sequence[Cell], scenarios: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """Rows of what, asked, have, where, and whether it holds."""
    for target in targets(cells, scenarios):
        value, where = target.worst
        if target.holds is not None:
            sign = ">=" if target.least else "<="
            holds = "yes" if target.holds else "no"
            yield target.name, f"{sign} {target.asked:.2f}", f"{value:.2f}", where, holds


def _shares(cells: Sequence[Cell]) -> Iterator[Target]:
    def shares(
        told: str, least: float, most: float, among: Callable[[str], bool] = lambda _: True
    ) -> tuple[Found, ...]:
        held = [cell for cell in cells if least <= cell.load <= most and among(cell.name)]
        return tuple((_side(cell, told).share, cell.label) for cell in held)

    apart = (KV, *LONG_PROMPTS)
    yield Target("share, told, 0.5x and 0.8x", 1.0, True, shares("told", 0.0, 0.8))
    yield Target("share, told, 1x", 0.98, True, shares("told", 1.0, 1.0))
    yield Target("share, told, 2x+", 1.0, True, shares("told", 2.0, math.inf, lambda name: name not in apart))
    yield Target("share, told, 2x+, KV-bound", 1.15, True, shares("told", 2.0, math.inf, lambda name: name == KV))
    long_prompts = shares("told", 2.0, math.inf, lambda name: name in LONG_PROMPTS)
    yield Target("share, told, 2x+, long prompts", 0.97, True, long_prompts)
    yield Target("share, untold, 0.5x and 0.8x", 0.99, True, shares("untold", 0.0, 0.8))
    yield Target("share, untold, 1x", 0.97, True, shares("untold", 1.0, 1.0))
    yield Target("share, untold, 2x+", 0.96, True, shares("untold", 2.0, math.inf))


def _events(events: dict[str, Cell]) -> Iterator[Target]:
    def of(name: str, figure: Callable[[Side], float]) -> tuple[Found, ...]:
        cell = events.get(name)
        sides = (("told", cell.told), ("untold", cell.untold)) if cell is not None else ()
        return tuple((figure(side), f"{name}, {told}") for told, side in sides)

    def share(side: Side) -> float:
        return side.share

    yield Target("share, bursts of 5 s", 0.97, True, of("burst_5s", share))
    yield Target("share, cold start at 10x", 0.95, True, of("cold_start_10x", share))
    blind = of("stale_hints", lambda side: _figure(side, "of_blind"))
    yield Target("goodput tokens, gauges wrong and then stale, of those without any", 0.95, True, blind)
    for name in ("restart_full_load", "crash_full_load", "started_late"):
        yield Target(f"share, {name.replace('_', ' ')}", 0.95, True, of(name, share))
    for name, (what, asked) in STEP.items():
        cell = events.get(name)
        keys = sorted(key for key in (cell.told.figures if cell else ()) if key.startswith("settled_"))
        found = [each for key in keys for each in _at(of(name, lambda side, key=key: side.figures[key]), key)]  # type: ignore[misc]
        yield Target(f"settled after {what}, s", asked, False, tuple(found))
    yield Target("the others beside a hog", 0.8, True, of("hog", lambda side: _figure(side, "others.in_objective")))
    answered = of("burst_5s_documents", lambda side: _figure(side, "long.answered"))
    yield Target("long answered, bursts of 5 s", 0.75, True, answered)


def _at(found: Iterable[Found], key: str) -> Iterator[Found]:
    for value, where in found:
        yield value, f"{where}, {key.removeprefix('settled_')} s"


def _figures(
    cells: Iterable[Cell], key: str, sides: Iterable[str], among: Callable[[float], bool]
) -> tuple[Found, ...]:
    return tuple(
        (_figure(_side(cell, told), key), f"{cell.label}, {told}")
        for cell in cells
        for told in sides
        if among(cell.load)
    )


def _figure(side: Side, key: str) -> float:
    return side.figures.get(key, math.nan)


def _side(cell: Cell, told: str) -> Side:
    return cell.told if told == "told" else cell.untold
