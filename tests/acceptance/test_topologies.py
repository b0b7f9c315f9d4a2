"""Several gateways, as docs/deployment.md has them, on the emulated fleet: what is lost when one dies, who gets what.

`make bench-topologies` measures the same for longer and prints the table; here each must only be near what it measures.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.bench.topologies.cast import OUTPUTS, Stage, capacity, played
from tests.bench.topologies.scenes import EQUAL, Row, Timing, replicas, standby
from tests.real.fronts import ENVOY, Front
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually

BRIEF: Final = Timing(learn=5.0, measured=5.0, recover=3.0)
SPEEDS: Final = (1.0, 0.4)
LATE: Final = 1.0  # seconds that a request may be late
ROOM: Final = 40 * len(EQUAL)  # requests: more than the engines ever hold at once

pytestmark = [pytest.mark.load, pytest.mark.timeout(120)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    def tool(front: Front) -> str:
        found = shutil.which(front.name, path=f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin")
        if found is None:
            pytest.skip(f"{front.name} is not installed: {front.source}")
        return found

    with ExitStack() as stack:
        yield Stage(tmp_path, stack, tool)


def judged(lag: float) -> None:
    """Skip the test where something else kept the machine busy."""
    if lag > LATE:
        pytest.skip(f"something else kept the machine busy: a request was {lag:.2f} s late")


def served(row: Row) -> float:
    """Tokens in time, as a share of all that the engines give at their best, whoever waits for how long."""
    shares = {"short": 0.85, "long": 0.15}
    tokens = sum(shares[kind] * sum(OUTPUTS[kind]) / 2 for kind in shares)
    return row.before.tokens / (capacity() * tokens * sum(EQUAL))


def test_the_one_that_stands_by_takes_over(stage: Stage) -> None:
    row = standby(stage, BRIEF)
    print(row)  # noqa: T201 - shown where it fails
    judged(row.lag)
    assert served(row) > 0.4
    assert row.after is not None
    assert row.after.tokens > 0.4 * row.before.tokens  # it had never seen a request
    assert row.switch is not None
    assert row.switch < 5.0
    assert row.lost is not None
    assert row.lost <= ROOM  # whose answers had begun; all others are asked again, and answered


def test_gateways_that_share_engines_go_on_when_one_dies(stage: Stage) -> None:
    row = replicas(stage, BRIEF)
    print(row)  # noqa: T201 - the same
    judged(row.lag)
    assert served(row) > 0.4
    assert row.after is not None
    assert row.after.tokens > 0.6 * row.before.tokens
    assert row.lost is not None
    assert row.lost <= ROOM  # a third of them, in truth


def test_shares_follow_gateways_that_come_and_go(stage: Stage) -> None:
    engine = f'[{{"url": "{stage.engines(1.0)[0]}", "limit": 30}}]'
    first, second, third = gateways = stage.replicas(3, backends=engine)
    for each in gateways:
        each.wait_until_ready()

    def limits(*gateways: GatewayProcess) -> list[float]:
        return [each.state()["backends"][0]["limit"] for each in gateways]

    eventually(lambda: limits(first, second, third) == [10.0, 10.0, 10.0], "each has a third")
    third.program.kill()
    eventually(lambda: limits(first, second) == [15.0, 15.0], "the dead one's share is the others'")
    second.program.stop()
    eventually(lambda: limits(first) == [30.0], "and so is that of one that was stopped")


def test_envoy_sends_less_to_the_gateway_of_a_slow_engine(stage: Stage) -> None:
    engines = stage.engines(*SPEEDS)
    gateways = [stage.gateway(engine, load_header="true") for engine in engines]
    url = stage.front(ENVOY, "sidecars", gateways)
    result = asyncio.run(played(url, 1.3 * capacity() * sum(SPEEDS), 10.0))
    fast, slow = (sum(each.series("gateway_backend_requests_total").values()) for each in gateways)
    print(fast, slow, result.lag)  # noqa: T201 - the same
    judged(result.lag)
    assert fast > 1.4 * slow  # by turns it would be as many
    assert result.failures == 0
