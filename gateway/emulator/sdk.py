"""How the openai SDK retries (openai-python 3.57, ``_base_client.py``): the rules that make a retry storm.

Two retries. 408, 409, 429 and 5xx are retried, and so are connection errors and timeouts before the answer's head;
``x-should-retry`` overrules the status, and a ``Retry-After`` of more than two minutes ends the call. A stream that
breaks after its head is the caller's to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Final

MAX_RETRIES: Final = 2
FIRST_DELAY: Final = 0.5  # seconds, doubled for each retry
MAX_DELAY: Final = 8.0
JITTER: Final = 0.25  # at most so much is taken off
MAX_RETRY_AFTER: Final = 120.0

_RETRIED: Final = frozenset({408, 409, 429})


def headers(attempt: int, timeout: float) -> dict[str, str]:
    """What the SDK says of itself with attempt number ``attempt`` (0 first) and a read timeout in seconds."""
    return {
        "x-stainless-retry-count": str(attempt),
        "x-stainless-read-timeout": f"{timeout:g}",
        "x-stainless-lang": "python",
    }


def retry_delay(
    status: int | None, reply: Mapping[str, str], attempt: int, chance: Callable[[], float], wall: float
) -> float | None:
    """Seconds to sleep after attempt number ``attempt``; None where the SDK gives up, attempts being left.

    ``status`` is None for a connection error or a timeout. ``reply`` holds the answer's headers by lower-case name,
    ``chance`` draws from [0, 1), ``wall`` is the Unix time against which a dated Retry-After counts.
    """
    told = _told(reply, wall)
    if status is not None and not _retried(status, reply, told):
        return None
    if told is not None and math.isfinite(told) and 0 < told <= MAX_RETRY_AFTER:
        return told
    return min(FIRST_DELAY * 2.0**attempt, MAX_DELAY) * (1.0 - JITTER * chance())


def _retried(status: int, reply: Mapping[str, str], told: float | None) -> bool:
    if told is not None and math.isfinite(told) and told > MAX_RETRY_AFTER:
        return False
    wish = reply.get("x-should-retry")
    if wish in {"true", "false"}:
        return wish == "true"
    return status in _RETRIED or status >= 500  # noqa: PLR2004 - a server's fault


def _told(reply: Mapping[str, str], wall: float) -> float | None:
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(reply[name]) / divisor
        except (KeyError, ValueError):
            continue
    date = parsedate_tz(reply.get("retry-after", ""))
    return None if date is None else mktime_tz(date) - wall
