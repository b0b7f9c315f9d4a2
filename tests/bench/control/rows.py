"""What is swept: engines with their mixes, and the load of each, in units of what the engine serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from gateway.emulator.engine import Profile
from gateway.emulator.profiles import (
    C550_ASR,
    DUO_310P,
    LLAMA3_8B_A100_NO_FLAG,
    MINDIE_910B,
    QWEN3_8B_910B,
)
from gateway.simulator.clients import Habits
from gateway.simulator.figures import PROMPT_WEIGHT
from gateway.simulator.setup import Hinting, Load, Machine, Objectives, Setup
from gateway.simulator.workload import WORKLOADS, recorded

GAUGES = Hinting(every=2.0, delay=1.0)  # engines publish them unasked; the prober's pace, and what a busy one is late
LOADS = (0.5, 0.8, 1.0, 2.0, 5.0, 10.0)
KV_BOUND = replace(LLAMA3_8B_A100_NO_FLAG, name="a100-kv140k", kv_tokens=140_000)


@dataclass(frozen=True, slots=True)
class Kind:
    """Part of a mix. ``arriving``: at the instants of the recording, else as a Poisson process."""

    workload: str
    share: float = 1.0  # of the requests
    arriving: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One engine and one mix. Seconds."""

    engine: str
    mix: str
    profile: Profile
    kinds: tuple[Kind, ...]
    objectives: Objectives
    horizon: float = 150.0
    measure_from: float = 50.0
    timeout: float = 60.0
    streamed: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.mix}"

    @property
    def habits(self) -> Habits:
        return Habits(timeout=self.timeout)

    def mean_cost(self) -> float:
        """Cost of a request of the mix, in output tokens."""
        return self._mean(lambda prompt, output: PROMPT_WEIGHT * prompt + output)

    def mean_tokens(self) -> float:
        """Prompt and output tokens of a request."""
        return self._mean(lambda prompt, output: prompt + output)

    def mean_output(self) -> float:
        """Output tokens of a request."""
        return self._mean(lambda _, output: output)

    def _mean(self, of: Callable[[int, int], float]) -> float:
        weights = sum(kind.share for kind in self.kinds)
        return sum(kind.share * fmean(of(*lengths) for lengths in self.lengths(kind)) for kind in self.kinds) / weights

    def lengths(self, kind: Kind) -> list[tuple[int, int]]:
        most = self.profile.max_model_len
        return [lengths for lengths in WORKLOADS[kind.workload]() if sum(lengths) <= most]

    def setup(self, rate: float, seed: int, *, brief: bool = False) -> Setup:
        """``rate`` requests a second from an open loop; ``brief`` measures half as long."""
        total = sum(kind.share for kind in self.kinds)
        return Setup(
            horizon=(self.horizon + self.measure_from) / 2 if brief else self.horizon,
            measure_from=self.measure_from,
            seed=seed,
            fleet=(Machine("a", self.profile),),
            objectives=self.objectives,
            load=tuple(self._load(kind, rate * kind.share / total, seed) for kind in self.kinds),
            hints=GAUGES,
        )

    def _load(self, kind: Kind, rate: float, seed: int) -> Load:
        load = Load(kind.workload, kind.workload, streamed=self.streamed, habits=self.habits)
        if not kind.arriving:
            return replace(load, rates=((0.0, rate),))
        most = self.profile.max_model_len
        return replace(load, trace=tuple(recorded(kind.workload, rate, self.horizon, most, first=seed * 97)))

    def saturated(self, concurrency: int, seed: int) -> Setup:
        """So many users, each asking again at once: the engine never idles, and nobody refuses."""
        total = sum(kind.share for kind in self.kinds)
        loads = tuple(
            Load(
                kind.workload,
                kind.workload,
                users=((0.0, max(1, round(concurrency * kind.share / total))),),
                streamed=self.streamed,
            )
            for kind in self.kinds
        )
        return replace(self.setup(1.0, seed), load=loads)


CHATS = (Kind("sharegpt"),)
CHATS_AND_DOCUMENTS = (Kind("sharegpt", 6.0), Kind("documents", 1.0))
_CHAT = Objectives(2.0, 8.0, 0.15)
_CALLS = Objectives(2.0, 8.0, 0.25)
_WHOLE = Objectives(5.0, 8.0, 0.25)
_BOTH = Objectives(3.0, 10.0, 0.2)

ROWS = (
    Row("910b", "sharegpt", QWEN3_8B_910B, CHATS, _CHAT),
    Row("910b", "bimodal", QWEN3_8B_910B, CHATS_AND_DOCUMENTS, _BOTH, 260.0, 60.0),
    Row("910b", "sharegpt-whole", QWEN3_8B_910B, CHATS, _WHOLE, 200.0, 80.0, streamed=0.0),
    Row("910b", "sharegpt-half", QWEN3_8B_910B, CHATS, _CHAT, streamed=0.5),
    Row("910b", "azure-code", QWEN3_8B_910B, (Kind("code"),), Objectives(2.0, 2.0, None)),
    Row("910b", "servegen-small", QWEN3_8B_910B, (Kind("short-calls", arriving=True),), _CALLS, 120.0, 40.0),
    Row("mindie", "sharegpt", MINDIE_910B, CHATS, _CHAT, 120.0, 40.0),
    Row("mindie", "bimodal", MINDIE_910B, CHATS_AND_DOCUMENTS, _BOTH, 200.0, 60.0),
    Row("c550", "asr", C550_ASR, (Kind("asr"),), Objectives(4.0, 4.0, 0.35), 60.0, 20.0, 10.0),
    Row("c550", "asr-whole", C550_ASR, (Kind("asr"),), Objectives(4.0, 4.0, 0.35), 60.0, 20.0, 10.0, 0.0),
    Row("310p", "sharegpt", DUO_310P, CHATS, Objectives(20.0, 60.0, 0.8), 3000.0, 500.0, 600.0),
    Row("kv8b", "history", KV_BOUND, (Kind("sharegpt-history"),), Objectives(2.0, 4.0, 0.06), 200.0, 50.0),
    Row("a100", "azure-chat", LLAMA3_8B_A100_NO_FLAG, (Kind("conversation"),), Objectives(2.0, 6.0, 0.08), 100.0, 40.0),
    Row(
        "a100",
        "mooncake",
        LLAMA3_8B_A100_NO_FLAG,
        (Kind("long-context", arriving=True),),
        Objectives(10.0, 30.0, 0.25),
        500.0,
        100.0,
        120.0,
    ),
    Row(
        "a100",
        "servegen-reasoning",
        LLAMA3_8B_A100_NO_FLAG,
        (Kind("reasoning", arriving=True),),
        Objectives(2.0, 10.0, 0.06),
        240.0,
        80.0,
        120.0,
    ),
)
