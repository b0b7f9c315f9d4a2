"""Several gateways against one, on emulated engines: ``make bench-topologies``.

Every gateway, every proxy and the engines are processes of their own, with real HTTP between them; the load is more
than the engines can serve, from clients that time out and try again. Goodput counts answers that came whole and whose
first token came in time. Ratios are to one gateway on the same engines in the same run. Needs HAProxy and Envoy.
"""

# ruff: noqa: T201 - a report on the terminal

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench.topologies.cast import Stage
from tests.bench.topologies.scenes import SCENES, Row, Timing
from tests.real.fronts import Front


def tool(front: Front) -> str:
    """The program of a front.

    Raises:
        SystemExit: it is not installed.
    """
    found = shutil.which(front.name, path=f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        raise SystemExit(f"{front.name} is not installed: {front.source}")
    return found


def shown(row: Row, reference: Row | None) -> str:
    """One line of the table."""
    ratio = "" if reference is None else f"{row.ratio(reference):6.2f}"
    gone = ("", "", "") if row.after is None else (f"{row.after.tokens / row.before.tokens:6.2f}", "", "")
    if row.switch is not None:
        gone = (gone[0], f"{row.switch:7.2f} s", f"{row.lost}")
    figures = f"{row.before.short:8.1f}{row.before.long:8.2f}{row.before.tokens:9.0f}{ratio:>8}"
    return f"{row.name:30}{row.fleet:10}{figures}{gone[0]:>8}{gone[1]:>11}{gone[2]:>6}"


def main() -> None:
    """Play the scenes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--seconds", type=float, default=Timing().measured, help="measured of each scene")
    given = parser.parse_args()
    heads = ("short/s", "long/s", "tokens/s", "of one", "after", "switch", "lost")
    print(
        f"{'':30}{'engines':10}"
        + "".join(f"{head:>{w}}" for head, w in zip(heads, (8, 8, 9, 8, 8, 11, 6), strict=True))
    )
    references: dict[str, Row] = {}
    ratios: dict[str, float] = {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            row = SCENES[name](Stage(Path(folder), stack, tool), Timing(measured=given.seconds))
        reference = references.setdefault(row.fleet, row) if row.name == "one gateway" else references.get(row.fleet)
        print(shown(row, reference), flush=True)
        if reference is not None:
            ratios[f"{name}"] = row.ratio(reference)
    print("of one gateway's goodput: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
