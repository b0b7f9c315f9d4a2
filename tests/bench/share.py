"""What shared quotas add to a request: ``python -m tests.bench.share [SECONDS] [REQUESTS_PER_SECOND]``.

Requests of a few keys come to two gateways at even spaces, and end 50 ms later; what is timed is how long each waits to
hear whether it may begin. Each row is the same requests under other circumstances, in turns of one run; ``asked`` is
the part of them that waited for the store. Needs redis-server or valkey-server.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import uvloop

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.quota import Account, KeyTerms
from gateway.model import Access, Route, Shape, ShareFailure, ShareWay, Ticket, WorkEstimate
from gateway.proxy.gate import Gate
from gateway.sharing.base import Call, ShareConfig
from gateway.sharing.share import Share
from gateway.sharing.store import RedisStore
from tests.sharing.server import StoreServer

KEYS: Final = 4
TICKET: Final = Ticket(1, Shape(Route("chat", Access.ADMIT)), WorkEstimate(500, 200, 325.0))
LASTS: Final = 0.05  # seconds of a request
FAR: Final = KeyTerms("", requests_per_minute=600_000, tokens_per_minute=600_000_000, max_in_flight=10_000)


@dataclass
class Told:
    """Counts what is decided how, and keeps how long the store took."""

    ways: dict[ShareWay, int] = field(default_factory=lambda: dict.fromkeys(ShareWay, 0))
    turns: list[float] = field(default_factory=list)

    def decided(self, way: ShareWay) -> None:
        self.ways[way] += 1

    def answered(self, claims: int, seconds: float) -> None:
        self.turns += [seconds * 1e6] * claims

    def failed(self, failure: ShareFailure) -> None:
        pass

    def changed(self, up: bool, gateways: int, text: str) -> None:
        pass

    def counted(self, gateways: int) -> None:
        pass


def away(seconds: float) -> Callable[[str], RedisStore]:
    """Stores so many seconds away."""

    class Away(RedisStore):
        async def run(self, calls: Sequence[Call], timeout: float) -> list[list[int]]:  # noqa: ASYNC109 - as there
            await asyncio.sleep(seconds)
            return await super().run(calls, timeout)

    return Away


class Row:
    """Two gateways under some circumstances, and how long requests waited there."""

    def __init__(
        self,
        name: str,
        terms: KeyTerms,
        url: str | None,
        store: Callable[[str], RedisStore] = RedisStore,
        block: float = 0.05,
    ) -> None:
        self.name = name
        self.took: list[float] = []
        self.told = Told()
        self._accounts = [Account(replace(terms, name=f"key{number}")) for number in range(KEYS)]
        config = ShareConfig(url or "", prefix=name, block=block)
        self.shares = [Share(config, store, self.told) for _ in range(2)] if url is not None else []
        controller = AdmissionController(AdmissionConfig(), (), lambda low, _high: low)
        self._gates = [Gate(controller, quotas=share) for share in self.shares] or [Gate(controller)]

    async def request(self, number: int) -> None:
        gate, account = self._gates[number % len(self._gates)], self._accounts[number // 2 % KEYS]
        began = time.perf_counter()
        shortage, _ = await gate.charge(account, TICKET)
        self.took.append((time.perf_counter() - began) * 1e6)
        if shortage is None:
            tokens = TICKET.work.tokens
            loop = asyncio.get_running_loop()
            loop.call_later(LASTS, lambda: gate.refund(account, tokens, tokens - 50, refused=False))


async def offer(row: Row, seconds: float, rate: float) -> None:
    """Requests are due at even spaces, whatever becomes of those before."""
    tasks: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    for number in range(int(seconds * rate)):
        if (left := start + number / rate - time.perf_counter()) > 0.001:
            await asyncio.sleep(left)
        tasks.add(task := asyncio.create_task(row.request(number)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def main(seconds: float, rate: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = StoreServer(Path(folder)).start()
        each = 60.0 * rate / KEYS  # requests a minute of each key
        near = KeyTerms("", requests_per_minute=int(each / 2), max_in_flight=int(LASTS * rate / KEYS) + 1)
        rows = [
            Row("counted alone", FAR, None),
            Row("shared", FAR, server.url),
            Row("shared, 5 ms away", FAR, server.url, away(0.005)),
            Row("shared, at its bound", near, server.url),
            Row("each request asks", FAR, server.url, block=0.0),
            Row("no store", FAR, "redis://127.0.0.1:1/0"),
        ]
        try:
            for row in rows:
                for share in row.shares:
                    await share.start()
            gc.freeze()
            for _ in range(2):
                for row in rows:
                    await offer(row, seconds / 2 / len(rows), rate)
        finally:
            for row in rows:
                for share in row.shares:
                    await share.stop()
            server.kill()
    print(f"{'':22}{'p50':>7}{'p99':>7}{'p99.9':>7} us at {rate:.0f}/s{'asked':>8}  the store: p50    p99")  # noqa: T201
    for row in rows:
        cuts = statistics.quantiles(row.took, n=1000)
        asked = row.told.ways[ShareWay.ASKED] / len(row.took)
        turns = statistics.quantiles(row.told.turns, n=100) if len(row.told.turns) > 1 else [0.0] * 99
        print(  # noqa: T201
            f"{row.name:22}{cuts[499]:7.0f}{cuts[989]:7.0f}{cuts[998]:7.0f}{'':14}{asked:7.1%}{'':10}"
            f"{turns[49]:7.0f}{turns[98]:7.0f}"
        )


if __name__ == "__main__":
    uvloop.run(main(*(float(each) for each in [*sys.argv[1:], *("48", "500")[len(sys.argv) - 1 :]])))
