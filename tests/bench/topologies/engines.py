"""Emulated engines on ports of this machine: ``python -m tests.bench.topologies.engines PORT[:SPEED] ...``."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Final

import uvloop

from gateway.emulator.engine import Profile
from gateway.emulator.server import EmulatedServer

DESK: Final = Profile(
    name="desk",
    base=0.01,
    per_sequence=0.0012,
    per_prompt=0.002,
    per_prefill_token=5e-5,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    kv_tokens=60_000,
    max_model_len=4096,
)
"""So small that three of them and all that stands in front leave two cores half idle: 660 tokens a second, 32 slots."""


async def serve(places: list[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as stack:
        for place in places:
            port, _, speed = place.partition(":")
            await stack.enter_async_context(EmulatedServer(DESK, port=int(port), speed=float(speed or 1)))
        await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
