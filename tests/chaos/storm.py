"""A gateway between clients and engines that misbehave by a seeded schedule, and an oracle that looks at all of them.

``python -m tests.chaos.storm --seeds 20 --requests 3000`` runs many; the seed of one that fails repeats its schedule.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from blockbuster import blockbuster_ctx

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.model import GatewayState, Outcome, Record
from gateway.proxy.inbound import Call
from gateway.proxy.relay import Relay
from gateway.proxy.server import Gateway
from gateway.proxy.upstream import Connection, Upstream
from gateway.settings.plain import backends
from tests.chaos.client import LEAVERS, READERS, Seen, behave
from tests.chaos.engine import ANSWERS, WELL, ChaosEngine, expected, whole_stream

LIMIT: Final = 8  # requests in flight on each of the engines whose limit is fixed
_NAMES: Final = ("a", "b", "c")
_BAD: Final = tuple(name for name in ANSWERS if name not in WELL)
_DOCUMENTED: Final = frozenset({400, 408, 413, 429, 502, 503, 504})
_SETTLE: Final = 60.0  # seconds within which all must have come back; not measured
_OF_AN_ENGINE: Final = (
    "kill", "move", "blackhole", "freeze", "slow metrics", "lying metrics", "garbage metrics", "storm", "lose slots",
)  # fmt: skip
_OF_THE_MACHINE: Final = ("no names", "no descriptors", "stall", "clock")


@dataclass
class Storm:
    """One run. ``faults`` is what the oracle found wrong; empty is right."""

    seed: int
    requests: int = 600
    seconds: float = 4.0
    faults: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    engines: dict[str, ChaosEngine] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _state: Callable[[], GatewayState] = field(init=False, repr=False)

    def observe(self, record: Record) -> None:
        """Every finished request is told here, as to any observer."""
        self.records.append(record)

    # -- the schedule -----------------------------------------------------------------------------------------------

    def visits(self, chance: random.Random) -> list[tuple[float, list[dict[str, Any]]]]:
        """(when, plans) of every client, in order."""
        made: list[tuple[float, list[dict[str, Any]]]] = []
        count = 0
        while count < self.requests:
            manner = chance.choice(READERS if chance.random() < 0.75 else LEAVERS)
            several = chance.randint(2, 4) if manner in {"pipeline", "keep"} else 1
            plans = [self._plan(chance, manner, f"s{self.seed}-{count + index}") for index in range(several)]
            made.append((chance.uniform(0.0, self.seconds), plans))
            count += several
        return sorted(made, key=lambda visit: visit[0])

    @staticmethod
    def _plan(chance: random.Random, manner: str, key: str) -> dict[str, Any]:
        large = manner == "never read"
        return {
            "key": key,
            "client": manner,
            "engine": "good" if large else chance.choice(WELL if chance.random() < 0.7 else _BAD),
            "stream": large or chance.random() < 0.7,
            "events": 30_000 if large else chance.choice((1, 4, 12, 40)),
            "pad": chance.choice((0, 1, 100, 30_000)) if chance.random() < 0.2 else 1,
            "stays": chance.choice((0.0, 0.01, 0.1, 0.4)),
        }

    async def _weather(self, engine: ChaosEngine, chance: random.Random) -> None:
        """What befalls one engine, until it is over."""
        while not self._over:
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            what = chance.choice(_OF_AN_ENGINE)
            self.happened[what] += 1
            await self._befall(what, engine, chance)

    async def _quakes(self, chance: random.Random) -> None:
        """What befalls the machine, until it is over."""
        while not self._over:
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            what = chance.choice(_OF_THE_MACHINE)
            self.happened[what] += 1
            await self._befall_machine(what, chance)

    async def _befall(self, what: str, engine: ChaosEngine, chance: random.Random) -> None:
        match what:
            case "kill":
                engine.kill()
                await asyncio.sleep(chance.uniform(0.05, 0.5))
                await engine.restart()
            case "move":
                address = f"127.0.0.{chance.randint(2, 9)}"
                if self._named:
                    await engine.restart(address)
            case "blackhole":
                engine.blackhole()
                await asyncio.sleep(chance.uniform(0.1, 0.8))
                await engine.restart()
            case "freeze":
                engine.thawed.clear()
                await asyncio.sleep(chance.uniform(0.1, 1.0))
                engine.thawed.set()
            case "slow metrics" | "lying metrics" | "garbage metrics":
                engine.metrics = what.removesuffix(" metrics")
            case "storm":
                engine.storm = True
                await asyncio.sleep(chance.uniform(0.05, 0.4))
                engine.storm = False
            case "lose slots":
                engine.slots, engine.lost_slots = 3, 0
                await asyncio.sleep(chance.uniform(0.3, 1.0))
                await engine.restart()

    async def _befall_machine(self, what: str, chance: random.Random) -> None:
        match what:
            case "no names":
                self._names_fail = True
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                self._names_fail = False
            case "no descriptors":
                with mock.patch.object(Upstream, "connect", _out_of_descriptors):
                    await asyncio.sleep(chance.uniform(0.05, 0.2))
            case "stall":
                time.sleep(chance.uniform(0.1, 0.5))  # noqa: ASYNC251 - the loop is to stand still
            case "clock":
                self._wall += chance.choice((-86_400.0, -30.0, 30.0, 86_400.0))

    _over = False
    _named = False
    _names_fail = False
    _wall = 0.0

    @contextlib.contextmanager
    def _world(self) -> Iterator[None]:
        """Names that move and fail, and a wall clock that steps."""
        look_up, wall = socket.getaddrinfo, time.time

        def resolve(host: Any, *more: Any, **options: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name and name.endswith(".chaos.test"):
                if self._names_fail:
                    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
                host = self.engines[name[0]].address
            return look_up(host, *more, **options)

        def stepped() -> float:
            return wall() + self._wall

        with mock.patch("socket.getaddrinfo", resolve), mock.patch("time.time", stepped):
            yield

    # -- the run ----------------------------------------------------------------------------------------------------

    async def run(self, folder: Path) -> list[str]:
        """Everything, and what was found wrong."""
        chance = random.Random(self.seed)
        self._named = type(asyncio.get_running_loop()).__module__.startswith("asyncio")  # uvloop resolves by itself
        before = _census()
        with self._world():
            async with self._service(folder) as service:
                with blockbuster_ctx("gateway"):  # whatever blocks the loop is an error where it happens
                    await self._serve(service, chance)
                    await self._settle(service)
            await self._emptied(before)
        return self.faults

    @contextlib.asynccontextmanager
    async def _service(self, folder: Path) -> AsyncIterator[Service]:
        for name in _NAMES:
            self.engines[name] = ChaosEngine(name, self._permitted)
            await self.engines[name].start()
        environment = {f"GATEWAY_{name.upper()}": value for name, value in self._settings(folder).items()}
        with mock.patch.dict(os.environ, environment):
            loaded = load_all(None)
        assert loaded.ok, loaded.faults

        def observed(*arguments: Any, **named: Any) -> Gateway:
            config, engines, controller, estimator, observers, *more = arguments
            return Gateway(config, engines, controller, estimator, [*observers, self], *more, **named)

        with mock.patch("gateway.app.compose.Gateway", observed):
            service = Service(loaded, backends(loaded.settings))
        self._state = service.gateway.state
        await service.start()
        try:
            yield service
        finally:
            await service.stop()
            for engine in self.engines.values():
                engine.kill()
                self.faults += engine.faults

    def _settings(self, folder: Path) -> dict[str, str]:
        host = "{}.chaos.test" if self._named else "127.0.0.1"
        engines: list[dict[str, Any]] = [
            {"name": name, "url": f"http://{host.format(name)}:{engine.port}", "kind": "vllm", "limit": LIMIT}
            for name, engine in self.engines.items()
        ]
        del engines[2]["limit"]  # this one's is found by itself
        return {
            "backends": json.dumps(engines),
            "host": "127.0.0.1",
            "port": "0",
            "admin_host": "127.0.0.1",
            "admin_port": "0",
            "access_log": "/dev/full" if self.seed % 4 == 3 else str(folder / f"access{self.seed}.jsonl"),
            "records_file": str(folder / f"records{self.seed}.jsonl"),
            "connect_timeout": "0.3",
            "first_byte_timeout": "1",
            "answer_timeout": "1",
            "idle_timeout": "1",
            "client_timeout": "20",
            "probe_interval": "0.2",
            "probe_timeout": "0.3",
            "breaker_cooldown": "0.2",
            "breaker_cooldown_max": "0.5",
            "breaker_silence": "2",
            "upstream_keepalive": "0.5",
            "drain_grace": "5",
        }

    async def _serve(self, service: Service, chance: random.Random) -> None:
        host, port = service.gateway.url.removeprefix("http://").split(":")
        troubles = [self._weather(each, random.Random(f"{self.seed}{name}")) for name, each in self.engines.items()]
        weather = asyncio.gather(*troubles, self._quakes(random.Random(-self.seed)))
        start = asyncio.get_running_loop().time()
        tasks: set[asyncio.Task[Any]] = set()
        for when, plans in self.visits(chance):
            await asyncio.sleep(start + when - asyncio.get_running_loop().time())
            tasks.add(asyncio.create_task(self._visit((host, int(port)), plans)))
        await asyncio.wait(tasks)
        self._over = True
        await weather

    async def _visit(self, address: tuple[str, int], plans: list[dict[str, Any]]) -> None:
        try:
            for seen in await behave(address, plans):
                self.seen.append(seen)
                self._judge(seen)
        except TimeoutError:
            self.faults.append(f"{plans[0]['key']} ({plans[0]['client']}, {plans[0]['engine']}) hangs")
        except Exception as error:  # noqa: BLE001 - told as a fault
            self.faults.append(f"{plans[0]['key']} ({plans[0]['client']}, {plans[0]['engine']}): {error!r}")

    # -- the oracle -------------------------------------------------------------------------------------------------

    def _permitted(self, name: str) -> float:
        state = next(each for each in self._state().backends if each.name == name)
        return min(state.running, LIMIT) if name != "c" else state.running

    def _judge(self, seen: Seen) -> None:
        """One answer: complete, a documented error, or recognisably cut; never a mixture."""
        if seen.left:
            return
        plan, body = seen.plan, seen.body
        where = f"{plan['key']} ({plan['client']}, {plan['engine']}, {seen.status})"
        if seen.status == 0 and plan["client"] not in {"pipeline", "keep"}:
            self.faults.append(f"{where} got no answer")
        elif seen.status == 200:
            self._judge_success(seen, where)
        elif seen.status:
            self._judge_error(plan, seen, body, where)

    def _judge_success(self, seen: Seen, where: str) -> None:
        plan, body = seen.plan, seen.body
        finished = any(plan["key"] in engine.finished for engine in self.engines.values())
        right = whole_stream(plan["key"], plan["events"]) if body.startswith(b"data: ") else expected(plan)
        if seen.whole and body != right:
            self.faults.append(f"{where} looks complete and is not: {body[-120:]!r}")
        elif seen.whole and not finished:
            self.faults.append(f"{where} looks complete, but no engine finished it")
        elif not seen.whole:
            begun, _, added = body.partition(b'data: {"error"')
            if not right.startswith(begun) or (added and not added.endswith(b"\n\n")):
                self.faults.append(f"{where} was cut, and what came first is wrong: {body[-120:]!r}")

    def _judge_error(self, plan: dict[str, Any], seen: Seen, body: bytes, where: str) -> None:
        own = seen.status in _DOCUMENTED
        if not seen.whole:
            self.faults.append(f"{where} is an error that is not whole")
            return
        error = json.loads(body)["error"]
        if error["type"] == "made_up":  # the engine's: as it was sent
            own = error["message"] == plan["key"]
        if not own:
            self.faults.append(f"{where} is no documented error: {body[:200]!r}")

    async def _settle(self, service: Service) -> None:
        """All is given back while the gateway stands, and it serves as on the first day."""
        gateway = service.gateway
        for engine in self.engines.values():
            await engine.restart()
        self._names_fail = False
        idle = await _comes(lambda: not gateway.in_flight and not _busy(gateway.state()))
        if not idle:
            self.faults.append(f"not all came back: {gateway.in_flight} in flight, {_busy(gateway.state())}")
        host, port = gateway.url.removeprefix("http://").split(":")

        async def ask(number: int) -> Seen:
            plan = self._plan(random.Random(0), "plain", f"s{self.seed}-after{number}") | {"engine": "good"}
            return (await behave((host, int(port)), [plan]))[0]

        def health() -> list[str]:
            return [each.health for each in gateway.state().backends]

        deadline = asyncio.get_running_loop().time() + _SETTLE
        number = 0
        while health() != ["up"] * 3 and asyncio.get_running_loop().time() < deadline:
            await asyncio.gather(*map(ask, range(number, number + 30)))  # half open: one that goes well opens it
            number += 30
            await asyncio.sleep(0.05)
        if health() != ["up"] * 3:
            self.faults.append(f"engines are not up again: {health()}")
        if (seen := await ask(number)).status != 200:
            self.faults.append(f"afterwards a request gets {seen.status}: {seen.body[:200]!r}")
        await _comes(lambda: not gateway.in_flight)
        self._balance()

    def _balance(self) -> None:
        """Each request was told once, and as the client saw it."""
        told = Counter(record.request_id for record in self.records if record.request_id.startswith(f"s{self.seed}-"))
        if twice := [key for key, times in told.items() if times > 1]:
            self.faults.append(f"told more than once: {twice}")
        by_key = {record.request_id: record for record in self.records}
        for seen in self.seen:
            record = by_key.get(seen.plan["key"])
            if seen.status and not seen.left and record is None and seen.status != 400:
                self.faults.append(f"{seen.plan['key']} was answered with {seen.status} and never told")
            elif seen.whole and not seen.left and record and (record.status or 0) != seen.status:
                self.faults.append(f"{seen.plan['key']} saw {seen.status}, told is {record.status}")
            elif seen.whole and seen.status == 200 and record and record.outcome is not Outcome.COMPLETED:
                self.faults.append(f"{seen.plan['key']} is complete, told is {record.outcome}")
            elif record and record.outcome is Outcome.COMPLETED and not seen.whole and not seen.left:
                self.faults.append(f"{seen.plan['key']} was cut, told is {record.outcome}")

    async def _emptied(self, before: Counter[str]) -> None:
        """Nothing of any request outlives it once the gateway has stopped."""
        left: Counter[str] = Counter()

        def gone() -> bool:
            nonlocal left
            left = _census() - before
            left["Connection"] -= 3  # that of an error that somebody remembers
            return not +left

        if not await _comes(gone, pause=0.1):
            self.faults.append(f"left behind: {dict(+left)}")


async def _out_of_descriptors(_self: Upstream) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def _busy(state: GatewayState) -> str:
    running = {each.name: (each.running, each.tokens, each.unstarted) for each in state.backends}
    depth = {lane.name: lane.depth for lane in state.lanes}
    clean = not any(any(books) for books in running.values()) and not any(depth.values())
    return "" if clean else f"running {running}, waiting {depth}"


def _census() -> Counter[str]:
    """What is alive now: tasks, open descriptors, and the objects of requests."""
    gc.collect()
    kinds = (Relay, Call, Connection)
    alive = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in kinds)
    alive["tasks"] = len(asyncio.all_tasks())
    if sys.platform == "linux":
        alive["sockets and files"] = sum(map(_counts, Path("/proc/self/fd").iterdir()))
    return alive


def _counts(descriptor: Path) -> bool:
    try:
        return descriptor.readlink() != Path("/dev/null")  # libuv keeps one of these in reserve
    except OSError:
        return False  # the one that lists the folder


async def _comes(holds: Callable[[], object], pause: float = 0.01) -> bool:
    """Whether it comes true in time."""
    deadline = asyncio.get_running_loop().time() + _SETTLE
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(pause)
    return True


def ran(seed: int, folder: Path, *, requests: int = 600, seconds: float = 4.0) -> Storm:
    """One storm, on the loop that is its turn: the plain one for even seeds, else uvloop."""
    storm = Storm(seed, requests, seconds)
    if seed % 2 and sys.platform != "win32":
        import uvloop

        uvloop.run(storm.run(folder))
    else:
        asyncio.run(storm.run(folder))
    return storm


def main() -> int:
    """Run many seeds; exit 1 where one of them finds a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=15.0, help="over which they arrive")
    asked = parser.parse_args()
    bad = 0
    for seed in range(asked.first, asked.first + asked.seeds):
        with tempfile.TemporaryDirectory() as folder:
            storm = ran(seed, Path(folder), requests=asked.requests, seconds=asked.seconds)
        outcomes = Counter(record.outcome.value for record in storm.records)
        print(f"seed {seed}: {len(storm.seen)} answers, {dict(outcomes)}, {dict(storm.happened)}")  # noqa: T201 - what it is for
        for fault in storm.faults[:20]:
            print(f"  FAULT {fault}")  # noqa: T201 - the same
        bad += bool(storm.faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
