"""Exit codes, and what ends a start with one line instead of a traceback."""

from __future__ import annotations

from typing import Final

EXIT_CONFIG: Final = 1  # a fault in the settings
EXIT_USAGE: Final = 2  # a fault in the command line
EXIT_START: Final = 3  # the settings are right and the machine says no
EXIT_SIGNAL: Final = 128  # plus the signal's number, as shells count


class StartError(Exception):
    """The process cannot start; the message is for the operator and says what to change."""
