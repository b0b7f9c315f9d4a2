"""Traffic to look at, and pictures to keep."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from pathlib import Path
from typing import Self

from playwright.sync_api import Page

from gateway.emulator.load import Ask, Load, Plan

CLIPPED = """() => [...document.querySelectorAll('td, th, dd, dt, .value, .more, button, h2, h3, .badge')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0)
    .map((each) => each.textContent)"""
"""Texts that do not fit where they stand."""

POOR_CONTRAST = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const linear = (byte) => (byte / 255 <= 0.03928 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const found = parts(getComputedStyle(each).backgroundColor);
            if (found.length < 4 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const ink = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
        const [a, b] = [light(parts(ink)), light(ground(element))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) poor.push([element.textContent, contrast]);
    }
    return poor;
}"""
"""Texts whose contrast with what is behind them is below that of WCAG 2.1 (1.4.3)."""


class Traffic:
    """Chats at a steady rate from entry to exit, in a thread of its own; at most a minute of them."""

    def __init__(self, url: str, rate: float, tokens: int = 40) -> None:
        self._url = url
        self._rate = rate
        self._tokens = tokens
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        load = asyncio.create_task(Load(self._url, Plan(self._mix, self._rate, 60.0, max_requests=3_000)).run())
        while not self._stop.is_set() and not load.done():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.05)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)

    def _mix(self, chance: random.Random) -> Ask:
        words = "word " * chance.choice((30, 200, 3_000))
        body = {
            "model": "flat",
            "stream": True,
            "max_tokens": self._tokens,
            "messages": [{"role": "user", "content": words}],
        }
        return Ask("/v1/chat/completions", json.dumps(body).encode(), stream=True)


def shot(page: Page, name: str) -> None:
    """Keep a picture for people to look at where the variable SCREENSHOTS names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
