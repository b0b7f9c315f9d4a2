"""What is decided and what is known of the backends: gate, prober, canaries; one, however many processes relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gateway.admission.estimator import Estimator
from gateway.admission.tuning import Tuning
from gateway.model import GatewayState
from gateway.proxy.canary import Canaries, CanaryPlan
from gateway.proxy.config import ProxyConfig
from gateway.proxy.gate import Gate
from gateway.proxy.prober import OnModels, Prober
from gateway.proxy.upstream import Upstream

_MODELS_SHOWN: Final = 64


class Brain:
    """``upstreams`` are the ways to ask the backends; ``on_kind`` and ``on_models`` are as the prober's."""

    def __init__(
        self,
        config: ProxyConfig,
        upstreams: Mapping[str, Upstream],
        gate: Gate,
        estimator: Estimator,
        canary: CanaryPlan | None,
        on_kind: Callable[[frozenset[str]], None],
        on_models: OnModels,
    ) -> None:
        """Compose; nothing is asked before ``start``. Without ``canary`` none are sent."""
        self.gate = gate
        self._estimator = estimator
        self._upstreams = upstreams
        self._prober = Prober(config, upstreams, self.gate, on_kind, on_models)
        self._canaries = Canaries(canary, upstreams, self.gate.is_down) if canary is not None else None

    def start(self) -> None:
        """Ask the backends how they are, from now on."""
        self._prober.start()
        if self._canaries is not None:
            self._canaries.start()

    async def stop(self) -> None:
        """Ask nothing more."""
        await self._prober.stop()
        if self._canaries is not None:
            await self._canaries.stop()
        self.gate.close()

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings, from the next questions on."""
        self._prober.reconfigure(config)

    def add(self, upstream: Upstream) -> None:
        """One backend more."""
        self.gate.add_backend(upstream.backend)
        self._prober.add(upstream)
        if self._canaries is not None:
            self._canaries.add(upstream)

    def forget(self, name: str) -> None:
        """One backend less, on which nothing runs."""
        self._prober.forget(name)
        self.gate.remove_backend(name)

    def state(self) -> GatewayState:
        """Admission's state, with what is known of the engines and models (for /state, /readyz and the metrics)."""
        state = self.gate.state()
        backends = tuple(replace(each, engine=self._prober.state(each.name)) for each in state.backends)
        return replace(state, backends=backends, models=self._estimator.learned(_MODELS_SHOWN))

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Every way by which it asks."""
        return (*self._upstreams.values(), *self._prober.upstreams)

    @property
    def tuning(self) -> Tuning:
        """What ``retune`` can change, as it stands."""
        return self.gate.tuning

    def retune(self, tuning: Tuning) -> None:
        """Go on with what the operator wants; what waits or runs is not touched."""
        self.gate.retune(tuning)
