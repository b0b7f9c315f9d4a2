"""What ``serve`` imports, in a process of its own: this one has imported everything."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - our own program


def test_serve_imports_nothing_that_only_other_verbs_need() -> None:
    unwanted = ("aiohttp.client", "aiohttp.connector", "gateway.emulator.server", "gateway.simulator", "gateway.brain")
    found = run(f"import sys, gateway.app.serve; print([name for name in {unwanted} if name in sys.modules])")
    assert found == "[]"


def test_what_is_asked_of_aiohttp_later_is_the_whole_of_it() -> None:
    program = """
import gateway.app.serve, aiohttp
part = aiohttp.streams.StreamReader
assert aiohttp.__version__ and not hasattr(aiohttp, "__wrapped__")
assert issubclass(aiohttp.ClientSession, object) and aiohttp.StreamReader is part
assert all(hasattr(aiohttp, name) for name in aiohttp.__all__)
try:
    aiohttp.nothing
except AttributeError as error:
    print(error)
"""
    assert run(program) == "module aiohttp has no attribute nothing"  # its own words


def test_where_aiohttp_is_there_already_it_stays() -> None:
    assert run("import aiohttp; session = aiohttp.ClientSession; import gateway.app; print(aiohttp.ClientSession)") == (
        "<class 'aiohttp.client.ClientSession'>"
    )
