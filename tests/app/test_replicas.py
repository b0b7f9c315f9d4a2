"""Gateways that share engines: who is ready counts, who dies is missed, and every limit follows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.app.replicas import Census, Place, _ready
from tests.app.house import House, engine
from tests.proxy.certificates import Authority
from tests.real.process import free_port


class Gateways:
    """Admin ports that are ready or not, as the test says."""

    def __init__(self) -> None:
        self.ready: dict[int, bool] = {}

    @asynccontextmanager
    async def open(self, count: int) -> AsyncIterator[list[Place]]:
        async def readyz(request: web.Request) -> web.Response:
            assert request.path == "/readyz"
            assert request.transport is not None
            _, port = request.transport.get_extra_info("sockname")
            return web.Response(status=200 if self.ready[port] else 503)

        runner = web.ServerRunner(web.Server(readyz))  # type: ignore[arg-type]
        await runner.setup()
        for _ in range(count):
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
        places = [(False, "http", "127.0.0.1", int(address[1])) for address in runner.addresses]
        self.ready = {port: True for *_, port in places}
        try:
            yield places
        finally:
            await runner.cleanup()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.replicas._EVERY", 0.05)
    monkeypatch.setattr("gateway.app.replicas._LONGEST", 5.0)


@asynccontextmanager
async def counting(places: list[Place], count: int) -> AsyncIterator[asyncio.Queue[int]]:
    told: asyncio.Queue[int] = asyncio.Queue()
    census = Census(places, count, told.put_nowait)
    census.start()
    try:
        yield told
    finally:
        await census.stop()


async def heard(told: asyncio.Queue[int]) -> int:
    return await asyncio.wait_for(told.get(), 10)


async def test_one_that_dies_is_missed_and_one_that_comes_back_counts() -> None:
    gateways = Gateways()
    async with gateways.open(3) as places, counting(places, 1) as told:
        assert await heard(told) == 3
        gateways.ready[places[1][-1]] = False
        assert await heard(told) == 2
        gateways.ready[places[1][-1]] = True
        assert await heard(told) == 3


async def test_one_look_that_goes_wrong_takes_nobodys_share(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, done, answers = 0, asyncio.Event(), "ab b ab a ab - ab"  # who answers each look

    async def ready(_session: object, place: str) -> bool:
        nonlocal looks
        look, looks = answers.split()[min(looks // 2, 6)], looks + 1
        if looks > 16:
            done.set()
        return place[-1:] in look.translate({97: "1", 98: "2"})

    monkeypatch.setattr("gateway.app.replicas._ready", ready)
    async with counting([(False, "http", "127.0.0.1", 1), (False, "https", "127.0.0.1", 2)], 2) as told:
        await asyncio.wait_for(done.wait(), 10)
        assert told.empty()


async def test_where_nobody_answers_there_is_still_this_one() -> None:
    async with counting([(False, "http", "127.0.0.1", free_port()) for _ in range(2)], 2) as told:
        assert await heard(told) == 1


async def test_every_address_of_a_name_is_asked_and_trouble_with_the_name_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateways = Gateways()
    async with gateways.open(1) as [(*_, address, port)]:
        answers: list[Any] = [[address, "127.0.0.2"], socket.gaierror(socket.EAI_AGAIN, "try again"), [address]]
        asked = []

        async def getaddrinfo(host: str, wanted: int, **_: Any) -> list[tuple[Any, ...]]:
            if host != "gateways":
                raise AssertionError(host)
            asked.append(wanted)
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, OSError):
                raise answer
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, wanted)) for each in answer]

        async def ready(_session: object, place: str) -> bool:
            return place in {f"http://{address}:{port}", f"http://127.0.0.2:{port}"}

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        monkeypatch.setattr("gateway.app.replicas._ready", ready)
        async with counting([(True, "http", "gateways", port)], 1) as told:
            assert await heard(told) == 2
            assert await heard(told) == 1  # the name has one address less, which needs no second look
        assert len(asked) >= 3


async def test_a_gateway_takes_its_share_and_tells_of_it(tmp_path: Path) -> None:
    gateways, own = Gateways(), free_port()
    async with engine() as one, gateways.open(1) as [(*_, host, port)]:
        house = House(
            tmp_path,
            backends=f'[{{"name": "a", "url": "{one.url}", "limit": 9}}]',
            admin_port=own,
            replicas=f"http://{host}:{port},http://127.0.0.1:{own}",
        )
        async with house.open():
            await limit(house, 4.0)  # from the start: both are named
            gateways.ready[port] = False
            await limit(house, 9.0)
            _, limits = await house.admin("GET", "/limits")
            assert limits["backends"]["a"]["limit"] == 9  # what was set is for all of them, and stays
            _, state = await house.admin("GET", "/state")
            assert state["replicas"] == 1
            _, events = await house.admin("GET", "/events")
            assert "gateways that share the engines: 2 -> 1" in str(events)


async def limit(house: House, wanted: float) -> None:
    async with asyncio.timeout(10):
        while True:
            _, state = await house.admin("GET", "/state")
            if state["backends"][0]["limit"] == wanted:
                return
            await asyncio.sleep(0.02)


async def test_a_gateway_whose_admin_port_has_tls_counts_whatever_it_is_called(tmp_path: Path) -> None:
    made = Authority(tmp_path / "root", "root").issue("elsewhere", "10.0.0.1")
    port = free_port()
    files = {"admin_tls_cert": made.cert, "admin_tls_key": made.key, "admin_port": port}
    async with (
        engine() as backend,
        House(tmp_path, backends=backend.url, **files).open(),
        counting([(False, "https", "127.0.0.1", port), (False, "https", "127.0.0.1", free_port())], 3) as told,
    ):
        assert await heard(told) == 1  # nobody answers yet, or only this one does
        async with ClientSession() as session, asyncio.timeout(10):
            while not await _ready(session, f"https://127.0.0.1:{port}"):  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.02)
