"""The tables of a comparison, and its last line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.fleet.compare import ASKED, GOODPUT, GUARDED, OPENLY, OURS, POLICIES, Figures

NONE = "-"
WANTED = 1.05  # of the best rival's goodput, where there is so much to be won
Runs = Mapping[str, Sequence[Figures]]  # of each policy, seed by seed


@dataclass(frozen=True, slots=True)
class Cell:
    """One row on one fleet at one load."""

    row: str
    size: int
    load: float
    runs: Runs

    @property
    def label(self) -> str:
        return f"{self.row}/{self.size}/{self.load:g}x"

    def median(self, policy: str, name: str) -> float:
        return median(each[name] for each in self.runs[policy])

    def best(self, rivals: Iterable[str]) -> str:
        """The one with the most goodput."""
        return max((name for name in rivals if name in self.runs), key=lambda name: self.median(name, GOODPUT))

    def bound(self, rivals: Iterable[str]) -> float:
        """The most that anybody was asked in a seed over the best one's goodput: more cannot be won.

        Who answers sooner is asked more, for turns follow answers.
        """
        best = self.runs[self.best(rivals)]
        asked = [max(each[ASKED] for each in seed) for seed in zip(*self.runs.values(), strict=True)]
        return median(
            most / each[GOODPUT] if each[GOODPUT] else math.inf for most, each in zip(asked, best, strict=True)
        )

    def short(self, rivals: Iterable[str]) -> float:
        """Goodput over the best one's, over what can be won of ``WANTED``."""
        return self.over(OURS, self.best(rivals)) / min(WANTED, self.bound(rivals))

    def over(self, policy: str, other: str, name: str = GOODPUT) -> float:
        """One policy's figure over another's: the median over seeds, each of which both had."""
        pairs = zip(self.runs[policy], self.runs[other], strict=True)
        return median(one[name] / two[name] if two[name] else math.nan for one, two in pairs)


@dataclass(frozen=True, slots=True)
class Report:
    """All that was run."""

    cells: Sequence[Cell] = ()
    splits: Mapping[float, Mapping[float | None, Sequence[Figures]]] = field(default_factory=dict)  # by load, by share
    events: Mapping[str, Sequence[Figures]] = field(default_factory=dict)


def everything(report: Report) -> Iterator[str]:
    """Line by line, as Markdown."""
    for cell in report.cells:
        yield from _policies(cell)
    yield from _splits(report)
    yield from _events(report)
    yield ""
    yield verdict(report)


def verdict(report: Report) -> str:
    """The worst of everything that is asked for, and where."""
    loads = sorted({cell.load for cell in report.cells})
    goodput = {
        rivals: " ".join(
            f"{load:g}x {_worst((c.over(OURS, c.best(rivals)), c.label) for c in report.cells if c.load == load)}"
            for load in loads
        )
        for rivals in (OPENLY, GUARDED)
    }
    wanted = {rivals: _worst((cell.short(rivals), cell.label) for cell in report.cells) for rivals in goodput}
    hits = _worst((cell.over(OURS, "prefix affinity", "hit_rate"), cell.label) for cell in report.cells)
    skew = _worst(((cell.median(OURS, "skew"), cell.label) for cell in report.cells), most=True)
    mixed = _worst((share_of_oracle(splits), f"{load:g}x") for load, splits in report.splits.items())
    back = _worst((median(each["recovery"] for each in runs), name) for name, runs in report.events.items())
    sent = _worst(((median(each["sent"] for each in runs), name) for name, runs in report.events.items()), most=True)
    return (
        f"fleet: goodput over the best rival {goodput[OPENLY] or NONE}, over what can be won of {WANTED:g} "
        f"{wanted[OPENLY]}; the same where its engines have this admission {goodput[GUARDED] or NONE}, "
        f"{wanted[GUARDED]}; hits over affinity's {hits}; most loaded over the mean "
        f"{skew}; mixed over the oracle {mixed}; after events {back}, sent {sent}"
    )


def share_of_oracle(splits: Mapping[float | None, Sequence[Figures]]) -> float:
    """Goodput over that of the best split, in the median of the seeds."""
    oracle = _best_split(splits)
    return median(one[GOODPUT] / two[GOODPUT] for one, two in zip(splits[None], splits[oracle], strict=True))


def _best_split(splits: Mapping[float | None, Sequence[Figures]]) -> float:
    return max((share for share in splits if share is not None), key=lambda share: _goodput(splits[share]))


def _goodput(runs: Sequence[Figures]) -> float:
    return median(each[GOODPUT] for each in runs)


def _worst(found: Iterable[tuple[float, str]], *, most: bool = False) -> str:
    ranked = sorted((value, label) for value, label in found if not math.isnan(value))
    if not ranked:
        return NONE
    value, label = ranked[-1 if most else 0]
    return f"{value:.2f} ({label})"


_COLUMNS = (
    ("tokens/s", GOODPUT, 0),
    ("in objective", "in_objective", 3),
    ("shed", "shed", 3),
    ("hit rate", "hit_rate", 3),
    ("most / mean", "skew", 2),
    ("TTFT p50", "ttft_p50", 2),
    ("TTFT p95", "ttft_p95", 2),
    ("TTFT p99", "ttft_p99", 2),
    ("TPOT p90", "tpot_p90", 3),
    ("attempts", "sent", 3),
)


def _policies(cell: Cell) -> Iterator[str]:
    rivals = [(cell.best(kind), cell.bound(kind)) for kind in (OPENLY, GUARDED)]
    stars = {OURS, *(best for best, _ in rivals)}
    head = [cell.label, "of the best open", "bound", "of the best guarded", "bound", *(name for name, _, _ in _COLUMNS)]
    lines = [
        [
            f"**{policy}**" if policy in stars else policy,
            *(f"{each:.2f}" for best, bound in rivals for each in (cell.over(policy, best), bound)),
            *(
                f"{cell.median(policy, name):.{digits}f}" if name in cell.runs[policy][0] else NONE
                for _, name, digits in _COLUMNS
            ),
        ]
        for policy in POLICIES
        if policy in cell.runs
    ]
    yield from _table(f"{cell.row}, {cell.size} engines, {cell.load:g}x", head, lines)


def _splits(report: Report) -> Iterator[str]:
    lines = []
    for load, splits in report.splits.items():
        oracle = _best_split(splits)
        lines.append(
            [
                f"{load:g}x",
                f"{share_of_oracle(splits):.2f}",
                f"{_goodput(splits[None]):.0f}",
                f"{_goodput(splits[oracle]):.0f}",
                f"{oracle:.3f}",
            ]
        )
    head = ["load", "of the oracle", "tokens/s", "the oracle's", "its share to each 310P"]
    yield from _table("One GPU and seven 310P", head, lines)


def _events(report: Report) -> Iterator[str]:
    lines = [
        [name, *(f"{median(each[key] for each in runs):.3f}" for key in ("recovery", "sent", "amplification"))]
        for name, runs in report.events.items()
    ]
    head = ["event", "goodput after 20 s over the new best", "attempts at engines", "attempts of clients"]
    yield from _table("What befalls a fleet of chats", head, lines)


def _table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    if not lines:
        return
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    yield f"\n### {title}\n"
    for line in (head, ["-" * width for width in widths], *lines):
        yield "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
