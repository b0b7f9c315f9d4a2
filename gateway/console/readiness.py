"""Is this gateway fit to take traffic?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.model import GatewayState


@dataclass(frozen=True, slots=True)
class Readiness:
    """``degraded``: ready, but some backend is out. ``reasons``: one short sentence each."""

    ready: bool
    degraded: bool
    reasons: tuple[str, ...]


class ReadinessCheck:
    """Ready from the moment any backend was reachable until the gateway drains."""

    def __init__(self, state: Callable[[], GatewayState]) -> None:
        """``state`` is admission's."""
        raise NotImplementedError

    def __call__(self) -> Readiness:
        """Look now."""
        raise NotImplementedError
