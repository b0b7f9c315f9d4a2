"""Every Prometheus name, label and bucket of the gateway, and the Observer that fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.model import GatewayState, Record


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Bounds and edges.

    ``max_models`` and ``max_clients`` bound the values of the labels ``model`` and ``client``; what comes beyond is
    counted as ``other``. ``models`` are names of the configuration: they have their series from the start.
    ``buckets`` replaces edges by metric name, in seconds, rising.
    """

    max_models: int = 50
    max_clients: int = 0
    models: tuple[str, ...] = ()
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class Metrics:
    """Counts finished requests and shows admission's state at each scrape of ``registry``."""

    registry: CollectorRegistry

    def __init__(
        self,
        state: Callable[[], GatewayState],
        *,
        version: str,
        config_hash: str,
        config: MetricsConfig | None = None,
        loop_lag: Callable[[], float] | None = None,
        log_dropped: Callable[[], int] | None = None,
    ) -> None:
        """``loop_lag`` gives seconds (LoopLag), ``log_dropped`` lines lost by the access log (AccessLog.dropped)."""
        raise NotImplementedError

    def observe(self, record: Record) -> None:
        """Take one finished request."""
        raise NotImplementedError
