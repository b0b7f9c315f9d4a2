"""/curve on the admin port."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from blockbuster import BlockBuster, blockbuster_ctx

from gateway.console.curve import CurveRoutes
from gateway.model import Outcome, Permit
from gateway.telemetry.curve import Curves
from tests.telemetry.helpers import backend_state, gateway_state, record, ticket, timeline

Client = TestClient[web.Request, web.Application]


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[BlockBuster]:
    with blockbuster_ctx() as guard:
        yield guard


def serve(curves: Curves, *, backend: str = "gpu1", model: str = "qwen", level: int = 1, rounds: int = 40) -> None:
    """``level`` requests at a time, of a second each, ``rounds`` times."""
    for start in range(rounds):
        permits = []
        for number in range(level):
            permit_id = id(backend) + 1000 * start + number
            asked = replace(ticket(), id=permit_id, shape=replace(ticket().shape, model=model))
            permits.append(Permit(permit_id, asked, backend, float(start), None))  # type: ignore[arg-type]
            curves.granted(permits[-1], 0)
        for permit in permits:
            curves.settled(permit, Outcome.COMPLETED, 0, start + 1.0)
            line = timeline()
            line.received = line.admitted = line.sent = float(start)
            line.first_output, line.last_output, line.finished = start + 0.1, start + 1.0, start + 1.0
            curves.observe(record(ticket=permit.ticket, timeline=line, backend=backend))


@asynccontextmanager
async def routes(curves: Curves, **state: Any) -> AsyncIterator[Client]:
    app = web.Application()
    shown = replace(gateway_state(backend_state(limit=3.5)), **state)
    app.add_routes(CurveRoutes(curves, lambda: shown, lambda: 100.0).routes())
    client: Client = TestClient(TestServer(app))
    async with client:
        yield client


async def get(client: Client, query: str = "", status: int = 200) -> Any:
    async with client.get(f"/curve{query}") as answer:
        assert answer.status == status
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def test_before_any_traffic_there_is_no_curve() -> None:
    async with routes(Curves(3600.0)) as client:
        assert await get(client) == {"objectives": None, "curves": []}
        assert (await get(client, "?format=text")).startswith("No request has been answered yet")
        assert (await get(client, "?backend=gpu1", 400))["error"] == (
            "backend: got 'gpu1', expected one of none: nothing was served yet"
        )


async def test_one_curve_a_backend() -> None:
    curves = Curves(3600.0)
    serve(curves)
    async with routes(curves) as client:
        (found,) = (await get(client))["curves"]
        assert (found["backend"], found["model"], found["limit"]) == ("gpu1", None, 3.5)
        (level,) = found["levels"]
        assert (level["low"], level["requests"], level["latency"]["mean"]) == (1, 40, 1.0)


async def test_objectives_are_those_of_the_moment() -> None:
    curves = Curves(3600.0)
    serve(curves)
    async with routes(curves, tpot_objective=0.05) as client:
        told = await get(client)
        assert told["objectives"] == {"ttft": {}, "tpot": 0.05}
        assert told["curves"][0]["levels"][0]["in_objective"] == 0.0


async def test_and_one_for_each_model_where_a_backend_serves_several() -> None:
    curves = Curves(3600.0)
    serve(curves, model="a")
    serve(curves, model="b")
    serve(curves, backend="gpu2")
    async with routes(curves) as client:
        told = await get(client)
        assert [(found["backend"], found["model"]) for found in told["curves"]] == [
            *(("gpu1", None), ("gpu1", "a"), ("gpu1", "b")),
            ("gpu2", None),
        ]
        assert [found["model"] for found in (await get(client, "?model=b"))["curves"]] == ["b"]
        assert [found["backend"] for found in (await get(client, "?backend=gpu2"))["curves"]] == ["gpu2"]
        assert (await get(client, "?backend=gpu2&model=a", 400))["error"] == "model: got 'a', expected one of qwen"


async def test_as_text_and_as_csv() -> None:
    curves = Curves(3600.0)
    serve(curves, level=9)
    async with routes(curves) as client:
        assert "8-9" in await get(client, "?format=text")  # coarse, for the eye
        (row,) = csv.DictReader(io.StringIO(await get(client, "?format=csv")))
        assert (row["backend"], row["low"], row["requests"]) == ("gpu1", "9", "360")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("?format=xml", "format: got 'xml', expected one of json, csv, text"),
        ("?modle=a", "got modle, expected any of backend, model, format"),
        ("?model=x", "model: got 'x', expected one of qwen"),
    ],
)
async def test_what_cannot_be_answered_says_why(query: str, error: str) -> None:
    curves = Curves(3600.0)
    serve(curves)
    async with routes(curves) as client:
        assert (await get(client, query, 400))["error"] == error


async def test_others_have_their_turn_between_two_levels() -> None:
    curves = Curves(3600.0)
    for level in range(1, 10):
        serve(curves, level=level, rounds=5)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    asked = make_mocked_request("GET", "/curve")
    other = asyncio.create_task(count())
    await CurveRoutes(curves, gateway_state, lambda: 100.0)._curve(asked)
    other.cancel()
    assert turns >= 9
