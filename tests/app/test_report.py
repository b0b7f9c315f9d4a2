"""``gateway report`` as it is typed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler

from gateway.cli import main
from gateway.console.report import ReportRoutes
from gateway.telemetry.record_file import line
from gateway.telemetry.report import Heading, bench_report, csv_report, result, text_report
from gateway.telemetry.tally import Tally, tallied
from gateway.telemetry.window import Window
from tests.telemetry.entries import entry, refused

BEGAN = 1_796_040_000.0
TRAFFIC = [entry(BEGAN, request_id="bench-1"), entry(BEGAN + 60.0, model="b"), refused(BEGAN + 61.0)]


@asynccontextmanager
async def admin(*authorized: str) -> AsyncIterator[tuple[str, Window]]:
    """An admin port's routes, and the window behind them; all that came is noted in ``authorized``."""
    window = Window(3_600.0, 1_000_000)
    asked: list[str | None] = []

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked.append(request.headers.get("Authorization"))
        return await handler(request)

    app = web.Application(middlewares=[note])
    app.add_routes(ReportRoutes(window).routes())
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), window
    assert set(asked) == set(authorized or (None,))


async def typed(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["report", *arguments])


@pytest.fixture
def records(tmp_path: Path) -> str:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(line(each, 0.0) for each in TRAFFIC))
    return str(path)


# ------------------------------------------------------------------------------------------------- a running gateway


async def test_the_report_of_a_running_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin() as (url, window):
        window.take(entry(window.now - 100.0, request_id="bench-0a1b2c3d-0"))
        window.take(entry(window.now - 10.0, model="b"))
        assert await typed("--admin", url) == 0
        assert capsys.readouterr().out.startswith("============ Serving Benchmark Result ============\nSuccessful")
        for arguments, completed in (
            ([], 2),
            (["--window", "50s"], 1),
            (["--request-id-prefix", "bench-"], 1),
            (["--model", "b"], 1),
            (["--since", "2026-01-01T00:00"], 2),
            (["--until", "2026-01-01T00:00"], 0),
        ):
            assert await typed("--admin", url, "--json", *arguments) == 0
            assert json.loads(capsys.readouterr().out)["completed"] == completed, arguments
        assert await typed("--admin", url, "--csv", "--goodput", "ttft:500", "e2el:1", "--percentiles", "90") == 0
        assert "p90_ttft_ms" in capsys.readouterr().out
        assert await typed("--admin", url, "--json", "--compat", "0.32", "--goodput", "ttft:500", "tpot:200") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["gateway"]["compat"] == "0.32"
        assert found["request_goodput"] > 0


async def test_a_run_from_start_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin() as (url, window):
        assert await typed("--admin", url, "--start", "a:b") == 0
        assert capsys.readouterr().out == "Run a:b goes on until `gateway report --stop a:b`.\n"
        window.take(entry(window.now))
        assert await typed("--admin", url, "--stop", "a:b", "--json") == 0
        assert json.loads(capsys.readouterr().out)["label"] == "a:b"
        assert await typed("--admin", url, "--run", "a:b", "--json") == 0
        assert json.loads(capsys.readouterr().out)["completed"] == 1
        assert await typed("--admin", url, "--runs") == 0
        assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["a:b"]
        assert await typed("--admin", url, "--stop", "a:b") == 2
        assert capsys.readouterr().err == "run 'a:b' has ended already\n"


async def test_the_token_of_the_settings_is_sent_and_the_port_is_theirs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin("Bearer s3cret") as (url, _):
        monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "s3cret")
        monkeypatch.setenv("GATEWAY_ADMIN_PORT", url.rpartition(":")[2])
        assert await typed("--json") == 0
        assert json.loads(capsys.readouterr().out)["completed"] == 0


async def test_what_is_wrong_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin() as (url, _):
        assert await typed("--admin", url, "--window", "5x") == 2
        assert capsys.readouterr().err == "window: got '5x', expected a duration such as 90s, 10m, 1h or 1d\n"
    assert await typed("--since", "yesterday") == 2
    assert "got 'yesterday', expected a time" in capsys.readouterr().err


async def test_where_no_gateway_answers(unused_tcp_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed("--admin", f"http://127.0.0.1:{unused_tcp_port}") == 3
    told = capsys.readouterr().err
    assert told.startswith(f"no gateway answers at http://127.0.0.1:{unused_tcp_port} (")
    assert "--admin or GATEWAY_ADMIN_PORT" in told


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (403, '{"error": "/report answers callers on this machine only"}', "/report answers callers on this machine"),
        (502, "<html>", "/report answers 502 Bad Gateway"),
        (404, "[]", "/report answers 404 Not Found"),
    ],
)
async def test_where_something_else_answers(
    status: int, body: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_get("/report", answer)
    async with TestServer(app) as server:
        assert await typed("--admin", str(server.make_url(""))) == 3
    assert told in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ record files


def test_the_report_of_a_file(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures, heading = tallied(TRAFFIC, Tally()), Heading()
    assert main(["report", "--from", records]) == 0
    out = capsys.readouterr().out
    assert out == text_report(figures, heading)
    assert out.startswith(bench_report(figures))
    assert main(["report", "--from", records, "--csv"]) == 0
    assert capsys.readouterr().out == csv_report(figures, heading)
    assert main(["report", "--json", "--from", records, records]) == 0
    twice = tallied([*TRAFFIC, *TRAFFIC], Tally())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result(twice, heading)))


def test_a_part_of_a_file(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    later = datetime.fromtimestamp(BEGAN + 30.0).astimezone().isoformat()
    for arguments, completed in (
        (["--since", later], 1),
        (["--until", later], 1),
        (["--request-id-prefix", "bench-"], 1),
        (["--model", "b"], 1),
    ):
        assert main(["report", "--json", "--from", records, *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["completed"] == completed, arguments


@pytest.mark.parametrize("option", ["--window", "--run", "--start", "--stop", "--admin"])
def test_what_asks_a_gateway_does_not_go_with_a_file(
    option: str, records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--from", records, option, "x"]) == 2
    assert capsys.readouterr().err == f"{option} asks a running gateway: not together with --from\n"


def test_files_that_cannot_be_read(records: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--from", records, str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err == f"--from {tmp_path / 'nothing'}: No such file or directory\n"
    (tmp_path / "other").write_text("hello\n")
    assert main(["report", "--from", str(tmp_path / "other")]) == 3
    assert "line 1" in capsys.readouterr().err
    with Path(records).open("a") as file:
        file.write("{\n")
    assert main(["report", "--from", records]) == 0
    assert "1 of 4 lines cannot be read" in capsys.readouterr().err
