"""Which backend, chosen at the moment of dispatch: among those with room the least full one for its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from math import inf
from typing import Final

from gateway.admission.config import QueueConfig
from gateway.admission.pool import Books
from gateway.admission.window import LONG_PROMPT
from gateway.model import Ticket

RECENT: Final = 10.0  # seconds that another lane's traffic counts as present


@unique
class Hold(Enum):
    """Why a request cannot go now."""

    ALL = "all"  # nobody has room, or it does not fit a token limit: nothing of this queue goes before it
    LANE = "lane"  # held for a reason of its own lane: other lanes go on


@dataclass(frozen=True, slots=True)
class Balancer:
    """Picks by (in flight + 1) / (limit * weight); ties go to the backend that was chosen least recently."""

    config: QueueConfig

    def pick(self, eligible: Sequence[Books], ticket: Ticket, lane: int, now: float) -> Books | Hold:
        """The backend for ``ticket``, or why there is none."""
        candidates = sound(eligible, now) if any(books.suspect for books in eligible) else eligible
        share = 1.0 if lane == 0 else 1.0 - self.config.reserve_short
        serial = self.reads_serially(ticket, lane)
        tokens = ticket.work.tokens
        best, best_score, hold = None, inf, Hold.ALL
        blocked = False
        for books in candidates:
            window, limit = books.window, books.limit
            inflight = window.inflight
            if inflight and inflight + 1 > limit.value:
                continue
            if inflight and inflight + 1 > limit.value * share:
                hold = Hold.LANE
                continue
            if serial and self.reading(books, now):
                hold = Hold.LANE
                continue
            if inflight and window.tokens + tokens > limit.tokens:
                window.held = blocked = True
                continue
            score = (inflight + 1) / (limit.value * books.weight)
            if score < best_score or (score == best_score and best is not None and books.turn < best.turn):
                best, best_score = books, score
        if best is not None:
            return best
        return Hold.ALL if blocked else hold

    def reads_serially(self, ticket: Ticket, lane: int) -> bool:
        """Whether ``ticket`` must wait for the long prompt before it to be read.

        Prefill is serial compute: a second long prompt inside the engine gains nothing and delays every short one.
        """
        last = len(self.config.lanes) - 1
        return bool(
            self.config.long_prefills
            and lane == last > 0
            and ticket.shape.stream
            and ticket.work.prompt_tokens >= LONG_PROMPT
        )

    def reading(self, books: Books, now: float) -> bool:
        """Whether a backend reads as many long prompts as it should while others want to be served."""
        window = books.window
        return window.long >= self.config.long_prefills and now - window.others_at < RECENT


def sound(eligible: Sequence[Books], now: float) -> list[Books]:
    """Those of the best rank present; never empty."""
    ranks = [books.rank(now) for books in eligible]
    best = min(ranks)
    return [books for books, rank in zip(eligible, ranks, strict=True) if rank == best]
