"""Short requests among prompts of 128,000 tokens: they hardly notice, and the long ones finish.

The emulated A100 runs with the engine flag ``--long-prefill-token-threshold 32``: what one step of the engine does
with a long prompt is the engine's, how many of them meet in it is the gateway's. It runs three times as fast as it
would, so that the test does not take five minutes; what is asserted is a ratio.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import pytest

from gateway.emulator.load import Load, Plan, Result, percentile
from gateway.emulator.scenario import chat
from tests.acceptance.engine import EmulatedEngine
from tests.acceptance.engine import chat as request
from tests.real.gateway import GatewayProcess
from tests.real.wire import exchange

PROFILE: Final = "a100-llama3-8b"
SPEED: Final = 3
RATE: Final = 5.0 * SPEED  # short requests a second
LEARN: Final = 12.0  # seconds that do not count: from a cold start the gateway finds the limit meanwhile
MEASURED: Final = 25.0  # seconds that count, alone and among long prompts, which take longer one after the other
LONG: Final = 127_000  # tokens of a long prompt
LATE: Final = 0.3  # seconds that an arrival may be late: TTFT is a few tenths, and later it is not the engine's
LONGS: Final = 2  # of them at once

pytestmark = [pytest.mark.load, pytest.mark.timeout(180)]


def shorts(url: str, seconds: float) -> Load:
    """The same short requests, each time."""
    return Load(url, Plan(chat(PROFILE, (100, 700), (20, 100)), RATE, seconds, timeout=60.0, grace=10.0))


def ttft_p99(result: Result, since: float) -> float:
    if result.lag > LATE:
        pytest.skip(f"something else kept the machine busy: an arrival was {result.lag:.2f} s late")
    window = [o for o in result.outcomes if since <= o.arrival < since + MEASURED]
    values = [o.ttft for o in window if o.ttft is not None]
    assert len(values) >= 0.99 * len(window), "short requests were refused"
    assert len(values) > 300
    found = percentile(values, 0.99)
    assert found is not None
    return found


def finish_long(port: int, number: int) -> float:
    """Send a long prompt, which begins like no other, until it is answered, waiting as told to; the seconds it took."""
    began = time.monotonic()
    message = {"role": "user", "content": f"{number} " + "word " * LONG}
    while True:
        reply = exchange(port, request(PROFILE, max_tokens=50, messages=[message]))
        if reply.status == 200:
            assert reply.body.rstrip().endswith(b"data: [DONE]")
            return time.monotonic() - began
        assert reply.status == 429, reply
        time.sleep(float(reply.header("retry-after") or 0))


async def together(port: int, load: Load) -> tuple[Result, list[float]]:
    """Short requests, and long prompts that begin with them."""
    longs = asyncio.gather(*(asyncio.to_thread(finish_long, port, number) for number in range(LONGS)))
    return await load.run(), await longs


def test_shorts_hardly_notice_long_prompts_and_those_finish(
    engine: Callable[..., EmulatedEngine], gateway: Callable[..., GatewayProcess]
) -> None:
    backend = engine(PROFILE, "--speed", str(SPEED))
    process = gateway(backends=backend.url)
    alone = ttft_p99(asyncio.run(shorts(process.url, LEARN + MEASURED).run()), LEARN)
    result, longs = asyncio.run(together(process.port, shorts(process.url, MEASURED)))
    among = ttft_p99(result, 0.0)
    print(f"TTFT P99 alone {alone:.3f} s, among long prompts {among:.3f} s: {among / alone:.2f}; they took {longs} s")  # noqa: T201 - shown where it fails
    assert max(longs) > MEASURED, "the long prompts were too quick to show anything"
    assert among <= 2.0 * alone
