"""How late the event loop runs its callbacks."""

from __future__ import annotations


class LoopLag:
    """Peak lateness of a periodic callback over the last 15 to 30 seconds."""

    def start(self) -> None:
        """Begin, on the running loop."""
        raise NotImplementedError

    def stop(self) -> None:
        """End."""
        raise NotImplementedError

    def __call__(self) -> float:
        """Seconds."""
        raise NotImplementedError
