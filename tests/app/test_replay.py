"""``gateway replay`` against emulated engines and servers that are not quite as one hopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.app.replay import Wording, arrivals_of
from gateway.cli import main
from gateway.emulator.profiles import FLAT
from gateway.emulator.server import EmulatedServer
from gateway.model import Outcome
from gateway.telemetry.record_file import line
from tests.telemetry.entries import ended, entry, refused

BEGAN = 1_796_040_000.0


@pytest.fixture
def records(tmp_path: Path) -> str:
    """Six arrivals within a third of a second, of which one was refused, and a retry."""
    entries = [
        entry(BEGAN + number / 20, prompt_tokens=10 + number, output_tokens=5 + number, model="m")
        for number in range(4)
    ]
    entries.append(refused(BEGAN + 0.3, model="m", estimated_prompt_tokens=30, estimated_output_tokens=7))
    entries.append(entry(BEGAN + 0.25, (), stream=False, prompt_tokens=20, output_tokens=9, model="m"))
    entries.append(entry(BEGAN + 0.3, retry=1))
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(line(each, 0.0) for each in entries))
    return str(path)


async def typed(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["replay", *arguments])


Answer = Callable[[dict[str, Any], web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server of chat completions that keeps what it was asked."""
    asked: list[dict[str, Any]] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(
            await request.json()
            | {"key": request.headers.get("Authorization"), "id": request.headers.get("X-Request-Id")}
        )
        return await answer(asked[-1], request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", serve)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/"), asked


def whole(document: dict[str, Any], tokens: int) -> web.Response:
    usage = {"prompt_tokens": tokens, "completion_tokens": document["max_tokens"]}
    return web.json_response({"choices": [{"index": 0, "message": {"content": "a"}}], "usage": usage})


# ---------------------------------------------------------------------------------------------------------- replays


async def test_the_same_arrivals_and_lengths_reach_another_server(
    records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with EmulatedServer(FLAT, ["m"]) as engine:
        assert await typed(records, "--to", f"{engine.url}/v1", "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["completed"], found["failed"], found["model_id"]) == (6, 0, "m")
    assert found["total_input_tokens"] == 10 + 11 + 12 + 13 + 30 + 20
    assert found["total_output_tokens"] == 5 + 6 + 7 + 8 + 7 + 9
    assert found["duration"] >= 0.3
    assert found["gateway"]["not_streamed"] == 1
    assert "6 of 7 recorded requests sent" in said.err
    assert found["label"] in said.err


async def test_figures_are_printed_as_vllm_prints_them(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with EmulatedServer(FLAT, ["other"]) as engine:
        assert await typed(records, "--to", engine.url, "--model", "other", "--limit", "2", "--speed", "100") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "============ Serving Benchmark Result ============\nSuccessful requests:                     2  "
    )
    assert "Gateway" not in out


async def test_prompts_are_fitted_to_how_the_server_counts(
    records: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(document: dict[str, Any], _: web.Request) -> web.Response:
        return whole(document, 5 + 2 * len(document["messages"][0]["content"].split()))

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with server(answer) as (url, asked):
        assert await typed(records, "--to", url, "--speed", "1000", "--json") == 0
    assert {each["key"] for each in asked} == {"Bearer k"}
    ahead, sent = asked[:2], asked[2:]
    assert [len(each["messages"][0]["content"].split()) for each in ahead] == [1, 200]
    assert sorted(len(each["messages"][0]["content"].split()) for each in sent) == [2, 3, 4, 4, 8, 12]
    assert sorted(each["max_tokens"] for each in sent) == [5, 6, 7, 7, 8, 9]
    assert all(each["ignore_eos"] and each["model"] == "m" for each in asked)
    label = json.loads(capsys.readouterr().out)["label"]
    assert {each["id"] for each in ahead} == {None}
    assert {each["id"] for each in sent} == {f"{label}{number}" for number in range(6)}


async def test_a_server_that_knows_no_ignore_eos_is_asked_without(
    records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(document: dict[str, Any], _: web.Request) -> web.Response:
        if "ignore_eos" in document:
            return web.json_response({"error": {"message": "unknown field"}}, status=422)
        return web.json_response({"choices": []})  # and it says nothing of tokens

    async with server(answer) as (url, asked):
        assert await typed(records, "--to", url, "--speed", "1000", "--limit", "1") == 0
    assert len(asked[-1]["messages"][0]["content"].split()) == 10
    assert "takes no ignore_eos: answers may be shorter" in capsys.readouterr().err


async def test_what_fails_is_counted(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    fates = iter([429, 500, 404, "lost", "fault", "busy"])

    async def answer(document: dict[str, Any], request: web.Request) -> web.StreamResponse:
        if document["max_tokens"] == 1:
            return whole(document, 1)
        fate = next(fates)
        if isinstance(fate, int):
            return web.Response(status=fate)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        if fate == "lost":
            await reply.write(b"data: {")
            assert request.transport is not None
            request.transport.abort()
        else:
            message = "overloaded" if fate == "busy" else "broken"
            await reply.write(b'data: {"error": {"message": "%b"}}\n\n' % message.encode())
        return reply

    async with server(answer) as (url, _):
        assert await typed(records, "--to", url, "--speed", "2", "--json") == 0
    failures = json.loads(capsys.readouterr().out)["gateway"]["failures"]
    assert {name: times for name, times in failures.items() if times} == {
        "backend_busy": 2,
        "backend_error": 2,
        "client_error": 1,
        "backend_lost": 1,
    }


async def test_a_server_that_is_silent_or_goes_away(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    asleep = asyncio.Event()

    async def answer(document: dict[str, Any], _: web.Request) -> web.Response:
        if document["max_tokens"] > 1:
            await asleep.wait()
        return whole(document, 1)

    async with server(answer) as (url, _):
        assert await typed(records, "--to", url, "--speed", "1000", "--limit", "2", "--timeout", "0.5", "--json") == 0
        asleep.set()
    assert json.loads(capsys.readouterr().out)["gateway"]["failures"]["backend_silent"] == 2


async def test_arrivals_that_are_held_up_are_told(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    running = most = 0

    async def answer(document: dict[str, Any], _: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        return whole(document, 1)

    async with server(answer) as (url, _):
        assert await typed(records, "--to", url, "--speed", "1000", "--max-concurrency", "2") == 0
    assert most == 2
    assert "late: --max-concurrency, or this machine, held them up" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- what is wrong


async def test_a_server_that_serves_no_such_model_is_named_before_anything_is_sent(
    records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with EmulatedServer(FLAT, ["other"]) as engine:
        assert await typed(records, "--to", engine.url) == 3
        told = capsys.readouterr().err
        assert told.startswith(f"{engine.url}/v1/chat/completions does not serve this: 404 ")


async def test_where_no_server_answers(records: str, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed(records, "--to", f"http://127.0.0.1:{unused_tcp_port}") == 3
    assert "does not serve this: Cannot connect" in capsys.readouterr().err


def test_wrong_arguments(records: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", records, "--to", "gpu2:8000"]) == 2
    assert capsys.readouterr().err == "--to: got 'gpu2:8000', expected http://host:port\n"
    assert main(["replay", str(tmp_path / "nothing"), "--to", "http://127.0.0.1:1"]) == 2
    (tmp_path / "empty").touch()
    assert main(["replay", str(tmp_path / "empty"), "--to", "http://127.0.0.1:1"]) == 2
    assert "nothing to send" in capsys.readouterr().err
    (tmp_path / "other").write_text("hello\n")
    assert main(["replay", str(tmp_path / "other"), "--to", "http://127.0.0.1:1"]) == 3


# ------------------------------------------------------------------------------------------------------------- parts


def test_lengths_are_what_was_counted_or_else_expected() -> None:
    entries = [
        entry(10.0, output_tokens=77),
        entry(11.0, (1, 2, 3, 4), output_tokens=None, prompt_tokens=None),
        entry(12.0, (), stream=False, output_tokens=None),
        ended(Outcome.CLIENT_GONE, 13.0),
        refused(14.0, estimated_output_tokens=0),
        entry(15.0, generates=False),
        entry(16.0, retry=2),
        entry(17.0),
    ]
    found = arrivals_of(entries, 2.0, 5)
    assert [each.at for each in found] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [each.prompt_tokens for each in found] == [40, 50, 40, 50, 50]
    assert [each.output_tokens for each in found] == [77, 4, 60, 60, 1]
    assert [each.stream for each in found] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("wording", "tokens", "words"), [(Wording(), 10, 10), (Wording(2.0, 5.0), 15, 5), (Wording(1.0, 20.0), 7, 1)]
)
def test_words_for_a_prompt(wording: Wording, tokens: int, words: int) -> None:
    assert wording.words(tokens) == words
