"""What systemd is told: sd_notify(3), datagrams to the Unix socket that ``NOTIFY_SOCKET`` names.

Without that variable, as anywhere but in a unit of ``Type=notify``, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_log = logging.getLogger(__name__)

_MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """The service manager that started this process, if one wants to be told. Made on a running loop."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        self._patience = _watchdog(environment)
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        if self._socket is not None:
            self._socket.setblocking(False)  # a manager that does not read must not hold up a request

    def ready(self) -> None:
        """The listeners are open. From now on the watchdog, where the unit has one, hears that the loop turns."""
        self._tell("READY=1")
        if self._next is None and self._patience:
            self._alive()

    def reloading(self) -> None:
        """A reload begins; ``ready`` ends it."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within: float) -> None:
        """It stops, which may take ``within`` seconds, whatever the unit's own TimeoutStopSec."""
        self._tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(within * _MICROSECONDS)}")

    def close(self) -> None:
        """Say no more. Idempotent."""
        if self._next is not None:
            self._next.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _alive(self) -> None:
        self._tell("WATCHDOG=1")
        self._next = self._loop.call_later(self._patience / 2.0, self._alive)  # as sd_watchdog_enabled(3) asks for

    def _tell(self, state: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            _log.warning("the service manager cannot be told %s: %s", state.partition("\n")[0], error.strerror)


def _address(given: str) -> str:
    """Path, or name in the abstract namespace; empty for what is neither (``vsock:``, of virtual machines)."""
    if given.startswith("@"):
        return f"\0{given[1:]}"
    return given if given.startswith("/") else ""


def _watchdog(environment: Mapping[str, str]) -> float:
    """Seconds without a word after which the manager ends this process; 0 where it has no watchdog."""
    pid, microseconds = environment.get("WATCHDOG_PID", ""), environment.get("WATCHDOG_USEC", "")
    ours = not pid or pid == str(os.getpid())
    return int(microseconds) / _MICROSECONDS if ours and microseconds.isdecimal() else 0.0
