"""A real engine, and real gateways in front of it: started once, shared by all tests of this room."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import LlamaCpp
from tests.real.process import Program, free_port
from tests.real.tap import Tap
from tests.real.tiny_model import write_tiny_model

ENGINE_PROMISED = (sys.platform, platform.machine()) == ("linux", "x86_64")
RUNNING: list[Program] = []  # whose output is shown where a test fails


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.path.parent == Path(__file__).parent:
        report.sections += [(f"output of {program.name}", program.tail()) for program in RUNNING]
    return report


@contextmanager
def kept(program: Program) -> Iterator[None]:
    """Show its output where a test fails meanwhile; end it in the end."""
    RUNNING.append(program)
    try:
        yield
    finally:
        RUNNING.remove(program)
        program.stop()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """llama.cpp with a tiny random model."""
    if find_spec("xllamacpp") is None and not ENGINE_PROMISED:
        pytest.skip("xllamacpp, which brings llama.cpp's server, is not made for this platform")
    folder = tmp_path_factory.mktemp("llamacpp")
    model, port = folder / "tiny.gguf", free_port()
    write_tiny_model(model)
    program = Program("llama.cpp", ["tests.real.llamacpp", str(model), str(port)], folder / "log", {})
    with kept(program):
        program.wait_until_ready(port, "/health")
        yield LlamaCpp(port)


@contextmanager
def running_gateway(folder: Path, **settings: str) -> Iterator[GatewayProcess]:
    """A gateway with these settings; the names are lower case here and have no prefix."""
    gateway = GatewayProcess(folder, settings)
    with kept(gateway.program):
        gateway.wait_until_ready()
        yield gateway


def one_at_a_time(url: str) -> str:
    """The engine at ``url`` as a backend that may run one request."""
    return json.dumps([{"name": "tiny", "url": url, "limit": 1}])


@pytest.fixture(scope="session")
def gateway(engine: LlamaCpp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of which only the backend is set."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), backends=engine.url) as process:
        yield process


@pytest.fixture(scope="session")
def impatient_gateway(engine: LlamaCpp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that runs one request and lets others wait for a tenth of a second."""
    folder = tmp_path_factory.mktemp("impatient_gateway")
    with running_gateway(folder, backends=one_at_a_time(engine.url), max_wait="100ms") as process:
        yield process


@pytest.fixture(scope="session")
def tap(engine: LlamaCpp) -> Iterator[Tap]:
    """What the patient gateway says to the engine."""
    with Tap(engine.port) as listening:
        yield listening


@pytest.fixture(scope="session")
def patient_gateway(tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway behind the tap that runs one request and lets others wait for longer than any test takes."""
    folder = tmp_path_factory.mktemp("patient_gateway")
    with running_gateway(folder, backends=one_at_a_time(tap.url), max_wait="60s") as process:
        yield process


@pytest.fixture(params=["direct", "gateway"])
def served(request: pytest.FixtureRequest, engine: LlamaCpp) -> int:
    """The port of the engine itself, then of the gateway: what clients may expect of both."""
    if request.param == "direct":
        return engine.port
    process: GatewayProcess = request.getfixturevalue("gateway")
    return process.port
