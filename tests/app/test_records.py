"""From a request to the report and to the record file, all of the gateway in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.app.compose import Service
from gateway.app.exits import StartError
from gateway.emulator.profiles import FLAT
from gateway.emulator.server import EmulatedServer
from gateway.model import Backend, Outcome
from gateway.settings import Loaded, Settings
from gateway.telemetry.record_file import entries_in

ANYWHERE: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "admin_host": "127.0.0.1",
    "admin_port": 0,
    "access_log": "off",
}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Service, ClientSession]]:
    async with EmulatedServer(FLAT, ["m"], speed=50.0) as engine, ClientSession() as session:
        loaded = Loaded(Settings(**{**ANYWHERE, **settings}), {})
        service = Service(loaded, [Backend("emulated", engine.url, kind="vllm")])
        await service.start()
        try:
            yield service, session
        finally:
            await service.stop()


async def ask(service: Service, session: ClientSession, request_id: str, **more: Any) -> bytes:
    body = {"model": "m", "stream": True, "max_tokens": 5, "messages": [{"role": "user", "content": "a b c"}], **more}
    url, headers = f"{service.gateway.url}/v1/chat/completions", {"X-Request-Id": request_id}
    async with session.post(url, json=body, headers=headers) as answer:
        return await answer.read()


async def report(service: Service, session: ClientSession, wanted: int) -> Any:
    """The report, once ``wanted`` requests are in it: a record is made when the client has its answer already."""
    async with asyncio.timeout(20.0):
        while True:
            async with session.get(f"{service.admin_url}/report?format=json") as answer:
                found = await answer.json()
            if found["gateway"]["received"] == wanted:
                return found


@pytest.mark.parametrize("inject", [False, True])
async def test_a_request_is_in_the_report_and_in_the_file(tmp_path: Path, inject: bool) -> None:
    path = tmp_path / "records.jsonl"
    async with serving(records_file=str(path), inject_usage=inject) as (service, session):
        assert b'"choices":[]' not in await ask(service, session, "bench-1")
        found = await report(service, session, 1)
        assert (found["completed"], found["total_output_tokens"], found["model_id"]) == (1, 5, "m")
        assert found["gateway"]["streams_without_usage"] == (not inject)
        assert (found["total_input_tokens"] == 3) or not inject
        path.rename(tmp_path / "moved")
        service.reopen_log()
        await ask(service, session, "bench-2", model="unknown")
        assert (await report(service, session, 2))["gateway"]["failures"]["client_error"] == 1
    lines = [each for name in ("moved", "records.jsonl") for each in entries_in(tmp_path / name, pytest.fail)]
    assert {each.request_id: each.outcome for each in lines} == {
        "bench-1": Outcome.COMPLETED,
        "bench-2": Outcome.CLIENT_ERROR,
    }


async def test_without_a_file_there_is_a_report_all_the_same() -> None:
    async with serving() as (service, session):
        await ask(service, session, "1")
        assert (await report(service, session, 1))["completed"] == 1
        service.reopen_log()


async def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(**ANYWHERE, records_file=str(tmp_path / "no" / "folder"))
    with pytest.raises(StartError, match=r"cannot write to GATEWAY_RECORDS_FILE=.*folder: No such file or directory"):
        Service(Loaded(settings, {}), [Backend("a", "http://127.0.0.1:1")])
