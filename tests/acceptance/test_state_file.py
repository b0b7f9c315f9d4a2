"""What a gateway learned is known to the one that is started after it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually
from tests.real.wire import exchange

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]


def learned(gateway: GatewayProcess) -> Any:
    (backend,) = gateway.state()["backends"]
    return backend["pace_base_seconds"]


def test_a_gateway_that_is_started_again_goes_on_where_it_was(
    engine: Engines, gateway: Gateways, tmp_path: Path
) -> None:
    backends = json.dumps([{"name": "a", "url": engine("flat").url}])
    path = tmp_path / "state.json"
    first = gateway(backends=backends, state_file=str(path))
    assert learned(first) is None
    for _ in range(20):  # on a busy machine tokens come in bunches, which tell less
        assert exchange(first.port, chat("flat", max_tokens=40)).status == 200
        if base := learned(first):
            break
    else:
        pytest.fail("no pace was learned")
    first.program.signal(signal.SIGTERM)
    assert first.program.wait() == 0
    second = gateway(backends=backends, state_file=str(path))
    assert learned(second) == base
    eventually(lambda: "knows of a" in second.program.tail(), "it says what it knows")
    second.program.kill()
    path.write_text(path.read_text()[:-20])
    third = gateway(backends=backends, state_file=str(path))
    assert learned(third) is None
    eventually(lambda: "not used" in third.program.tail(), "it says that it cannot use the file")
    assert exchange(third.port, chat("flat", max_tokens=2)).status == 200
