"""Every kind of engine: what the prober asks it, and how it behaves when it is full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.dialects.base import Gauges, Plane, Probe
from gateway.dialects.gauges import mindie_slots, mindie_status, prometheus

AUTO: Final = "auto"  # a backend's kind that is found out by asking
GENERIC: Final = "openai"  # what nobody recognised is taken for

_METRICS: Final = Gauges(("/metrics",), prometheus)


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind; see ``EngineDialect``."""

    kind: str
    health: tuple[Probe, ...]
    gauges: tuple[Gauges, ...] = (_METRICS,)
    closes_when_full: bool = False
    single_use: bool = False
    any_model: bool = False
    shortens: bool = False
    neighbours: tuple[tuple[int, Plane, int], ...] = ()


def _on(plane: Plane, gauges: Gauges) -> Gauges:
    return Gauges(gauges.paths, gauges.read, plane)


_STATUS: Final = Gauges(("/v2/status", "/v1/config"), mindie_status)
_SLOTS: Final = Gauges(("/v2/models/{model}/getSlotCount",), mindie_slots)

# MindIE-LLM 3.0.0, src/server/endpoint/http_wrapper: http_handler.cpp, http_server.cpp, threadpool_monitor.cpp.
# - Health and state are on the management plane, /metrics on a third one; all may be merged into the serving port.
# - /v2/health/ready answers 503 where the service is merely busy, /v2/health/live does not.
# - /metrics is 500 unless MIES_SERVICE_MONITOR_MODE=1; /v2/status and the slots need nothing.
# - A connection beyond three times maxLinkNum is closed at the door, before TLS and without a byte. An idle one that
#   is kept open holds a thread of maxLinkNum for up to 180 s, so none is kept.
# - Output ends where the sequence is full (maxSeqLen); only a prompt that is too long by itself is refused.
_MINDIE: Final = Engine(
    "mindie",
    (Probe("/v2/health/live", Plane.MANAGEMENT), Probe("/v2/health/live"), Probe("/v1/models")),
    (
        _on(Plane.METRICS, _METRICS),
        _on(Plane.MANAGEMENT, _METRICS),
        _METRICS,
        _on(Plane.MANAGEMENT, _STATUS),
        _STATUS,
        _on(Plane.MANAGEMENT, _SLOTS),
        _SLOTS,
    ),
    closes_when_full=True,
    single_use=True,
    shortens=True,
    neighbours=((1025, Plane.MANAGEMENT, 1026), (1025, Plane.METRICS, 1027)),
)

ENGINES: Final[Mapping[str, Engine]] = MappingProxyType({
    engine.kind: engine
    for engine in (
        Engine(GENERIC, (Probe("/health"), Probe("/v1/models"))),
        Engine("vllm", (Probe("/health"),)),
        # SGLang's /health generates a token when idle; these cost nothing, and old versions have the second.
        Engine("sglang", (Probe("/ready"), Probe("/get_model_info")), any_model=True),
        Engine("llamacpp", (Probe("/health"),), any_model=True, shortens=True),
        _MINDIE,
        Engine("tgi", (Probe("/health"),), any_model=True),
        Engine("lmdeploy", (Probe("/health"),), shortens=True),
        # Triton's /v2/health/ready is false while any model is not loaded. Its metrics are on a port of their own.
        Engine("triton", (Probe("/v2/health/live"),), (_on(Plane.METRICS, _METRICS),)),
    )
})  # fmt: skip
"""Every kind by its name."""
