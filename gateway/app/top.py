"""``gateway top``: a running gateway on a terminal, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from rich.console import Console, Group
from rich.live import Live

from gateway.app.admin import AdminError, Ask, admin_port, here
from gateway.app.configs import load_all
from gateway.app.exits import EXIT_START
from gateway.console.top import WIDTH, TopView

_PATIENCE: Final = 5.0  # seconds for one answer
_ASIDE: Final = 5  # looks between two at findings and events
_EVENTS: Final = 20
_SPAN: Final = 60  # seconds of history


@dataclass(slots=True)
class _Seen:
    """What was heard last."""

    status: Mapping[str, Any] | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""


def run_top(arguments: argparse.Namespace) -> int:
    """Show it until it is stopped, or once; the exit code is one of those that ``cli`` lists."""
    with suppress(KeyboardInterrupt):
        return asyncio.run(_top(arguments))
    return 0


async def _top(arguments: argparse.Namespace) -> int:
    where = arguments.admin or here(load_all(arguments.env_file).settings)
    console = Console(highlight=False)
    view = TopView(where.partition("://")[2].rstrip("/"), plain=not console.encoding.lower().startswith("utf"))
    seen = _Seen()
    if arguments.once or not console.is_terminal:
        await _look(arguments, seen, aside=True)
        if seen.status is None:
            sys.stderr.write(f"no answer from {where}: {seen.trouble}\n")
            return EXIT_START
        console.width = max(WIDTH, console.width) if console.is_terminal else WIDTH
        console.print(_picture(view, seen, 60))
        return 0
    with Live(_picture(view, seen, console.height), console=console, screen=True, auto_refresh=False) as live:
        looks = 0
        while True:
            await _look(arguments, seen, aside=looks % _ASIDE == 0)
            live.update(_picture(view, seen, console.height), refresh=True)
            await asyncio.sleep(arguments.interval)
            looks += 1


def _picture(view: TopView, seen: _Seen, height: int) -> Group:
    return view.picture(seen.status, seen.findings, seen.events, trouble=seen.trouble, height=height)


async def _look(arguments: argparse.Namespace, seen: _Seen, *, aside: bool) -> None:
    """Ask once; what is wrong is kept in words, and the next look may find it well again."""
    try:
        async with asyncio.timeout(_PATIENCE), admin_port(arguments.admin, arguments.env_file) as ask:
            last = seen.status["last"] if seen.status is not None else 0
            seen.status = json.loads(await ask("GET", "/status", [("since", str(max(0, last - _SPAN)))]))
            if aside:
                seen.findings = (await _optional(ask, "/diagnosis")).get("findings", [])
                seen.events = (await _optional(ask, f"/events?limit={_EVENTS}")).get("events", [])
            seen.trouble = ""
    except TimeoutError:
        seen.trouble = f"no answer within {_PATIENCE:g} s"
    except (aiohttp.ClientError, AdminError, ValueError) as error:
        seen.trouble = str(error)


async def _optional(ask: Ask, path: str) -> Mapping[str, Any]:
    """What a route answers that an older gateway does not have."""
    try:
        found: Mapping[str, Any] = json.loads(await ask("GET", path, ()))
    except AdminError:
        return {}
    return found
