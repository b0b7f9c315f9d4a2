"""``gateway emulate``, and the engine that ``serve`` embeds where no engines are set."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from gateway.app.announce import curl
from gateway.app.check import marked
from gateway.app.configs import load_all
from gateway.app.exits import EXIT_CONFIG, EXIT_START, EXIT_USAGE
from gateway.app.process import Signals, run
from gateway.emulator.engine import Profile
from gateway.emulator.mindie import EmulatedMindIE
from gateway.emulator.profiles import MINDIE_910B, PROFILES
from gateway.emulator.server import EmulatedServer
from gateway.model import Backend
from gateway.settings.faults import nearest

FAULTS: Final = ("stall", "stall_every", "wear", "hangs_at", "max_num_queued_reqs")
"""Fields of a profile that make an engine ail."""


@asynccontextmanager
async def embedded_engine(profile: str) -> AsyncIterator[Backend]:
    """An emulated engine on a free loopback port of this process, as a backend."""
    async with EmulatedServer(PROFILES[profile]) as server:
        yield Backend(name="emulated", url=server.url, kind="vllm")


def list_profiles() -> int:
    """Print a line for each profile."""
    sys.stdout.writelines(f"{_described(profile)}\n" for profile in PROFILES.values())
    return 0


def run_emulate(
    profile: str | None,
    host: str,
    port: int,
    model: str | None,
    speed: float,
    faults: Mapping[str, Any],
    *,
    polluted: bool,
) -> int:
    """Serve one emulated engine until a signal; the exit code is one of those that ``cli`` lists.

    ``faults`` are fields of its profile: those in ``FAULTS``, and ``prefix_cache``.
    """
    if profile is None:
        loaded = load_all(None)
        wrong = [fault for fault in loaded.faults if "emulator_profile" in fault.fields]
        sys.stderr.writelines(f"{marked(fault)}\n" for fault in wrong)
        if wrong:
            return EXIT_CONFIG
        profile = loaded.settings.emulator_profile
    if (code := _unknown(profile)) is not None:
        return code
    names, ailing = [model or profile], replace(PROFILES[profile], **faults)

    def server() -> EmulatedServer:
        made = EmulatedServer(ailing, names, host=host, port=port, speed=speed)
        made.polluted = polluted
        return made

    return _run(server, f"{host}:{port}", names[0])


def run_mindie(
    profile: str | None,
    host: str,
    port: int,
    model: str | None,
    speed: float,
    link_num: int,
    faults: Mapping[str, Any],
) -> int:
    """The same with MindIE's HTTP server, whose other planes are on the next two ports.

    As there, ``MIES_SERVICE_MONITOR_MODE=1`` in the environment switches its metrics on.
    """
    profile = profile or MINDIE_910B.name
    if (code := _unknown(profile)) is not None:
        return code
    names = [model or profile]
    ports = [port, port + 1, port + 2] if port else [0, 0, 0]
    ailing = replace(PROFILES[profile], **faults)
    monitored = os.environ.get("MIES_SERVICE_MONITOR_MODE") == "1"

    def server() -> EmulatedMindIE:
        return EmulatedMindIE(
            ailing, names, host=host, ports=ports, link_num=link_num, monitored=monitored, speed=speed
        )

    return _run(server, f"{host}:{port}", names[0])


def _unknown(profile: str) -> int | None:
    if profile in PROFILES:
        return None
    known = ", ".join(sorted(PROFILES))
    sys.stderr.write(f"--profile: got {profile!r}, expected one of {known}{nearest(profile, PROFILES)}\n")
    return EXIT_USAGE


def _run(server: Callable[[], EmulatedServer | EmulatedMindIE], place: str, model: str) -> int:
    try:
        return run(_emulate(server, model))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {place}: {error.strerror or error}\n")
        return EXIT_START


async def _emulate(make: Callable[[], EmulatedServer | EmulatedMindIE], model: str) -> int:
    signals = Signals()
    async with make() as server:
        sys.stderr.write(f"Emulated {server.engine.profile.name} at {server.url}. Try it:\n{curl(server.url, model)}\n")
        if isinstance(server, EmulatedMindIE):
            sys.stderr.write(f"Management plane at {server.management_url}, metrics at {server.metrics_url}.\n")
        sys.stderr.flush()
        await signals.next()
    return 0


def _described(profile: Profile) -> str:
    """One line: what one stream alone sees, and what the engine holds."""
    alone = (profile.base + profile.per_sequence) * 1000.0
    return (
        f"{profile.name:<16} {alone:6.1f} ms a token for one stream, {profile.max_num_seqs} sequences, "
        f"{profile.kv_tokens:,} tokens of KV, {profile.max_model_len:,} tokens of context"
    )
