"""What is simulated: engines, traffic, objectives, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gateway.admission.config import AdmissionConfig, LaneConfig
from gateway.emulator.engine import Profile
from gateway.model import Priority
from gateway.simulator.clients import Habits
from gateway.simulator.turns import Chats
from gateway.simulator.workload import Arrival

Steps = tuple[tuple[float, float], ...]  # (from second, value), in order of time


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine of the fleet. ``speeds`` are (from second, speed); ``limit`` fixes what the gateway may send to it.

    ``weight``: its share beside other engines. It is there from second ``joins`` on, and ``dies`` as a process does
    whose machine goes on: what runs on it is cut off, and connections are refused.

    ``refuses_inside``: where its own queue is full it says so inside a 200, as vLLM does to a burst of streams.
    """

    name: str
    profile: Profile
    speeds: Steps = ()
    limit: int | None = None
    refuses_inside: bool = False
    weight: float = 1.0
    joins: float = 0.0
    dies: float = math.inf


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of traffic: an open loop (``rates``, per second), or ``users`` who ask again when they were answered.

    With a ``trace`` its very requests come, and ``workload`` is not drawn from. With ``chats`` the rates are those of
    conversations, each of which goes on turn by turn for as long as it is answered.

    ``think``: seconds before they do. ``clients``: distinct fairness keys. ``streamed``: the share of streams.
    ``priority``: as its header or its key would say. ``background``: left out when the rest is measured alone.
    ``around``: straight to the engines, not measured.
    """

    workload: str = ""
    label: str = "all"
    rates: Steps = ()
    users: Steps = ()
    trace: tuple[Arrival, ...] = ()
    chats: Chats | None = None
    think: float = 0.0
    clients: int = 20
    streamed: float = 1.0
    priority: Priority = Priority.STANDARD
    background: bool = False
    around: bool = False
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True, slots=True)
class Objectives:
    """What counts as served in time, seconds; None: as long as the client waits."""

    ttft_short: float | None = None
    ttft_long: float | None = None
    tpot: float | None = None

    def told(self, config: AdmissionConfig | None = None) -> AdmissionConfig:
        """The gateway's settings (the defaults, unless given) where it is told these objectives."""
        config = config or AdmissionConfig()
        *shorter, long = config.queue.lanes
        lanes = (*(_with_objective(lane, self.ttft_short) for lane in shorter), _with_objective(long, self.ttft_long))
        return replace(
            config,
            limit=replace(config.limit, tpot_objective=self.tpot),
            queue=replace(config.queue, lanes=lanes),
        )


def _with_objective(lane: LaneConfig, ttft: float | None) -> LaneConfig:
    """A lane waits for half of its objective at most, as settings make it."""
    return lane if ttft is None else replace(lane, ttft_objective=ttft, max_wait=ttft / 2)


@dataclass(frozen=True, slots=True)
class Hinting:
    """The prober reads the engines' gauges every ``every`` seconds until ``until``; they arrive ``delay`` seconds old.

    ``kv_usage`` falsifies that gauge.
    """

    every: float = 1.0
    delay: float = 0.0
    until: float = float("inf")
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """At second ``at`` another gateway takes over.

    ``graceful``: what the first one has is served to its end beside the second; else it is cut off, and clients retry.
    """

    at: float
    graceful: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that a run depends on. Seconds; what ended before ``measure_from`` is not counted."""

    horizon: float
    fleet: tuple[Machine, ...]
    load: tuple[Load, ...]
    measure_from: float = 0.0
    seed: int = 0
    objectives: Objectives = field(default_factory=Objectives)
    hints: Hinting | None = None
    restart: Restart | None = None
