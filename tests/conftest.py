"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("gateway", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("gateway")

HERE = Path(__file__).parent
SHARED = {"real", "browser"}  # rooms that start their engine or browser once: each stays in one process
ALONE = {"sim", "test_machine.py"}  # whose tests are long and share nothing: each goes where there is room


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a module's tests, or a room's, together in one of the worker processes of pytest-xdist."""
    for item in items:
        path = item.path.relative_to(HERE)
        room = path.parts[0]
        if ALONE.isdisjoint(path.parts):
            item.add_marker(pytest.mark.xdist_group(room if room in SHARED else str(path)))
