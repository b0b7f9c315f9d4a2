"""The proxy as a whole: listener, gate, connections to the backends, prober; start, drain, stop."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.model import Backend, GatewayState, Observer
from gateway.proxy.config import ProxyConfig


class Gateway:
    """Serves clients from ``start`` until ``stop``. One event loop; not restartable.

    The caller (app.py) owns signals: the first SIGTERM calls ``drain``, a second one ``stop``; both may be awaited
    at once. ``await gateway.drain()`` returns when the last stream ended or was cut at the end of the grace time.
    """

    def __init__(
        self,
        config: ProxyConfig,
        backends: Sequence[Backend],
        controller: AdmissionController,
        estimator: Estimator,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Compose; nothing is opened before ``start``."""
        raise NotImplementedError

    async def start(self) -> None:
        """Listen and probe. Starts whether or not any backend answers.

        Raises:
            OSError: the address cannot be bound.
        """
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where it listens, with the port really bound."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Requests being served now, queued ones included."""
        raise NotImplementedError

    def state(self) -> GatewayState:
        """Admission's state (for /state, /readyz and the metrics)."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Refuse new work with 503 and ``Connection: close``, let the rest finish within the grace time, then stop."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Cut everything that is left and close. Idempotent."""
        raise NotImplementedError
