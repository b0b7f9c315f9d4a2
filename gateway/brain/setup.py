"""What all processes of a gateway are set up with: read by the brain, told to the workers whenever it changes."""

from __future__ import annotations

import copyreg
import logging
import pickle
from dataclasses import dataclass, field, fields
from typing import Any

from gateway.model import Backend, BackendTls
from gateway.proxy.config import ListenerTls, ProbeConfig, ProxyConfig, TlsConfig
from gateway.proxy.keys import Keys


def _parts(value: Any) -> tuple[type[Any], tuple[Any, ...]]:
    """How a frozen dataclass is made again: once compiled it does not say so itself."""
    return type(value), tuple(getattr(value, each.name) for each in fields(value))


for _kind in (Backend, BackendTls, ProxyConfig, ProbeConfig, TlsConfig, ListenerTls):
    copyreg.pickle(_kind, _parts)


@dataclass(frozen=True, slots=True)
class Setup:
    """``serial`` grows where files are to be read again, though nothing that names them has changed."""

    config: ProxyConfig
    backends: tuple[Backend, ...]
    keys: Keys | None
    serial: int = 0
    log_level: int = field(default_factory=lambda: logging.getLogger().level)

    def dumps(self) -> bytes:
        """As bytes. It is said rarely, so how long that takes does not matter."""
        return pickle.dumps(self)

    @staticmethod
    def loads(payload: memoryview) -> Setup:
        """And back."""
        setup = pickle.loads(payload)  # noqa: S301 - said by a process of this gateway
        assert isinstance(setup, Setup)  # noqa: S101 - the same
        return setup
