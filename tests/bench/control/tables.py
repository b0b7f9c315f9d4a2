"""The tables of a sweep, and its last line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean, median

from tests.bench.control import targets
from tests.bench.control.compare import Cell, Side

NONE = "-"


def everything(cells: Sequence[Cell], scenarios: Sequence[Cell]) -> Iterator[str]:
    """All of it, line by line, as Markdown."""
    yield from _shares(cells)
    yield from _limits_of_knowledge(cells)
    yield from _service(cells, "told of the objectives", lambda cell: cell.told)
    yield from _service(cells, "told nothing", lambda cell: cell.untold)
    yield from _rivals(cells)
    yield from _queues(cells)
    yield from _tolerances(cells)
    yield from _scenarios(scenarios)
    yield from _table("What is asked", ["what", "asked", "have", "where", "holds"], targets.table(cells, scenarios))
    if cells:
        yield ""
        yield verdict(cells)


def verdict(cells: Sequence[Cell]) -> str:
    """The worst row of each kind, and which cell of all is the worst."""
    kinds = {
        f"{told} {name}": [(_side(cell, told).share, cell.label) for cell in cells if least <= cell.load <= most]
        for told in ("told", "untold")
        for name, least, most in (("1x", 1.0, 1.0), ("2x+", 2.0, math.inf))
    }
    worst = {kind: min(found, default=(math.nan, NONE)) for kind, found in kinds.items()}
    label = min((found for found in worst.values() if not math.isnan(found[0])), default=(math.nan, NONE))[1]
    return (
        f"control: with objectives 1x {worst['told 1x'][0]:.2f} 2x+ {worst['told 2x+'][0]:.2f}; "
        f"without 1x {worst['untold 1x'][0]:.2f} 2x+ {worst['untold 2x+'][0]:.2f}; worst {label}"
    )


def _side(cell: Cell, told: str) -> Side:
    return cell.told if told == "told" else cell.untold


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    body = [list(row) for row in rows]
    if not body:
        return
    widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
    yield f"\n### {title}\n"
    for row in (head, ["-" * width for width in widths], *body):
        yield "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}" if values else NONE


def _by_row(cells: Sequence[Cell]) -> dict[str, dict[float, Cell]]:
    rows: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.name, {})[cell.load] = cell
    return rows


def _shares(cells: Sequence[Cell]) -> Iterator[str]:
    loads = sorted({cell.load for cell in cells})
    for title, of in (
        ("Told of the objectives: share of the best static request limit", lambda cell: cell.told.share),
        ("Told nothing: the same", lambda cell: cell.untold.share),
        ("Told of the objectives: share of the best static token limit", lambda cell: cell.told.share_of_tokens),
    ):
        share: Callable[[Cell], float | None] = of
        lines = [
            [name, *(_number(share(row[load])) if load in row else NONE for load in loads)]
            for name, row in _by_row(cells).items()
            if any(share(cell) is not None for cell in row.values())
        ]
        yield from _table(title, ["engine/mix", *(f"{load:g}x" for load in loads)], lines)


def _limits_of_knowledge(cells: Sequence[Cell]) -> Iterator[str]:
    """What nobody can beat, and how much of an oracle would be that its limit was chosen on what it is judged by."""
    loads = sorted({cell.load for cell in cells})
    yield from _table(
        "What nobody can beat, whatever he knows: share of the best static request limit, told",
        ["engine/mix", *(f"{load:g}x" for load in loads)],
        (
            [name, *(_number(row[load].bound) if load in row else NONE for load in loads)]
            for name, row in _by_row(cells).items()
        ),
    )
    for told in ("told", "untold"):
        own, other = ([share for cell in cells for share in shares(_side(cell, told))] for shares in (_OWN, _OTHER))
        if own and other:
            yield (
                f"\n{told}: median share {median(other):.3f} on seeds that the oracle's limit was not sought on,"
                f" {median(own):.3f} on those that it was"
            )


_OWN, _OTHER = attrgetter("own"), attrgetter("shares")

_SERVICE = (
    ("goodput/s", "goodput", 2),
    ("tokens/s", "goodput_tokens", 0),
    ("short", "short.in_objective", 2),
    ("long", "long.in_objective", 2),
    ("TTFT p50", "ttft_p50", 2),
    ("TTFT p99", "ttft_p99", 2),
    ("TPOT p50", "tpot_p50", 3),
    ("TPOT p90", "tpot_p90", 3),
    ("shed", "shed", 2),
    ("by hand", "shed_by_hand", 2),
    ("ampl.", "amplification", 2),
    ("limit", "limit_mean", 0),
    ("CV", "limit_cv", 2),
    ("preempted", "preempted", 3),
    ("settled, s", "converged", 0),
)


def _service(cells: Sequence[Cell], title: str, side: Callable[[Cell], Side]) -> Iterator[str]:
    head = ["engine/mix/load", "share", "seeds", "sought on", "oracle", *(name for name, _, _ in _SERVICE)]
    lines = [
        [
            cell.label,
            _number(side(cell).share),
            _span(side(cell).shares),
            _number(fmean(side(cell).own) if side(cell).own else None),
            str(side(cell).limit),
            *(_number(side(cell).figures.get(key), digits) for _, key, digits in _SERVICE),
        ]
        for cell in cells
    ]
    yield from _table(f"What it gives, {title}", head, lines)


def _rivals(cells: Sequence[Cell]) -> Iterator[str]:
    held = [cell for cell in cells if cell.rivals]
    names = sorted({name for cell in held for name in cell.rivals})
    yield from _table(
        "Other laws under the same queue, told nothing: share of the best static request limit",
        ["engine/mix/load", "this one", *names],
        (
            [cell.label, _number(cell.untold.share), *(_number(cell.rivals.get(name)) for name in names)]
            for cell in held
        ),
    )


def _queues(cells: Sequence[Cell]) -> Iterator[str]:
    held = [cell for cell in cells if cell.queues]
    names = list(dict.fromkeys(name for cell in held for name in cell.queues))
    yield from _table(
        "Other queues, told of the objectives: share of the best static request limit under the lanes",
        ["engine/mix/load", "law, lanes", *names],
        ([cell.label, _number(cell.told.share), *(_number(cell.queues.get(name)) for name in names)] for cell in held),
    )


def _tolerances(cells: Sequence[Cell]) -> Iterator[str]:
    """What stops who is told nothing: engines look alike, and what is asked of them does not."""
    held = [cell for cell in cells if cell.tolerances]
    each = sorted({tolerance for cell in held for tolerance in cell.tolerances})
    lines = [[cell.label, *(_number(cell.tolerances.get(tolerance)) for tolerance in each)] for cell in held]
    if held:
        lines.append(["the worst", *(_number(min(cell.tolerances[tolerance] for cell in held)) for tolerance in each)])
    head = ["engine/mix/load", *(f"{tolerance:g} times" for tolerance in each)]
    yield from _table("Told nothing, other tolerances: share of the best static request limit", head, lines)


def _scenarios(cells: Sequence[Cell]) -> Iterator[str]:
    head = [
        "scenario", "told", "untold", "oracle", "goodput/s", "short", "long", "shed", "ampl.", "TTFT p99",
        "settled after, s",
    ]  # fmt: skip
    keys = ("goodput", "short.in_objective", "long.in_objective", "shed", "amplification", "ttft_p99")
    lines = []
    for cell in cells:
        figures = cell.told.figures
        after = {key.removeprefix("settled_"): value for key, value in figures.items() if key.startswith("settled_")}
        lines.append(
            [
                cell.label,
                _number(cell.told.share),
                _number(cell.untold.share),
                f"{cell.told.limit}/{cell.untold.limit}",
                *(_number(figures.get(key)) for key in keys),
                ", ".join(f"{at}: {after[at]:.0f}" for at in sorted(after, key=float)) or NONE,
            ]
        )
    yield from _table("What befalls a running system (figures: told)", head, lines)
    for cell in cells:
        groups = {key.split(".")[0] for key in cell.told.figures if "." in key} - {"short", "long", "all", "sharegpt"}
        for group in sorted(groups):
            told, untold = (side.figures.get(f"{group}.in_objective") for side in (cell.told, cell.untold))
            yield f"\n{cell.label}: {group} in objective {_number(told)} told, {_number(untold)} untold"
