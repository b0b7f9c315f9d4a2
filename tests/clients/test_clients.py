"""Real client libraries get through the gateway what they get from the engine, and take its refusals as they should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.installed import CLIENTS, Client
from tests.real.cases import STREAM, chat
from tests.real.conftest import kept, one_at_a_time, running_gateway
from tests.real.gateway import GatewayProcess
from tests.real.process import Program, eventually, free_port
from tests.real.wire import exchange, opened

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(300),
]  # LiteLLM alone takes half a minute to import on a busy machine

MISSING: Final = "is not installed: `make test-clients` does that, where node is there for those that need it"
EACH: Final = [
    pytest.param(client, id=client.name, marks=() if client.in_development else pytest.mark.clients)
    for client in CLIENTS
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An emulated vLLM; its URL."""
    port, folder = free_port(), tmp_path_factory.mktemp("engine")
    arguments = ["gateway", "emulate", "--profile", "flat", "--model", "tiny", "--port", str(port), "--speed", "10"]
    with kept(program := Program("engine", arguments, folder / "log", {})):
        program.wait_until_ready(port, "/health")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def gateway(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of which only the backend is set."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), backends=engine) as process:
        yield process


@pytest.fixture
def full_gateway(engine: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway whose one place is taken for as long as the test runs."""
    with (
        running_gateway(tmp_path, backends=one_at_a_time(engine), max_wait="50ms") as process,
        opened(process.port, chat(STREAM, {"max_tokens": 30_000})) as (_, held),
    ):
        assert held.read1()
        yield process


@pytest.fixture(scope="module", params=EACH)
def client(request: pytest.FixtureRequest) -> Client:
    """Each client that is installed."""
    chosen: Client = request.param
    if chosen.interpreter() is None:
        pytest.skip(f"{chosen.name} {MISSING}")
    return chosen


@pytest.fixture(scope="module")
def got(client: Client, engine: str, gateway: GatewayProcess) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the client got through the gateway, and straight: a process each, since some take seconds to import."""
    through, straight = (client.run(url, "answers", "errors") for url in (gateway.url, engine))
    return through, straight


def test_answers_are_the_engines(got: tuple[dict[str, Any], dict[str, Any]]) -> None:
    through, straight = (each["answers"] for each in got)
    assert through == straight
    assert through["stream"]


def test_errors_are_the_engines(got: tuple[dict[str, Any], dict[str, Any]]) -> None:
    through, straight = (each["errors"] for each in got)
    assert through == straight
    assert [status for _, status, _ in through] == [404, 400, 404]


def test_a_refusal_is_the_librarys_own_error_and_its_retries_are_few(
    client: Client, full_gateway: GatewayProcess
) -> None:
    """O04 (vllm-project/vllm#41250): a rate limit error that says what happened, not a dead connection."""
    name, status, message = client.run(full_gateway.url, "refused")["refused"]
    assert name.endswith("RateLimitError")
    assert status == 429
    assert "Retry after" in message
    refused = sum(full_gateway.series("gateway_shed_total").values())
    assert 1 <= refused <= client.tries
    assert exchange(full_gateway.port, chat()).status == 429
    eventually(lambda: full_gateway.running() == 1, "nobody but the one that holds the place")
