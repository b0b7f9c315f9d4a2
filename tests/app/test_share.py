"""A whole service that shares quotas: what it tells of the store, and what a reload changes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.app.exits import StartError
from tests.app.house import House, engine
from tests.sharing.server import StoreServer

pytest.importorskip("redis", reason="pip install 'inference-gateway[valkey]'")

KEY = "sk-first-0123456789abcdef"
SECRET = "canary-store-0123456789"
PAGES = ("/config", "/metrics", "/events", "/state", "/status", "/diagnosis")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path, "--requirepass", SECRET).start()
    yield server
    server.kill()


def keys(**terms: int) -> str:
    return json.dumps([{"name": "team", "keys": KEY, **terms}])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.01)


async def shares(house: House) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{house.service.admin_url}/metrics") as answer:
        return "gateway_share_up 1.0" in await answer.text()


async def test_the_password_of_the_store_is_told_nowhere(
    store: StoreServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = f"redis://:{SECRET}x@127.0.0.1:{store.port}/0"
    async with (
        engine() as backend,
        House(
            tmp_path, backends=backend.url, api_keys=keys(requests_per_minute=60), share_url=wrong, access_log="off"
        ).open() as house,
    ):
        assert await house.chat(KEY) == 200, "without the store too"
        told = []
        async with aiohttp.ClientSession() as session:
            for page in PAGES:
                async with session.get(house.service.admin_url + page) as answer:
                    told.append(await answer.text())
        assert f"redis://***@127.0.0.1:{store.port}/0" in told[0]
        assert "share_lost" in told[2]
        assert SECRET not in "".join(told)
        assert SECRET not in caplog.text
        assert "denied" in caplog.text


async def test_a_reload_puts_another_store_in_effect_and_not_whether_there_is_one(
    store: StoreServer, tmp_path: Path
) -> None:
    right = f"redis://:{SECRET}@127.0.0.1:{store.port}/0"
    async with (
        engine() as backend,
        House(
            tmp_path, backends=backend.url, api_keys=keys(requests_per_minute=1), share_url="redis://127.0.0.1:1/0"
        ).open() as house,
    ):
        assert not await shares(house)
        house.write(share_url="redis://")
        status, told = await house.admin("PUT", "/reload")
        assert status == 400
        house.write(share_url=right, share_timeout="0.5", share_block="0.1", share_lease="20")
        _, told = await house.admin("PUT", "/reload")
        assert set(told["changed"]) >= {"GATEWAY_SHARE_URL", "GATEWAY_SHARE_TIMEOUT", "GATEWAY_SHARE_BLOCK"}
        assert told["needs_restart"] == ["GATEWAY_SHARE_LEASE"]
        await until(lambda: shares(house))
        assert [await house.chat(KEY) for _ in range(2)] == [200, 429]
        house.write(api_keys=keys(requests_per_minute=2), share_url=None)
        _, told = await house.admin("PUT", "/reload")
        assert "GATEWAY_SHARE_URL" in told["needs_restart"]
        assert [await house.chat(KEY) for _ in range(3)] == [200, 200, 429]


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SHARE_URL", "redis://127.0.0.1")
    loaded = load_all(None)
    monkeypatch.delitem(sys.modules, "gateway.sharing.store", raising=False)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(
        StartError, match=r"GATEWAY_SHARE_URL: .* not installed: pip install 'inference-gateway\[valkey\]'"
    ):
        Service(loaded, ())
