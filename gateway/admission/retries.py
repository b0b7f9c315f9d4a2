"""Who was refused and came back, and how much of the load retries may be.

SDKs of the OpenAI family count their attempts (``x-stainless-retry-count``); other clients do not, or start again at 0
with each outer attempt, so the ledger also recognises the same call by its fingerprint.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 65_536  # refusals at most
FORGOTTEN: Final = 120.0  # seconds after the told time
SLACK: Final = 0.01  # seconds; Retry-After travels in whole milliseconds
FADE: Final = 0.99  # per 100 ms
A_FEW: Final = 3.0  # retries that are nobody's storm, as Envoy's retry budget has it (``min_retry_concurrency``)


class Ledger:
    """Fingerprints of refused calls, each with the time it was told to come back, and when it first came."""

    def __init__(self) -> None:
        self._due: OrderedDict[int, tuple[float, float]] = OrderedDict()
        self.seen: dict[bool, int] = {True: 0, False: 0}  # {kept the told wait: count}

    def refuse(self, fingerprint: int, due: float, first: float) -> None:
        """Note that a call that first came at ``first`` was told to come back at ``due``; fingerprint 0 is none."""
        if not fingerprint:
            return
        self._due[fingerprint] = due, first
        self._due.move_to_end(fingerprint)
        if len(self._due) > REMEMBERED:
            self._due.popitem(last=False)

    def arrive(self, fingerprint: int, now: float) -> float | None:
        """When this call first came, where it was refused lately; notes whether it kept the told wait."""
        self._forget(now)
        told = self._due.pop(fingerprint, None)
        if told is None:
            return None
        due, first = told
        self.seen[now >= due - SLACK] += 1
        return first

    def _forget(self, now: float) -> None:
        while self._due:
            fingerprint, (due, _) = next(iter(self._due.items()))
            if due + FORGOTTEN > now:
                return
            del self._due[fingerprint]

    def __len__(self) -> int:
        return len(self._due)


class RetryBudget:
    """Share of retries among recent arrivals; recent means a memory that fades by 1 % in 100 ms."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._retries = 0.0
        self._fresh = 0.0
        self._at = 0.0

    def arrive(self, *, retry: bool, now: float) -> None:
        """Count an arrival."""
        if now > self._at:
            kept = FADE ** ((now - self._at) * 10.0)
            self._retries *= kept
            self._fresh *= kept
            self._at = now
        if retry:
            self._retries += 1.0
        else:
            self._fresh += 1.0

    @property
    def recent(self) -> float:
        """Arrivals, as of the last one."""
        return self._retries + self._fresh

    @property
    def exceeded(self) -> bool:
        """Whether retries are more than their share, and more than a few."""
        return self.exceeds(self.recent)

    def exceeds(self, arrivals: float) -> bool:
        """The same of so many arrivals, which are counted elsewhere."""
        return self._retries > max(A_FEW, self._budget * arrivals)
