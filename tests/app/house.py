"""A whole service on an env file that a test may rewrite, and engines for it."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.settings.plain import backends
from tests.proxy.helpers import Message, Peer, Script, ScriptedBackend, reply

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class House:
    """A whole service on an env file that a test rewrites."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.file = folder / "gateway.env"
        self.settings: dict[str, object] = {
            "host": "127.0.0.1",
            "port": 0,
            "admin_host": "127.0.0.1",
            "admin_port": 0,
            "access_log": "off",
            "drain_grace": 1,
            **settings,
        }
        self.write()
        self.service: Service

    def write(self, **changes: object) -> None:
        self.settings |= changes
        lines = (f"GATEWAY_{name.upper()}='{value}'\n" for name, value in self.settings.items() if value is not None)
        self.file.write_text("".join(lines), encoding="utf-8")

    async def admin(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.service.admin_url + path, data=data) as answer,
        ):
            return answer.status, json.loads(await answer.text())

    async def chat(self, key: str | None = None, context: ssl.SSLContext | bool = True) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"{self.service.gateway.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=CHAT, headers=headers, ssl=context) as a:
            await a.read()
            return a.status

    async def setting(self, name: str) -> str:
        _, config = await self.admin("GET", "/config")
        return str(config[f"GATEWAY_{name.upper()}"]["value"])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[House]:
        loaded = load_all(str(self.file))
        assert loaded.ok, loaded.faults
        self.service = Service(loaded, backends(loaded.settings), lambda: load_all(str(self.file)))
        try:
            await self.service.start()
            yield self
        finally:
            await self.service.stop()


@asynccontextmanager
async def engine(script: Script | None = None) -> AsyncIterator[ScriptedBackend]:
    async def answers(peer: Peer, _message: Message) -> None:
        await peer.send(reply())

    backend = await ScriptedBackend(script or answers).start()
    try:
        yield backend
    finally:
        await backend.stop()
