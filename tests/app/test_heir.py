"""A gateway that stands by: it knows what the one at work learned, and nothing that it is told can hurt it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from gateway.admission.memory import BackendMemory, Memory
from gateway.app.configs import load_all
from gateway.app.heir import IDLE, PATH, WHO, Heir
from gateway.app.state_file import LARGEST, OLDEST, Document
from gateway.model import Outcome, Record, Timeline
from tests.admission.helpers import CHAT, ticket
from tests.app.house import House, engine
from tests.proxy.certificates import Authority
from tests.proxy.helpers import wait_until
from tests.real.process import free_port

Answer = Callable[[web.Request], Awaitable[web.Response]]


def memory(limit: float) -> Memory:
    return Memory((BackendMemory("a", "http://a", limit),))


class Learner:
    def __init__(self, limit: float) -> None:
        self.memory = memory(limit)
        self.recalled: list[Memory] = []

    def remember(self) -> Memory:
        return self.memory

    def recall(self, told: Memory) -> tuple[str, ...]:
        self.recalled.append(told)
        return ("a",)


class Gateway:
    """As much of one as an heir sees."""

    def __init__(self, limit: float, *places: str) -> None:
        self.learner = Learner(limit)
        self.busy = False
        self.before_next: Callable[[], None] | None = None
        self.heir = Heir(places, self.learner, self._before_next, lambda: self.busy)

    def _before_next(self, call: Callable[[], None] | None) -> None:
        self.before_next = call

    def served(self) -> None:
        self.heir.observe(Record("id", ticket(), CHAT, "POST", "/", Timeline(1.0), Outcome.COMPLETED, 200, backend="a"))

    def next(self) -> list[Memory]:
        """What is known once the next request comes."""
        call, self.before_next = self.before_next, None
        if call is not None:
            call()
        return self.learner.recalled


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.heir._EVERY", 0.01)
    monkeypatch.setattr("gateway.app.heir._CLOSE", 0.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gateway.heir")
    return caplog


@asynccontextmanager
async def admin(answer: Heir | Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(answer.routes() if isinstance(answer, Heir) else [web.get(PATH, answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(gateway: Gateway) -> AsyncIterator[Gateway]:
    gateway.heir.start()
    try:
        yield gateway
    finally:
        await gateway.heir.stop()


async def test_what_the_one_at_work_learned_is_known_when_the_first_request_comes() -> None:
    active = Gateway(80.0)
    active.served()
    async with admin(active.heir) as place, asking(Gateway(4.0, place)) as spare:
        await wait_until(lambda: spare.before_next is not None)
        assert not spare.learner.recalled, "before, nothing is done with it"
        active.learner.memory = memory(50.0)
        await wait_until(lambda: spare.heir._heard is not None and spare.heir._heard.memory == memory(50.0))
        assert spare.next() == [memory(50.0)], "the latest counts"
    assert spare.next() == [memory(50.0)], "and it is not gone on from twice"


async def test_one_that_is_gone_is_gone_on_from_as_it_was_last(log: pytest.LogCaptureFixture) -> None:
    active = Gateway(80.0)
    active.busy = True
    async with admin(active.heir) as place:
        spare = Gateway(4.0, place)
        spare.heir.start()
        await wait_until(lambda: spare.before_next is not None)
    await wait_until(lambda: "does not tell what it learned" in log.text)
    await asyncio.sleep(0.05)
    await spare.heir.stop()
    assert log.text.count("does not tell what it learned") == 1, "once for the same reason"
    assert spare.next() == [memory(80.0)]
    assert f"going on from what {place} learned of a" in log.text


async def test_one_that_works_asks_nobody() -> None:
    asked = 0

    async def count(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=404)

    async with admin(count) as place:
        spare = Gateway(4.0, place)
        spare.busy = True
        async with asking(spare):
            await asyncio.sleep(0.1)
            assert not asked
            spare.busy = False
            await wait_until(lambda: asked)


async def test_a_pair_with_the_same_settings_learns_from_the_one_that_was_used_last() -> None:
    one, other, unused = Gateway(80.0), Gateway(4.0), Gateway(1.0)
    async with admin(one.heir) as first, admin(other.heir) as second, admin(unused.heir) as third:
        for each in (one, other, unused):
            each.heir._places = (first, second, third)
        other.served()
        await asyncio.sleep(0.02)
        one.served()
        async with asking(one), asking(other), asking(unused):
            await wait_until(lambda: other.before_next is not None and unused.before_next is not None)
            await asyncio.sleep(0.1)
        assert other.next() == unused.next() == [memory(80.0)]
        assert one.next() == []


async def test_a_request_that_no_engine_served_is_no_use_of_it() -> None:
    gateway = Gateway(80.0)
    for asked, backend in ((ticket(), None), (None, "a")):
        record = Record("id", asked, CHAT, "GET", "/", Timeline(1.0), Outcome.COMPLETED, 200, backend=backend)
        gateway.heir.observe(record)
    async with admin(gateway.heir) as place, ClientSession() as session, session.get(f"{place}{PATH}") as answer:
        assert IDLE not in answer.headers
        assert WHO in answer.headers


ABSURD = {"backends": [{"name": "a", "url": "http://a", "limit": -5}]}
DOCUMENT = Document(saved_at=0.0, memory=memory(80.0)).model_dump(mode="json")


def document(**changes: object) -> str:
    return json.dumps(DOCUMENT | {"saved_at": time.time()} | changes)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (web.Response(status=401), "it answers 401 Unauthorized"),
        (web.Response(status=403, text='{"error":\n "no"}'), 'it answers 403 Forbidden {"error": "no"}'),
        (web.Response(status=404), "it answers 404 Not Found"),  # of an older version
        (web.Response(status=302, headers={"Location": "/livez"}), "it answers 302 Found"),
        (web.Response(text=""), "it is no gateway, or of another version"),
        (web.Response(text=document(), headers={IDLE: "soon"}), "it is no gateway, or of another version"),
        (web.Response(text=document(), headers={IDLE: "nan"}), "it is no gateway, or of another version"),
        (web.Response(text=document(), headers={IDLE: "-1"}), "it is no gateway, or of another version"),
        (web.Response(text="<html>", headers={IDLE: "1"}), "as one of 'inference-gateway state' does"),
        (web.Response(text=document()[:-20], headers={IDLE: "1"}), "Invalid JSON"),
        (web.Response(text=document(version=2), headers={IDLE: "1"}), "version"),
        (web.Response(text=document(saved_at=1.0), headers={IDLE: "1"}), "days old"),
        (
            web.Response(
                text=document(memory={"backends": [{"name": "a", "url": "u", "limit": -5}]}), headers={IDLE: "1"}
            ),
            "limit is -5",
        ),
        (web.Response(body=b" " * (LARGEST + 1), headers={IDLE: "1"}), f"it answers more than {LARGEST} bytes"),
    ],
)
async def test_whatever_is_wrong_with_an_answer_is_told_and_nothing_of_it_used(
    log: pytest.LogCaptureFixture, told: web.Response, reason: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=told.status, body=told.body, headers=told.headers)

    async with admin(answer) as place, asking(Gateway(4.0, place)) as spare:
        await wait_until(lambda: "does not tell what it learned" in log.text)
        assert reason in log.text
        assert spare.before_next is None


async def test_what_cannot_be_gone_on_from_does_not_hurt_the_request(log: pytest.LogCaptureFixture) -> None:
    active = Gateway(80.0)
    active.served()
    async with admin(active.heir) as place, asking(Gateway(4.0, place)) as spare:
        await wait_until(lambda: spare.before_next is not None)

        def recall(told: Memory) -> tuple[str, ...]:
            raise ArithmeticError(told)

        spare.learner.recall = recall  # type: ignore[method-assign] # a fault that nobody thought of
        assert spare.next() == []
        assert "cannot be gone on from" in log.text


async def test_what_is_too_old_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    active = Gateway(80.0)
    active.served()
    async with admin(active.heir) as place:
        async with asking(Gateway(4.0, place)) as spare:
            await wait_until(lambda: spare.before_next is not None)
        later = time.monotonic() + OLDEST + 1.0
        monkeypatch.setattr("gateway.app.heir.time.monotonic", lambda: later)
        assert spare.next() == []


async def test_a_whole_gateway_tells_its_heir_and_guards_it_by_the_token(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """As two machines have it: the same settings on both, and what is told is what the state file would have."""
    ports = free_port(), free_port()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with engine() as backend:
        common = {
            "backends": backend.url,
            "state_from": ",".join(f"http://127.0.0.1:{port}" for port in ports),
            "admin_token": "secret" * 8,
        }
        one = House(tmp_path / "one", admin_port=ports[0], **common)
        other = House(tmp_path / "other", admin_port=ports[1], **common)
        async with one.open(), other.open():
            assert await one.chat() == 200
            await wait_until(lambda: other.service._heir._heard is not None)
            assert "going on from" not in log.text
            assert await other.chat() == 200
            assert f"going on from what http://127.0.0.1:{ports[0]} learned of {backend.url[7:]}" in log.text
            status, told = await one.admin("GET", PATH)
            assert (status, told["kind"]) == (200, "inference-gateway state")
            assert [each["url"] for each in told["memory"]["backends"]] == [backend.url]
            async with ClientSession() as session:
                wrong = {"Authorization": "Bearer wrong"}
                async with session.get(one.service.admin_url + PATH, headers=wrong) as answer:
                    assert answer.status == 401
                far = {"X-Forwarded-For": "192.0.2.1"}  # through a proxy: it is not of this machine
                async with session.get(one.service.admin_url + PATH, headers=far) as answer:
                    assert answer.status == 403


@pytest.mark.parametrize("wrong", ["gw2", "dns+http://gw:8081", "http://gw2", "http://u@gw2:1", "http://gw2:1/state"])
def test_what_is_no_admin_port_is_refused(tmp_path: Path, wrong: str) -> None:
    (fault,) = load_all(str(House(tmp_path, backends="http://a:1", state_from=wrong).file)).faults
    assert "GATEWAY_STATE_FROM" in str(fault)
    assert "URLs of admin ports separated by commas" in str(fault)


@pytest.mark.parametrize("known", [True, False])
async def test_who_is_not_known_by_a_certificate_gets_no_token(
    tmp_path: Path, log: pytest.LogCaptureFixture, known: bool
) -> None:
    """A pair has one certificate, which is trusted where it is the admin port's own; a stranger's is not."""
    root = Authority(tmp_path / "root", "root")
    own, strange = root.issue("gateways"), root.issue("stranger")
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.Response(text=document(), headers={IDLE: "1"})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*((own.cert, own.key) if known else (strange.cert, strange.key)))
    async with admin(answer, context) as place, engine() as backend:
        files = {"admin_tls_cert": own.cert, "admin_tls_key": own.key}
        house = House(tmp_path, backends=backend.url, state_from=place, admin_token="secret" * 8, **files)
        async with house.open() as spare:
            await wait_until(lambda: spare.service._heir._heard is not None or "does not tell" in log.text)
            assert (spare.service._heir._heard is not None) is known
            assert asked[:1] == (["Bearer " + "secret" * 8] if known else [])
