"""Every address of a name is an engine, and trouble with the name changes nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.discovery.dns import Dns

Answer = list[str] | OSError


async def followed(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> list[frozenset[str]]:
    """What is found while the resolver gives these answers, one after the other."""
    left = list(answers)
    done = asyncio.Event()
    found: list[frozenset[str]] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        assert (host, port) == ("engines", 8000)
        if not left:
            done.set()
            await asyncio.Event().wait()
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    async def take(urls: frozenset[str]) -> None:
        found.append(urls)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    task = asyncio.create_task(Dns("http", "engines", 8000, 0.001).run(take))
    await asyncio.wait_for(done.wait(), 5)
    task.cancel()
    return found


async def test_every_address_is_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await followed(monkeypatch, ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "fd00::1"])
    assert found == [
        {"http://10.0.0.1:8000", "http://10.0.0.2:8000"},
        {"http://10.0.0.2:8000", "http://[fd00::1]:8000"},
    ]


async def test_trouble_is_told_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    caplog.set_level("INFO")
    found = await followed(monkeypatch, ["10.0.0.1"], gone, gone, ["10.0.0.1"])
    assert found == [{"http://10.0.0.1:8000"}, {"http://10.0.0.1:8000"}]
    assert caplog.text.count("those known stay: Name or service not known") == 1
    assert caplog.text.count("are found under engines again") == 1


async def test_the_systems_resolver_knows_this_machine() -> None:
    found: list[frozenset[str]] = []
    heard = asyncio.Event()

    async def take(urls: frozenset[str]) -> None:
        found.append(urls)
        heard.set()

    task = asyncio.create_task(Dns("https", "localhost", 8000, 60).run(take))
    await asyncio.wait_for(heard.wait(), 10)
    task.cancel()
    assert found[0] & {"https://127.0.0.1:8000", "https://[::1]:8000"}
