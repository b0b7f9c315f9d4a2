"""What sharing asks of a store, what it is set up with, and whom it tells of what happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.model import ShareFailure, ShareWay


class StoreError(Exception):
    """The store did not answer, or by an error; the text never holds the password."""

    def __init__(self, failure: ShareFailure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Call:
    """A script, the keys that it touches and its arguments; it gives a list of whole numbers."""

    script: str
    keys: tuple[str, ...]
    arguments: tuple[str | int, ...]


class Store(Protocol):
    """Where scripts are run one after the other."""

    async def open(self) -> None:
        """Connect anew; raises StoreError."""

    async def close(self) -> None:
        """Let go of the connection."""

    async def run(self, calls: Sequence[Call], timeout: float) -> list[list[int]]:  # noqa: ASYNC109 - of all of it
        """What each call gives; raises StoreError unless all of them were answered within ``timeout`` seconds."""


class Watch(Protocol):
    """Who is told of what happens."""

    def decided(self, way: ShareWay) -> None:
        """A request was let in or refused."""

    def answered(self, claims: int, seconds: float) -> None:
        """The store answered so many claims at once."""

    def failed(self, failure: ShareFailure) -> None:
        """The store was of no use."""

    def changed(self, up: bool, gateways: int, text: str) -> None:
        """There is a store from now on, or none any more, and why; ``gateways`` share."""

    def counted(self, gateways: int) -> None:
        """So many gateways share now."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """``prefix`` of all keys; ``timeout`` seconds for an answer; ``block``: part of a bound that is claimed ahead.

    A gateway that is silent for ``lease`` seconds has lost its places. ``gateways`` share until the store has told.
    """

    url: str
    prefix: str = "gateway"
    timeout: float = 0.05
    block: float = 0.05
    lease: float = 10.0
    gateways: int = 1
