"""The scripts on a real store: what they do to what is there already, and to a clock that steps."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.share import Ask, Claim, Reply, Word
from gateway.sharing.scripts import claim_call, claim_reply, leave_call, live_call
from tests.admission.ledger import Ledger
from tests.sharing.server import StoreServer

pytest.importorskip("redis", reason="pip install 'inference-gateway[valkey]'")

from gateway.sharing.store import RedisStore

MINUTE = 60_000_000  # microseconds


class Client:
    """One gateway, or several, at the store."""

    def __init__(self, server: StoreServer, store: RedisStore) -> None:
        self.server = server
        self._store = store

    async def live(self, gateway: str = "a", lease: float = 10.0) -> list[int]:
        (reply,) = await self._store.run([live_call("p", gateway, lease)], 5.0)
        return reply

    async def leave(self, gateway: str = "a") -> None:
        await self._store.run([leave_call("p", gateway)], 5.0)

    async def claim(self, claim: Claim, gateway: str = "a") -> Reply:
        (reply,) = await self._store.run([claim_call("p", gateway, "h", claim)], 5.0)
        return claim_reply(claim, reply)

    async def requests(self, ask: Ask, gateway: str = "a") -> Word:
        word = (await self.claim(Claim(None, 0, ask, None), gateway)).requests
        assert word is not None
        return word

    async def places(self, ask: Ask, held: int, gateway: str = "a") -> Word:
        word = (await self.claim(Claim(ask, held, None, None), gateway)).places
        assert word is not None
        return word

    def bucket(self, limit: int) -> str:
        return f"{{p}}:requests:h:{limit}"

    def now(self) -> int:
        """Microseconds on the clock of the store."""
        seconds, fraction = re.findall(rb"\r\n(\d+)\r\n", self.server.say("TIME").replace(b"\r\n", b"\r\n\r\n"))
        return int(seconds) * 1_000_000 + int(fraction)


@pytest.fixture
async def client(store: StoreServer) -> AsyncIterator[Client]:
    redis = RedisStore(store.url)
    await redis.open()
    yield Client(store, redis)
    await redis.close()


async def test_a_bucket_is_taken_from_and_refills(client: Client) -> None:
    assert await client.requests(Ask(600, need=1, cost=1)) == Word(1, 0.1)
    word = await client.requests(Ask(600, need=600, cost=600))
    assert word.granted == 0, "the first one is missing"
    assert 0.0 < word.state < 0.1
    assert (await client.requests(Ask(600, need=599, cost=599))).granted == 599
    assert (await client.requests(Ask(600, need=1, cost=1))).granted == 0
    await asyncio.sleep(0.11)
    assert (await client.requests(Ask(600, need=1, cost=1))).granted == 1


async def test_what_is_there_is_given_beyond_what_is_needed(client: Client) -> None:
    assert (await client.requests(Ask(80, need=40, cost=40, more=10, ahead=100))).granted == 40 + 10 + 30 // 8
    assert (await client.requests(Ask(80, need=20, cost=20, more=50, ahead=100))).granted == 27
    assert (await client.requests(Ask(80, more=50, ahead=100))).granted == 0


async def test_a_debt_is_taken_whatever_is_there_and_nothing_is_given_beyond_the_whole(client: Client) -> None:
    word = await client.requests(Ask(60, need=60, cost=150))
    assert word == Word(150, 150.0)
    word = await client.requests(Ask(60, cost=10))
    assert word.granted == 10
    assert word.state == pytest.approx(160.0, abs=1.0)
    assert await client.requests(Ask(60, cost=-1000)) == Word(-1000, 0.0)
    assert client.server.say("EXISTS", client.bucket(60)) == b":0\r\n"


async def test_a_bucket_that_is_not_used_leaves_nothing(client: Client) -> None:
    await client.requests(Ask(6000, need=1, cost=10))
    assert client.server.say("EXISTS", client.bucket(6000)) == b":1\r\n"
    await asyncio.sleep(0.15)
    assert client.server.say("EXISTS", client.bucket(6000)) == b":0\r\n"


async def test_a_clock_that_stepped_back_is_noticed(client: Client) -> None:
    later = client.now() + 3600 * 1_000_000
    client.server.say("SET", client.bucket(60), f"{later + MINUTE // 2}.25 {later}")
    word = await client.requests(Ask(60, need=1, cost=1))
    assert word.granted == 1
    assert word.state == pytest.approx(31.0, abs=0.5)


async def test_a_clock_that_stepped_back_keeps_nobody_alive(client: Client) -> None:
    client.server.say("ZADD", "{p}:live", str(client.now() // 1000 + 3_600_000), "dead")
    assert await client.live("a", 0.5) == [1, 2]
    await asyncio.sleep(0.3)
    assert await client.live("a", 0.5) == [0, 2]
    await asyncio.sleep(0.3)
    assert await client.live("a", 0.5) == [0, 1]


async def test_a_store_that_forgot_is_told_and_one_that_knows_more_is_believed(client: Client) -> None:
    word = await client.requests(Ask(60, need=1, cost=1, empty=59.5))
    assert word.granted == 0
    assert word.state == pytest.approx(59.5, abs=0.5)
    word = await client.requests(Ask(60, empty=10.0))
    assert word.state == pytest.approx(59.5, abs=0.5), "it was kept, though nothing was taken"


async def test_places_count_while_their_gateway_lives(client: Client) -> None:
    await client.live("a", 10.0)
    await client.live("b", 0.3)
    assert await client.places(Ask(5, need=3, cost=3), 0, "b") == Word(3, 2)
    assert await client.places(Ask(5, need=3, cost=3), 0, "a") == Word(0, 2)
    assert await client.places(Ask(5, need=2, cost=2), 0, "a") == Word(2, 0)
    await asyncio.sleep(0.31)
    assert await client.places(Ask(5, need=3, cost=3), 2, "a") == Word(3, 0)
    assert await client.live("b") == [1, 2], "it hears that it was given up"
    assert await client.places(Ask(5), 3, "b") == Word(0, -3), "what runs there is counted, even beyond the bound"
    assert await client.places(Ask(5, need=1, cost=1), 5, "a") == Word(0, -3)
    assert await client.places(Ask(5, cost=-3), 0, "b") == Word(0, 0)


async def test_a_refusal_by_one_bound_takes_nothing_of_the_others(client: Client) -> None:
    await client.live("a")
    claim = Claim(Ask(9, 1, 1), 0, Ask(60, 1, 1), Ask(100, 100, 200))
    first = await client.claim(claim)
    assert (first.places, first.requests) == (Word(1, 8), Word(1, 1.0))
    second = await client.claim(Claim(Ask(9, 1, 1), 1, Ask(60, 1, 1), Ask(100, 1, 1)))
    assert second.places == Word(0, 8)
    assert second.requests is not None
    assert second.requests.granted == 0
    assert second.tokens is not None
    assert second.tokens.state == pytest.approx(120.0, abs=0.5)


def told(word: Word | None) -> object:
    """What refills between two answers of the same time is not looked at."""
    return None if word is None else (word.granted, pytest.approx(word.state, abs=0.5))


ASKS = st.builds(
    lambda limit, need, cost, more, ahead, empty: Ask(limit, min(need, max(0, cost)), cost, more, ahead, empty),
    *(st.just(60), st.integers(0, 60), st.integers(-20, 80), st.integers(0, 20), st.integers(0, 20)),
    st.sampled_from([0.0, 0.0, 0.0, 10.5, 59.9]),
)
PLACES = st.builds(
    lambda need, more, ahead: Ask(20, need, need, more, ahead),
    *(st.integers(0, 8), st.integers(0, 5), st.integers(0, 5)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.none() | PLACES, st.none() | ASKS, st.none() | ASKS, st.booleans()),
        min_size=1,
        max_size=12,
    )
)
async def test_the_script_does_what_the_tests_of_the_pure_part_take_it_to_do(
    client: Client, steps: list[tuple[str, Ask | None, Ask | None, Ask | None, bool]]
) -> None:
    client.server.say("FLUSHALL")
    ledger, held = Ledger(), {"a": 0, "b": 0}
    begun = time.monotonic()
    for gateway in held:
        await client.live(gateway)
    for gateway, places, requests, tokens, ended in steps:
        if ended:
            held[gateway] = 0
        claim = Claim(places, held[gateway], requests, tokens)
        found = await client.claim(claim, gateway)
        expected = ledger.claim(gateway, claim, 1000.0 + time.monotonic() - begun)
        for word, model in zip(words(found), words(expected), strict=True):
            assert told(word) == (None if model is None else (model.granted, model.state)), (claim, found, expected)
        if found.places is not None:
            held[gateway] += found.places.granted


def words(reply: Reply) -> tuple[Word | None, ...]:
    return reply.places, reply.requests, reply.tokens


async def test_the_last_word(client: Client) -> None:
    assert await client.live("a") == [1, 1]
    assert await client.live("b") == [1, 2]
    await client.leave("a")
    assert await client.live("b") == [0, 1]
