"""The ring behind the status page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.model import GatewayState, LaneState, Outcome, Reason, Usage
from gateway.telemetry.history import BACKENDS, KEPT, History, percentiles
from tests.telemetry.helpers import backend_state, gateway_state, record, refused, ticket, timeline

SHORT = LaneState("short", 3, 700.0, 0.4, 1.0, 1000, 2.0)


class World:
    """A history over a state that tests change, with a clock that moves a second at each sample."""

    def __init__(self, state: GatewayState | None = None) -> None:
        self.state = state or gateway_state()
        self.now = 1000.0
        self.history = History(lambda: self.state, lambda: self.now)

    def second(self, *happen: Callable[[], None]) -> None:
        for each in happen:
            each()
        self.now += 1.0
        self.history.sample()


def ended(world: World, **changes: object) -> Callable[[], None]:
    return lambda: world.history.observe(record(**changes))


def test_a_second_counts_what_ended_in_it() -> None:
    world = World()
    failed = ended(world, outcome=Outcome.BACKEND_LOST, status=502)
    gone = ended(world, outcome=Outcome.CLIENT_GONE, status=0)
    door = [lambda: world.history.observe(refused(reason=Reason.DEADLINE))] * 2
    world.second(ended(world), ended(world), failed, gone, *door)
    world.second()
    first, second = world.history.since(0)
    assert (first.number, first.at) == (1, 1001.0)
    assert (first.completed, first.good, first.failed, first.gone) == (2, 2, 1, 1)
    assert first.shed == {"deadline": 2}
    assert first.tokens == 4 * 11
    assert (second.completed, second.failed, second.gone, second.shed.total(), second.tokens) == (0, 0, 0, 0, 0)


def test_what_never_was_work_for_an_engine_counts_only_where_it_was_refused() -> None:
    world = World()
    world.second(
        ended(world, ticket=None, lane=None),
        lambda: world.history.observe(refused(ticket=None, lane=None, reason=Reason.DRAINING)),
    )
    (sample,) = world.history.since(0)
    assert (sample.completed, sample.failed, sample.shed) == (0, 0, {"draining": 1})


@pytest.mark.parametrize(
    ("ttft", "tpot", "good"),
    [(None, None, 1), (0.6, 0.03, 1), (0.4, None, 0), (None, 0.01, 0), (0.6, 0.01, 0)],
)
def test_good_is_what_keeps_the_objectives(ttft: float | None, tpot: float | None, good: int) -> None:
    """The request's TTFT is 0.503 s, its TPOT 20 ms."""
    world = World(gateway_state(lanes=(replace(SHORT, ttft_objective=ttft),), tpot_objective=tpot))
    world.second(ended(world))
    (sample,) = world.history.since(0)
    assert (sample.completed, sample.good) == (1, good)


def test_an_answer_in_one_piece_has_no_ttft_and_keeps_the_objectives() -> None:
    world = World(gateway_state(lanes=(replace(SHORT, ttft_objective=0.001),), tpot_objective=0.001))
    whole = ticket(shape=replace(ticket().shape, stream=False))
    world.second(ended(world, ticket=whole))
    (sample,) = world.history.since(0)
    assert (sample.good, sample.ttft) == (1, ((None, None),))


def test_speed_is_of_the_last_ten_seconds_and_ttft_by_lane() -> None:
    world = World()
    short = [ended(world, timeline=timeline(backend_ttft=ttft)) for ttft in (0.1, 0.2, 9.0)]
    world.second(*short, ended(world, lane="long", timeline=timeline(backend_ttft=4.0)))
    in_short, in_long = world.history.since(0)[0].ttft
    assert in_short == pytest.approx((0.203, 9.003))
    assert in_long == pytest.approx((4.003, 4.003))
    assert world.history.since(0)[0].tpot == pytest.approx((0.02, 0.02))
    for _ in range(9):
        world.second()
    assert world.history.since(9)[0].ttft[0][0] == pytest.approx(0.203)
    world.second()
    assert world.history.since(10)[0].ttft == ((None, None), (None, None))


def test_tokens_are_the_backends_own_count_else_chunks() -> None:
    world = World()
    world.second(ended(world, usage=Usage(1, 50)), ended(world, usage=None), ended(world, usage=Usage(1, -3)))
    assert world.history.since(0)[0].tokens == 50 + 11 + 11
    assert world.history.since(0)[0].tpot == pytest.approx((0.02, 0.02))


def test_running_and_limits_are_those_at_the_seconds_end() -> None:
    world = World(gateway_state(backend_state("a", running=3, limit=8.0), backend_state("b", running=1, limit=4.5)))
    world.second()
    (sample,) = world.history.since(0)
    assert (sample.limits, sample.running, sample.queued) == ((8.0, 4.5), (3, 1), 5)


@pytest.mark.parametrize("health", ["down", "open", "half_open", "drained"])
def test_a_backend_that_is_out_adds_nothing_to_the_limit(health: str) -> None:
    world = World(gateway_state(backend_state("a", health=health), backend_state("b", health="unknown", limit=4.5)))
    world.second()
    assert world.history.since(0)[0].limits == (0.0, 4.5)


def test_many_backends_do_not_make_it_grow() -> None:
    world = World(gateway_state(*(backend_state(f"gpu{number}") for number in range(3 * BACKENDS))))
    world.second()
    assert len(world.history.since(0)[0].limits) == len(world.history.since(0)[0].running) == BACKENDS


def test_only_what_is_later_is_told() -> None:
    world = World()
    assert (world.history.last, world.history.newest, world.history.since(0)) == (0, None, ())
    for _ in range(5):
        world.second()
    assert [sample.number for sample in world.history.since(3)] == [4, 5]
    assert not world.history.since(5)
    assert world.history.newest is world.history.since(4)[0]
    for unknown in (6, -1):  # of another process, or nonsense: everything
        assert len(world.history.since(unknown)) == 5


def test_it_keeps_a_quarter_of_an_hour() -> None:
    world = World()
    for _ in range(KEPT + 50):
        world.second()
    kept = world.history.since(0)
    assert (len(kept), kept[0].number, kept[-1].number) == (KEPT, 51, KEPT + 50)
    assert len(world.history.since(10)) == KEPT


def test_rates_look_back_ten_seconds() -> None:
    world = World()
    world.second(*[ended(world)] * 5)
    assert world.history.rates.completed == 5.0
    for _ in range(4):
        world.second()
    rates = world.history.rates
    assert (rates.completed, rates.good, rates.tokens) == (1.0, 1.0, 11.0)
    for _ in range(6):
        world.second()
    assert world.history.rates.completed == 0.0  # M18: silence is told as silence


def test_refusals_are_counted_over_a_minute() -> None:
    world = World()
    door = [lambda: world.history.observe(refused(reason=Reason.QUEUE_FULL))] * 3
    world.second(*door)
    for _ in range(59):
        world.second()
    assert world.history.shed == {"queue_full": 3}
    world.second()
    assert not world.history.shed


def test_waits_are_those_of_one_lane_lately() -> None:
    world = World()
    queued = [ended(world, timeline=timeline(queued=wait)) for wait in (0.1, 0.2, 0.9)]
    long = ended(world, lane="long", timeline=timeline(queued=5.0))
    world.second(*queued, long)
    assert world.history.waits("short") == pytest.approx((0.2, 0.9))
    assert world.history.waits("long") == pytest.approx((5.0, 5.0))
    assert world.history.waits("other") == (None, None)
    for _ in range(10):
        world.second()
    assert world.history.waits("short") == (None, None)


def test_the_state_is_that_of_the_last_sample() -> None:
    world = World()
    assert world.history.state is world.state
    world.second()
    before = world.state
    world.state = gateway_state(draining=True)
    assert world.history.state is before
    world.second()
    assert world.history.state.draining


def test_percentiles_by_nearest_rank() -> None:
    assert percentiles([]) == (None, None)
    assert percentiles([3.0]) == (3.0, 3.0)
    assert percentiles([float(number) for number in range(101)]) == (50.0, 99.0)


async def test_it_samples_by_itself_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.telemetry.history._PERIOD", 0.001)
    world = World()
    world.history.start()
    async with asyncio.timeout(20):
        while world.history.last < 3:  # noqa: ASYNC110 - samples are what is waited for
            await asyncio.sleep(0.001)
    world.history.stop()
    world.history.stop()
    seen = world.history.last
    await asyncio.sleep(0.02)
    assert world.history.last == seen


def test_shares_and_hit_rates_are_those_of_the_last_minute() -> None:
    world = World()
    assert world.history.share("a") == (None, None)

    def stand(first: int, second: int, prompts: int, cached: int) -> None:
        a = backend_state("a", choices={"prefix": first}, prompt_tokens=prompts, cached_tokens=cached)
        world.state = gateway_state(a, backend_state("b", choices={"spill": second}, prompt_tokens=0, cached_tokens=0))

    stand(100, 100, 1_000, 0)
    world.history.sample()
    assert world.history.share("a") == (None, None)  # nothing was sent since
    stand(130, 110, 3_000, 1_500)
    world.history.sample()
    assert world.history.share("a") == (0.75, 0.75)
    assert world.history.share("b") == (0.25, None)
    for _ in range(61):
        world.history.sample()
    assert world.history.share("a") == (None, None)
    assert world.history.share("unknown") == (None, None)
