"""Set-up of the process log (stdlib logging)."""

from __future__ import annotations

import logging


def configure(level: str, style: str) -> logging.Handler:
    """Send all logging to stderr from ``level`` on, ``style`` ``plain`` or ``json``; ``close()`` of the handler flushes.

    Raises:
        ValueError: an unknown level or style.
    """
    raise NotImplementedError
