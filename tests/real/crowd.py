"""Many users at the same moment: who is refused waits as told, and then asks something else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from statistics import quantiles
from typing import Final

import aiohttp

from tests.real.wire import Request

PATIENCE: Final = 300.0  # seconds a client goes on for
HEAD: Final = (
    f"{'':10} {'served':>6} {'refusals':>8} {'TTFT P50 s':>10} {'TTFT P99 s':>10} {'max s':>7} {'tokens/s':>8} "
    f"{'tokens/step':>11}"
)


@dataclass
class Answer:
    """What one client got in the end. Seconds; ``ttft`` of the try that was served."""

    ttft: float = 0.0
    refusals: int = 0
    whole: bool = False
    stamps: list[float] = field(default_factory=list)  # when its output came


@dataclass(frozen=True)
class Crowd:
    """What all of them got."""

    answers: list[Answer]
    tokens_per_step: float = 0.0  # of the engine: how full its batch was

    @property
    def served(self) -> list[Answer]:
        """The answers that came."""
        return [answer for answer in self.answers if answer.whole]

    def ttfts(self) -> list[float]:
        """Of the served ones."""
        return sorted(answer.ttft for answer in self.served)

    def ttft_p99(self) -> float:
        """Of the served ones."""
        return quantiles(self.ttfts(), n=100)[-1]

    def throughput(self) -> float:
        """Output chunks a second between the first tenth and the last fifth of them.

        The edges are left out: in the beginning the engine reads prompts and nothing else, and in the end there are
        fewer clients than it has places.
        """
        stamps = sorted(stamp for answer in self.served for stamp in answer.stamps)
        first, last = len(stamps) // 10, len(stamps) * 8 // 10
        return (last - first) / (stamps[last] - stamps[first])

    def row(self, name: str) -> str:
        """A line of the table."""
        ttfts, refusals = self.ttfts(), sum(answer.refusals for answer in self.answers)
        median = ttfts[len(ttfts) // 2]
        return (
            f"{name:10} {len(self.served):6} {refusals:8} {median:10.2f} {self.ttft_p99():10.2f} {ttfts[-1]:7.2f} "
            f"{self.throughput():8.0f} {self.tokens_per_step:11.2f}"
        )


Ask = Callable[[int, int], Request]


async def crowd(port: int, size: int, ask: Ask) -> Crowd:
    """So many users, all at once; ``ask(user, refusals)`` is what each of them asks next."""
    url = f"http://127.0.0.1:{port}"
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        return Crowd(await asyncio.gather(*(_user(session, url, ask, user) for user in range(size))))


async def _user(session: aiohttp.ClientSession, url: str, ask: Ask, user: int) -> Answer:
    answer = Answer()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        wait = await _try(session, url, ask(user, answer.refusals), answer)
        if answer.whole:
            break
        await asyncio.sleep(wait)
    return answer


async def _try(session: aiohttp.ClientSession, url: str, request: Request, answer: Answer) -> float:
    """One try; returns how many seconds to wait before the next."""
    begun = time.monotonic()
    headers = {"Content-Type": "application/json"}
    async with session.post(url + request.path, data=request.encoded(), headers=headers) as reply:
        if reply.status != HTTPStatus.OK:
            assert reply.status == HTTPStatus.TOO_MANY_REQUESTS, (reply.status, await reply.text())
            answer.refusals += 1
            return float(reply.headers["retry-after-ms"]) / 1000
        end = b""
        async for piece in reply.content.iter_any():
            answer.stamps += [time.monotonic()] * piece.count(b'"text":')
            end = (end + piece)[-20:]
        answer.ttft = answer.stamps[0] - begun
        answer.whole = end.endswith(b"data: [DONE]\n\n")
    return 0.0
