"""A permit that is held for as long as a connection stays open: a WebSocket.

It takes a place, since it may ask for work at any time. How long it lasts and how little it says tell nothing of the
engine, so it is neither measured nor judged.
"""

from __future__ import annotations

from gateway.admission.window import Running


class Session(Running):
    """One open session."""

    __slots__ = ()

    def begin(self) -> None:
        """It is no answer in one piece."""

    def end(self) -> None:
        """See ``begin``."""
