"""What ends a start with one line instead of a traceback."""

from __future__ import annotations


class StartError(Exception):
    """The process cannot start; the message is for the operator and says what to change."""
