"""EndpointSlices against an API server that lists, watches, forgets and fails as the real one does, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.discovery.kubernetes import Account, EndpointSlices

PATH = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"


def item(name: str, version: int, *addresses: str, ready: bool | None = None) -> dict[str, Any]:
    """An EndpointSlice as the API writes it."""
    conditions = {} if ready is None else {"ready": ready, "serving": ready, "terminating": not ready}
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": "engines"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    }


class ApiServer:
    """Speaks the list and the watch; a test feeds its events and looks at what was asked."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = 1
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()  # None ends the watch
        self.refuse: list[int] = []  # statuses of the next answers
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization"))
        if self.refuse:
            return web.Response(status=self.refuse.pop(0))
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": self.items})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def say(self, kind: str, thing: dict[str, Any]) -> None:
        await self.events.put({"type": kind, "object": thing})


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application()
    app.router.add_get(PATH, server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.events.put(None)
        await runner.cleanup()


class Followed:
    """What is found, as it comes."""

    def __init__(self) -> None:
        self.now: frozenset[str] = frozenset()
        self.told = 0

    async def __call__(self, urls: frozenset[str]) -> None:
        self.now = urls
        self.told += 1

    async def until(self, *addresses: str) -> None:
        wanted = {f"http://{address}:8000" for address in addresses}
        await until(lambda: self.now == wanted)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for is behind a socket
            await asyncio.sleep(0.005)


@asynccontextmanager
async def followed(server: ApiServer, token: Path | None = None) -> AsyncIterator[Followed]:
    found = Followed()
    source = EndpointSlices(Account(server.url, token), "http", "engines", "prod", 8000)
    task = asyncio.create_task(source.run(found))
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_what_is_listed_and_what_changes() -> None:
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1", "10.0.0.2"), item("b", 1, "10.0.0.3")]
        async with followed(server) as found:
            await found.until("10.0.0.1", "10.0.0.2", "10.0.0.3")
            await server.say("MODIFIED", item("a", 2, "10.0.0.2"))
            await found.until("10.0.0.2", "10.0.0.3")
            await server.say("ADDED", item("c", 3, "10.0.0.4", ready=True))
            await found.until("10.0.0.2", "10.0.0.3", "10.0.0.4")
            await server.say("DELETED", item("b", 4, "10.0.0.3"))
            await found.until("10.0.0.2", "10.0.0.4")
        assert server.asked[0] == {"labelSelector": "kubernetes.io/service-name=engines"}
        assert server.asked[1]["resourceVersion"] == "1"
        assert server.asked[1]["allowWatchBookmarks"] == "true"


async def test_only_what_is_ready_counts_and_what_says_nothing_is_ready() -> None:
    async with api_server() as server:
        named = item("named", 1, "engine.example") | {"addressType": "FQDN"}
        server.items = [item("a", 1, "10.0.0.1", ready=False), item("b", 1, "10.0.0.2"), named]
        async with followed(server) as found:
            await found.until("10.0.0.2")


async def test_a_watch_that_ends_goes_on_where_it_was() -> None:
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1")]
        async with followed(server) as found:
            await found.until("10.0.0.1")
            await server.say("BOOKMARK", {"metadata": {"resourceVersion": "41"}})
            await server.events.put(None)
            await until(lambda: len(server.asked) == 3)
            assert server.asked[2]["resourceVersion"] == "41"
            await server.say("MODIFIED", item("a", 42, "10.0.0.9"))
            await found.until("10.0.0.9")


@pytest.mark.parametrize("inside", [True, False])
async def test_a_version_that_is_forgotten_is_listed_anew(inside: bool) -> None:
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1")]
        async with followed(server) as found:
            await found.until("10.0.0.1")
            server.items, server.version = [item("a", 70, "10.0.0.7")], 70
            if inside:
                await server.say("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
            else:
                server.refuse = [410]
            await server.events.put(None)
            await found.until("10.0.0.7")
            await until(lambda: server.asked[-1].get("resourceVersion") == "70")


async def test_trouble_is_told_once_and_what_was_known_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1")]
        async with followed(server) as found:
            await found.until("10.0.0.1")
            server.refuse = [503, 503]
            await server.events.put(None)
            await until(lambda: not server.refuse)
            await server.say("MODIFIED", item("a", 2, "10.0.0.2"))
            await found.until("10.0.0.2")
    assert caplog.text.count("endpoints of engines.prod cannot be watched, those known stay") == 1
    assert "503" in caplog.text


async def test_a_service_without_endpoints_sends_nobody_away() -> None:
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1")]
        async with followed(server) as found:
            await found.until("10.0.0.1")
            told = found.told
            await server.say("MODIFIED", item("a", 2))
            await server.say("MODIFIED", item("a", 3, "10.0.0.3"))
            await found.until("10.0.0.3")
            assert found.told == told + 1


async def test_the_token_is_read_again_for_it_is_replaced(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with api_server() as server:
        server.items = [item("a", 1, "10.0.0.1")]
        async with followed(server, token) as found:
            await found.until("10.0.0.1")
            token.write_text("second\n")
            await server.events.put(None)
            await until(lambda: server.tokens[-1] == "Bearer second")
        assert server.tokens[0] == "Bearer first"


def test_the_account_of_a_pod() -> None:
    account = Account.of_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert account is not None
    assert account.server == "https://[fd00::1]:6443"
    assert account.token is not None
    assert Account.of_pod({}) is None
