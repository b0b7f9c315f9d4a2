"""/diagnosis and /events on the admin port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.console.diagnosis import DiagnosisRoutes
from gateway.console.events import EventRoutes
from gateway.telemetry.causes import Cause, Finding, Severity
from gateway.telemetry.events import Event, EventLog
from gateway.telemetry.findings import Findings

Client = TestClient[web.Request, web.Application]
STALLS = Finding(Cause.STALLS, "gpu1 stands still", Severity.WARNING, ("6 times.",), ("Its log.",), "gpu1")


@asynccontextmanager
async def routes(log: EventLog) -> AsyncIterator[tuple[Client, Findings]]:
    app = web.Application()
    findings = Findings(log)
    app.add_routes([*DiagnosisRoutes(findings).routes(), *EventRoutes(log).routes()])
    client: Client = TestClient(TestServer(app))
    async with client:
        yield client, findings


async def get(client: Client, path: str, status: int = 200) -> Any:
    async with client.get(path) as answer:
        assert answer.status == status
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def test_the_diagnosis_as_json_and_for_people() -> None:
    async with routes(EventLog()) as (client, findings):
        findings.take([STALLS], [], 60.0)
        told = await get(client, "/diagnosis")
        assert [found["cause"] for found in told["findings"]] == ["stalls"]
        assert told == findings.view()
        assert "WARNING  gpu1 stands still" in await get(client, "/diagnosis?format=text")


async def test_the_events_since_one_that_is_known() -> None:
    log = EventLog()
    for number in range(5):
        log.add(Event("draining", f"{number}"))
    async with routes(log) as (client, _):
        assert await get(client, "/events") == log.view()
        assert [event["id"] for event in (await get(client, "/events?since=3"))["events"]] == [4, 5]
        assert [event["id"] for event in (await get(client, "/events?limit=1"))["events"]] == [5]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/diagnosis?format=csv", "format: got 'csv', expected one of json, text"),
        ("/diagnosis?window=1m", "got window, expected any of format"),
        ("/events?after=3", "got after, expected any of since, limit"),
        ("/events?since=-1", "since: got '-1', expected a whole number"),
        ("/events?limit=many", "limit: got 'many', expected a whole number"),
        ("/events?since=9999999999999999999", "since: got '9999999999999999999', expected a whole number"),
        ("/events?since=\u0663", "since: got '\u0663', expected a whole number"),
    ],
)
async def test_what_cannot_be_answered_says_why(path: str, error: str) -> None:
    async with routes(EventLog()) as (client, _):
        assert (await get(client, path, 400))["error"] == error
