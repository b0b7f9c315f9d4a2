"""/status and the files of the page, over real sockets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.console.status import FILES, StatusRoutes
from gateway.model import GatewayState, LaneState, Reason
from gateway.telemetry.history import BACKENDS, History
from tests.console.helpers import TOKEN, build, from_afar, served
from tests.telemetry.helpers import backend_state, gateway_state, record, refused


class World:
    """A page over a history whose seconds the test counts."""

    def __init__(self, state: GatewayState | None = None, findings: tuple[Mapping[str, Any], ...] = ()) -> None:
        self.state = state or gateway_state()
        self.now = 1_796_042_000.0
        self.history = History(lambda: self.state, lambda: self.now)
        self.routes = StatusRoutes(self.history, "1.2.3", lambda: findings).routes()

    def seconds(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1.0
            self.history.sample()

    def app(self) -> web.Application:
        return build(self.state, routes=self.routes)


async def get(url: str, path: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with ClientSession() as session, session.get(url + path, headers=named) as answer:
        return answer.status, await answer.text(), answer.headers


async def status(url: str, query: str = "") -> dict[str, Any]:
    code, text, _ = await get(url, f"/status{query}")
    assert code == 200
    found: dict[str, Any] = json.loads(text)
    return found


# --------------------------------------------------------------------------------------------------------------
# The figures
# --------------------------------------------------------------------------------------------------------------


async def test_status_shows_now_lately_and_a_history() -> None:
    lanes = (LaneState("short", 3, 700.0, 0.4, 1.0, 1000, 2.0, 0.5), LaneState("long", 2, 9000.0, 2.5, 4.0))
    world = World(gateway_state(lanes=lanes, tpot_objective=0.1))
    world.seconds()  # objectives are those of the last sample
    world.history.observe(record())
    world.history.observe(refused(reason=Reason.QUEUE_FULL))
    world.seconds()
    async with served(world.app()) as url:
        found = await status(url)
    assert (found["version"], found["last"], found["at"] - found["started"]) == ("1.2.3", 2, 2.0)
    assert found["objectives"] == {"ttft": {"short": 0.5}, "tpot": 0.1}
    assert found["verdict"] == {
        "level": "warning",
        "title": "50% of the requests are refused",
        "more": "0.5 a second.",
        "also": [],
    }
    assert found["recent"] == {
        "seconds": 10,
        "good_per_second": 0.0,
        "completed_per_second": 0.5,
        "shed_per_second": 0.5,
        "failed_per_second": 0.0,
        "gone_per_second": 0.0,
        "output_tokens_per_second": 5.5,
        "ttft_seconds": {"short": {"p50": 0.503, "p99": 0.503}, "long": {"p50": None, "p99": None}},
        "tpot_seconds": {"p50": 0.02, "p99": 0.02},
    }
    assert found["shed"] == {"seconds": 60, "by_reason": {"queue_full": 1}}
    assert found["lanes"][0]["recent_wait_seconds"] == {"p50": 0.0, "p99": 0.0}
    assert found["backends"][0]["engine"]["kv_usage"] == 0.42
    assert found["backends"][0]["hung"] is False
    past = found["history"]
    assert (past["number"], past["completed"], past["good"], past["shed"]) == ([1, 2], [0, 1], [0, 0], [0, 1])
    assert past["ttft"]["short"]["p99"] == [None, 0.503]
    assert past["backends"] == {"gpu1": {"limit": [12.5, 12.5], "running": [7, 7]}}
    assert {len(column) for name, column in past.items() if name not in {"ttft", "backends"}} == {2}


async def test_before_the_first_second_there_is_a_state_and_no_history() -> None:
    async with served(World().app()) as url:
        found = await status(url)
    assert (found["last"], found["at"], found["history"]["number"]) == (0, found["started"], [])
    assert found["recent"]["ttft_seconds"] == {}
    assert found["backends"][0]["running"] == 7


async def test_only_later_samples_are_given() -> None:
    world = World()
    world.seconds(5)
    async with served(world.app()) as url:
        assert (await status(url, "?since=3"))["history"]["number"] == [4, 5]
        assert (await status(url, "?since=5"))["history"]["number"] == []
        assert (await status(url, "?since=99"))["history"]["number"] == [1, 2, 3, 4, 5]
        code, text, _ = await get(url, "/status?since=x")
    assert code == 400
    assert json.loads(text)["error"] == "since: got 'x', expected the number of a sample"


async def test_nothing_new_is_304_until_the_next_second() -> None:
    world = World()
    world.seconds()
    async with served(world.app()) as url:
        _, _, headers = await get(url, "/status")
        tag = headers["ETag"]
        assert tag.startswith('W/"')
        code, text, headers = await get(url, "/status?since=1", If_None_Match=tag)
        assert (code, text, headers["ETag"]) == (304, "", tag)
        world.seconds()
        code, text, _ = await get(url, "/status?since=1", If_None_Match=tag)
    assert (code, json.loads(text)["history"]["number"]) == (200, [2])


async def test_another_process_is_not_taken_for_this_one() -> None:
    first, second = World(), World()
    second.now += 60.0
    second.history.started += 60.0
    tags = []
    for world in (first, second):
        world.seconds()
        async with served(world.app()) as url:
            tags.append((await get(url, "/status"))[2]["ETag"])
    assert len(set(tags)) == 2


async def test_findings_enter_the_verdict() -> None:
    finding = {"severity": "critical", "title": "gpu1 hangs", "advice": [], "cause": "backend_hung", "backend": "gpu1"}
    async with served(World(findings=(finding,)).app()) as url:
        found = await status(url)
    assert found["verdict"]["title"] == "gpu1 hangs"
    assert [backend["hung"] for backend in found["backends"]] == [True]


async def test_many_backends_have_no_history_of_their_own_and_are_shown_all_the_same() -> None:
    world = World(gateway_state(*(backend_state(f"gpu{number}") for number in range(BACKENDS + 5))))
    world.seconds()
    async with served(world.app()) as url:
        found = await status(url)
    assert (len(found["backends"]), len(found["history"]["backends"])) == (BACKENDS + 5, BACKENDS)


async def test_the_figures_are_guarded_and_the_files_are_not() -> None:
    app = World().app()
    assert (await from_afar(app, "/status"))[0] == 403
    assert (await from_afar(World().app(), "/status", Authorization=f"Bearer {TOKEN}"))[0] == 200
    async with served(World().app()) as url:
        assert (await get(url, "/status", Host="evil.example"))[0] == 403
        for path in FILES:
            assert (await get(url, path, Host="evil.example", X_Forwarded_For="203.0.113.9"))[0] == 200


# --------------------------------------------------------------------------------------------------------------
# The files
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*FILES, "/status"])
async def test_every_answer_forbids_what_the_page_does_not_need(path: str) -> None:
    async with served(World().app()) as url:
        _, _, headers = await get(url, path)
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", FILES)
async def test_a_file_comes_once(path: str) -> None:
    async with served(World().app()) as url:
        code, text, headers = await get(url, path)
        assert (code, headers["Content-Type"]) == (200, f"{FILES[path][1]}; charset=utf-8")
        assert text
        code, text, _ = await get(url, path, If_None_Match=headers["ETag"])
    assert (code, text) == (304, "")


class Page(HTMLParser):
    """What a page refers to, and what of it a strict policy would not run."""

    def __init__(self) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.refers += [value for name in ("src", "href") if (value := found.get(name))]
        if (tag == "script" and "src" not in found) or tag == "style":
            self.inline.append(tag)
        self.inline += [name for name in found if name.startswith("on") or name == "style"]


async def test_the_page_needs_nothing_but_its_own_files() -> None:
    async with served(World().app()) as url:
        page = Page()
        page.feed((await get(url, "/"))[1])
        assert not page.inline
        assert {f"/{name}" for name in page.refers} <= FILES.keys()
        for path in FILES:
            text = (await get(url, path))[1]
            assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
