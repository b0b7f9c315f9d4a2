"""The causes that a diagnosis can name: how bad each is, what it is called, and what to turn.

docs/diagnosis.md says more of each. ``{name}`` is the backend or the client that a finding is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final


@unique
class Cause(Enum):
    """What can be found. The values are stable: they name documents, metrics and alerts."""

    BACKEND_DOWN = "backend_down"
    BACKEND_HUNG = "backend_hung"
    CANARY_FAILED = "canary_failed"
    RETRY_STORM = "retry_storm"
    GATEWAY_BUSY = "gateway_busy"
    KV_BOUND = "kv_bound"
    LONG_STARVES_SHORT = "long_starves_short"
    STALLS = "stalls"
    SLOWING_DOWN = "slowing_down"
    LIMIT_TOO_HIGH = "limit_too_high"
    LIMIT_TOO_LOW = "limit_too_low"
    FRONT_END_BOUND = "front_end_bound"
    PREFILL_BOUND = "prefill_bound"
    AT_CAPACITY = "at_capacity"
    CLIENT_FAILING = "client_failing"
    CLIENT_SLOW = "client_slow"


@unique
class Severity(Enum):
    """How bad it is, the worst first."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is said of every finding of a cause."""

    severity: Severity
    title: str
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its evidence, and what to turn; each line is a sentence. ``backend`` is None for the gateway."""

    cause: Cause
    title: str
    severity: Severity
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    backend: str | None = None


_DRAIN: Final = "`gateway limits --drain {name}`: new requests go elsewhere until it is well"

MEANINGS: Final[Mapping[Cause, Meaning]] = {
    Cause.BACKEND_DOWN: Meaning(
        Severity.CRITICAL,
        "{name} is out",
        (
            "Its process and its log first; restart it.",
            "GATEWAY_BACKENDS: its address, where the engine itself is well.",
            "GATEWAY_BREAKER_COOLDOWN: how soon it is tried again after failures.",
        ),
    ),
    Cause.BACKEND_HUNG: Meaning(
        Severity.CRITICAL,
        "{name} hangs: requests are in flight and no byte comes back",
        (
            "Restart it; its log and the accelerator's say why (a lost device, a collective that waits for ever).",
            "GATEWAY_BREAKER_SILENCE: after so long without a byte the gateway takes it out by itself.",
            f"{_DRAIN}.",
        ),
    ),
    Cause.CANARY_FAILED: Meaning(
        Severity.CRITICAL,
        "{name} answers a fixed prompt otherwise than before: its answers may be wrong",
        (
            f"{_DRAIN}.",
            "Ask it the prompt by hand, then restart it (a polluted KV or prefix cache, a bad device).",
            "If its model was changed on purpose, restart the gateway: first answers are kept in memory.",
        ),
    ),
    Cause.RETRY_STORM: Meaning(
        Severity.CRITICAL,
        "A storm of retries: clients come back faster than they are served",
        (
            "The clients: obey Retry-After and x-should-retry, retry twice at most, time out later.",
            "GATEWAY_RETRY_BUDGET: the share of retries that is taken while overloaded; lower it.",
            "GATEWAY_RETRY_AFTER_MAX: the longest wait that is told; raise it where it is short.",
        ),
    ),
    Cause.GATEWAY_BUSY: Meaning(
        Severity.WARNING,
        "The gateway itself is short of CPU: every stream is late",
        (
            "A core of its own: it uses one, and a CPU quota throttles it in bursts.",
            "What else runs on its machine.",
        ),
    ),
    Cause.KV_BOUND: Meaning(
        Severity.WARNING,
        "The KV cache of {name} is the bottleneck, not its compute",
        (
            "The engine: more memory for KV (vLLM: --gpu-memory-utilization, --kv-cache-dtype fp8).",
            "GATEWAY_TOKEN_LIMIT: lower, where it still throws requests out.",
            "More replicas in GATEWAY_BACKENDS: each brings its own memory.",
        ),
    ),
    Cause.LONG_STARVES_SHORT: Meaning(
        Severity.WARNING,
        "Long prompts on {name} hold up the short requests beside them",
        (
            "The engine: read long prompts in pieces (vLLM: --long-prefill-token-threshold, --max-num-batched-tokens).",
            "GATEWAY_BACKENDS: an engine of their own for long prompts.",
            "GATEWAY_LONG_PREFILLS: 1, where it is more, or 0.",
        ),
    ),
    Cause.STALLS: Meaning(
        Severity.WARNING,
        "{name} stands still now and then",
        (
            "Its log at these instants: compilation, graph capture, loading of an adapter, garbage collection.",
            "Its machine: other work on the accelerator, swapping, the network between its parts.",
        ),
    ),
    Cause.SLOWING_DOWN: Meaning(
        Severity.WARNING,
        "{name} has become slower at the same load",
        (
            "The accelerator: temperature and clocks (npu-smi, mx-smi, nvidia-smi), a device that fell out.",
            "The engine: a restart, where memory is fragmented or caches have grown; other processes beside it.",
            f"{_DRAIN}.",
        ),
    ),
    Cause.LIMIT_TOO_HIGH: Meaning(
        Severity.WARNING,
        "The limit of {name} is too high for the objective",
        (
            "`gateway limits --unpin {name}` has it found; for good, take `limit` out of GATEWAY_BACKENDS.",
            "GATEWAY_LIMIT_MIN: lower, where that holds it up.",
            "GATEWAY_TPOT_OBJECTIVE: higher, where slower is fast enough.",
        ),
    ),
    Cause.LIMIT_TOO_LOW: Meaning(
        Severity.WARNING,
        "The limit of {name} is too low: the engine could run more",
        (
            "`gateway limits --unpin {name}` has it found; for good, take `limit` out of GATEWAY_BACKENDS.",
            "GATEWAY_LIMIT_MAX: higher, where that holds it down.",
        ),
    ),
    Cause.FRONT_END_BOUND: Meaning(
        Severity.WARNING,
        "The front end of {name} is the bottleneck, not its accelerator",
        (
            "The engine: more front-end processes (vLLM: --api-server-count), a core for each, no CPU quota.",
            "Images and audio: preprocess or cache them before (vLLM: --mm-processor-cache-gb).",
            "Not the limit: more in flight only wait longer there.",
        ),
    ),
    Cause.PREFILL_BOUND: Meaning(
        Severity.WARNING,
        "Reading prompts is the bottleneck of {name}",
        (
            "The engine: a prefix cache where prompts begin alike (vLLM: --enable-prefix-caching).",
            "The engine: more tokens a step (vLLM: --max-num-batched-tokens), or prefill on machines of its own.",
            "The clients: shorter prompts, fewer retrieved passages.",
            "More replicas in GATEWAY_BACKENDS.",
        ),
    ),
    Cause.AT_CAPACITY: Meaning(
        Severity.WARNING,
        "{name} serves all that it can, and more comes in",
        (
            "More replicas in GATEWAY_BACKENDS; `gateway curve` shows what one of them gives at most.",
            "GATEWAY_TTFT_OBJECTIVE, GATEWAY_TPOT_OBJECTIVE: looser ones let more run at once.",
        ),
    ),
    Cause.CLIENT_FAILING: Meaning(
        Severity.INFO,
        "One client fails while the others are served: {name}",
        ("Tell its owner: its timeout, or its requests; the access log has the status of each.",),
    ),
    Cause.CLIENT_SLOW: Meaning(
        Severity.INFO,
        "One client takes its answers slowly and holds places meanwhile: {name}",
        ("Tell its owner: its network, or what it does between two reads. There is nothing to turn here.",),
    ),
}
