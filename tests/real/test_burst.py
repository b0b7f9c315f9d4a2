"""Three hundred requests at the same moment to an engine of four slots, with and without the gateway."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from http import HTTPStatus
from statistics import quantiles
from typing import Final

import aiohttp
import pytest

from tests.real.cases import STREAM, completion
from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import LlamaCpp
from tests.real.process import PATIENCE, eventually

pytestmark = pytest.mark.real

CROWD: Final = 300
TOKENS: Final = 4


@dataclass(frozen=True)
class Answer:
    """What one client got. Seconds since its request."""

    status: int
    ttft: float
    tokens: int
    whole: bool
    retry_after: str | None


@dataclass(frozen=True)
class Run:
    """What all of them got."""

    answers: list[Answer]
    seconds: float

    @property
    def served(self) -> list[Answer]:
        """The answers that came."""
        return [answer for answer in self.answers if answer.status == HTTPStatus.OK]

    @property
    def ttft_p99(self) -> float:
        """Of the served ones."""
        return quantiles([answer.ttft for answer in self.served], n=100)[-1]

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return sum(answer.tokens for answer in self.served) / self.seconds

    def row(self, name: str) -> str:
        """A line of the table."""
        shed = len(self.answers) - len(self.served)
        return f"{name:8} {len(self.served):6} {shed:6} {self.ttft_p99:12.3f} {self.throughput:12.0f}"


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> Answer:
    """One streamed completion."""
    begun = time.monotonic()
    body = completion(STREAM, {"prompt": f"client {number}", "max_tokens": TOKENS}).encoded()
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        first, heard = 0.0, b""
        async for piece in answer.content.iter_any():
            heard += piece
            if not first and b'"text":' in heard:
                first = time.monotonic() - begun
        tokens = heard.count(b'"finish_reason":null')
        whole = heard.endswith(b"data: [DONE]\n\n")
        return Answer(answer.status, first, tokens, whole, answer.headers.get("Retry-After"))


async def burst(port: int, size: int) -> Run:
    """So many clients at once."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        begun = time.monotonic()
        answers = await asyncio.gather(*(ask(session, url, number) for number in range(size)))
        return Run(answers, time.monotonic() - begun)


async def test_a_crowd(engine: LlamaCpp, gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """O13 (vllm-project/aibrix#1838), O17: all are answered, and those that are admitted start soon."""
    direct, through = await burst(engine.port, CROWD), await burst(gateway.port, CROWD)
    head = f"{'':8} {'served':>6} {'shed':>6} {'TTFT P99 s':>12} {'tokens/s':>12}"
    with capsys.disabled():
        sys.stdout.write("\n".join(["", head, direct.row("direct"), through.row("gateway"), ""]))

    assert len(direct.served) == CROWD
    assert {answer.status for answer in through.answers} <= {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}
    assert all(answer.whole and answer.tokens == TOKENS for answer in through.served)
    assert all(answer.retry_after for answer in through.answers if answer.status != HTTPStatus.OK)
    assert through.served
    assert through.ttft_p99 < 1.5 * direct.ttft_p99
    assert through.throughput > 0.2 * direct.throughput
    eventually(lambda: gateway.running() == gateway.waiting() == engine.running() == 0, "all is idle again")


async def test_streams_that_follow_each_other_are_never_lost(patient_gateway: GatewayProcess) -> None:
    """llama.cpp closes each connection right after a stream: the next request must not go out on it."""
    run = await burst(patient_gateway.port, 60)
    assert all(answer.whole for answer in run.answers), [answer for answer in run.answers if not answer.whole]
