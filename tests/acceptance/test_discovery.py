"""Engines that are found by a name, in front of real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.wire import exchange

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_engine_is_found_and_served(engine: Engines, gateway: Gateways, workers: str) -> None:
    port = engine("flat").port
    house = gateway(discover=f"dns+http://127.0.0.1:{port}", workers=workers)
    assert [backend["name"] for backend in house.state()["backends"]] == [f"127.0.0.1:{port}"]
    assert exchange(house.port, chat("flat", max_tokens=4)).status == 200
