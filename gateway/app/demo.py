"""``gateway demo``: the same overload straight at an emulated engine, then through the gateway with its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app.compose import Service
from gateway.app.process import run
from gateway.console.demo import DemoView, Scene
from gateway.emulator.load import Load, Plan
from gateway.emulator.scenario import DIRECT_SECONDS, GATED_SECONDS, PATIENCE, overload
from gateway.emulator.server import EmulatedServer
from gateway.model import Backend
from gateway.settings import Loaded, Settings


def run_demo() -> int:
    """Half a minute; 0 when it ended by itself."""
    return run(_demo())


async def _demo() -> int:
    direct, gated = overload(DIRECT_SECONDS, PATIENCE), overload(GATED_SECONDS, PATIENCE)
    plan = direct.plan
    scene = Scene(direct.profile.name, direct.best, plan.rate, plan.timeout, plan.max_retries)
    with DemoView(scene) as view:
        async with EmulatedServer(direct.profile) as engine:
            await _watch(view, 0, engine.url, plan, engine)
        async with EmulatedServer(gated.profile) as engine, _gateway(engine) as url:
            await _watch(view, 1, url, gated.plan, engine)
    return 0


async def _watch(view: DemoView, side: int, url: str, plan: Plan, engine: EmulatedServer) -> None:
    await Load(url, plan).run_watched(lambda snapshot: view.show(side, snapshot, engine.state()))


@asynccontextmanager
async def _gateway(engine: EmulatedServer) -> AsyncIterator[str]:
    """A gateway as one has it with no setting at all, on loopback, in front of ``engine``."""
    settings = Settings(host="127.0.0.1", port=0, admin_host="127.0.0.1", admin_port=0, access_log="off")
    service = Service(Loaded(settings, {}), [Backend("emulated", engine.url, kind="vllm")])
    await service.start()
    try:
        yield service.gateway.url
    finally:
        await service.stop()
