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
from gateway.model import Priority, Ticket

RECENT: Final = 10.0  # seconds that another lane's traffic counts as present


@unique
class Hold(Enum):
    """Why a request cannot go now."""

    FULL = "full"  # no backend has room: nobody of this queue can go
    TOKENS = "tokens"  # there is room, but not for its tokens: nobody goes before it, or long ones would starve
    LANE = "lane"  # held for a reason of its own lane: other lanes go on


@dataclass(frozen=True, slots=True)
class Balancer:
    """Picks by (in flight + 1) / (limit * weight); ties go to the backend that was chosen least recently."""

    config: QueueConfig

    def pick(self, candidates: Sequence[Books], ticket: Ticket, lane: int, now: float) -> tuple[Books, bool] | Hold:
        """The backend for ``ticket`` and whether more places are left, or why there is none."""
        best, best_score, hold, roomy = None, inf, Hold.FULL, 0
        serial = self.reads_serially(ticket, lane)
        critical, tokens = ticket.priority is Priority.CRITICAL, ticket.work.tokens
        for books in candidates:
            window = books.window
            inflight = window.inflight
            if inflight >= (books.cap if critical else books.cap_common):
                continue
            roomy += 1
            if inflight:
                if (lane and inflight >= books.cap_others) or (serial and self.reading(books, now)):
                    hold = hold if hold is Hold.TOKENS else Hold.LANE
                    continue
                if window.tokens + tokens > books.limit.tokens:
                    window.held = True
                    hold = Hold.TOKENS
                    continue
            score = (inflight + 1) / (books.limit.value * books.weight)
            if score < best_score or (score == best_score and best is not None and books.turn < best.turn):
                best, best_score = books, score
        return hold if best is None else (best, roomy > 1 or best.window.inflight + 1 < best.cap)

    def reads_serially(self, ticket: Ticket, lane: int) -> bool:
        """Whether ``ticket`` must wait for the long prompt before it to be read.

        Prefill is serial compute: a second long prompt inside the engine gains nothing and delays every short one.
        """
        return (
            ticket.work.prompt_tokens >= LONG_PROMPT
            and ticket.shape.stream
            and self.config.long_prefills > 0
            and lane == len(self.config.lanes) - 1 > 0
        )

    def reading(self, books: Books, now: float) -> bool:
        """Whether a backend reads as many long prompts as it should while others want to be served."""
        window = books.window
        return window.long >= self.config.long_prefills and now - window.others_at < RECENT
