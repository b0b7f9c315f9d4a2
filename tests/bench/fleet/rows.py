"""What is compared: fleets, their traffic, and what befalls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gateway.emulator.profiles import DUO_310P, LLAMA3_8B_A100_NO_FLAG
from gateway.simulator.clients import Habits
from gateway.simulator.setup import Hinting, Load, Machine, Objectives, Setup
from gateway.simulator.turns import Chats, mooncake

GPU: Final = replace(LLAMA3_8B_A100_NO_FLAG, name="gpu", block_size=128)
NPU: Final = DUO_310P
SIZES: Final = (4, 16)
LOADS: Final = (0.7, 1.2)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of traffic. ``rate``: of what arrives (requests, conversations) a second on each GPU, at 1x."""

    name: str
    rate: float
    horizon: float
    measure_from: float
    objectives: Objectives
    traffic: Callable[[float, float, int], Load]  # rate, horizon, seed

    def setup(self, fleet: tuple[Machine, ...], load: float, seed: int) -> Setup:
        gpus = sum(machine.profile is GPU for machine in fleet)
        return Setup(
            horizon=self.horizon,
            measure_from=self.measure_from,
            seed=seed,
            fleet=fleet,
            objectives=self.objectives,
            load=(self.traffic(load * self.rate * gpus, self.horizon, seed),),
            hints=Hinting(every=2.0, delay=1.0),
        )


@dataclass(frozen=True, slots=True)
class Event:
    """What befalls a fleet at second ``at``: the fleet as it is then, and one that was so from the start."""

    name: str
    load: float
    at: float
    fleet: tuple[Machine, ...]
    after: tuple[Machine, ...]


def machines(count: int) -> tuple[Machine, ...]:
    return tuple(Machine(str(number), GPU) for number in range(count))


def mixed() -> tuple[Machine, ...]:
    """One GPU and seven 310P."""
    return (Machine("0", GPU), *(Machine(str(number), NPU) for number in range(1, 8)))


def _trace(rate: float, horizon: float, seed: int) -> Load:
    rows = mooncake(rate, horizon, seed, at_most=GPU.max_model_len)
    return Load(label="mooncake", trace=tuple(rows), habits=Habits(timeout=120.0))


def _chats(rate: float, _horizon: float, _seed: int) -> Load:
    return Load(label="chats", chats=Chats(), rates=((0.0, rate),), habits=Habits(timeout=60.0), clients=200)


def _brief_chats(rate: float, _horizon: float, _seed: int) -> Load:
    """None is longer than a 310P holds."""
    chats = Chats(at_most=NPU.max_model_len)
    return Load(label="chats", chats=chats, rates=((0.0, rate),), habits=Habits(timeout=120.0), clients=200)


MOONCAKE: Final = Row("mooncake", 0.5, 240.0, 60.0, Objectives(10.0, 30.0, 0.25), _trace)
CHATS: Final = Row("chats", 4.1, 140.0, 60.0, Objectives(2.0, 6.0, 0.08), _chats)
MIXED: Final = Row("mixed", 3.3, 400.0, 160.0, Objectives(20.0, 60.0, 0.8), _brief_chats)
ROWS: Final = (MOONCAKE, CHATS)

_AT: Final = 80.0
_FOUR: Final = machines(4)
EVENTS: Final = (
    Event("one of 4 dies", 0.65, _AT, (*_FOUR[:3], replace(_FOUR[3], dies=_AT)), _FOUR[:3]),
    Event(
        "one of 4 ten times slower",
        0.65,
        _AT,
        (*_FOUR[:3], replace(_FOUR[3], speeds=((_AT, 0.1),))),
        (*_FOUR[:3], replace(_FOUR[3], speeds=((0.0, 0.1),))),
    ),
    Event("a fourth joins", 0.9, _AT, (*_FOUR[:3], replace(_FOUR[3], joins=_AT)), _FOUR),
)
"""At loads that the fleet with fewer cannot, or only just can, serve."""
