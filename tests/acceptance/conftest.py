"""Real processes on loopback, started as their users start them; their output is shown where a test fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.acceptance.engine import EmulatedEngine
from tests.real.gateway import GatewayProcess
from tests.real.process import Program

RUNNING: list[Program] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.path.parent == Path(__file__).parent:
        report.sections += [(f"output of {program.name}", program.tail()) for program in RUNNING]
    return report


@pytest.fixture
def _programs() -> Iterator[None]:
    """End what the test started, last first."""
    yield
    while RUNNING:
        RUNNING.pop().stop()


@pytest.fixture
def engine(_programs: None, tmp_path: Path) -> Callable[..., EmulatedEngine]:
    """Starts an emulated engine of a profile."""

    def start(profile: str, *more: str, port: int | None = None) -> EmulatedEngine:
        engine = EmulatedEngine(tmp_path / f"engine{len(RUNNING)}.log", profile, *more, port=port)
        RUNNING.append(engine.program)
        engine.wait_until_ready()
        return engine

    return start


@pytest.fixture
def gateway(_programs: None, tmp_path: Path) -> Callable[..., GatewayProcess]:
    """Starts a gateway with settings: names in lower case, without the prefix."""

    def start(*, until: str = "/readyz", **settings: str) -> GatewayProcess:
        folder = tmp_path / f"gateway{len(RUNNING)}"
        folder.mkdir()
        process = GatewayProcess(folder, settings)
        RUNNING.append(process.program)
        process.program.wait_until_ready(process.admin_port, until)
        return process

    return start
