"""Five times what the engine can serve, from clients that time out and try again: with the gateway and without.

The engine, the gateway and the load are three processes on two cores or more. What is asserted are shares of the
engine's best throughput, which the profile alone says (``best_throughput``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from gateway.emulator.load import Load, Result
from gateway.emulator.scenario import Overload, overload
from tests.acceptance.engine import EmulatedEngine
from tests.real.gateway import GatewayProcess

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]

PATIENCE: Final = 10.0  # seconds after which a client times out; it tries three times in all
LEARNT: Final = 10.0  # seconds that the gateway has to learn the engine, overloaded from the first moment
LATE: Final = 1.0  # seconds that an arrival may be late
DIRECT: Final = 13.0
GATED: Final = 30.0

pytestmark = [pytest.mark.load, pytest.mark.timeout(180)]


def loaded(url: str, scenario: Overload) -> Result:
    """What became of the load."""
    result = asyncio.run(Load(url, scenario.plan).run())
    if result.lag > LATE:
        pytest.skip(f"something else kept the machine busy: an arrival was {result.lag:.2f} s late")
    return result


def told(result: Result, scenario: Overload, since: float) -> str:
    return (
        f"{result.goodput(since):.1f}/s of {scenario.best:.1f}/s = {result.goodput(since) / scenario.best:.3f}; "
        f"latency {result.latency(0.5)} (P99 {result.latency(0.99)}), {result.attempts_per_request:.2f} attempts, "
        f"{result.refusals} refusals, {result.timeouts} timeouts, {result.failures} failures, lag {result.lag:.3f} s"
    )


def test_without_the_gateway_almost_nothing_comes_back_in_time(engine: Engines) -> None:
    scenario = overload(DIRECT, PATIENCE)
    result = loaded(engine(scenario.profile.name).url, scenario)
    assert result.goodput(DIRECT - 5.0) < 0.1 * scenario.best, told(result, scenario, DIRECT - 5.0)


@pytest.mark.parametrize("settings", [{}, {"ttft_objective": "2"}], ids=["no objective", "an objective"])
def test_through_the_gateway_the_engine_gives_its_best(
    settings: dict[str, str], engine: Engines, gateway: Gateways
) -> None:
    scenario = overload(GATED, PATIENCE)
    backend = engine(scenario.profile.name)
    process = gateway(backends=backend.url, **settings)
    result = loaded(process.url, scenario)
    print(told(result, scenario, LEARNT), process.state()["backends"])  # noqa: T201 - shown where it fails
    assert result.goodput(LEARNT) >= 0.9 * scenario.best, told(result, scenario, LEARNT)
    assert result.failures == 0
