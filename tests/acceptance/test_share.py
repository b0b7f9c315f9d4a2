"""Several gateways on one store, as their operator and their clients see them."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually
from tests.real.wire import Reply, Request, exchange, sent
from tests.sharing.server import StoreServer

pytest.importorskip("redis", reason="pip install 'inference-gateway[valkey]'")

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]

LEASE = 1.0  # seconds
KEYS = {"rated": {"requests_per_minute": 60}, "other": {"requests_per_minute": 30}, "placed": {"max_in_flight": 4}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture
def house(engine: Engines, gateway: Gateways, store: StoreServer) -> Callable[..., GatewayProcess]:
    """Starts a gateway before one engine for all; its keys are named as what they are good for, and more."""
    served = engine("flat")
    backends = json.dumps([{"name": "a", "url": served.url, "limit": 1000}])
    keys = json.dumps([{"name": name, "keys": key(name), **terms} for name, terms in KEYS.items()])

    def start(**more: str) -> GatewayProcess:
        sharing = {"share_url": store.url, "share_lease": str(LEASE), "share_timeout": "0.2", "share_gateways": "3"}
        return gateway(backends=backends, api_keys=keys, **sharing, **more)

    return start


def key(name: str) -> str:
    return f"sk-{name}-0123456789abcdef"


def request(name: str, **more: object) -> Request:
    asked = chat("flat", **more)
    return Request(asked.method, asked.path, asked.body, (("Authorization", f"Bearer {key(name)}"),))


def ask(house: GatewayProcess, name: str) -> Reply:
    return exchange(house.port, request(name, max_tokens=1, stream=False))


def rush(houses: list[GatewayProcess], name: str, each: int) -> list[list[Reply]]:
    """``each`` requests to every gateway, all gateways at once."""
    with ThreadPoolExecutor(len(houses)) as pool:
        return list(pool.map(lambda house: [ask(house, name) for _ in range(each)], houses))


def statuses(replies: list[list[Reply]]) -> Counter[int]:
    return Counter(reply.status for each in replies for reply in each)


def shares(house: GatewayProcess, gateways: int) -> bool:
    up, known = (house.series(f"gateway_share_{name}").get("") for name in ("up", "gateways"))
    return (up, known) == (1.0, gateways)


def events(house: GatewayProcess) -> list[str]:
    told = exchange(house.admin_port, Request("GET", "/events")).json()["events"]
    return [event["kind"] for event in told if event["kind"].startswith("share")]


def test_three_gateways_are_one_to_a_key_and_each_has_its_part_without_the_store(
    house: Callable[..., GatewayProcess], store: StoreServer
) -> None:
    houses = [house(), house(), house(workers="2")]
    eventually(lambda: all(shares(each, 3) for each in houses), "all of them share")

    begun = time.monotonic()
    replies = rush(houses, "rated", 40)
    refilled = time.monotonic() - begun  # one a second
    found = statuses(replies)
    assert found.keys() == {200, 429}
    assert 60 - 2 <= found[200] <= 60 + refilled + 1
    refused = next(reply for each in replies for reply in each if reply.status == 429)
    assert refused.header("x-gateway-shed-reason") == "key_requests"
    assert refused.header("retry-after") == "1"
    assert (refused.header("x-ratelimit-limit-requests"), refused.header("x-ratelimit-remaining-requests")) == (
        "60",
        "0",
    )

    store.kill()
    begun = time.monotonic()
    replies = rush(houses, "other", 20)
    refilled = (time.monotonic() - begun) / 2
    assert statuses(replies).keys() == {200, 429}, "never a 500"
    for part in replies:
        assert 10 <= statuses([part])[200] <= 10 + refilled + 1
    assert all(house.series("gateway_share_up")[""] == 0.0 for house in houses)

    store.start()
    eventually(lambda: all(shares(each, 3) for each in houses), "they share again")
    assert statuses(rush(houses, "other", 5))[200] <= 3 + (time.monotonic() - begun) / 2, "it was told what was spent"
    assert [events(each) for each in houses] == [["share_found", "share_lost", "share_found"]] * 3
    assert all(house.series("gateway_share_failures_total")['{reason="unreachable"}'] for house in houses)


def test_places_of_a_gateway_that_is_killed_or_stands_still_come_back(house: Callable[..., GatewayProcess]) -> None:
    dying, still, living = house(), house(), house()
    eventually(lambda: shares(living, 3), "all of them share")

    def stream(at: GatewayProcess, stack: ExitStack) -> HTTPConnection:
        connection = sent(at.port, request("placed", max_tokens=5000))
        stack.callback(connection.close)
        assert connection.getresponse().status == 200
        return connection

    def refused(at: GatewayProcess) -> bool:
        return ask(at, "placed").header("x-gateway-shed-reason") == "key_in_flight"

    with ExitStack() as stack:
        for at in (dying, dying, still):
            stream(at, stack)
        connection = stream(living, stack)
        assert all(map(refused, (dying, still, living)))
        connection.close()
        eventually(lambda: ask(still, "placed").status == 200, "one place came back")

        dying.program.kill()
        eventually(lambda: shares(living, 2), "it is given up")
        for _ in range(3):
            stream(living, stack)
        assert refused(living)

        still.program.signal(signal.SIGSTOP)
        eventually(lambda: shares(living, 1), "it is given up as well")
        stream(living, stack)
        still.program.signal(signal.SIGCONT)
        eventually(lambda: shares(living, 2), "it goes on")
        eventually(lambda: refused(living) and refused(still), "it still has one, and the other has four")
    eventually(lambda: ask(still, "placed").status == ask(living, "placed").status == 200, "all of them ended")
