"""Memory for the bodies of requests: bounded in all, so that many large ones are refused and not kept."""

from __future__ import annotations

from typing import Final

_FREE: Final = 64 * 1024  # of each body, not counted: what a chat request has, and buffers hold as much anyway


class BodyMemory:
    """Bytes of bodies that are being read, wait, or are on their way to a backend; at most ``limit`` of them.

    A ``limit`` that is lowered holds for what comes from then on.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def lease(self) -> Lease:
        """For one body."""
        return Lease(self)

    def take(self, size: int) -> bool:
        """Count ``size`` more bytes in, unless there is no room for them."""
        if size > 0 and self.held + size > self.limit:
            return False
        self.held += size
        return True


class Lease:
    """What one body holds. Small bodies hold nothing, so that they are served while large ones fill the memory."""

    __slots__ = ("_held", "_memory")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    def grow(self, size: int) -> bool:
        """The body is ``size`` bytes long by now; False: there is no room for it."""
        more = max(0, size - _FREE) - self._held
        if not self._memory.take(more):
            return False
        self._held += more
        return True

    def end(self) -> None:
        """The body is let go."""
        self._memory.held -= self._held
        self._held = 0
