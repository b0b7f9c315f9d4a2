"""How hard is searched: little in the suite, and the same each time; long and by chance by `make fuzz` (EXAMPLES=n)."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "0"))
EFFORT: Final = settings(
    deadline=None,
    max_examples=EXAMPLES or 100,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck) if EXAMPLES else [],
)
