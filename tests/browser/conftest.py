"""Headless Chromium, and a real gateway in front of an emulated engine for it to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.acceptance.engine import EmulatedEngine
from tests.real.gateway import GatewayProcess
from tests.real.process import Program

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP gateway.test 127.0.0.1"),
]
PATIENCE = 30_000.0  # milliseconds; a guard


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(180))
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="chromium is not installed: apt-get install chromium"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not for the session: while playwright is open, its event loop counts as running, and no other test can start one.
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes what stands for one person's browser; light and wide unless told otherwise."""
    made: list[BrowserContext] = []

    def make(scheme: str = "light", width: int = 1280) -> BrowserContext:
        found = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
        found.set_default_timeout(PATIENCE)
        made.append(found)
        return found

    yield make
    for each in made:
        each.close()


@pytest.fixture
def page(context: Callable[..., BrowserContext]) -> Iterator[Page]:
    """A page on which nothing may go wrong: no script fails, nothing is refused by the policy."""
    opened = context().new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if "Security Policy" in message.text else None)
    yield opened
    assert not wrong


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Ended after the test, last first."""
    started: list[Program] = []
    yield started
    while started:
        started.pop().stop()


@pytest.fixture
def engine(programs: list[Program], tmp_path: Path) -> Callable[..., EmulatedEngine]:
    def start(profile: str = "flat") -> EmulatedEngine:
        made = EmulatedEngine(tmp_path / f"engine{len(programs)}.log", profile)
        programs.append(made.program)
        made.wait_until_ready()
        return made

    return start


@pytest.fixture
def gateway(programs: list[Program], tmp_path: Path) -> Callable[..., GatewayProcess]:
    def start(**settings: str) -> GatewayProcess:
        folder = tmp_path / f"gateway{len(programs)}"
        folder.mkdir()
        made = GatewayProcess(folder, {"emulator_profile": "flat", **settings})
        made.admin_port = int(settings.get("admin_port", made.admin_port))
        programs.append(made.program)
        made.wait_until_ready()
        return made

    return start
