"""What is said of a place for a request: here, or not now and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, unique

from gateway.admission.pool import Books
from gateway.model import Choice


@unique
class Hold(Enum):
    """Why a request cannot go now."""

    FULL = "full"  # no backend has room: nobody of this queue can go
    TOKENS = "tokens"  # there is room, but not for its tokens: nobody goes before it, or long ones would starve
    LANE = "lane"  # held for a reason of its own lane: other lanes go on


@unique
class Keen(IntEnum):
    """How much a request wants the place that was found for it."""

    PATIENT = 0  # it rather waits for the backend that it is drawn to
    RELUCTANT = 1  # it takes it, if nobody right behind it is drawn there
    COLD = 2  # it takes it, if nobody right behind it has most of its own prompt there
    KEEN = 3


@dataclass(slots=True)
class Spot:
    """A place. ``more``: others are left; ``matched``: leading blocks of the prompt that are thought to be cached."""

    books: Books
    more: bool
    choice: Choice = Choice.HEADROOM
    keen: Keen = Keen.KEEN
    matched: int = 0
