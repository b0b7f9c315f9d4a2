"""What is played: the load on one gateway, and on several in each of the ways that docs/deployment.md compares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.emulator.load import Fate, Result
from tests.bench.topologies.cast import Goodput, Stage, capacity, goodput, played
from tests.real.fronts import ENVOY, HAPROXY
from tests.real.gateway import GatewayProcess

OVERLOAD: Final = 1.6  # times what the engines give at their best
ROOM: Final = 0.9  # the same where the engines differ: beyond it each gets too much, whoever decides
EQUAL: Final = (1.0, 1.0, 1.0)  # speeds of the engines
UNEQUAL: Final = (1.0, 1.0, 0.4)
SHARED: Final = {"reserve_short": "0.3"}


@dataclass(frozen=True)
class Timing:
    """Seconds that the gateways have to learn, and that are measured."""

    learn: float = 20.0
    measured: float = 15.0
    recover: float = 6.0  # from a gateway's end to where its absence is measured

    @property
    def whole(self) -> float:
        """Of a run in which nothing happens."""
        return self.learn + self.measured


@dataclass(frozen=True)
class Row:
    """One line of the table; ``after``: with one gateway gone, and what that cost."""

    name: str
    fleet: str
    before: Goodput
    lag: float  # seconds by which the latest request was late: the load itself was held up
    after: Goodput | None = None
    switch: float | None = None  # seconds from the end of a gateway to the first answer to what came later
    lost: int | None = None  # requests that got no answer though they were tried again, or half of one

    def ratio(self, reference: Row) -> float:
        """Tokens in time, over those of ``reference``."""
        return self.before.tokens / reference.before.tokens


Scene = Callable[[Stage, Timing], Row]


def rate(speeds: tuple[float, ...]) -> float:
    """Requests a second."""
    return (OVERLOAD if speeds == EQUAL else ROOM) * capacity() * sum(speeds)


def undisturbed(name: str, fleet: str, url: str, speeds: tuple[float, ...], timing: Timing) -> Row:
    """A run in which nothing happens."""
    result = asyncio.run(played(url, rate(speeds), timing.whole))
    return Row(name, fleet, goodput(result, timing.learn, timing.whole), result.lag)


def disturbed(name: str, url: str, timing: Timing, end: Callable[[], None]) -> Row:
    """A run in which ``end`` ends a gateway."""
    at = timing.whole
    ended = 0.0

    async def both() -> Result:
        began = time.monotonic()
        playing = asyncio.create_task(played(url, rate(EQUAL), at + timing.recover + timing.measured))
        await asyncio.sleep(at)
        nonlocal ended
        await asyncio.to_thread(end)
        ended = time.monotonic() - began
        return await playing

    result = asyncio.run(both())
    later = at + timing.recover
    return Row(
        name,
        "equal",
        goodput(result, timing.learn, at),
        result.lag,
        goodput(result, later, later + timing.measured),
        switched(result, ended),
        sum(each.fate is Fate.FAILED for each in result.outcomes),
    )


def switched(result: Result, ended: float) -> float:
    """Seconds from the end of a gateway to the first token of a request that came after it."""
    firsts = (each.arrival + each.ttft for each in result.outcomes if each.arrival > ended and each.ttft is not None)
    return min(firsts, default=float("inf")) - ended


# -- the scenes --------------------------------------------------------------------------------------------------------


def alone(stage: Stage, timing: Timing) -> Row:
    """One gateway, nothing before it: what the others are held against."""
    return undisturbed("one gateway", "equal", stage.place(*stage.engines(*EQUAL)), EQUAL, timing)


def standby(stage: Stage, timing: Timing) -> Row:
    """The one at work is killed; the other has never seen a request, but knows what that one learned."""
    return _standby(stage, timing, "standby, killed", lambda active: active.program.kill())


def relieved(stage: Stage, timing: Timing) -> Row:
    """The one at work is told to end, as for an upgrade."""
    return _standby(stage, timing, "standby, drained", lambda active: active.program.signal(15))


def _standby(stage: Stage, timing: Timing, name: str, end: Callable[[GatewayProcess], None]) -> Row:
    engines = stage.engines(*EQUAL)
    gateways = stage.pair(*engines)
    return disturbed(name, stage.front(HAPROXY, "standby", gateways), timing, lambda: end(gateways[0]))


def replicas(stage: Stage, timing: Timing) -> Row:
    """Three that share the engines, each with its share; one is killed."""
    gateways = stage.replicas(3, *stage.engines(*EQUAL), **SHARED)
    url = stage.front(HAPROXY, "replicas", gateways)
    return disturbed("three that share", url, timing, gateways[0].program.kill)


def strangers(stage: Stage, timing: Timing) -> Row:
    """Three that do not know of each other; one is killed."""
    engines = stage.engines(*EQUAL)
    gateways = [stage.gateway(*engines) for _ in range(3)]
    url = stage.front(HAPROXY, "replicas", gateways)
    return disturbed("three, not told", url, timing, gateways[0].program.kill)


def sidecars_envoy(stage: Stage, timing: Timing) -> Row:
    """One to an engine, weighed by what they say of themselves."""
    url = stage.front(ENVOY, "sidecars", _sidecars(stage, EQUAL))
    return undisturbed("sidecars, Envoy by ORCA", "equal", url, EQUAL, timing)


def sidecars_haproxy(stage: Stage, timing: Timing) -> Row:
    """One to an engine, whoever has fewest."""
    url = stage.front(HAPROXY, "sidecars", _sidecars(stage, EQUAL))
    return undisturbed("sidecars, HAProxy leastconn", "equal", url, EQUAL, timing)


def alone_unequal(stage: Stage, timing: Timing) -> Row:
    """One gateway before engines of which one is slow."""
    return undisturbed("one gateway", "one slow", stage.place(*stage.engines(*UNEQUAL)), UNEQUAL, timing)


def sidecars_unequal_envoy(stage: Stage, timing: Timing) -> Row:
    """Does the balancer see which engine is slow?"""
    url = stage.front(ENVOY, "sidecars", _sidecars(stage, UNEQUAL))
    return undisturbed("sidecars, Envoy by ORCA", "one slow", url, UNEQUAL, timing)


def sidecars_unequal_haproxy(stage: Stage, timing: Timing) -> Row:
    """The same, whoever has fewest."""
    url = stage.front(HAPROXY, "sidecars", _sidecars(stage, UNEQUAL))
    return undisturbed("sidecars, HAProxy leastconn", "one slow", url, UNEQUAL, timing)


def sidecars_unequal_blind(stage: Stage, timing: Timing) -> Row:
    """The same, each in turn."""
    url = stage.front(HAPROXY, "replicas", _sidecars(stage, UNEQUAL))
    return undisturbed("sidecars, HAProxy roundrobin", "one slow", url, UNEQUAL, timing)


def _sidecars(stage: Stage, speeds: tuple[float, ...]) -> list[GatewayProcess]:
    return [stage.gateway(engine, load_header="true") for engine in stage.engines(*speeds)]


SCENES: Final[dict[str, Scene]] = {
    "alone": alone,
    "standby": standby,
    "relieved": relieved,
    "replicas": replicas,
    "strangers": strangers,
    "sidecars-envoy": sidecars_envoy,
    "sidecars-haproxy": sidecars_haproxy,
    "alone-unequal": alone_unequal,
    "sidecars-unequal-envoy": sidecars_unequal_envoy,
    "sidecars-unequal-haproxy": sidecars_unequal_haproxy,
    "sidecars-unequal-blind": sidecars_unequal_blind,
}
