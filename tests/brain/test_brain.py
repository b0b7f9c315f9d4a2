"""Workers ask, the brain decides, and either may be gone at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.admission.quota import Account, KeyTerms, Revoked, Standing
from gateway.brain.desk import Desks
from gateway.brain.remote import RemoteGate
from gateway.brain.setup import Setup
from gateway.brain.view import View
from gateway.brain.wire import Channel, Kind, heard, reach
from gateway.brain.words import PROGRESS, RECORDS, TICKETS
from gateway.model import Backend, Choice, Health, Outcome, Permit, Reason, Record, Rejection, Ticket, Timeline, Usage
from gateway.proxy.config import ProxyConfig
from gateway.proxy.gate import Charged, Gate, Quotas
from gateway.proxy.keys import KeyBook, Keys
from tests.admission.helpers import CHAT, config, fixed, ticket

Work = Callable[[], None]


class Brain:
    """A gate with desks, as the brain's process has them."""

    def __init__(
        self,
        path: Path,
        *backends: Backend,
        keys: Keys | None = None,
        quotas: Quotas | None = None,
        settings: AdmissionConfig | None = None,
    ) -> None:
        self.records: list[Record] = []
        settings = settings or config()
        self.estimator = Estimator(settings.estimator)
        self.controller = AdmissionController(settings, backends, lambda low, _high: low, self.estimator)
        self.gate = Gate(self.controller, quotas=quotas)
        self.keys = KeyBook(keys)
        self.desks = Desks(path, self.gate, self.estimator, [self], self.setup, self.view, self.keys)

    def observe(self, record: Record) -> None:
        self.records.append(record)

    def setup(self) -> Setup:
        return Setup(ProxyConfig(host="127.0.0.1", port=0), (), None)

    def view(self) -> View:
        return View(self.gate.down, self.gate.routes, (("short", 1000), ("long", None)))

    @property
    def running(self) -> int:
        return sum(backend.running for backend in self.gate.state().backends)

    @property
    def queued(self) -> int:
        return sum(lane.depth for lane in self.gate.state().lanes)


@asynccontextmanager
async def opened(brain: Brain) -> AsyncIterator[Brain]:
    await brain.desks.start()
    try:
        yield brain
    finally:
        brain.desks.stop()
        brain.gate.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def worker(path: Path) -> AsyncIterator[RemoteGate]:
    setups: list[Setup] = []
    views: list[View] = []
    estimator = Estimator(config().estimator)
    gate = RemoteGate(str(path), setups.append, views.append, lambda: 0.25, lambda: 3, lambda: 2, estimator)
    await asyncio.wait_for(gate.start(), 5)
    try:
        yield gate
    finally:
        await gate.stop()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is waited for is in another process, but for the test
            await asyncio.sleep(0.005)


async def permit(gate: RemoteGate, asked: Ticket | None = None) -> Permit:
    verdict = await asyncio.wait_for(gate.enter(asked or ticket()), 5)
    assert isinstance(verdict, Permit), verdict
    return verdict


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "brain"


async def test_a_worker_is_told_whatever_was_said_while_it_connected(path: Path) -> None:
    """Else it would wait for that for ever, and never listen."""

    class Hasty(Desks):
        def _seat(self) -> Channel:
            channel = super()._seat()
            self.tell()
            return channel

    brain = Brain(path, fixed(2))
    brain.desks = Hasty(path, brain.gate, brain.estimator, [brain], brain.setup, brain.view, brain.keys)
    async with opened(brain), worker(path) as gate:
        assert (await permit(gate)).backend


async def test_two_workers_share_one_limit_and_one_queue(path: Path) -> None:
    async with opened(Brain(path, fixed(2))) as brain, worker(path) as one, worker(path) as other:
        first, second = await permit(one), await permit(other)
        waiting = asyncio.create_task(other.enter(ticket()))
        await until(lambda: brain.queued == 1)
        assert brain.running == 2
        one.leave(first, Outcome.COMPLETED, Usage(10, 20))
        third = await asyncio.wait_for(waiting, 5)
        assert isinstance(third, Permit)
        for each in (second, third):
            other.leave(each, Outcome.COMPLETED, None)
        await until(lambda: not brain.running)


async def test_the_verdict_has_the_estimate_of_the_brain(path: Path) -> None:
    async with opened(Brain(path, fixed(2))) as brain, worker(path) as gate:
        asked = ticket(prompt=5, output=5)
        given = await permit(gate, asked)
        assert given.ticket.work == brain.estimator.estimate(asked.shape, asked.client)
        assert given.ticket.shape == asked.shape
        assert gate.lane(given.ticket) == "short"
        gate.leave(given, Outcome.COMPLETED, None)


async def test_why_a_backend_was_chosen_and_how_long_it_rests_are_told(path: Path) -> None:
    async with opened(Brain(path, fixed(9, "a"), fixed(9, "b"))) as brain, worker(path) as gate:
        blocks = (1, -(2**60), 3)
        asked = ticket(400, 10, session="s")
        asked = replace(asked, shape=replace(asked.shape, blocks=blocks))
        first = await permit(gate, asked)
        gate.leave(first, Outcome.COMPLETED, Usage(400, 10, 0))
        second = await permit(gate, replace(asked, id=asked.id + 1_000_000))
        assert (second.backend, second.choice, second.ticket.shape.blocks) == (first.backend, Choice.PREFIX, blocks)
        gate.leave(second, Outcome.BACKEND_BUSY, None, rest=30.0)
        await until(lambda: not brain.running)
        third = await permit(gate, replace(asked, id=asked.id + 2_000_000, tried=1))
        assert third.backend != first.backend
        assert third.choice is Choice.FAILOVER
        gate.leave(third, Outcome.COMPLETED, None)


async def test_outputs_reach_the_law(path: Path) -> None:
    async with opened(Brain(path, fixed(2))) as brain, worker(path) as gate:
        given = await permit(gate)
        assert brain.gate.state().backends[0].unstarted == 1
        for turn in range(3):
            given.progress.output(2, time.monotonic() + turn)
        await until(lambda: not brain.gate.state().backends[0].unstarted)
        (books,) = brain.controller._pool.books
        assert books.window.outputs == 1 + 2 + 2  # what comes with the first token is not counted twice
        gate.leave(given, Outcome.COMPLETED, None)


async def test_outputs_are_told_before_the_end(path: Path) -> None:
    async with opened(Brain(path, fixed(2))) as brain, worker(path) as gate:
        given = await permit(gate)
        given.progress.output(1, time.monotonic())
        gate.leave(given, Outcome.COMPLETED, Usage(1, 1))
        await until(lambda: not brain.running)
        (books,) = brain.controller._pool.books
        assert books.window.firsts == 1


def said_by(gate: RemoteGate, *, room: bool) -> Written:
    """What ``gate`` writes to the brain, which has said that there is room, or has not."""
    said = Written()
    gate._channel = gate._channel_made()
    gate._channel.connection_made(said)  # type: ignore[arg-type] # as much of a transport as it uses
    brain = Channel()
    brain.connection_made(words := Written())  # type: ignore[arg-type] # the same
    brain.say(Kind.ROOM, room)
    gate._channel.data_received(words.data)
    return said


def holding(gate: RemoteGate, asked: Ticket) -> Permit:
    given = Permit(asked.id, asked, "a", 0.0, _Nothing())
    gate._held[asked.id] = given
    return given


class _Nothing:
    def output(self, events: int, now: float) -> None:
        pass


def kinds(said: Written) -> list[Kind]:
    found: list[Kind] = []
    reader = Channel()
    reader.take = lambda kind, _: found.append(kind)
    reader.data_received(said.data)
    said.data = b""
    return found


def silent_gate() -> RemoteGate:
    estimator = Estimator(config().estimator)
    return RemoteGate("nowhere", _ignore, _ignore, lambda: 0.0, lambda: 0, lambda: 0, estimator)


async def test_the_end_of_a_stream_goes_with_the_next_question_where_there_is_room() -> None:
    gate = silent_gate()
    said = said_by(gate, room=True)
    stream = ticket()
    given = holding(gate, stream)
    gate.note(stream.id, 1, time.monotonic())
    gate.leave(given, Outcome.COMPLETED, Usage(1, 1))
    gate.observe(ended(stream))
    assert kinds(said) == []
    asking = asyncio.create_task(gate.enter(ticket()))
    await asyncio.sleep(0)
    assert kinds(said) == [Kind.OFFER, Kind.PROGRESS, Kind.LEAVE, Kind.RECORD], "the question is read first"
    asking.cancel()
    gate.leave(holding(gate, stream), Outcome.COMPLETED, None)
    asking = asyncio.create_task(gate.enter(ticket(refused=True)))
    await asyncio.sleep(0)
    assert kinds(said)[-2:] == [Kind.LEAVE, Kind.OFFER], "who may not wait comes after the place that came free"
    asking.cancel()
    gate.leave(holding(gate, stream), Outcome.COMPLETED, None)
    await until(lambda: said.data)  # nobody asks any more
    assert Kind.LEAVE in kinds(said)


@pytest.mark.parametrize(
    ("room", "asked", "outcome"),
    [
        (False, ticket(), Outcome.COMPLETED),
        (True, ticket(stream=False), Outcome.COMPLETED),
        (True, ticket(), Outcome.BACKEND_BUSY),
    ],
    ids=["somebody waits", "its end is what is measured", "the law must know"],
)
async def test_any_other_end_is_told_at_once(room: bool, asked: Ticket, outcome: Outcome) -> None:
    gate = silent_gate()
    said = said_by(gate, room=room)
    gate.leave(holding(gate, asked), outcome, None)
    assert kinds(said) == [Kind.LEAVE]


async def test_a_place_that_somebody_waits_for_is_given_back_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.brain.remote._HELD", 1000.0)
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as one, worker(path) as other:
        await until(lambda: one._room and other._room)  # nobody had to wait since the last look
        one.leave(await permit(one), Outcome.COMPLETED, Usage(1, 1))
        await asyncio.sleep(0.02)
        assert brain.running == 1, "it is held"
        given = await permit(other)
        assert not one._room, "both were told"
        other.leave(given, Outcome.COMPLETED, None)
        await until(lambda: not brain.running)


async def test_no_end_is_held_where_nobody_may_wait(path: Path) -> None:
    brain = Brain(path, fixed(1), settings=config(max_requests=0))
    async with opened(brain), worker(path) as gate:
        for _ in range(3):
            brain.desks._look()
        assert await gate.knock(ticket()) is None  # what the brain said before was heard
        assert not gate._room


async def test_who_leaves_the_queue_is_forgotten(path: Path) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as gate:
        held = await permit(gate)
        waiting = asyncio.create_task(gate.enter(ticket()))
        await until(lambda: brain.queued == 1)
        waiting.cancel()
        await until(lambda: not brain.queued)
        gate.leave(held, Outcome.COMPLETED, None)
        await until(lambda: not brain.running)


async def test_a_permit_for_who_left_meanwhile_comes_back(path: Path) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as gate:
        asking = asyncio.create_task(gate.enter(ticket()))
        await asyncio.sleep(0)  # the question is on its way
        asking.cancel()
        await until(asking.done)
        await until(lambda: not brain.running and not brain.queued)
        held = await permit(gate)
        gate.leave(held, Outcome.COMPLETED, None)


async def test_a_refusal_travels_with_its_reason(path: Path) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as gate:
        brain.gate.drain()
        verdict = await gate.enter(ticket())
        assert isinstance(verdict, Rejection)
        assert verdict.reason is Reason.DRAINING
        knocked = await gate.knock(ticket())
        assert knocked is not None
        assert knocked.reason is Reason.DRAINING


async def test_a_knock_that_would_be_let_in(path: Path) -> None:
    async with opened(Brain(path, fixed(1))), worker(path) as gate:
        assert await gate.knock(ticket()) is None


async def test_a_worker_that_dies_gives_everything_back(path: Path) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as survivor:
        async with worker(path) as dying:
            await permit(dying)
            waiting = asyncio.create_task(dying.enter(ticket()))
            await until(lambda: brain.queued == 1)
            mine = asyncio.create_task(survivor.enter(ticket()))
            await until(lambda: brain.queued == 2)
        waiting.cancel()
        given = await asyncio.wait_for(mine, 5)
        assert isinstance(given, Permit)
        assert (brain.running, brain.queued) == (1, 0)
        survivor.leave(given, Outcome.COMPLETED, None)
        await until(lambda: not brain.running)


async def test_without_the_brain_new_work_is_refused_and_what_runs_is_told_to_the_next(path: Path) -> None:
    async with worker_of_a_dying_brain(path) as (gate, held):
        verdict = await gate.enter(ticket())
        assert isinstance(verdict, Rejection)
        assert verdict.reason is Reason.NO_BACKEND
        assert (await gate.knock(ticket())) is not None
        async with opened(Brain(path, fixed(2))) as brain:
            await until(lambda: brain.running == 1)
            again = await permit(gate)
            assert brain.running == 2
            waiting = asyncio.create_task(gate.enter(ticket()))
            await until(lambda: brain.queued == 1)
            gate.leave(held, Outcome.COMPLETED, Usage(1, 1))
            third = await asyncio.wait_for(waiting, 5)
            assert isinstance(third, Permit)
            (books,) = brain.controller._pool.books
            assert books.window.e2e is None  # when it began nobody here saw: it was not measured
            for each in (again, third):
                gate.leave(each, Outcome.COMPLETED, None)
            await until(lambda: not brain.running)


@asynccontextmanager
async def worker_of_a_dying_brain(path: Path) -> AsyncIterator[tuple[RemoteGate, Permit]]:
    async with opened(Brain(path, fixed(1))) as brain:
        estimator = Estimator(config().estimator)
        gate = RemoteGate(str(path), _ignore, _ignore, lambda: 0.0, lambda: 0, lambda: 7, estimator)
        await gate.start()
        held = await permit(gate, ticket(stream=False))
        waiting = asyncio.create_task(gate.enter(ticket()))
        await until(lambda: brain.queued == 1)
    try:
        verdict = await asyncio.wait_for(waiting, 5)
        assert isinstance(verdict, Rejection)  # whoever waited is answered, not left waiting
        yield gate, held
    finally:
        await gate.stop()


def _ignore(_said: object) -> None:
    pass


async def test_a_worker_goes_on_looking_for_the_brain_whatever_happens(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = [OSError("nobody is there"), ArithmeticError("a fault that nobody thought of")]

    async def fails(path: str, channel: Channel) -> None:
        if failing:
            raise failing.pop()
        await reach(path, channel)

    monkeypatch.setattr("gateway.brain.remote.reach", fails)
    async with opened(Brain(path, fixed(1))), worker(path) as gate:
        assert (await permit(gate)).backend
    assert caplog.text.count("looking for the brain failed") == 1
    assert "a fault that nobody thought of" in caplog.text
    assert "nobody is there" not in caplog.text


async def test_what_is_known_of_the_backends_reaches_every_worker(path: Path) -> None:
    backends = fixed(1, "a", models=("x",)), fixed(1, "b", models=("m",))
    async with opened(Brain(path, *backends)) as brain, worker(path) as gate:
        await until(lambda: gate.serving("m") == ("b",))
        assert gate.serving("other") == gate.serving(None) == ("a", "b")
        assert not gate.is_down("a")
        brain.gate.note_health("a", Health.DOWN)
        await until(lambda: gate.is_down("a"))
        async with worker(path) as newcomer:
            await until(lambda: newcomer.is_down("a"))


async def test_a_record_has_the_id_under_which_the_brain_knows_its_request(path: Path) -> None:
    async with opened(Brain(path, fixed(4))) as brain, worker(path) as one, worker(path) as other:
        asked = ticket()
        for gate in (one, other):
            given = await permit(gate, asked)
            gate.leave(given, Outcome.COMPLETED, None)
            gate.observe(Record("id", given.ticket, CHAT, "POST", "/", Timeline(1.0), Outcome.COMPLETED, 200))
        await until(lambda: len(brain.records) == 2)
        first, second = (record.ticket.id for record in brain.records if record.ticket is not None)
        assert first != second


async def test_records_and_pulses_arrive(path: Path) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as gate:
        gate.observe(Record("id", ticket(), CHAT, "POST", "/", Timeline(1.0), Outcome.COMPLETED, 200))
        await until(lambda: brain.records)
        assert brain.records[0].request_id == "id"
        await until(lambda: brain.desks.pulses[0].in_flight == 3)
        assert brain.desks.pulses[0].loop_lag == 0.25
        assert not brain.desks.pulses[0].listens


async def test_requests_that_nobody_could_be_told_of_are_counted_once(path: Path) -> None:
    record = Record("id", ticket(), CHAT, "POST", "/", Timeline(1.0), Outcome.COMPLETED, 200)
    async with worker_of_a_dying_brain(path) as (gate, held):
        for _ in range(2):
            gate.observe(record)
        gate.pulse()  # into the void
        async with opened(Brain(path, fixed(1))) as brain:
            await until(lambda: brain.running)  # it is known again
            gate.pulse()
            gate.pulse()
            gate.observe(record)
            await until(lambda: brain.records)
            assert (brain.desks.records_dropped, brain.desks.connections_refused) == (2, 7)
            gate.leave(held, Outcome.COMPLETED, None)


async def test_a_key_has_one_account_for_all_workers(path: Path) -> None:
    terms = KeyTerms("team", requests_per_minute=100, max_in_flight=1)
    brain = Brain(path, fixed(4), keys={b"hash": terms})
    account = brain.keys.account("team")
    assert account is not None
    async with opened(brain), worker(path) as one:
        async with worker(path) as other:
            shortage, standings = await one.charge(Account(terms), ticket())
            assert shortage is None
            assert [(each.what, each.remaining) for each in standings] == [("requests", 99)]
            shortage, _ = await other.charge(Account(terms), ticket())
            assert shortage is not None
            assert shortage.reason is Reason.KEY_IN_FLIGHT
            one.refund(Account(terms), 200, 200, refused=False)
            await until(lambda: not account.in_flight)
            assert (await other.charge(Account(terms), ticket()))[0] is None
        await until(lambda: not account.in_flight)  # its worker died


class Counted:
    """Quotas that several gateways share: whether a request fits is said when the test says so."""

    def __init__(self) -> None:
        self.running = 0
        self.told = asyncio.Event()
        self.asked = 0

    def enter_now(self, account: Account, tokens: int) -> Charged | None:
        assert account.terms.name == "team"
        assert tokens > 0
        return None

    async def enter(self, account: Account, tokens: int) -> Charged:
        assert account.terms.name == "team"
        self.asked += 1
        await self.told.wait()
        self.running += 1
        return None, (Standing("tokens", 1000, 1000 - tokens, 1.0),)

    def leave(self, account: Account, reserved: int, used: int, *, refused: bool) -> None:
        assert account.terms.name == "team"
        assert reserved >= used >= 0
        self.running -= 1
        assert refused or self.told.is_set()

    def abandon(self, account: Account, requests: int) -> None:
        assert account.terms.name == "team"
        self.running -= requests


async def test_a_worker_may_wait_for_what_other_gateways_have_used(path: Path) -> None:
    terms, quotas = KeyTerms("team", tokens_per_minute=1000), Counted()
    async with opened(Brain(path, fixed(4), keys={b"hash": terms}, quotas=quotas)):
        async with worker(path) as gate:
            waiting = [asyncio.create_task(gate.charge(Account(terms), ticket())) for _ in range(2)]
            await until(lambda: quotas.asked == 2)
            permit = await asyncio.wait_for(gate.enter(ticket()), 5)
            assert isinstance(permit, Permit), "nobody else waits for them"
            gate.leave(permit, Outcome.COMPLETED, None)
            quotas.told.set()
            for shortage, standings in await asyncio.gather(*waiting):
                assert shortage is None
                assert [each.what for each in standings] == ["tokens"]
            assert quotas.running == 2
            gate.refund(Account(terms), 10, 5, refused=False)
            await until(lambda: quotas.running == 1)
        await until(lambda: not quotas.running)  # its worker is gone


@pytest.mark.parametrize("told", [True, False])
async def test_a_client_that_leaves_while_its_key_is_charged_is_charged_nothing(path: Path, told: bool) -> None:
    terms, quotas = KeyTerms("team", tokens_per_minute=1000), Counted()
    async with opened(Brain(path, fixed(4), keys={b"hash": terms}, quotas=quotas)), worker(path) as gate:
        waiting = asyncio.create_task(gate.charge(Account(terms), ticket()))
        await until(lambda: quotas.asked)
        if told:
            quotas.told.set()
            await until(lambda: waiting.done() or gate._asked == {})
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if waiting.cancelled():
            quotas.told.set()
        else:
            gate.refund(Account(terms), 10, 0, refused=True)
        await until(lambda: quotas.told.is_set() and not quotas.running)


async def test_a_worker_that_dies_while_its_keys_are_charged_is_charged_nothing(path: Path) -> None:
    terms, quotas = KeyTerms("team", tokens_per_minute=1000), Counted()
    async with opened(Brain(path, fixed(4), keys={b"hash": terms}, quotas=quotas)) as brain:
        async with worker(path) as gate:
            waiting = asyncio.create_task(gate.charge(Account(terms), ticket()))
            await until(lambda: quotas.asked)
        waiting.cancel()
        await until(lambda: not brain.desks.pulses)
        quotas.told.set()
        await asyncio.sleep(0.02)
        assert not quotas.running


async def test_a_client_that_leaves_as_its_key_is_charged_gives_it_back(path: Path) -> None:
    terms = KeyTerms("team", requests_per_minute=100, max_in_flight=1)
    brain = Brain(path, fixed(4), keys={b"hash": terms})
    account = brain.keys.account("team")
    assert account is not None
    async with opened(brain), worker(path) as gate:
        for turns in range(4):
            charging = asyncio.create_task(gate.charge(Account(terms), ticket()))
            for _ in range(turns):
                await asyncio.sleep(0)
            if charging.cancel():
                await asyncio.gather(charging, return_exceptions=True)
            else:
                gate.refund(Account(terms), 200, 0, refused=True)
            await asyncio.sleep(0.02)
            assert not account.in_flight
            assert next(account.standings(time.monotonic())).remaining == 100


async def test_a_key_that_was_taken_away_is_refused_though_the_worker_has_not_heard_of_it(path: Path) -> None:
    terms = KeyTerms("team", requests_per_minute=100)
    async with opened(Brain(path, fixed(4), keys={b"hash": terms})) as brain, worker(path) as gate:
        brain.keys.replace({})
        with pytest.raises(Revoked):
            await gate.charge(Account(terms), ticket())
        gate.refund(Account(terms), 200, 200, refused=True)  # of one that began before; there is nothing to count it on
        brain.keys.replace(None)
        assert await gate.charge(Account(terms), ticket()) == (None, [])  # no key is asked for any more


async def test_a_word_that_makes_no_sense_ends_the_connection_and_not_the_brain(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(Brain(path, fixed(1))) as brain, worker(path) as gate:
        held = await permit(gate)
        gate._give_back(held.ticket.id, Outcome.COMPLETED, None)
        gate._give_back(held.ticket.id, Outcome.COMPLETED, None)
        await until(lambda: "cannot be carried out" in caplog.text)
        await until(lambda: brain.desks.pulses)  # it came again
        gate.leave(held, Outcome.COMPLETED, None)
        await until(lambda: not brain.running)


class Written:
    """What goes to a worker, instead of a socket."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def get_write_buffer_size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


class Line:
    """A worker's end and the desk it speaks with, without a socket between: what it says is read at once, or not."""

    def __init__(self, brain: Brain) -> None:
        self.said, self.answers, self.heard = Written(), Written(), list[tuple[Kind, Any]]()
        self.worker, self.desk, self._reader = Channel(), brain.desks._seat(), Channel()
        self.worker.connection_made(self.said)  # type: ignore[arg-type] # as much of a transport as it uses
        self.desk.connection_made(self.answers)  # type: ignore[arg-type] # the same
        self._reader.take = lambda kind, payload: self.heard.append((kind, heard(payload)))

    def read(self) -> list[tuple[Kind, Any]]:
        """Have the desk read all that was said as one; what it answers at once."""
        said, self.said.data = self.said.data, b""
        self.desk.data_received(said)
        answers, self.answers.data = self.answers.data, b""
        self.heard.clear()
        self._reader.data_received(answers)
        return self.heard


def ended(asked: Ticket) -> Record:
    return Record("id", asked, CHAT, "POST", "/", Timeline(1.0), Outcome.COMPLETED, 200)


async def test_whoever_asks_waits_for_nothing_that_nobody_waits_for(path: Path) -> None:
    """Outputs, finished requests and what they teach come after the answers, though they were told before."""
    brain = Brain(path, fixed(1))
    line = Line(brain)
    first, second = ticket(), ticket()
    line.worker.send(Kind.OFFER, TICKETS.dumps(first))
    ((kind, permit),) = line.read()
    assert (kind, permit[0]) == (Kind.PERMIT, first.id)
    untaught = brain.estimator.estimate(second.shape, second.client)
    line.worker.send(Kind.PROGRESS, PROGRESS.pack(first.id, 1, time.monotonic()))
    line.worker.say(Kind.LEAVE, first.id, Outcome.COMPLETED.value, (1000, 900, None), 0.0)
    line.worker.send(Kind.RECORD, RECORDS.dumps(ended(first)))
    line.worker.send(Kind.PROGRESS, PROGRESS.pack(second.id, 1, time.monotonic()))
    line.worker.send(Kind.OFFER, TICKETS.dumps(second))
    ((kind, permit),) = line.read()
    assert (kind, permit[0]) == (Kind.PERMIT, second.id), "the place that it needs was given back before"
    (books,) = brain.controller._pool.books
    assert books.window.firsts == 1, "an output is told before its request ends"
    assert brain.records == []
    assert brain.estimator.estimate(second.shape, second.client) == untaught
    await asyncio.sleep(0)
    assert brain.estimator.estimate(second.shape, second.client) != untaught
    assert brain.records == [], "somebody asked meanwhile: there may be more of them"
    await asyncio.sleep(0)
    assert [record.request_id for record in brain.records] == ["id"]
    brain.gate.close()


async def test_records_of_a_crowd_are_passed_on_in_turn_with_questions_and_all_of_them(path: Path) -> None:
    brain = Brain(path, fixed(1))
    line = Line(brain)
    asked = ticket()
    for _ in range(1_100):
        line.worker.send(Kind.RECORD, RECORDS.dumps(ended(asked)))
    line.read()
    assert len(brain.records) == 100, "those that are more than may wait"
    await asyncio.sleep(0)
    assert 100 < len(brain.records) < 200
    line.worker.send(Kind.OFFER, TICKETS.dumps(asked))
    assert [kind for kind, _ in line.read()] == [Kind.PERMIT]
    line.desk.connection_lost(None)
    assert len(brain.records) == 1_100, "a worker that is gone had said them"
    assert not brain.running
    brain.gate.close()


async def test_a_record_that_makes_no_sense_ends_the_connection_and_not_the_brain(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    brain = Brain(path, fixed(1))
    line = Line(brain)
    line.worker.send(Kind.RECORD, b"nonsense")
    line.worker.send(Kind.PROGRESS, b"nonsense")
    line.worker.send(Kind.RECORD, RECORDS.dumps(ended(ticket())))
    line.read()
    await asyncio.sleep(0)
    for kind in (Kind.RECORD, Kind.PROGRESS):
        assert f"({kind.name}) cannot be carried out" in caplog.text
    assert len(brain.records) == 1
