"""Who plays: engines, gateways and what stands in front of them, each a process of its own; and what they are sent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.emulator.load import Ask, Fate, Load, Mix, Plan, Result
from gateway.emulator.scenario import best_throughput, chat
from tests.bench.topologies.engines import DESK
from tests.real.fronts import Front
from tests.real.gateway import GatewayProcess
from tests.real.process import Program, free_port

PATIENCE: Final = 15.0  # seconds after which a client gives up; it tries three times in all
PROMPTS: Final = {"short": (20, 80), "long": (300, 700)}  # tokens
OUTPUTS: Final = {"short": (20, 60), "long": (80, 160)}
OBJECTIVE: Final = {"short": 1.0, "long": 4.0}  # seconds to the first token, from the first try
LONG: Final = 0.15  # of all requests


def mix() -> Mix:
    """Chats, some of them long."""
    kinds = {name: chat(DESK.name, PROMPTS[name], OUTPUTS[name], kind=name) for name in PROMPTS}

    def drawn(chance: random.Random) -> Ask:
        return kinds["long" if chance.random() < LONG else "short"](chance)

    return drawn


def capacity() -> float:
    """Requests a second that one engine gives at its best."""

    def draw(chance: random.Random) -> tuple[int, int]:
        kind = "long" if chance.random() < LONG else "short"
        return chance.randint(*PROMPTS[kind]), chance.randint(*OUTPUTS[kind])

    return best_throughput(DESK, draw)


@dataclass(frozen=True)
class Goodput:
    """Answers a second that came whole, and whose first token came within its objective; ``tokens``: of those."""

    short: float
    long: float

    @property
    def tokens(self) -> float:
        """Output tokens a second in them, by the mean of each kind."""
        return sum(rate * sum(OUTPUTS[kind]) / 2 for kind, rate in (("short", self.short), ("long", self.long)))


def goodput(result: Result, since: float, until: float) -> Goodput:
    """Of what ended between two instants of the run."""

    def rate(kind: str) -> float:
        good = (
            each
            for each in result.outcomes
            if each.kind == kind and each.fate is Fate.GOOD and since <= each.end < until
        )
        return sum(each.ttft is not None and each.ttft <= OBJECTIVE[kind] for each in good) / (until - since)

    return Goodput(rate("short"), rate("long"))


class Stage:
    """Starts processes in ``folder``, and ends them last first. ``tool`` finds the program of a front."""

    def __init__(self, folder: Path, stack: ExitStack, tool: Callable[[Front], str]) -> None:
        self._folder = folder
        self._stack = stack
        self._tool = tool
        self._count = 0

    def _place(self, name: str) -> Path:
        self._count += 1
        place = self._folder / f"{self._count}-{name}"
        place.mkdir()
        return place

    def engines(self, *speeds: float) -> list[str]:
        """URLs of engines as fast as told."""
        ports = [free_port() for _ in speeds]
        arguments = [f"{port}:{speed}" for port, speed in zip(ports, speeds, strict=True)]
        log = self._place("engines") / "log"
        program = Program("engines", ["tests.bench.topologies.engines", *arguments], log, {})
        self._stack.callback(program.stop)
        for port in ports:
            program.wait_until_ready(port, "/health")
        return [f"http://127.0.0.1:{port}" for port in ports]

    def gateway(self, *engines: str, **settings: str) -> GatewayProcess:
        """One in front of these engines; ``front`` waits for it, or ``place``."""
        objectives = ",".join(f"{lane}={seconds:g}" for lane, seconds in OBJECTIVE.items())
        chosen = {"backends": ",".join(engines), "access_log": "off", "ttft_objective": objectives, **settings}
        process = GatewayProcess(self._place("gateway"), chosen)
        self._stack.callback(_end, process)
        return process

    def place(self, *engines: str) -> str:
        """URL of a gateway with nothing before it."""
        process = self.gateway(*engines)
        process.wait_until_ready()
        return process.url

    def replicas(self, count: int, *engines: str, **settings: str) -> list[GatewayProcess]:
        """Gateways that share these engines and know of each other."""
        admin = [free_port() for _ in range(count)]
        named = ",".join(f"http://127.0.0.1:{port}" for port in admin)
        return [self.gateway(*engines, **{"admin_port": str(port), "replicas": named, **settings}) for port in admin]

    def pair(self, *engines: str) -> list[GatewayProcess]:
        """Two of which one stands by, and asks the other what it learns."""
        admin = [free_port() for _ in range(2)]
        named = ",".join(f"http://127.0.0.1:{port}" for port in admin)
        return [self.gateway(*engines, admin_port=str(port), state_from=named) for port in admin]

    def front(self, front: Front, backend: str, gateways: Sequence[GatewayProcess]) -> str:
        """URL of what stands before these gateways."""
        listening = free_port()
        for each in gateways:
            each.wait_until_ready()
        ports = [(each.port, each.admin_port) for each in gateways]
        file = front.config(self._place(front.name), listening, ports, backend)
        self._stack.enter_context(front.running(self._tool(front), file, listening))
        return f"http://127.0.0.1:{listening}"


def _end(process: GatewayProcess) -> None:
    if process.program.running:
        process.program.stop()


async def played(url: str, rate: float, seconds: float, seed: int = 1) -> Result:
    """What became of so many requests a second."""
    plan = Plan(mix(), rate, seconds, PATIENCE, seed=seed, grace=2.0)
    return await Load(url, replace(plan, max_requests=5000)).run()
