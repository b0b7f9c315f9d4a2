"""What every way to find engines has in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

Found = Callable[[frozenset[str]], Awaitable[None]]
"""Is told the URLs of all engines that are there, whenever that is known anew; never an empty set."""


class Source(Protocol):
    """One place that engines are found at."""

    async def run(self, found: Found) -> None:
        """Tell ``found`` for ever. Trouble is told to the log, once; what was found before then stays."""


def url(scheme: str, address: str, port: int) -> str:
    """The URL of an engine at an IP address."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
