"""One JSON line a request."""

from __future__ import annotations

from gateway.model import Record


class AccessLog:
    """Writes one line per Record to ``target``: ``stdout``, ``stderr`` or a file's path. Never blocks, never raises."""

    def __init__(self, target: str) -> None:
        """Open the target and start the writer.

        Raises:
            OSError: the target cannot be opened for appending.
        """
        raise NotImplementedError

    def observe(self, record: Record) -> None:
        """Queue the line of one finished request."""
        raise NotImplementedError

    def dropped(self) -> int:
        """Lines lost so far: queue full or write failed."""
        raise NotImplementedError

    def reopen(self) -> None:
        """Open the file anew (after logrotate moved it); returns at once."""
        raise NotImplementedError

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most ``timeout`` seconds, and close."""
        raise NotImplementedError
