"""Several gateways' counting on one real store, and everything that befalls a store."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.admission.quota import Account, KeyTerms, Shortage
from gateway.model import Reason, ShareFailure, ShareWay
from gateway.sharing.base import ShareConfig
from gateway.sharing.share import Share
from tests.proxy.certificates import Authority, strict
from tests.real.process import free_port
from tests.sharing.server import StoreServer

pytest.importorskip("redis", reason="pip install 'inference-gateway[valkey]'")

from redis.asyncio import Redis

from gateway.sharing.store import RedisStore

Stores = Callable[..., StoreServer]

LEASE = 1.0  # seconds


class Told:
    """What a share tells of itself."""

    def __init__(self) -> None:
        self.ways: Counter[ShareWay] = Counter()
        self.failures: list[ShareFailure] = []
        self.changes: list[tuple[bool, int, str]] = []
        self.gateways = 0
        self.claims = 0

    def decided(self, way: ShareWay) -> None:
        self.ways[way] += 1

    def answered(self, claims: int, seconds: float) -> None:
        assert seconds >= 0.0
        self.claims += claims

    def failed(self, failure: ShareFailure) -> None:
        self.failures.append(failure)

    def changed(self, up: bool, gateways: int, text: str) -> None:
        self.changes.append((up, gateways, text))
        self.gateways = gateways

    def counted(self, gateways: int) -> None:
        self.gateways = gateways

    @property
    def up(self) -> bool:
        return bool(self.changes) and self.changes[-1][0]


class Gateway:
    """What of a gateway takes part."""

    def __init__(self, url: str, **settings: object) -> None:
        self.told = Told()
        config = ShareConfig(url, timeout=0.5, lease=LEASE)
        self.share = Share(replace(config, **settings), RedisStore, self.told)  # type: ignore[arg-type]
        self.admitted = 0

    async def enter(self, terms: KeyTerms, tokens: int = 1) -> Shortage | None:
        shortage, _ = await self.share.enter(Account(terms), tokens)
        self.admitted += shortage is None
        return shortage

    def leave(self, terms: KeyTerms, tokens: int = 1, used: int = 1) -> None:
        self.share.leave(Account(terms), tokens, used, refused=False)


@asynccontextmanager
async def sharing(count: int, url: str, **settings: object) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        gateways = [Gateway(url, **settings) for _ in range(count)]
        for gateway in gateways:
            await gateway.share.start()
            stack.push_async_callback(gateway.share.stop)
        await until(lambda: all(gateway.told.gateways in {0, count} or not gateway.told.up for gateway in gateways))
        yield gateways


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.005)


def terms(**bounds: int) -> KeyTerms:
    return KeyTerms("team", **bounds)  # type: ignore[arg-type]


async def rush(gateways: list[Gateway], asked: KeyTerms, each: int, tokens: int = 1) -> Counter[Reason | None]:
    """``each`` requests at every gateway, four at once, ended as soon as they began."""

    async def some(gateway: Gateway, count: int) -> list[Reason | None]:
        found: list[Reason | None] = []
        for _ in range(count):
            shortage = await gateway.enter(asked, tokens)
            found.append(None if shortage is None else shortage.reason)
            if shortage is None:
                gateway.leave(asked, tokens, tokens)
        return found

    lists = await asyncio.gather(*(some(gateway, each // 4) for gateway in gateways for _ in range(4)))
    return Counter(reason for found in lists for reason in found)


# -- while there is a store ----------------------------------------------------------------------------------------


async def test_the_sum_over_gateways_is_the_quota_and_no_more(store: StoreServer) -> None:
    limit = 600
    async with sharing(3, store.url) as gateways:
        begun = time.monotonic()
        found = await rush(gateways, terms(requests_per_minute=limit), 400)
        refilled = (time.monotonic() - begun) * limit / 60.0
        assert limit * 0.95 - 1 <= found[None] <= limit + refilled + 1
        assert all(gateway.admitted > limit / 10 for gateway in gateways)
        shortage = await gateways[0].enter(terms(requests_per_minute=limit))
        assert shortage is None or 0.0 < shortage.wait <= 0.2


async def test_requests_of_a_busy_key_do_not_wait_for_the_store(store: StoreServer) -> None:
    asked = terms(requests_per_minute=60_000, tokens_per_minute=6_000_000, max_in_flight=10_000)
    async with sharing(2, store.url) as gateways:
        for _ in range(50):
            await rush(gateways, asked, 8, tokens=100)
            await asyncio.sleep(0.002)
        for gateway in gateways:
            assert gateway.told.ways[ShareWay.AHEAD] > 20 * gateway.told.ways[ShareWay.ASKED] > 0
            assert not gateway.told.ways[ShareWay.ALONE]


async def test_places_are_held_by_all_together_and_come_back(store: StoreServer) -> None:
    asked = terms(max_in_flight=5)
    async with sharing(3, store.url) as gateways:
        found = [await gateways[number % 3].enter(asked) for number in range(12)]
        assert [shortage is None for shortage in found].count(True) == 5
        assert {shortage.reason for shortage in found if shortage} == {Reason.KEY_IN_FLIGHT}
        gateways[0].leave(asked)
        gateways[1].leave(asked)
        await asyncio.sleep(0.05)
        assert await gateways[2].enter(asked) is None
        assert await gateways[2].enter(asked) is None
        assert await gateways[2].enter(asked) is not None


async def test_who_stops_gives_everything_back(store: StoreServer) -> None:
    asked = terms(requests_per_minute=600, max_in_flight=100)
    async with sharing(1, store.url) as (gateway,):
        assert await gateway.enter(asked) is None
        gateway.leave(asked)
    keys = store.say("KEYS", "*")
    assert b"places" not in keys
    assert b"live" not in keys
    async with sharing(1, store.url) as (gateway,):
        _, standings = await gateway.share.enter(Account(asked), 1)
        assert 597 <= standings[0].remaining <= 599, "what was claimed ahead came back, what was used did not"


async def test_who_dies_gives_its_places_back_when_its_lease_ends(store: StoreServer) -> None:
    asked = terms(max_in_flight=4)
    async with sharing(2, store.url) as (dying, living):
        assert [await dying.enter(asked) for _ in range(4)] == [None] * 4
        assert await living.enter(asked) is not None
        task = dying.share._task
        assert task is not None
        task.cancel()
        await asyncio.sleep(LEASE * 0.4)
        assert await living.enter(asked) is not None
        await asyncio.sleep(LEASE * 0.7)
        assert [await living.enter(asked) for _ in range(4)] == [None] * 4


async def test_one_that_stood_still_is_given_up_and_counted_again(store: StoreServer) -> None:
    asked = terms(max_in_flight=4)
    async with sharing(2, store.url) as (one, other):
        assert [await one.enter(asked) for _ in range(3)] == [None] * 3
        store.say("ZREM", "{gateway}:live", one.share._me)
        assert [await other.enter(asked) for _ in range(4)] == [None] * 4, "its lease had ended"
        await asyncio.sleep(LEASE / 2)
        for _ in range(4):
            other.leave(asked)
        await asyncio.sleep(0.05)
        assert await other.enter(asked) is None, "one place was left beside the three"
        assert await other.enter(asked) is not None


async def test_a_client_that_leaves_while_the_store_is_asked_leaves_nothing(store: StoreServer) -> None:
    asked = terms(max_in_flight=1)
    async with sharing(1, store.url) as (gateway,):
        for turns in range(6):
            task = asyncio.create_task(gateway.enter(asked))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.cancel():
                gateway.leave(asked)  # it was quicker
            await asyncio.gather(task, return_exceptions=True)
            await until_admitted(gateway, asked)
            gateway.leave(asked)
            await asyncio.sleep(0.03)


async def test_who_comes_as_another_goes_has_its_place(store: StoreServer) -> None:
    asked = terms(max_in_flight=2)
    async with sharing(2, store.url) as (gateway, _):
        for pause in (0.0, 0.001, 0.019, 0.0195, 0.02, 0.0205, 0.021, 0.022, 0.03):
            assert [await gateway.enter(asked) for _ in range(3)][:2] == [None, None]
            gateway.leave(asked)
            gateway.leave(asked)
            await asyncio.sleep(pause)


async def until_admitted(gateway: Gateway, asked: KeyTerms) -> None:
    async with asyncio.timeout(5):
        while await gateway.enter(asked) is not None:  # noqa: ASYNC110 - the store tells only who asks
            await asyncio.sleep(0.02)


async def test_a_holder_is_forgotten_only_when_nothing_runs(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.sharing.share._FORGOTTEN", 0.1)
    monkeypatch.setattr("gateway.admission.share.IDLE", 0.1)
    monkeypatch.setattr("gateway.sharing.share.IDLE", 0.1)
    asked = terms(max_in_flight=2)
    async with sharing(1, store.url) as (gateway,):
        assert await gateway.enter(asked) is None
        await asyncio.sleep(0.4)
        assert gateway.share._holders
        assert not gateway.share._lively, "nothing is to be looked at"
        gateway.leave(asked)
        await until(lambda: not gateway.share._holders)
        assert b"places" not in store.say("KEYS", "*")


async def test_an_answer_that_came_while_this_process_stood_still_counts(store: StoreServer) -> None:
    async with sharing(1, store.url, timeout=0.05, block=0.0) as (gateway,):
        for _ in range(5):
            entering = asyncio.create_task(gateway.enter(terms(requests_per_minute=6000)))
            for _ in range(4):
                await asyncio.sleep(0)
            time.sleep(0.1)  # noqa: ASYNC251 - whatever else this process does
            assert await entering is None
        assert not gateway.told.failures


async def test_the_rights_that_the_documents_name_are_enough(store: StoreServer) -> None:
    page = (Path(__file__).parents[2] / "docs/shared-quotas.md").read_text()
    line = page.partition("ACL SETUSER")[2].partition("```")[0].replace("\\\n", " ").replace("PASSWORD", "s3cret")
    assert store.say("ACL", "SETUSER", *line.split()) == b"+OK\r\n"
    asked = terms(requests_per_minute=60, tokens_per_minute=100, max_in_flight=2)
    async with sharing(2, f"redis://gateway:s3cret@127.0.0.1:{store.port}/0") as gateways:
        for gateway in gateways:
            assert await gateway.enter(asked) is None
            gateway.leave(asked)
        store.say("SCRIPT", "FLUSH")
        assert await gateways[0].enter(asked) is None
        await asyncio.sleep(LEASE / 2)
        assert not any(gateway.told.failures for gateway in gateways)
    assert store.say("EXISTS", "{gateway}:live") == b":0\r\n"
    async with sharing(1, f"redis://gateway:s3cret@127.0.0.1:{store.port}/0", prefix="other") as (gateway,):
        assert gateway.told.failures[0] is ShareFailure.DENIED, "other names are not its own"


async def test_other_terms_and_another_url_take_effect(store: StoreServer, stores: Stores) -> None:
    other = stores()
    async with sharing(1, store.url) as (gateway,):
        assert await gateway.enter(terms(requests_per_minute=1)) is None
        assert await gateway.enter(terms(requests_per_minute=1)) is not None
        assert await gateway.enter(terms(requests_per_minute=2)) is None
        gateway.share.reconfigure(ShareConfig(other.url, timeout=0.5))
        await until(lambda: b"live" in other.say("KEYS", "*"))
        await until(lambda: gateway.told.up)
        assert await gateway.enter(terms(requests_per_minute=2)) is None
        assert await gateway.enter(terms(requests_per_minute=2)) is not None, "one was spent at the other store"


# -- what befalls a store ------------------------------------------------------------------------------------------


def broken_off(store: StoreServer) -> None:
    store.kill()


def swallowed(store: StoreServer) -> None:
    store.freeze()


def full(store: StoreServer) -> None:
    store.say("CONFIG", "SET", "maxmemory", "1")


def replica(store: StoreServer) -> None:
    store.say("REPLICAOF", "127.0.0.1", "1")


def locked(store: StoreServer) -> None:
    store.say("ACL", "SETUSER", "default", "-eval", "-evalsha", "-script")


def started_again(store: StoreServer) -> None:
    store.start()


def thawed(store: StoreServer) -> None:
    store.go_on()


def roomy(store: StoreServer) -> None:
    store.say("CONFIG", "SET", "maxmemory", "0")


def primary(store: StoreServer) -> None:
    store.say("REPLICAOF", "NO", "ONE")


def opened(store: StoreServer) -> None:
    store.say("ACL", "SETUSER", "default", "+@all")


async def test_a_failover_by_sentinels_is_followed(stores: Callable[..., StoreServer]) -> None:
    """The first Sentinel of the URL is gone; the store has a password, and the Sentinel one of its own."""
    locks = ("--requirepass", "of-the-store", "--masterauth", "of-the-store")
    first = stores(*locks)
    second = stores(*locks, "--replicaof", "127.0.0.1", str(first.port))
    knows = ("sentinel auth-pass main of-the-store", "sentinel failover-timeout main 2000", "requirepass own")
    sentinel = first.watched(*knows)
    url = (
        f"redis+sentinel://:of-the-store@127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main/0?sentinel_password=own"
    )
    asked = terms(requests_per_minute=60)
    try:
        sentinel.start()
        async with Redis(port=second.port, password="of-the-store") as link, sharing(2, url, timeout=0.2) as gateways:
            assert all(gateway.told.up for gateway in gateways)
            assert (await rush(gateways, asked, 8))[None] == 16
            while (await link.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - it tells who asks
                await asyncio.sleep(0.01)
            first.kill()
            await until(lambda: not all(gateway.told.up for gateway in gateways))
            await until(lambda: all(gateway.told.up for gateway in gateways))
            begun = time.monotonic()
            found = await rush(gateways, asked, 60)
            refilled = time.monotonic() - begun + 20.0  # it fills while nobody asks: a second for each
            assert 16 + found[None] <= 60 + refilled, "a failover gives no second quota"
            assert found[Reason.KEY_REQUESTS]
    finally:
        sentinel.kill()


@pytest.mark.parametrize(
    ("befalls", "ends", "failures"),
    [
        (broken_off, started_again, {ShareFailure.UNREACHABLE}),
        (swallowed, thawed, {ShareFailure.TIMEOUT}),
        (full, roomy, {ShareFailure.MEMORY}),
        (replica, primary, {ShareFailure.READONLY}),
        (locked, opened, {ShareFailure.DENIED}),
    ],
)
async def test_without_the_store_each_keeps_to_its_part_until_it_is_back(
    store: StoreServer,
    befalls: Callable[[StoreServer], None],
    ends: Callable[[StoreServer], None],
    failures: set[ShareFailure],
) -> None:
    limit, count = 600, 3
    asked = terms(requests_per_minute=limit)
    async with sharing(count, store.url, timeout=0.1) as gateways:
        befalls(store)
        begun = time.monotonic()
        found = await rush(gateways, asked, limit)
        assert time.monotonic() - begun < 10.0
        refilled = (time.monotonic() - begun) * limit / 60.0
        assert found.keys() <= {None, Reason.KEY_REQUESTS}
        # A block that had been claimed when it went is each gateway's beside its part.
        assert limit - count <= found[None] <= limit * (1 + count * 0.05) + refilled + count
        for gateway in gateways:
            assert limit / count - 1 <= gateway.admitted <= limit / count * (1 + count * 0.05) + refilled
            assert gateway.told.ways[ShareWay.ALONE]
        await until(lambda: not any(gateway.told.up for gateway in gateways))
        ends(store)
        await until(lambda: all(gateway.told.up for gateway in gateways))
        again = await rush(gateways, asked, 40)
        refilled = (time.monotonic() - begun) * limit / 60.0
        assert found[None] + again[None] <= limit * (1 + count * 0.05) + refilled + count, "it was told what was spent"
        for gateway in gateways:
            assert set(gateway.told.failures) - {ShareFailure.UNREACHABLE} <= failures
            assert failures & set(gateway.told.failures)
            ups = [up for up, _, _ in gateway.told.changes]
            assert ups == [True, False, True], "each change is told once"


async def test_another_store_that_knows_nothing_is_told_how_it_stood(store: StoreServer, stores: Stores) -> None:
    limit = 600
    asked = terms(requests_per_minute=limit, max_in_flight=10)
    async with sharing(2, store.url) as gateways:
        begun = time.monotonic()
        found = await rush(gateways, asked, limit)
        store.kill()
        await until(lambda: not any(gateway.told.up for gateway in gateways))
        stores(port=store.port)
        await until(lambda: all(gateway.told.up for gateway in gateways))
        again = await rush(gateways, asked, limit)
        refilled = (time.monotonic() - begun) * limit / 60.0
        assert found[None] + again[None] <= limit + refilled + 2, "not a minute's worth anew"


async def test_scripts_that_are_flushed_are_loaded_again(store: StoreServer) -> None:
    async with sharing(2, store.url) as gateways:
        for limit in (10, 20, 30):  # each is another bucket
            store.say("SCRIPT", "FLUSH")
            found = await rush(gateways, terms(requests_per_minute=limit), 20)
            assert limit - 1 <= found[None] <= limit + 1
        assert not any(gateway.told.failures for gateway in gateways)


async def test_everything_is_flushed(store: StoreServer) -> None:
    asked = terms(requests_per_minute=600)
    async with sharing(2, store.url) as gateways:
        begun = time.monotonic()
        found = await rush(gateways, asked, 600)
        store.say("FLUSHALL")
        await asyncio.sleep(LEASE / 2)  # the next heartbeat finds out
        again = await rush(gateways, asked, 600)
        assert found[None] + again[None] <= 600 + (time.monotonic() - begun) * 10 + 2
        assert all(gateway.told.up for gateway in gateways)


async def test_one_that_starts_without_the_store_keeps_to_the_part_that_it_was_told() -> None:
    asked = terms(requests_per_minute=60, max_in_flight=8)
    async with sharing(1, "redis://127.0.0.1:1/0", gateways=4) as (gateway,):
        found = [await gateway.enter(asked) for _ in range(5)]
        assert [shortage is None for shortage in found] == [True, True, False, False, False]
        gateway.leave(asked)
        gateway.leave(asked)
        found = [await gateway.enter(asked) for _ in range(2)]
        assert found == [None, None]
        assert gateway.told.changes[0][:2] == (False, 4)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", ShareFailure.LOADING),
        (b"-MASTERDOWN Link with MASTER is down\r\n", ShareFailure.ERROR),
        (b"-ERR max number of clients reached\r\n", ShareFailure.UNREACHABLE),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ShareFailure.ERROR),
        (b"", ShareFailure.UNREACHABLE),
    ],
)
async def test_whatever_it_answers_nobody_waits_and_nothing_fails(answer: bytes, failure: ShareFailure) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while answer and (asked := await reader.read(65536)):
                writer.write(answer * (b"\r\n" + asked).count(b"\r\n*"))
        finally:  # cancelled as the loop ends, too
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, sharing(1, f"redis://127.0.0.1:{port}", timeout=0.1) as (gateway,):
        assert await gateway.enter(terms(requests_per_minute=1)) is None
        assert await gateway.enter(terms(requests_per_minute=1)) is not None
        assert gateway.told.failures[0] is failure


async def test_a_wrong_password_is_told_without_it(stores: Stores) -> None:
    store = stores("--requirepass", "right-password")
    async with sharing(1, f"redis://:wrong-password@127.0.0.1:{store.port}/0") as (gateway,):
        assert await gateway.enter(terms(max_in_flight=1)) is None
        assert gateway.told.failures[0] is ShareFailure.DENIED
        assert "wrong-password" not in repr(gateway.told.changes)
        right = ShareConfig(f"redis://:right-password@127.0.0.1:{store.port}/0", timeout=0.5)
        gateway.share.reconfigure(right)
        await until(lambda: gateway.told.up)


async def test_over_a_socket(stores: Stores) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket must be short
        stores("--unixsocket", f"{folder}/s")
        async with sharing(1, f"unix://{folder}/s") as (gateway,):
            assert gateway.told.up


@pytest.mark.parametrize("known", [True, False])
async def test_sentinels_over_tls(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr("ssl.create_default_context", strict)
    authority = Authority(tmp_path / "ca", "ca")
    own, port, asked = authority.issue("store"), free_port(), free_port()
    files = {"cert-file": own.cert, "key-file": own.key, "ca-cert-file": authority.root.cert, "auth-clients": "no"}
    options = [f"tls-{name} {value}" for name, value in files.items()]
    store = stores(*f"--{' --'.join(options)} --tls-port {port}".split())
    sentinel = store.watched(*options, f"tls-port {asked}", "tls-replication yes", port=port)
    try:
        sentinel.start()
        trusted = f"?ssl_ca_certs={authority.root.cert}" if known else ""
        async with sharing(1, f"rediss+sentinel://127.0.0.1:{asked}/main/0{trusted}") as (gateway,):
            assert gateway.told.up is known
    finally:
        sentinel.kill()


async def test_over_tls(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca", "ca")
    own = authority.issue("store")
    port = free_port()
    certificates = ("--tls-cert-file", str(own.cert), "--tls-key-file", str(own.key))
    tls = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(own.cert))
    store = stores(*tls, *certificates)
    contexts: list[ssl.SSLContext] = []

    def counted() -> ssl.SSLContext:
        contexts.append(strict())
        return contexts[-1]

    monkeypatch.setattr("ssl.create_default_context", counted)
    async with sharing(1, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.root.cert}") as (gateway,):
        assert gateway.told.up
        store.kill()
        await until(lambda: gateway.told.failures.count(ShareFailure.UNREACHABLE) >= 3)
        store.start()
        await until(lambda: gateway.told.up)
    assert len(contexts) == 1, "reading certificates would hold up every stream, at each attempt"
    async with sharing(1, f"rediss://localhost:{port}/0?ssl_ca_certs={authority.root.cert}") as (gateway,):
        assert not gateway.told.up, "of another host"
    async with sharing(1, f"rediss://127.0.0.1:{port}/0") as (gateway,):
        assert not gateway.told.up, "of an authority that nobody knows"
        assert gateway.told.failures[0] is ShareFailure.UNREACHABLE
