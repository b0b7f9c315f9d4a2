"""The store as a plain object on stated time: what the script in ``gateway.sharing.scripts`` does, in Python."""

from __future__ import annotations

from math import ceil, floor

from gateway.admission.share import Ask, Claim, Reply, Word

_MINUTE = 60.0


class Ledger:
    """Buckets and places of one holder."""

    def __init__(self) -> None:
        self.full: dict[tuple[str, int], float] = {}
        self.places: dict[str, int] = {}

    def claim(self, who: str, claim: Claim, now: float) -> Reply:
        asked = [("requests", claim.requests), ("tokens", claim.tokens)]
        buckets = [(what, ask, self._full(what, ask, now)) for what, ask in asked if ask is not None]
        refused = any(
            ask.need > 0 and full + ask.need * _MINUTE / ask.limit - _MINUTE - now > 1e-6 for _, ask, full in buckets
        )
        free = 0
        if claim.places is not None:
            free = claim.places.limit - claim.held - sum(n for other, n in self.places.items() if other != who)
            refused |= claim.places.need > free
        words: dict[str, Word] = {}
        if claim.places is not None:
            taken = 0 if refused else _taken(free, max(0, claim.places.cost), claim.places)
            self.places[who] = claim.held + taken
            words["places"] = Word(taken, free - taken)
        for what, ask, full in buckets:
            left = (_MINUTE - (full - now)) * ask.limit / _MINUTE
            units = 0 if refused else _taken(left, ask.cost, ask)
            after = max(now, full + units * _MINUTE / ask.limit)
            self.full[what, ask.limit] = after
            words[what] = Word(units, ceil((after - now) * 1e6) / 1e6)
        return Reply(words.get("places"), words.get("requests"), words.get("tokens"))

    def _full(self, what: str, ask: Ask, now: float) -> float:
        return max(self.full.get((what, ask.limit), 0.0), now, now + ask.empty)


def _taken(left: float, cost: int, ask: Ask) -> int:
    left -= cost
    taken = max(0, min(ask.more, floor(left)))
    left -= taken
    return cost + taken + max(0, min(ask.ahead, floor(left / 8)))
