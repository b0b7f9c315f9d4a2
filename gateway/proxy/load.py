"""How full this gateway is, for a balancer in front: ORCA, the Open Request Cost Aggregation of Envoy and gRPC.

The response header ``endpoint-load-metrics`` in its TEXT form (xds ``orca_load_report.proto``; Envoy's
client-side weighted round robin weighs an endpoint by ``rps_fractional`` over ``application_utilization``, and vLLM
itself answers in the same form). Utilization is what runs and waits over what the limits allow now, so it says of the
engine behind what no balancer can see by itself; above 1 work waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.model import GatewayState

HEADER: Final = "endpoint-load-metrics"

_OUT: Final = frozenset({"down", "open", "drained"})
_STALE: Final = 0.25  # seconds for which a report is given again
_SMOOTHING: Final = 0.2  # weight of the latest span in the rate: a second or so


class LoadReport:
    """The header's value, made anew at most four times a second. ``state`` is admission's, ``clock`` gives seconds."""

    def __init__(self, state: Callable[[], GatewayState], clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._made = clock()
        self._text = ""
        self._rate = 0.0  # requests a second
        self.finished = 0  # requests since the report was made

    def __call__(self) -> str:
        """As of the last quarter of a second."""
        now = self._clock()
        span = now - self._made
        if span >= _STALE or not self._text:
            if span > 0:
                weight = min(1.0, _SMOOTHING * span / _STALE)
                self._rate += weight * (self.finished / span - self._rate)
            self._made, self.finished, self._text = now, 0, self._make()
        return self._text

    def _make(self) -> str:
        state = self._state()
        sound = [backend for backend in state.backends if backend.health not in _OUT]
        running, limit = sum(backend.running for backend in sound), sum(backend.limit for backend in sound)
        waiting = sum(lane.depth for lane in state.lanes)
        full = 1.0 if state.draining or not limit else 0.0  # nothing more, please
        return (
            f"TEXT application_utilization={max(full, (running + waiting) / limit if limit else 0.0):.4f}, "
            f"rps_fractional={self._rate:.3f}, named_metrics.running={running}, named_metrics.waiting={waiting}, "
            f"named_metrics.limit={limit:.1f}"
        )
