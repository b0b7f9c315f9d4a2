"""``gateway serve``: start, wait for a signal, let the streams finish, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Final

from gateway.app.announce import announce
from gateway.app.check import marked
from gateway.app.compose import Service
from gateway.app.configs import load_all, worker_count
from gateway.app.exits import EXIT_CONFIG, EXIT_START, StartError
from gateway.app.notify import ServiceManager
from gateway.app.process import Signals, leave, run, settle
from gateway.settings import Loaded
from gateway.settings.plain import backends
from gateway.telemetry.logs import configure

_log = logging.getLogger("gateway")

_LEAVING: Final = 10.0  # seconds beyond the grace time for what was cut, and for the logs


def run_serve(env_file: str | None) -> int:
    """Serve until a signal; the exit code is one of those that ``cli`` lists."""
    loaded = load_all(env_file)
    sys.stderr.writelines(f"{marked(fault)}\n" for fault in loaded.faults)
    if not loaded.ok:
        return EXIT_CONFIG
    handler = configure(loaded.settings.log_level, loaded.settings.log_format)
    try:
        if worker_count(loaded.settings) > 1:
            from gateway.app.crew import serve_together  # one process alone needs none of it

            return run(serve_together(loaded, env_file))
        return run(_serve(loaded, env_file))
    except StartError as error:
        _log.error("%s", error)
        return EXIT_START
    finally:
        handler.close()


async def _serve(loaded: Loaded, env_file: str | None) -> int:
    signals = Signals()
    async with contextlib.AsyncExitStack() as stack:
        manager = stack.enter_context(contextlib.closing(ServiceManager()))
        engines = backends(loaded.settings)
        if not engines and not loaded.settings.discover:
            from gateway.app.emulate import embedded_engine  # not needed in front of real engines

            engines = (await stack.enter_async_context(embedded_engine(loaded.settings.emulator_profile)),)
        service = Service(loaded, engines, lambda: load_all(env_file))
        await service.start()
        stack.push_async_callback(service.stop)
        signals.on_hangup(lambda: _reload(service, manager))
        settle()
        announcement = asyncio.create_task(announce(loaded.settings, service.gateway.url, service.admin_url))
        manager.ready()
        await signals.next()
        manager.stopping(loaded.settings.drain_grace + _LEAVING)
        announcement.cancel()
        return await leave(service.gateway, signals)


async def _reload(service: Service, manager: ServiceManager) -> None:
    manager.reloading()
    await service.reload()
    manager.ready()
