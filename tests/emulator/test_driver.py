"""The engine on the event loop."""

import asyncio
import time
from dataclasses import replace

import pytest

from gateway.emulator.driver import Driver
from gateway.emulator.engine import Emission
from gateway.emulator.profiles import FLAT


async def drive(driver: Driver, tokens: int) -> list[Emission]:
    """One request of so many tokens, to its end."""
    emissions: list[Emission] = []
    done = asyncio.Event()

    def take(emission: Emission) -> None:
        emissions.append(emission)
        if emission.finished:
            done.set()

    driver.submit([(1, tokens)], take)
    await done.wait()
    return emissions


async def test_steps_end_at_their_own_instants_however_late_the_loop_is() -> None:
    driver = Driver(FLAT)
    emissions: list[Emission] = []
    driver.submit([(1, 30)], emissions.append)
    time.sleep(0.15)  # noqa: ASYNC251 - the host is busy
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(emissions) >= 14  # all at once, none pushed back
    start = emissions[0].at
    assert [e.at - start for e in emissions] == pytest.approx([0.01 * n for n in range(len(emissions))])
    driver.close()


async def test_speed_shortens_every_step() -> None:
    fast = Driver(replace(FLAT, base=10.0), speed=10_000.0)
    emissions = await drive(fast, 5)
    assert emissions[-1].at - emissions[0].at == pytest.approx(40.0)
    fast.close()


async def test_a_speed_is_above_zero() -> None:
    with pytest.raises(ValueError, match="speed: 0 given"):
        Driver(FLAT, 0)


async def test_an_aborted_request_is_heard_of_no_more() -> None:
    driver = Driver(replace(FLAT, base=0.001))
    heard: list[Emission] = []
    keys = driver.submit([(1, 500), (1, 500)], heard.append)
    assert keys is not None
    other = await drive(driver, 3)
    driver.abort(keys)
    count = len(heard)
    await drive(driver, 10)
    assert (len(heard), len(other)) == (count, 3)
    assert count > 0
    assert driver.engine.running == 0
    driver.abort(keys)
    assert driver.engine.aborted == 2


async def test_tokens_of_a_busy_moment_are_not_passed_on_to_whoever_left_in_it() -> None:
    driver = Driver(FLAT)
    heard: list[Emission] = []
    keys = driver.submit([(1, 500)], heard.append)
    assert keys is not None
    time.sleep(0.05)  # noqa: ASYNC251 - the host is busy
    driver.abort(keys)
    await drive(driver, 1)
    assert heard == []
    driver.close()


async def test_close_forgets_everything() -> None:
    driver = Driver(replace(FLAT, base=0.001))
    heard: list[Emission] = []
    driver.submit([(1, 5)], heard.append)
    driver.close()
    await asyncio.sleep(0.02)
    assert heard == []
    assert driver.engine.running == 0
