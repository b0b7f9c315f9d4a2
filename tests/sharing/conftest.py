from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sharing.server import StoreServer


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[..., StoreServer]]:
    """Starts stores; all of them are ended with the test."""
    started: list[StoreServer] = []

    def start(*options: str, port: int | None = None) -> StoreServer:
        server = StoreServer(tmp_path, *options, port=port)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def store(stores: Callable[..., StoreServer]) -> StoreServer:
    return stores()
