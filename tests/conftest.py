"""What holds for every test."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("gateway", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("gateway")

SHARED = {"real", "browser"}  # rooms that start their engine or browser once: each stays in one process
ALONE = {"acceptance", "sim", "test_machine.py"}  # whose tests are long and share nothing: each stands alone


def together(nodeid: str) -> str:
    """Tests for which this is the same run in the same process: a room, a module, or one test."""
    path = PurePosixPath(nodeid.partition("::")[0])
    if not ALONE.isdisjoint(path.parts):
        return nodeid
    room = path.parts[1]
    return room if room in SHARED else str(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread tests over the worker processes of pytest-xdist by ``together``."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Together(config, log)
