"""Real processes on loopback, started as their users start them; their output is shown where a test fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
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
def started() -> Iterator[Callable[[Program], None]]:
    """Remembers what the test starts and ends it, last first, each even where another does not end by itself."""
    with ExitStack() as stack:

        def start(program: Program) -> None:
            RUNNING.append(program)
            stack.callback(program.stop)

        yield start
    RUNNING.clear()


@pytest.fixture
def engine(started: Callable[[Program], None], tmp_path: Path) -> Callable[..., EmulatedEngine]:
    """Starts an emulated engine of a profile."""

    def start(profile: str, *more: str, port: int | None = None) -> EmulatedEngine:
        engine = EmulatedEngine(tmp_path / f"engine{len(RUNNING)}.log", profile, *more, port=port)
        started(engine.program)
        engine.wait_until_ready()
        return engine

    return start


@pytest.fixture
def gateway(started: Callable[[Program], None], tmp_path: Path) -> Callable[..., GatewayProcess]:
    """Starts a gateway with settings: names in lower case, without the prefix."""

    def start(*, until: str = "/readyz", **settings: str) -> GatewayProcess:
        folder = tmp_path / f"gateway{len(RUNNING)}"
        folder.mkdir()
        process = GatewayProcess(folder, settings)
        started(process.program)
        process.program.wait_until_ready(process.admin_port, until)
        return process

    return start
