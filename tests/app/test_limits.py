"""``gateway limits`` as it is typed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.tuning import Tuning
from gateway.cli import main
from gateway.console.limits import LimitsRoutes
from gateway.console.views import state_view
from gateway.model import Backend


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[str, AdmissionController]]:
    """The routes of an admin port before a controller of two backends."""
    backends = (Backend("gpu1", "http://gpu1"), Backend("gpu2", "http://gpu2", limit=8))
    admission = AdmissionController(AdmissionConfig(), backends, lambda low, _high: low)

    def retune(tuning: Tuning) -> None:
        assert not admission.retune(tuning, 0.0)

    async def state(_: web.Request) -> web.Response:
        return web.json_response(state_view(admission.state(0.0)))

    app = web.Application()
    app.add_routes(LimitsRoutes(lambda: admission.tuning, retune, lambda _backend, _text: None).routes())
    app.add_routes([web.get("/state", state)])
    async with TestServer(app) as server:
        yield str(server.make_url("")), admission


async def typed(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["limits", *arguments])


async def test_what_is_in_effect(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway() as (url, _):
        assert await typed("--admin", url) == 0
    assert capsys.readouterr().out == (
        "TPOT objective  none\n"
        "\n"
        "LANE   TOKENS   WEIGHT  TTFT OBJECTIVE  LONGEST WAIT\n"
        "short  to 1000  2       none            1s\n"
        "long   longer   1       none            4s\n"
        "\n"
        "BACKEND  HEALTH   RUNNING  LIMIT\n"
        "gpu1     unknown  0        4.0    found by itself\n"
        "gpu2     unknown  0        8.0    pinned\n"
    )


async def test_everything_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    change = [
        *("--tpot-objective", "50ms", "--ttft-objective", "short=1.5s,long=8", "--lane-threshold", "short=800"),
        *("--lane-weight", "short=3", "--lane-weight", "long=2", "--max-wait", "long=3"),
        *("--pin", "gpu1=32", "--unpin", "gpu2", "--drain", "gpu2"),
    ]
    async with gateway() as (url, admission):
        assert await typed("--admin", url, *change) == 0
        tuning = admission.tuning
    short, long = tuning.lanes
    assert tuning.tpot_objective == 0.05
    assert (short.threshold, short.weight, short.ttft_objective, short.max_wait) == (800, 3.0, 1.5, 0.75)
    assert (long.weight, long.ttft_objective, long.max_wait) == (2.0, 8.0, 3.0)
    assert {name: (each.limit, each.drained) for name, each in tuning.backends.items()} == {
        "gpu1": (32, False),
        "gpu2": (None, True),
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "changed: TPOT objective none -> 0.05 s"
    assert "changed: gpu2: drained: no new request goes to it" in lines
    assert "gpu2     drained  0        4.0    found by itself" in lines


async def test_back_again(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway() as (url, admission):
        before = admission.tuning
        await typed("--admin", url, "--tpot-objective", "1", "--drain", "gpu1", "--ttft-objective", "short=1")
        back = (
            "--tpot-objective",
            "none",
            "--undrain",
            "gpu1",
            "--ttft-objective",
            "short=off",
            "--max-wait",
            "short=1",
        )
        assert await typed("--admin", url, *back) == 0
        short, *others = before.lanes
        told = replace(short, lingers=False)  # its wait is one that somebody set now
        assert admission.tuning == replace(before, lanes=(told, *others))
        capsys.readouterr()
        assert await typed("--admin", url, *back) == 0
    assert capsys.readouterr().out.startswith("nothing changed: it was so already\n")


async def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway() as (url, _):
        assert await typed("--admin", url, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["backends"]["gpu2"] == {"limit": 8, "drained": False}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--pin", "gpu1=many"], "--pin: got 'many', expected a whole number"),
        (["--pin", "gpu1"], "--pin: got 'gpu1', expected NAME=VALUE"),
        (["--ttft-objective", "=1"], "--ttft-objective: got '=1', expected NAME=VALUE"),
        (
            ["--tpot-objective", "fast"],
            "--tpot-objective: got 'fast', expected a duration such as 50ms or 1.5s, or none",
        ),
        (["--lane-weight", "short=x"], "--lane-weight: got 'x', expected a number"),
        (["--drain", "gpu3"], "backends.gpu3: unknown, expected one of gpu1, gpu2 (did you mean gpu2?)"),
        (["--pin", "gpu1=0"], "backends.gpu1.limit: got 0, expected a whole number, 1 to 1000000, or null to have it"),
        (["--max-wait", "short=none"], "lanes.short.max_wait_seconds: got null, expected a number above 0"),
    ],
)
async def test_what_cannot_be_is_told_and_changes_nothing(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway() as (url, admission):
        before = admission.tuning
        assert await typed("--admin", url, "--tpot-objective", "2", *arguments) == 2
        assert admission.tuning == before
    assert capsys.readouterr().err.startswith(told)


async def test_without_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed("--admin", "http://127.0.0.1:9") == 3
    assert "no gateway answers at http://127.0.0.1:9" in capsys.readouterr().err
