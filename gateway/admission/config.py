"""Admission's settings as plain frozen values; the defaults are safe for every engine (evidence: ARCHITECTURE.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The adaptive limit of one backend. Seconds, tokens, ratios."""

    initial: float = 4.0
    minimum: int = 1
    maximum: int = 1024
    window: float = 2.0  # seconds between decisions, at least
    tolerance: float = 6.0  # where no objective is set: times the unloaded pace, of 19 answers in 20
    tolerance_non_streamed: float = 5.0
    tpot_objective: float | None = None  # seconds per output token
    objective_headroom: float = 0.85
    token_limit: int | None = None  # fixed bound on estimated KV tokens; None: learned
    replicas: int = 1  # gateways that share the backend, this one among them: each has its share of every bound

    @property
    def most(self) -> int:
        """The share of ``maximum``."""
        return max(self.minimum, self.maximum // self.replicas)

    @property
    def most_tokens(self) -> int | None:
        """The share of ``token_limit``."""
        return None if self.token_limit is None else max(1, self.token_limit // self.replicas)


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """One lane: requests of up to ``threshold`` predicted tokens (prompt + output); None: the last lane, unbounded."""

    name: str
    threshold: int | None
    weight: float
    ttft_objective: float | None = None  # seconds
    max_wait: float = 1.0  # seconds a request may wait in the queue; half the objective where one is set
    lingers: bool = True  # nobody set the wait: without an objective it may be longer while a backend is far from full


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The length-aware queue. Quanta are in cost units (an output token is 1, a prompt token 0.25)."""

    lanes: tuple[LaneConfig, ...] = (
        LaneConfig("short", 1000, 2.0, None, 1.0),
        LaneConfig("long", None, 1.0, None, 4.0),
    )
    lane_quantum: float = 500.0
    client_quantum: float = 100.0
    max_requests: int = 10_000
    max_bytes: int = 256 * 1024 * 1024
    reserve_critical: float = 0.05  # share of a limit that only critical requests may take, while there are any
    floor: float = 0.05  # share of what is served that standard and sheddable ones get at least, each, where they wait
    reserve_short: float = 0.0  # share of a limit kept for the first lane where several gateways share a backend
    long_prefills: int = 1  # requests of the last lane that may be before their first token on one backend; 0: no bound


@dataclass(frozen=True, slots=True)
class ShedConfig:
    """Refusals and retries. Seconds and ratios."""

    retry_after_max: float = 60.0
    overload_ratio: float = 1.15  # arrivals over dispatches that count as overload
    overload_after: float = 8.0  # for how long before retries are discouraged: longer than a burst
    retry_budget: float = 0.1  # share of retries among arrivals while overloaded


@dataclass(frozen=True, slots=True)
class EstimatorConfig:
    """Priors of the estimator; all are learned from ``usage``."""

    bytes_per_token: float = 4.0
    tokens_per_message: float = 4.0
    default_output: int = 256
    prompt_weight: float = 0.25  # cost of a prompt token against an output token


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a backend counts as dead, and when it is tried again. Seconds and counts."""

    failures: int = 5  # consecutive connect failures or 5xx
    cooldown: float = 5.0
    cooldown_max: float = 60.0
    silence: float = 120.0  # in flight with no byte from any request for so long


@unique
class Affinity(Enum):
    """What draws requests to one backend where several serve them."""

    NONE = "none"  # nothing: each goes to the emptiest for its limit
    SESSION = "session"  # requests of one session belong together
    PREFIX = "prefix"  # a prompt belongs where most of it is cached


@dataclass(frozen=True, slots=True)
class BalanceConfig:
    """Which backend, where several serve a request.

    ``bound``: a backend that has more than 1 + ``bound`` of its fair share in flight draws nobody. ``patience``: the
    longest a request waits for the backend that it is drawn to, in seconds, while another has room; it never waits
    where a cold prefill would cost the engines less.
    """

    affinity: Affinity = Affinity.PREFIX
    bound: float = 0.25
    patience: float = 10.0
    failovers: float = 0.05  # share of requests that may be tried on another backend, of all that come


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """All of the above."""

    limit: LimitConfig = field(default_factory=LimitConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    shed: ShedConfig = field(default_factory=ShedConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
