"""The load generator: arrivals, retries, what counts as done, and its bounds."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from gateway.emulator.calls import Pool, request_bytes
from gateway.emulator.load import Ask, Fate, Load, Outcome, Plan, Result, Snapshot, percentile
from gateway.emulator.profiles import FLAT
from gateway.emulator.scenario import chat
from gateway.emulator.server import EmulatedServer
from tests.emulator.helpers import until
from tests.emulator.scripted import CLOSE, END, SILENCE, Scripted, reply, stream

BUSY = reply(429, retry_after_ms="10")
OK = reply(200)
DONE = b"data: [DONE]\n\n"


def ask(*, streamed: bool = False) -> Ask:
    return Ask("/v1/chat/completions", b"{}", stream=streamed, kind="chat")


ONE = Plan(lambda _: ask(), rate=1000.0, duration=1.0, timeout=5.0, max_requests=1, grace=20.0)
STREAM = replace(ONE, mix=lambda _: ask(streamed=True))


async def one(script: Sequence[bytes], plan: Plan = ONE) -> tuple[Outcome, Result, Scripted]:
    async with Scripted(script) as server:
        result = await Load(server.url, plan).run()
    (outcome,) = result.outcomes
    return outcome, result, server


# ------------------------------------------------------------------------------------------------------ retries


async def test_a_refused_request_comes_back_and_says_so() -> None:
    outcome, result, server = await one([BUSY, reply(503, retry_after_ms="10"), OK])
    assert (outcome.fate, outcome.attempts, result.refusals) == (Fate.GOOD, 3, 2)
    assert [asked["x-stainless-retry-count"] for asked in server.asked] == ["0", "1", "2"]
    assert {asked["x-stainless-read-timeout"] for asked in server.asked} == {"5"}
    assert result.attempts_per_request == 3.0


async def test_two_retries_and_no_more() -> None:
    outcome, _, server = await one([BUSY])
    assert (outcome.fate, len(server.asked)) == (Fate.REFUSED, 3)


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (reply(429, x_should_retry="false"), Fate.REFUSED),
        (reply(429, retry_after="121"), Fate.REFUSED),
        (reply(400), Fate.FAILED),
    ],
    ids=["told not to", "told to wait long", "its own fault"],
)
async def test_what_is_not_retried(answer: bytes, fate: Fate) -> None:
    outcome, _, server = await one([answer, OK])
    assert (outcome.fate, len(server.asked)) == (fate, 1)


async def test_a_connection_that_breaks_is_retried() -> None:
    outcome, result, server = await one([CLOSE, OK])
    assert (outcome.fate, len(server.asked), result.failures) == (Fate.GOOD, 2, 1)


async def test_silence_is_a_timeout_and_retried() -> None:
    outcome, result, server = await one([SILENCE, OK], replace(ONE, timeout=0.1))
    assert (len(server.asked), result.timeouts) == (2, 1)
    assert outcome.fate is Fate.LATE  # complete, but not within the timeout from the first attempt


async def test_nobody_there_is_retried_too() -> None:
    async with Scripted([OK]) as server:
        url = server.url
    result = await Load(url, replace(ONE, max_retries=1)).run()
    (outcome,) = result.outcomes
    assert (outcome.fate, outcome.attempts, result.failures) == (Fate.FAILED, 2, 2)


async def test_the_real_sdk_is_served_the_same_script_in_as_many_calls() -> None:
    script = [BUSY, reply(503, retry_after_ms="10"), reply(200, x_request_id="1")]
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]
    async with Scripted(script) as server, openai.AsyncOpenAI(base_url=server.url, api_key="none", timeout=5) as client:
        await client.chat.completions.create(model="tiny", messages=messages)
    _, _, ours = await one(script)
    for name in ("x-stainless-retry-count", "x-stainless-read-timeout", "x-stainless-lang"):
        assert [asked[name] for asked in ours.asked] == [asked[name] for asked in server.asked]


# ------------------------------------------------------------------------------------------------------ streams


async def test_a_stream_is_done_at_its_end_mark() -> None:
    outcome, _, _ = await one([stream(b"data: {}\n\n", b"data: [DO", b"NE]\n\n") + END], STREAM)
    assert outcome.fate is Fate.GOOD
    assert outcome.ttft is not None
    assert 0 < outcome.ttft <= outcome.end - outcome.arrival


@pytest.mark.parametrize(
    "answer",
    [
        stream(b"data: {}\n\n") + END,
        stream(b'data: {"error":{}}\n\n', DONE) + END,
        stream(b"data: {}\n\n") + b"nonsense\r\n",
    ],
    ids=["no end mark", "an error inside", "not HTTP"],
)
async def test_a_stream_that_breaks_is_the_callers_to_see(answer: bytes) -> None:
    outcome, result, server = await one([answer, stream(DONE) + END], STREAM)
    assert (outcome.fate, len(server.asked), result.failures) == (Fate.FAILED, 1, 1)
    assert outcome.ttft is None


async def test_a_stream_that_stalls_times_out_and_is_not_retried() -> None:
    outcome, result, server = await one([stream(b"data: {}\n\n")], replace(STREAM, timeout=0.1))
    assert (outcome.fate, len(server.asked), result.timeouts) == (Fate.TIMEOUT, 1, 1)


# ----------------------------------------------------------------------------------------- arrivals and bounds


async def test_arrivals_are_of_the_seed_and_of_the_rate() -> None:
    async with Scripted([OK]) as server:
        plan = Plan(lambda _: ask(), rate=900.0, duration=0.333, grace=10.0)
        runs = [await Load(server.url, replace(plan, seed=seed)).run() for seed in (1, 1, 2)]
    arrivals = [sorted(outcome.arrival for outcome in run.outcomes) for run in runs]
    assert arrivals[0] == arrivals[1] != arrivals[2]
    assert 240 < runs[0].offered < 360
    assert all(run.count(Fate.GOOD) == run.offered for run in runs)
    assert all(0 < arrival < 0.333 for arrival in arrivals[0])


async def test_a_connection_is_used_again() -> None:
    async with Scripted([OK]) as server:
        host, port = server.url.removeprefix("http://").split(":")
        pool = Pool(host, int(port))
        for _ in range(3):
            connection = await pool.take()
            answer = await connection.send(request_bytes("/x", host, "text/plain", b"x", {}), 5.0, stream=False)
            assert answer.complete
            pool.give_back(connection)
        pool.close()
    assert (server.connections, len(server.asked)) == (1, 3)


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    for closing in (reply(200, connection="close"), OK + CLOSE):
        async with Scripted([closing]) as server:
            result = await Load(server.url, replace(ONE, rate=20.0, max_requests=5)).run()
        assert result.count(Fate.GOOD) == server.connections == 5


async def test_the_mix_is_of_the_seed() -> None:
    def drawn(seed: int) -> list[bytes]:
        chance = random.Random(seed)
        mix = chat("tiny", (1, 9), (1, 9))
        return [mix(chance).body for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)


async def test_number_and_time_are_bounded() -> None:
    async with Scripted([SILENCE]) as server:
        plan = Plan(lambda _: ask(), rate=1000.0, duration=60.0, max_requests=7)
        result = await Load(server.url, plan).run()
    assert Counter(outcome.fate for outcome in result.outcomes) == {Fate.CUT: 7}


async def test_a_run_that_is_cut_frees_the_engine() -> None:
    async with EmulatedServer(replace(FLAT, base=60.0), ("tiny",)) as server:
        plan = Plan(chat("tiny", (5, 5), (5, 5)), rate=200.0, duration=0.2)
        result = await Load(server.url, plan).run()
        await until(server, running=0, waiting=0)
    assert result.count(Fate.CUT) == result.offered
    assert server.state()["aborted"] > 10


async def test_a_fault_of_its_own_is_not_the_servers() -> None:
    def broken(_: random.Random) -> Ask:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Load("http://127.0.0.1:9", replace(ONE, mix=broken)).run()


@pytest.mark.parametrize("url", ["https://x", "x:80", "http://"])
def test_only_plain_http_is_spoken(url: str) -> None:
    with pytest.raises(ValueError, match=f"url: '{url}' given, http://host:port expected"):
        Load(url, ONE)


# ------------------------------------------------------------------------------------------------- the figures


def outcomes() -> tuple[Outcome, ...]:
    good = [Outcome("chat", at / 10, at / 10 + 0.5, 1, Fate.GOOD, 0.1 + at / 1000) for at in range(100)]
    return (*good, Outcome("long", 1.0, 9.0, 2, Fate.LATE, 7.0), Outcome("chat", 1.0, 2.0, 3, Fate.REFUSED, None))


def test_the_figures_of_a_run() -> None:
    result = Result(outcomes(), 10.0, 106, 3, 1, 0, 0.0)
    assert (result.offered, result.count(Fate.LATE), result.count(Fate.GOOD)) == (102, 1, 100)
    assert result.goodput() == pytest.approx(9.5)  # five ended after the last arrival
    assert result.goodput(5.0, 6.0) == pytest.approx(10.0)
    assert result.latency(0.5) == pytest.approx(0.5)
    assert result.ttft(0.0) == pytest.approx(0.1)
    assert result.ttft(1.0, "chat") == pytest.approx(0.199)
    assert result.ttft(0.5, "long") is None
    assert result.attempts_per_request == pytest.approx(106 / 102)


def test_a_percentile_lies_between_ranks() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == pytest.approx(2.5)
    assert percentile([4.0, 1.0, 2.0, 3.0], 1.0) == 4.0


async def test_a_live_view_ends_with_the_whole_run() -> None:
    seen: list[Snapshot] = []
    async with EmulatedServer(replace(FLAT, base=0.001), ("tiny",)) as server:
        plan = Plan(chat("tiny", (5, 5), (2, 2)), rate=100.0, duration=1.2, grace=10.0)
        result = await Load(server.url, plan).run_watched(seen.append, every=0.1)
    last = seen[-1]
    assert len(seen) > 5
    assert [snapshot.offered for snapshot in seen] == sorted(snapshot.offered for snapshot in seen)
    assert (last.offered, last.good, last.in_flight) == (result.offered, result.count(Fate.GOOD), 0)
    assert (last.elapsed, last.attempts) == (1.2, result.attempts)
    assert len(last.per_second) == 1
    assert 0 < last.per_second[0] <= last.good
    assert last.latency_p50 == result.latency(0.5)
