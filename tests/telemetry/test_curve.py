"""The concurrency curve: against the emulated engine's own, and directed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import pytest

from gateway.emulator.engine import Engine, Profile
from gateway.emulator.profiles import C550_ASR, QWEN3_8B_910B
from gateway.model import Backend, Outcome, Permit, Record, Usage
from gateway.simulator.clients import Call, Habits
from gateway.simulator.crowd import Crowd
from gateway.simulator.fleet import Node
from gateway.simulator.setup import Load
from gateway.simulator.workload import WORKLOADS, wants
from gateway.simulator.world import World
from gateway.telemetry import curve as curve_module
from gateway.telemetry.curve import Answer, Curves, Level, Life, Objectives
from gateway.telemetry.spread import Spread
from tests.telemetry.emulated import Observed
from tests.telemetry.helpers import record, ticket, timeline

STEPS = (1, 5, 10, 20, 50, 100, 50, 20, 10, 5, 1)  # the concurrencies of the public C550 table, up and down
DAY = 86_400.0


# ---------------------------------------------------------------------------------------------- the engine's own curve


@dataclass(frozen=True)
class Truth:
    """What a benchmark straight at the engine gives at a fixed concurrency."""

    latency: float
    latency_p95: float
    latency_p99: float
    ttft: float
    tpot: float
    requests: float
    tokens: float


def truth(profile: Profile, workload: str, concurrency: int, rounds: int = 40) -> Truth:
    """Each of ``concurrency`` users asks again at once; the first three rounds are not counted."""
    engine, chance, lengths = Engine(profile), random.Random(concurrency), WORKLOADS[workload]()
    started: dict[int, float] = {}
    first: dict[int, float] = {}
    output: dict[int, int] = {}
    latencies, ttfts, tpots, began, now = [], [], [], 0.0, 0.0

    def submit() -> None:
        key = len(started)
        prompt, output[key] = chance.choice(lengths)
        engine.submit(key, prompt, output[key], now)
        started[key] = now

    for _ in range(concurrency):
        submit()
    finished, tokens = 0, 0
    while finished < rounds * concurrency:
        now = engine.next_event() or now
        for emission in engine.advance(now):
            first.setdefault(emission.key, now)
            if not emission.finished:
                continue
            finished += 1
            if finished == 3 * concurrency:
                began = now
            elif finished > 3 * concurrency:
                latencies.append(now - started[emission.key])
                ttfts.append(first[emission.key] - started[emission.key])
                tpots.append((now - first[emission.key]) / (output[emission.key] - 1))
                tokens += output[emission.key]
            submit()
    ordered, count, seconds = sorted(latencies), len(latencies), now - began
    return Truth(
        sum(latencies) / count,
        ordered[int(0.95 * count)],
        ordered[int(0.99 * count)],
        sum(ttfts) / count,
        sum(tpots) / count,
        count / seconds,
        tokens / seconds,
    )


class Users:
    """So many users at a time, each of whom asks again as soon as the answer is there."""

    def __init__(self, world: World, front: Observed, workload: str, streamed: float) -> None:
        self._world = world
        self._front = front
        self._wants = wants(workload, "users", clients=5, streamed=streamed, first_id=1, label="users")
        self._chance = random.Random(0)
        self._wanted = self._live = 0

    def set(self, wanted: int) -> None:
        self._wanted = wanted
        while self._live < wanted:
            self._ask()

    def _ask(self) -> None:
        self._live += 1
        Call(self._world, self._front, next(self._wants), Habits(), self._chance, self._answered)

    def _answered(self, _: Call) -> None:
        self._live -= 1
        if self._live < self._wanted:
            self._world.after(0.0005, self._ask)


def learned(
    profile: Profile, workload: str, *, hold: float, streamed: float = 1.0, steps: Sequence[int] = STEPS
) -> list[Level]:
    world, curves = World(), Curves(DAY)
    node = Node(world, "a", Engine(profile))
    front = Observed(world, [node], [Backend("a", "http://a", limit=120)], [curves], curves)
    users = Users(world, front, workload, streamed)
    for number, wanted in enumerate(steps):
        world.at(hold * number, lambda wanted=wanted: users.set(wanted))  # type: ignore[misc]
    world.run(hold * len(steps))
    return list(curves.levels("a", world.now, Objectives()))


def spread_of(found: Spread | None) -> Spread:
    assert found is not None
    return found


def test_on_the_emulated_c550_it_is_that_engine_s_own_curve_within_5_percent() -> None:
    levels = learned(C550_ASR, "asr", hold=60.0)
    assert [level.low for level in levels if level.enough] == [1, 5, 10, 20, 50, 100]
    for level in levels:
        if not level.enough:
            continue
        wanted = truth(C550_ASR, "asr", round(level.level))
        latency = spread_of(level.latency)
        assert latency.mean == pytest.approx(wanted.latency, rel=0.05)
        assert latency.percentiles[95.0] == pytest.approx(wanted.latency_p95, rel=0.05)
        assert latency.percentiles[99.0] == pytest.approx(wanted.latency_p99, rel=0.05)
        assert spread_of(level.ttft).mean == pytest.approx(wanted.ttft, rel=0.05)
        assert spread_of(level.tpot).mean == pytest.approx(wanted.tpot, rel=0.05)
        assert level.requests_rate == pytest.approx(wanted.requests, rel=0.05)
        assert level.tokens_rate == pytest.approx(wanted.tokens, rel=0.05)


def test_answers_in_one_piece_give_the_same_curve_without_ttft() -> None:
    levels = {level.low: level for level in learned(C550_ASR, "asr", hold=25.0, streamed=0.0) if level.enough}
    for at in (5, 20, 100):
        level, wanted = levels[at], truth(C550_ASR, "asr", at)
        assert spread_of(level.latency).mean == pytest.approx(wanted.latency, rel=0.05)
        assert level.requests_rate == pytest.approx(wanted.requests, rel=0.05)
        assert level.tokens_rate == pytest.approx(wanted.tokens, rel=0.05)
        assert (level.ttft, level.tpot) == (None, None)


def test_under_random_arrivals_with_the_limit_found_by_itself() -> None:
    """Levels change with every request; what is said of one is still what the engine gives there."""
    world, curves = World(), Curves(DAY)
    node = Node(world, "a", Engine(C550_ASR))
    front = Observed(world, [node], [Backend("a", "http://a")], [curves], curves)
    rates = tuple((30.0 * number, 24.0 + 8.0 * (number % 5 - 2)) for number in range(20))
    Crowd(world, front, Load("asr", rates=rates), "random", 0, 600.0, [])
    world.run(600.0)
    levels = [level for level in curves.levels("a", world.now, Objectives()) if level.held >= 10.0]
    assert len(levels) >= 4  # where the law holds it most of the time
    for level in levels:
        wanted = truth(C550_ASR, "asr", round(level.level))
        assert spread_of(level.latency).mean == pytest.approx(wanted.latency, rel=0.05)
        assert spread_of(level.tpot).mean == pytest.approx(wanted.tpot, rel=0.05)
        assert level.tokens_rate == pytest.approx(wanted.tokens, rel=0.05)


def test_an_engine_that_changes_shows() -> None:
    world, curves = World(), Curves(DAY)
    node = Node(world, "a", Engine(C550_ASR), ((120.0, 0.5),))  # from then on half as fast
    front = Observed(world, [node], [Backend("a", "http://a", limit=20)], [curves], curves)
    Users(world, front, "asr", 1.0).set(20)
    found = {}
    for at in (100.0, 560.0):
        world.run(at)
        found[at] = next(level for level in curves.levels("a", world.now, Objectives()) if level.low == 20)
    before, after = found[100.0], found[560.0]
    assert spread_of(after.latency).mean == pytest.approx(2 * spread_of(before.latency).mean, rel=0.05)
    assert after.requests_rate == pytest.approx(before.requests_rate / 2, rel=0.05)


def test_levels_that_were_passed_through_are_not_told_of() -> None:
    levels = learned(QWEN3_8B_910B, "notes", hold=60.0, steps=(2, 40, 2))
    seen = [level for level in levels if level.held >= 2.0]
    assert {level.low for level in seen} == {2, 40}


# ------------------------------------------------------------------------------------------------------------ directed


class Hand:
    """Permits and records made by hand. Each request gives one event a token, at the even pace of its life."""

    def __init__(self, age: float = DAY) -> None:
        self.curves = Curves(age)
        self.outputs = 0
        self._permits = 0

    def begin(self, now: float, *, backend: str = "a", ticket_id: int | None = None) -> Permit:
        self._permits += 1
        asked = replace(ticket(), id=ticket_id or self._permits)
        permit = Permit(self._permits, asked, backend, now, None)  # type: ignore[arg-type]
        self.curves.granted(permit, self.outputs)
        return permit

    def end(self, permit: Permit, now: float, outcome: Outcome = Outcome.COMPLETED, tokens: int = 10) -> Record:
        self.outputs += tokens
        self.curves.settled(permit, outcome, self.outputs, now)
        line = timeline(events=0)
        line.received = line.admitted = line.sent = permit.granted_at
        for event in range(tokens):
            line.output(1, permit.granted_at + (now - permit.granted_at) * (event + 1) / tokens)
        line.finished = now
        usage = Usage(100, tokens)
        return record(ticket=permit.ticket, timeline=line, outcome=outcome, backend=permit.backend, usage=usage)

    def serve(self, began: float, ended: float, **record_changes: object) -> None:
        done = self.end(self.begin(began), ended)
        self.curves.observe(replace(done, **record_changes))  # type: ignore[arg-type]

    def levels(self, now: float, objectives: Objectives | None = None, model: str | None = None) -> dict[int, Level]:
        found = self.curves.levels("a", now, objectives or Objectives(), model)
        return {level.low: level for level in found}


def test_a_request_s_latency_belongs_to_the_level_that_it_lived_through() -> None:
    """Ten seconds alone and ten beside two others: two in the mean, for it; three for the others."""
    hand = Hand()
    lone = hand.begin(0.0)
    others = [hand.begin(10.0), hand.begin(10.0)]
    for each in others:
        hand.curves.observe(hand.end(each, 20.0))
    hand.curves.observe(hand.end(lone, 20.0))
    hand.begin(20.0)  # a span ends with an arrival
    rungs = hand.curves._meters["a"].rungs
    assert {index + 1: len(list(found.answers.since(0.0))) for index, found in rungs.items()} == {1: 0, 2: 1, 3: 2}


def test_a_span_whose_level_swung_counts_for_no_level() -> None:
    hand = Hand()
    crowd = [hand.begin(0.0) for _ in range(10)]
    for each in crowd[:9]:
        hand.end(each, 1.0)
    hand.end(crowd[9], 2.0)  # one second with ten, one with one
    hand.begin(2.0)
    assert hand.levels(2.0) == {}


def test_idle_time_counts_for_nothing() -> None:
    hand = Hand()
    for start in range(0, 1000, 100):
        hand.serve(start, start + 0.5)
    hand.begin(1000.0)
    (level,) = hand.levels(1000.0).values()
    assert level.requests_rate == pytest.approx(2.0)
    assert level.held == pytest.approx(5.0)
    assert level.tokens_rate == pytest.approx(20.0)


def test_answers_that_end_together_belong_to_one_span() -> None:
    """A batch of five that ends in one step, and begins again a moment later, ran at five."""
    hand = Hand()
    for start in range(20):
        batch = [hand.begin(start * 2.0 + 0.001 * number) for number in range(5)]
        for each in batch:
            hand.curves.observe(hand.end(each, start * 2.0 + 1.998))
    hand.begin(40.0)
    assert set(hand.levels(40.0)) == {5}
    assert hand.levels(40.0)[5].requests_rate == pytest.approx(2.5, rel=0.01)


def test_what_was_not_completed_takes_places_and_gives_no_answers() -> None:
    hand = Hand()
    for start in range(0, 20, 2):
        hand.curves.observe(hand.end(hand.begin(start), start + 1.0))
        hand.curves.observe(hand.end(hand.begin(start + 1.0), start + 2.0, Outcome.CLIENT_GONE, tokens=0))
    hand.begin(20.0)
    level = hand.levels(20.0)[1]
    assert level.requests == 10
    assert level.requests_rate == pytest.approx(0.5)


def test_an_event_of_several_tokens_counts_as_what_the_engine_reports() -> None:
    hand = Hand()
    for start in range(400):
        permit = hand.begin(start)
        done = hand.end(permit, start + 1.0, tokens=10)
        hand.curves.observe(replace(done, usage=Usage(100, 30)))
    hand.begin(400.0)
    assert hand.levels(400.0)[1].tokens_rate == pytest.approx(30.0, rel=0.02)


def test_without_usage_events_are_tokens_and_a_whole_answer_is_estimated() -> None:
    hand = Hand()
    for start in range(50):
        permit = hand.begin(start)
        done = hand.end(permit, start + 1.0, tokens=0 if start % 2 else 10)
        hand.curves.observe(replace(done, usage=None))
    hand.begin(50.0)
    level = hand.levels(50.0)[1]
    assert level.tokens_rate == pytest.approx((10 + 200) / 2, rel=0.05)  # estimated are 200
    assert spread_of(level.ttft).count == spread_of(level.tpot).count == 25


def test_an_answer_without_tokens_counts_as_a_request() -> None:
    hand = Hand()
    embeds = replace(ticket(), shape=replace(ticket().shape, generates=False, stream=False))
    for start in range(20):
        permit = hand.begin(start)
        done = hand.end(permit, start + 1.0, tokens=0)
        hand.curves.observe(replace(done, usage=None, ticket=replace(embeds, id=permit.ticket.id)))
    hand.begin(20.0)
    level = hand.levels(20.0)[1]
    assert level.requests_rate == pytest.approx(1.0)
    assert level.tokens_rate == 0.0


def test_a_stream_of_one_token_has_no_pace() -> None:
    hand = Hand()
    for start in range(5):
        hand.curves.observe(hand.end(hand.begin(start), start + 1.0, tokens=1))
    hand.begin(5.0)
    level = hand.levels(5.0)[1]
    assert level.tpot is None
    assert spread_of(level.ttft).mean == pytest.approx(1.0)


def test_old_evidence_is_forgotten() -> None:
    hand = Hand(age=100.0)
    for start in range(10):
        hand.serve(start, start + 1.0)
    hand.begin(10.0)
    assert hand.levels(50.0)[1].seen == pytest.approx(40.0)
    assert hand.levels(200.0) == {}
    hand = Hand(age=100.0)
    for start in (*range(10), *range(500, 510)):
        hand.serve(start, start + 1.0)
    hand.begin(510.0)
    assert hand.levels(510.0)[1].requests == 10  # what was before began anew, its held time too
    assert hand.levels(510.0)[1].held == pytest.approx(10.0)


def test_several_models_share_the_levels_of_their_backend() -> None:
    hand = Hand()
    for start in range(40):
        permit = hand.begin(start)
        shape = replace(ticket().shape, model="small" if start % 4 else "large")
        done = hand.end(permit, start + 1.0)
        hand.curves.observe(replace(done, ticket=replace(permit.ticket, shape=shape)))
    hand.begin(40.0)
    assert hand.curves.backends == ("a",)
    assert hand.curves.models("a") == ("large", "small")
    every, small = hand.levels(40.0)[1], hand.levels(40.0, model="small")[1]
    assert (every.requests, small.requests) == (40, 30)
    assert small.requests_rate == pytest.approx(0.75 * every.requests_rate)
    assert small.tokens_rate == pytest.approx(0.75 * every.tokens_rate)


def test_names_beyond_the_bound_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_module, "MODELS", 3)
    hand = Hand()
    for start in range(30):
        permit = hand.begin(start)
        shape = replace(ticket().shape, model=f"m{start}")
        hand.curves.observe(replace(hand.end(permit, start + 1.0), ticket=replace(permit.ticket, shape=shape)))
    assert hand.curves.models("a") == ("m0", "m1", "m2", "other")


def test_a_request_that_got_a_second_permit_counts_where_it_ended() -> None:
    """Its first backend could not be reached: the ticket goes on to another."""
    hand = Hand()
    first = hand.begin(0.0, backend="dead", ticket_id=77)
    hand.end(first, 0.1, Outcome.CONNECT_FAILED, tokens=0)
    for start in range(1, 8):
        second = hand.begin(start, ticket_id=77)
        hand.curves.observe(hand.end(second, start + 1.0))
    hand.begin(8.0)
    assert hand.levels(8.0)[1].requests == 7
    assert list(hand.curves.levels("dead", 8.0, Objectives())) == []


def test_records_that_say_nothing_of_a_level_are_left_out() -> None:
    hand = Hand()
    hand.curves.observe(record(ticket=None))  # never came to admission
    hand.curves.observe(record())  # was never granted anything
    done = hand.end(hand.begin(0.0), 1.0)
    line = replace(done.timeline, finished=None, last_output=None)
    hand.curves.observe(replace(done, timeline=line))
    done = hand.end(hand.begin(1.0), 2.0)
    hand.curves.observe(replace(done, backend=None))
    assert not [row for rung in hand.curves._meters["a"].rungs.values() for row in rung.answers.since(0.0)]


def test_an_open_session_is_no_work_in_flight() -> None:
    hand = Hand()
    open_one = replace(ticket(), id=99, shape=replace(ticket().shape, session=True, stream=False))
    permit = Permit(99, open_one, "a", 0.0, None)  # type: ignore[arg-type]
    hand.curves.granted(permit, 0)
    for start in range(10):
        hand.serve(start, start + 1.0)
    hand.begin(10.0)
    hand.curves.settled(permit, Outcome.COMPLETED, 0, 10.5)
    hand.curves.observe(record(ticket=open_one))
    assert set(hand.levels(10.5)) == {1}
    assert hand.levels(10.5)[1].requests == 10


def test_a_life_of_no_length_was_spent_alone() -> None:
    hand = Hand()
    hand.begin(0.0)
    done = hand.end(hand.begin(5.0), 5.0, tokens=0)
    assert hand.curves._lives == {2: Life(1.0, 300)}
    hand.curves.observe(done)
    assert hand.curves._lives == {}


def test_what_nobody_claims_is_forgotten_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_module, "UNCLAIMED", 10)
    hand = Hand()
    for start in range(50):
        hand.end(hand.begin(start), start + 1.0)
    assert len(hand.curves._lives) == 10


# ----------------------------------------------------------------------------------------------- objectives, and alone

ANSWER = Answer(0.0, latency=2.0, ttft=0.5, tpot=0.05, tokens=31.0, lane=0, model=0)


@pytest.mark.parametrize(
    ("objectives", "answer", "met"),
    [
        (Objectives({"short": 0.5}, 0.05), ANSWER, True),
        (Objectives({"short": 0.4}), ANSWER, False),
        (Objectives({"long": 0.1}), ANSWER, True),  # not its lane
        (Objectives(tpot=0.04), ANSWER, False),
        (Objectives(tpot=0.04), ANSWER._replace(tpot=nan), True),
        (Objectives({"short": 0.5}, 0.05), ANSWER._replace(ttft=nan, tpot=nan), True),  # within 0.5 + 31 * 0.05
        (Objectives({"short": 0.4}, 0.05), ANSWER._replace(ttft=nan, tpot=nan), False),
        (Objectives(tpot=0.05), ANSWER._replace(ttft=nan, tpot=nan), True),  # nothing bounds its beginning
    ],
)
def test_what_is_in_time(objectives: Objectives, answer: Answer, met: bool) -> None:
    assert objectives.met("short", answer) is met


def test_the_share_in_time_is_told_where_there_are_objectives() -> None:
    hand = Hand()
    for start in range(20):
        hand.serve(start, start + (0.5 if start % 4 else 1.0))
    hand.begin(20.0)
    assert hand.levels(20.0)[1].in_objective is None
    assert hand.levels(20.0, Objectives(tpot=0.07))[1].in_objective == 0.75


def test_the_first_token_at_the_lowest_levels() -> None:
    hand = Hand()
    assert hand.curves.first_token_alone("a", 0.0) is None
    for start in range(4):
        hand.serve(start, start + 1.0)
    assert hand.curves.first_token_alone("a", 4.0) is None  # too few to tell
    for start in range(4, 8, 2):
        pair = [hand.begin(start), hand.begin(start)]
        for each in pair:
            hand.curves.observe(hand.end(each, start + 2.0))
    alone = hand.curves.first_token_alone("a", 8.0)
    assert alone is not None
    assert (round(alone[0], 3), alone[1]) == (0.15, 2)  # four of 0.1 and four of 0.2
    assert hand.curves.first_token_alone("a", 8.0 + 2 * DAY) is None


def test_the_longest_silence() -> None:
    hand = Hand()
    assert hand.curves.longest_silence("a") is None
    assert hand.curves.slowdown("a", 0.0, None) is None
    hand.serve(0.0, 3.0)
    assert hand.curves.longest_silence("a") == pytest.approx(0.3)
    hand.curves.observe(replace(hand.end(hand.begin(8.0), 18.0, tokens=0), usage=None))  # in one piece
    assert hand.curves.longest_silence("a") == pytest.approx(10.0)
    hand.serve(18.0, 19.0)
    assert 9.9 < (hand.curves.longest_silence("a") or 0.0) < 10.0  # it fades


def test_time_in_which_nothing_came_adds_up_over_clients_that_left() -> None:
    """Each of them begins the silence anew where nobody else is in flight."""
    hand = Hand()
    assert hand.curves.unheard("a", 7.0, 100.0) == 7.0  # nothing is known of it yet
    hand.serve(0.0, 1.0)
    for start in (100.0, 200.0, 300.0):
        hand.end(hand.begin(start), start + 20.0, Outcome.CLIENT_GONE, tokens=0)
    assert hand.curves.unheard("a", 0.0, 350.0) == 0.0  # it has no work
    hand.begin(400.0)
    assert hand.curves.unheard("a", 10.0, 410.0) == pytest.approx(70.0)
    assert hand.curves.unheard("a", 0.5, 410.0) == 0.5  # bytes came since
    hand.serve(410.0, 411.0)
    hand.begin(420.0)
    assert hand.curves.unheard("a", 5.0, 425.0) == pytest.approx(14.0)  # since the answer at 411
    hand.outputs += 1
    hand.begin(430.0)
    assert hand.curves.unheard("a", 5.0, 435.0) == pytest.approx(5.0)


def test_a_slower_engine_is_told_by_its_paces() -> None:
    hand = Hand()
    for start in range(700):
        pace = 0.5 if start < 400 else 0.9
        hand.serve(start, start + pace)
    slower = hand.curves.slowdown("a", 700.0, None)
    assert slower is not None
    assert slower.ratio == pytest.approx(1.8)
