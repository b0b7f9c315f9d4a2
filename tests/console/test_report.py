"""The report on the admin port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from blockbuster import BlockBuster, blockbuster_ctx
from prometheus_client import CollectorRegistry

from gateway.console.admin import admin_app
from gateway.console.readiness import ReadinessCheck
from gateway.console.report import ReportRoutes, added_up
from gateway.telemetry.report import Heading, csv_report, result, text_report
from gateway.telemetry.selection import Selection
from gateway.telemetry.tally import Tally, tallied
from gateway.telemetry.window import Window
from tests.telemetry.entries import entry, refused
from tests.telemetry.helpers import gateway_state

WALL = 1_796_040_000.0  # of the window's clock at 0


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[BlockBuster]:
    with blockbuster_ctx() as guard:
        yield guard


class Clock:
    def __init__(self) -> None:
        self.now = 2_000.0

    def __call__(self) -> float:
        return self.now


class House:
    """A window, its clock, and a client of its routes."""

    def __init__(self, client: TestClient[web.Request, web.Application], window: Window, clock: Clock) -> None:
        self.client, self.window, self.clock = client, window, clock

    async def get(self, query: str = "", status: int = 200) -> Any:
        async with self.client.get(f"/report?format=json&{query}") as answer:
            assert answer.status == status
            return await answer.json()

    async def completed(self, query: str = "") -> int:
        return int((await self.get(query))["completed"])

    async def error(self, query: str) -> str:
        return str((await self.get(query, 400))["error"])

    async def put(self, path: str) -> tuple[int, Any]:
        async with self.client.put(f"/report/runs/{path}") as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def opened(memory: int = 1_000_000) -> AsyncIterator[House]:
    clock = Clock()
    window = Window(3_600.0, memory, clock, lambda: clock.now + WALL)
    app = web.Application()
    app.add_routes(ReportRoutes(window).routes())
    async with TestClient(TestServer(app)) as client:
        yield House(client, window, clock)


TRAFFIC = [
    entry(1_000.0, request_id="bench-0a1b2c3d-0", model="a"),
    entry(1_390.0, request_id="bench-0a1b2c3d-1", model="b"),
    entry(1_500.0, (100_000, 300_000), request_id="x"),
    refused(1_990.0),
]


async def filled(house: House) -> None:
    for each in TRAFFIC:
        house.window.take(each)


async def test_the_report_is_text_json_or_csv() -> None:
    async with opened() as house:
        await filled(house)
        figures = tallied(TRAFFIC, Tally())
        heading = Heading(offset=WALL)
        for form, kind, wanted in (
            ("text", "text/plain", text_report(figures, heading)),
            ("csv", "text/csv", csv_report(figures, heading)),
        ):
            async with house.client.get(f"/report?window=1h&format={form}") as answer:
                assert answer.content_type == kind
                assert await answer.text() == wanted
        assert await house.get("window=1h") == json.loads(json.dumps(result(figures, heading)))
        async with house.client.get("/report") as answer:
            assert (await answer.text()).startswith("============ Serving Benchmark Result ============\n")


async def test_which_requests_a_report_is_about() -> None:
    async with opened() as house:
        await filled(house)
        assert await house.completed() == 1  # of the last ten minutes
        assert await house.completed("window=11m") == 2
        assert await house.completed("request_id_prefix=bench-0a1b2c3d-") == 2
        assert await house.completed("request_id_prefix=bench-0a1b2c3d-&window=11m") == 1
        assert await house.completed("window=1h&model=a") == 1
        assert await house.completed(f"since={WALL + 1_390}") == 2
        assert await house.completed(f"until={WALL + 1_390}") == 1
        begin = datetime.fromtimestamp(WALL + 1_000, UTC).isoformat().replace("+", "%2B")
        assert await house.completed(f"since={begin}&until={WALL + 1_400}") == 2


async def test_options_change_what_is_counted() -> None:
    async with opened() as house:
        await filled(house)
        assert (await house.get("goodput=ttft:100%20tpot:200"))["request_goodput"] == pytest.approx(1 / 490.05)
        assert (await house.get("goodput=ttft:99"))["request_goodput"] == 0
        both = await house.get("goodput=ttft:100&goodput=tpot:199,e2el:5000&compat=0.32&percentiles=50,90")
        assert both["request_goodput"] == 0
        assert both["gateway"]["compat"] == "0.32"
        assert {"p50_ttft_ms", "p90_ttft_ms"} <= both.keys()
        assert "p99_ttft_ms" not in both


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("windw=5m", "got windw, expected any of compat, "),
        ("format=xml", "format: got 'xml', expected one of text, json, csv"),
        ("window=5x", "window: got '5x', expected a duration"),
        ("since=yesterday", "since: got 'yesterday', expected a time"),
        ("until=yesterday", "until: got 'yesterday', expected a time"),
        ("run=a", "run: got 'a', expected the name of a run"),
        ("compat=0.31", "compat: got '0.31', expected a version of vllm bench serve"),
        ("goodput=ttft", "goodput: got 'ttft', expected ttft:MILLISECONDS"),
        ("percentiles=x", "percentiles: got 'x', expected percentiles"),
        ("window=5m&run=a", "got run and window, expected a run, a window, or since and until"),
        ("window=5m&since=1", "got window and since, expected"),
    ],
)
async def test_a_query_that_is_wrong_says_what_is_expected(query: str, told: str) -> None:
    async with opened() as house:
        async with house.client.get(f"/report?{query}") as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error.startswith(told)


async def test_what_is_no_longer_kept_is_told_where_it_would_count() -> None:
    async with opened(memory=2 * entry().size) as house:
        for number in range(4):
            house.window.take(entry(1_950.0 + number))
        lost = 1_951.701 + WALL
        assert (await house.get())["gateway"]["lost_until"] == pytest.approx(lost)
        assert (await house.get("request_id_prefix=req"))["gateway"]["lost_until"] == pytest.approx(lost)
        assert (await house.get("window=48s"))["gateway"]["lost_until"] is None


# ------------------------------------------------------------------------------------------------------------- runs


async def test_a_run_is_started_stopped_and_reported_on() -> None:
    async with opened() as house:
        house.window.take(entry(1_999.0))
        assert await house.put("night/start") == (
            200,
            {"name": "night", "since": "2026-11-30T12:33:20.000+00:00", "until": None},
        )
        house.clock.now += 5.0
        house.window.take(entry(2_001.0))
        assert await house.completed("run=night") == 1
        status, run = await house.put("night/stop")
        assert (status, run["until"]) == (200, "2026-11-30T12:33:25.000+00:00")
        house.clock.now += 5.0
        house.window.take(entry(2_004.0, finished=5_000_000))
        house.window.take(entry(2_006.0))
        found = await house.get("run=night")
        assert (found["completed"], found["label"]) == (2, "night")


async def test_runs_are_listed_those_of_vllm_bench_too() -> None:
    async with opened() as house:
        await filled(house)
        await house.put("a/start")
        async with house.client.get("/report/runs") as answer:
            found = await answer.json()
        assert [run["name"] for run in found["runs"]] == ["a"]
        (bench,) = found["benches"]
        assert bench["name"] == "bench-0a1b2c3d-"
        assert bench["since"] == "2026-11-30T12:16:40.000+00:00"


async def test_what_cannot_be_started_or_stopped_is_told() -> None:
    async with opened() as house:
        status, view = await house.put("a/stop")
        assert (status, view["error"]) == (400, "got 'a', expected the name of a run that was started (known: none)")
        await house.put("a/start")
        status, view = await house.put("a/start")
        assert (status, view["error"]) == (400, "run 'a' goes on already: stop it first")


# ------------------------------------------------------------------------------------------------- the port as a whole


async def test_a_report_is_for_this_machine_or_the_token() -> None:
    state = gateway_state()
    app = admin_app(
        state=lambda: state,
        readiness=ReadinessCheck(lambda: state),
        registry=CollectorRegistry(),
        config=dict,
        routes=ReportRoutes(Window(60.0, 1_000)).routes(),
        version="1",
        token="s3cret",
    )
    async with TestClient(TestServer(app)) as client:
        for method, path in (("GET", "/report"), ("GET", "/report/runs"), ("PUT", "/report/runs/a/start")):
            for headers, status in (
                ({}, 200),
                ({"X-Forwarded-For": "10.0.0.9"}, 403),
                ({"Authorization": "Bearer wrong"}, 401),
            ):
                async with client.request(method, path, headers=headers) as answer:
                    assert answer.status == status, (path, headers)
        async with client.request("POST", "/report/runs/a/start") as answer:  # what a web page could send
            assert answer.status == 405


async def test_others_get_their_turn_while_a_long_report_is_added_up() -> None:
    kept = [entry(1_000.0 + number / 10) for number in range(5_000)]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    figures = await added_up(list(reversed(kept)), Selection(), Tally())
    task.cancel()
    assert figures.completed == len(kept)
    assert figures == tallied(kept, Tally())
    assert turns > 80
