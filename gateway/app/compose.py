"""The composition root: which concrete class stands behind each name."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from gateway import __version__
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.app.admin import trust
from gateway.app.configs import admin_tls, config_hash, described, metrics_config, proxy_config, share_config
from gateway.app.discovery import Discovery, sources
from gateway.app.exits import StartError
from gateway.app.heir import Heir
from gateway.app.reload import Reloader
from gateway.app.replicas import Census
from gateway.app.state_file import EVERY, StateFile
from gateway.console.admin import admin_app
from gateway.console.curve import CurveRoutes
from gateway.console.diagnosis import DiagnosisRoutes
from gateway.console.events import EventRoutes
from gateway.console.limits import LimitsRoutes
from gateway.console.readiness import ReadinessCheck
from gateway.console.reload import ReloadRoutes
from gateway.console.report import ReportRoutes
from gateway.console.status import StatusRoutes
from gateway.model import Backend, GatewayState, Observer
from gateway.proxy.canary import CanaryPlan
from gateway.proxy.gate import Gate
from gateway.proxy.server import Door, Gateway
from gateway.proxy.tls import ServerTls
from gateway.settings import Loaded, Settings, variable
from gateway.settings.plain import admission_config, api_keys
from gateway.sharing.share import Share
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.canary import PROMPTS, CanaryLog
from gateway.telemetry.clients import Clients
from gateway.telemetry.curve import Curves
from gateway.telemetry.entry import Recorder
from gateway.telemetry.events import Event, EventLog
from gateway.telemetry.history import History
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.monitor import Monitor, Sources
from gateway.telemetry.record_file import RecordFile
from gateway.telemetry.share import ShareLog
from gateway.telemetry.window import Window

if TYPE_CHECKING:
    from gateway.telemetry.otel import OpenTelemetry

_log = logging.getLogger("gateway")

_CAREFULLY: Final = 2.0  # seconds between two writings of the state file where this process may be started again alone


class Service:
    """A gateway in front of ``engines``, with its logs, its metrics and its admin port. Made on a running loop."""

    def __init__(
        self,
        loaded: Loaded,
        engines: Sequence[Backend],
        read: Callable[[], Loaded] | None = None,
        meet: Path | None = None,
    ) -> None:
        """Compose; nothing is opened before ``start``.

        ``read`` reads the settings again; without it they stay as they are. ``meet`` is the Unix socket at which this
        process meets those that relay, where clients come to them and not to it.

        Raises:
            StartError: the machine does not have what the settings ask for.
        """
        settings = loaded.settings
        self._settings = settings
        self._lag = LoopLag()
        self._access_log = _access_log(settings)
        window = Window(settings.report_window, settings.report_memory)
        self._record_file = _record_file(settings)
        self._events = EventLog()
        canaries = CanaryLog(self._events)
        self._quotas, share_log = _quotas(settings, self._events)
        curves, clients = Curves(settings.curve_age), Clients(settings.diagnosis_window)
        sources = Sources(self._state, window, curves, clients, self._loop_lag, canaries.failing)
        self._monitor = Monitor(sources, self._events, settings.diagnosis_window)
        self._metrics = metrics = Metrics(
            self._state,
            version=__version__,
            config_hash=config_hash(settings),
            config=metrics_config(settings),
            loop_lag=self._loop_lag,
            workers=lambda: self.gateway.front.workers,
            log_dropped=self._access_log.dropped if self._access_log else None,
            records_dropped=self._record_file.dropped if self._record_file else None,
            untold=lambda: self.gateway.front.records_dropped,
            connections_refused=lambda: self.gateway.front.connections_refused,
            findings=self._monitor.findings.causes,
            canary_failures=canaries.failures,
            more=() if self._quotas is None else (share_log.collect,),
        )
        recorder = Recorder(window, self._record_file) if self._record_file else Recorder(window)
        self._history = History(self._state)
        observers: list[Observer] = [metrics, recorder, self._history, curves, clients, self._monitor]
        if self._access_log:
            observers.append(self._access_log)
        self._otel = _open_telemetry(settings, engines)
        if self._otel:
            observers.append(self._otel)
        admission = admission_config(settings)
        estimator = Estimator(admission.estimator)  # admission teaches it what the proxy asks it
        every = EVERY if meet is None else _CAREFULLY
        controller = AdmissionController(admission, engines, random.uniform, estimator, curves)
        self._state_file = StateFile(path, controller, every=every) if (path := settings.state_file) else None
        config, keys = proxy_config(settings), api_keys(settings)
        token = None if (secret := settings.admin_token) is None else secret.get_secret_value()
        https = any(each.startswith("https:") for each in settings.state_from)
        self._heir = Heir(
            settings.state_from,
            controller,
            lambda call: self.gateway.before_next(call),  # noqa: PLW0108 - there is no gateway yet
            lambda: self.gateway.in_flight > 0,
            trust(settings, known=False) if https else None,
            token,
        )
        observers.append(self._heir)

        def reception(gate: Gate) -> Door:
            from gateway.brain.reception import Reception  # one process alone needs none of it

            assert meet is not None  # noqa: S101 - else it is not called
            return Reception(meet, config, engines, gate, estimator, observers, keys)

        self.gateway = Gateway(
            config,
            engines,
            controller,
            estimator,
            observers,
            CanaryPlan(interval, PROMPTS, canaries.compare) if (interval := settings.canary_interval) else None,
            keys,
            None if meet is None else reception,
            self._quotas,
        )
        self._admin_tls = None if (tls := admin_tls(settings)) is None else ServerTls(tls)
        self._reloader = Reloader(
            loaded, read or (lambda: loaded), self.gateway, self._tell_change, self._quotas, self._admin_tls
        )
        self._discovery = _discovery(settings, self._reloader, lambda: set(self.gateway.tuning.backends))
        self._census = Census(settings.replicas.places, settings.replicas.count, self._share)
        admin = admin_app(
            state=self._state,
            readiness=ReadinessCheck(self._state, lambda: self.gateway.front.workers),
            registry=metrics.registry,
            config=lambda: described(self._reloader.loaded),
            version=__version__,
            routes=(
                *ReportRoutes(window).routes(),
                *StatusRoutes(self._history, __version__, self._monitor.findings.listed).routes(),
                *LimitsRoutes(lambda: self.gateway.tuning, self.gateway.retune, self._tell_change).routes(),
                *CurveRoutes(curves, self._state, time.monotonic).routes(),
                *DiagnosisRoutes(self._monitor.findings).routes(),
                *EventRoutes(self._events).routes(),
                *ReloadRoutes(self._reloader).routes(),
                *self._heir.routes(),
            ),
            token=token,
        )
        self._admin = web.AppRunner(admin, access_log=None, shutdown_timeout=1.0)

    def _state(self) -> GatewayState:
        return self.gateway.state()

    def _loop_lag(self) -> float:
        return max(self._lag(), self.gateway.front.loop_lag)

    async def start(self) -> None:
        """Open both listeners; what was opened is closed again where one fails.

        Raises:
            StartError: an address cannot be listened on.
        """
        settings = self._settings
        if self._state_file:
            self._state_file.load()
        if self._quotas:
            await self._quotas.start()
        try:
            await listen(self._open_admin(), settings, "admin_")
            await listen(self.gateway.start(), settings, "")
        except BaseException:
            await self.stop()
            raise
        self._lag.start()
        self._history.start()
        self._monitor.start()
        self._reloader.start()
        self._discovery.start()
        self._census.start()
        self._heir.start()
        if self._state_file:
            self._state_file.start()

    async def _open_admin(self) -> None:
        await self._admin.setup()
        context = None if self._admin_tls is None else self._admin_tls.context
        settings = self._settings
        await web.TCPSite(self._admin, settings.admin_host, settings.admin_port, ssl_context=context).start()

    @property
    def admin_url(self) -> str:
        """Where the admin port listens, with the port really bound."""
        host, port = self._admin.addresses[0][:2]
        scheme = "http" if self._admin_tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def _share(self, replicas: int) -> None:
        """So many gateways share the engines now."""
        tuning = self.gateway.tuning
        self.gateway.retune(replace(tuning, replicas=replicas))
        text = f"gateways that share the engines: {tuning.replicas} -> {replicas}; each has its share of every limit"
        _log.info("%s", text)
        self._events.add(Event("setting_changed", text, None))

    def _tell_change(self, backend: str | None, text: str) -> None:
        _log.info("changed by the operator: %s%s", f"backend {backend}: " if backend else "", text)
        self._events.add(Event("setting_changed", text, backend))
        self._metrics.configured(config_hash(self._reloader.loaded.settings))

    def reopen_log(self) -> None:
        """Write access log and records to new files, after logrotate moved the old ones."""
        if self._access_log:
            self._access_log.reopen()
        if self._record_file:
            self._record_file.reopen()

    async def reload(self) -> None:
        """What SIGHUP asks for: write the logs to new files, and read the settings again."""
        self.reopen_log()
        await self._reloader.reload()

    async def stop(self) -> None:
        """Cut what still runs, close everything, write what is left of access log and records. Idempotent."""
        self._discovery.stop()
        await self._census.stop()
        await self._heir.stop()
        self._reloader.stop()
        if self._state_file:
            await self._state_file.stop()
        await self.gateway.stop()
        if self._quotas:
            await self._quotas.stop()
        await self._admin.cleanup()
        self._lag.stop()
        self._history.stop()
        if self._otel:
            self._otel.stop()
        self._monitor.stop()
        if self._access_log:
            self._access_log.stop()
        if self._record_file:
            self._record_file.stop()


async def listen(start: Coroutine[Any, Any, None], settings: Settings, which: str) -> None:
    """Await ``start``, the opening of the listener that ``which`` + host and port set.

    Raises:
        StartError: it cannot be opened; says which settings name it.
    """
    try:
        await start
    except OSError as error:
        names = f"{variable(f'{which}host')}, {variable(f'{which}port')}"
        host, port = getattr(settings, f"{which}host"), getattr(settings, f"{which}port")
        of_system = error.errno is not None and error.errno > 0  # else of the resolver
        reason = os.strerror(error.errno or 0) if of_system else error.strerror or error
        raise StartError(f"cannot listen on {host}:{port} ({names}): {reason}") from error


def _access_log(settings: Settings) -> AccessLog | None:
    if settings.access_log == "off":
        return None
    try:
        return AccessLog(settings.access_log)
    except OSError as error:
        raise StartError(f"cannot write to {variable('access_log')}={settings.access_log}: {error.strerror}") from error


def _record_file(settings: Settings) -> RecordFile | None:
    path = settings.records_file
    if path is None:
        return None
    try:
        return RecordFile(path, settings.records_file_size, settings.records_files_kept)
    except OSError as error:
        raise StartError(f"cannot write to {variable('records_file')}={path}: {error.strerror}") from error


def _quotas(settings: Settings, events: EventLog) -> tuple[Share | None, ShareLog]:
    log = ShareLog(events)
    config = share_config(settings)
    if config is None:
        return None, log
    try:
        from gateway.sharing.store import RedisStore  # an optional extra

        return Share(config, RedisStore, log), log
    except ImportError as error:
        remedy = "pip install 'inference-gateway[valkey]'"
        raise StartError(f"{variable('share_url')}: {error.name} is not installed: {remedy}") from None


def _discovery(settings: Settings, reloader: Reloader, present: Callable[[], set[str]]) -> Discovery:
    key = settings.discover_api_key
    try:
        found = sources(settings)
    except ValueError as error:
        raise StartError(str(error)) from None
    return Discovery(found, reloader, present, key.get_secret_value() if key else None)


def _open_telemetry(settings: Settings, engines: Sequence[Backend]) -> OpenTelemetry | None:
    endpoint = settings.otlp_endpoint
    if endpoint is None:
        return None
    try:
        from gateway.telemetry.otel import OpenTelemetry  # an optional extra
    except ImportError as error:
        remedy = "pip install 'inference-gateway[otel]'"
        raise StartError(f"{variable('otlp_endpoint')}: {error.name} is not installed: {remedy}") from None
    return OpenTelemetry(endpoint, __version__, {engine.name: engine.kind for engine in engines})
