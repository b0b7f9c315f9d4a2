"""``gateway check-config``: what is in effect, where it came from, and what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from gateway.app.configs import load_all
from gateway.settings import Fault, Loaded, shown, variable

_COLUMN: Final = 60  # a longer value does not push the sources of all out of sight


def run_check_config(env_file: str | None) -> int:
    """Print the settings and their faults; 0 where the gateway would start with them, else 1."""
    loaded = load_all(env_file)
    sys.stdout.writelines(f"{line}\n" for line in report(loaded))
    return 0 if loaded.ok else 1


def report(loaded: Loaded) -> Iterator[str]:
    """A line for each right value, one for each fault, one at the end."""
    wrong = frozenset().union(*(fault.fields for fault in loaded.faults if fault.fatal))
    right = {name: f"{variable(name)}={shown(loaded.settings, name)}" for name in loaded.sources if name not in wrong}
    width = max((len(line) for line in right.values() if len(line) <= _COLUMN), default=0)
    yield from (f"[OK]   {line:<{width}}  {loaded.sources[name].value}" for name, line in right.items())
    yield from map(marked, loaded.faults)
    faults = sum(fault.fatal for fault in loaded.faults)
    verdict = "[OK]  " if loaded.ok else "[FAIL]"
    yield f"{verdict} {len(right)} of {len(loaded.sources)} settings in effect, {faults} at fault"


def marked(fault: Fault) -> str:
    """A fault's line, as check-config and a refused start print it."""
    return f"{'[FAIL]' if fault.fatal else '[WARN]'} {fault}"
