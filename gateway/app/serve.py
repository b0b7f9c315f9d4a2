"""``gateway serve``: start, wait for a signal, let the streams finish, exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Iterable
from typing import Final

from gateway import __version__
from gateway.app.announce import first_model, trial, where
from gateway.app.check import marked
from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.app.exits import EXIT_CONFIG, EXIT_SIGNAL, EXIT_START, StartError
from gateway.app.notify import ServiceManager
from gateway.app.process import Signals, run
from gateway.settings import Loaded, Settings, variable
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
        if not engines:
            from gateway.app.emulate import embedded_engine  # not needed in front of real engines

            engines = (await stack.enter_async_context(embedded_engine(loaded.settings.emulator_profile)),)
        service = Service(loaded, engines, lambda: load_all(env_file))
        await service.start()
        stack.push_async_callback(service.stop)
        reloads: set[asyncio.Task[None]] = set()
        signals.on_hangup(lambda: reloads.add(asyncio.create_task(_reload(service, manager))))
        gc.collect()
        gc.freeze()  # what stands now stays: the collector need not look at it again
        announcement = asyncio.create_task(_announce(loaded, service))
        manager.ready()
        await signals.next()
        manager.stopping(loaded.settings.drain_grace + _LEAVING)
        announcement.cancel()
        return await _leave(service, signals)


async def _reload(service: Service, manager: ServiceManager) -> None:
    manager.reloading()
    service.reopen_log()
    await service.reload()
    manager.ready()


async def _announce(loaded: Loaded, service: Service) -> None:
    settings = loaded.settings
    engines = [backend.url for backend in settings.backends] or [
        f"emulated {settings.emulator_profile}: set {variable('backends')} to serve real ones"
    ]
    keys = bool(settings.api_keys) or settings.api_keys_file is not None
    _say(settings, where(__version__, service.gateway.url, service.admin_url, engines, keys=keys))
    model = None if keys else await first_model(service.gateway.url)
    _say(settings, trial(service.gateway.url, model, keys=keys))


def _say(settings: Settings, lines: Iterable[str]) -> None:
    """Tell people; collectors of JSON get entries of the log. Not on stdout: that is the access log's."""
    if settings.log_format == "json":
        for line in lines:
            _log.info("%s", line.strip())
    else:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


async def _leave(service: Service, signals: Signals) -> int:
    """Let what runs finish, within the grace time or until another signal."""
    drained = asyncio.create_task(service.gateway.drain())
    again = asyncio.create_task(signals.next())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        number = again.result()
        await service.gateway.stop()
        await drained
        return EXIT_SIGNAL + number
    again.cancel()
    return 0
