"""An emulated server on a free port, and a client session."""

from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from gateway.emulator.profiles import FLAT
from gateway.emulator.server import EmulatedServer


@pytest.fixture
async def server() -> AsyncIterator[EmulatedServer]:
    """Steps of a millisecond, two sequences at most, 2048 tokens of context."""
    profile = replace(FLAT, base=0.001, max_num_seqs=2, max_model_len=2048)
    async with EmulatedServer(profile, ("tiny",)) as running:
        yield running


@pytest.fixture
async def caching_server() -> AsyncIterator[EmulatedServer]:
    """With a prefix cache in blocks of one token."""
    profile = replace(FLAT, base=0.001, max_model_len=2048, prefix_cache=True)
    async with EmulatedServer(profile, ("tiny",)) as running:
        yield running


@pytest.fixture
async def slow_server() -> AsyncIterator[EmulatedServer]:
    """One token a minute after the first: what runs there runs until somebody ends it."""
    profile = replace(FLAT, base=60.0, max_num_seqs=2, max_model_len=2048, max_num_queued_reqs=4)
    async with EmulatedServer(profile, ("tiny",)) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client
