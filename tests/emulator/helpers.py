"""What several tests of the emulator need."""

import asyncio

from gateway.emulator.server import EmulatedServer


async def until(server: EmulatedServer, **state: int) -> None:
    """Wait until the engine's books say so; the test's own timeout guards it."""
    while state.items() - server.state().items():  # noqa: ASYNC110 - the engine tells nobody when it changes
        await asyncio.sleep(0.005)
