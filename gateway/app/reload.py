"""What changes while the gateway runs: settings that are read again, files of keys and certificates, backends.

A configuration takes effect whole or not at all. What only a restart can change is named, and stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from gateway.app.configs import admin_tls, faults_of, proxy_config, share_config
from gateway.console.reload import Reloaded
from gateway.proxy.keys import Keys
from gateway.proxy.server import Gateway
from gateway.proxy.tls import ServerTls, server_context
from gateway.settings import Loaded, Settings, variable
from gateway.settings.faults import invalid
from gateway.settings.plain import api_keys, backends, lanes
from gateway.settings.values import BackendSettings
from gateway.sharing.share import Share

_log = logging.getLogger("gateway")

_LOOK: Final = 2.0  # seconds between two looks at the files
_KEYS: Final = ("api_keys", "api_keys_file")
_LANES: Final = ("lanes", "lane_weights", "ttft_objective", "max_wait")
_LISTENER_TLS: Final = ("listen_tls_cert", "listen_tls_key", "listen_tls_client_ca")
_ADMIN_TLS: Final = ("admin_tls_cert", "admin_tls_key")
_CERTIFICATES: Final = ("tls_ca", "tls_cert", "tls_key")
LIVE: Final = frozenset({
    *_KEYS, *_LANES, *_LISTENER_TLS, *_ADMIN_TLS, *_CERTIFICATES,
    "backends", "tpot_objective", "log_level", "tls_verify", "forward_client_keys",
    "load_header", "priority_header", "client_header", "session_by", "choice_header",
    "max_body_size", "max_request_line", "max_header_size", "max_headers", "client_keepalive", "client_timeout",
    "trusted_proxies", "max_prompt_tokens", "max_output_tokens", "cors", "heartbeat", "inject_usage", "drain_grace",
    "connect_timeout", "connect_attempts", "first_byte_timeout", "answer_timeout", "idle_timeout",
    "upstream_keepalive", "upstream_max_idle", "models_timeout", "models_interval",
    "probe_interval", "probe_timeout", "probe_failures", "probe_successes",
    "share_url", "share_timeout", "share_block",
})  # fmt: skip
"""Settings that a reload puts in effect."""


class Reloader:
    """``read`` gives the settings as they are now; ``tell`` hears of every change, with the backend it is about."""

    def __init__(
        self,
        loaded: Loaded,
        read: Callable[[], Loaded],
        gateway: Gateway,
        tell: Callable[[str | None, str], None],
        share: Share | None = None,
        admin: ServerTls | None = None,
    ) -> None:
        """``admin`` is the admin port's side of TLS, where it has any."""
        self.loaded = loaded  # what is in effect
        self._read = read
        self._gateway = gateway
        self._share = share
        self._tell = tell
        self._admin = admin
        self._given = loaded.settings.backends  # as the settings had them when they were last read
        self._lock = asyncio.Lock()
        self._watched = (
            _Watched("keys", lambda: _paths(self.loaded.settings, ("api_keys_file",)), self._renew_keys),
            _Watched("certificates", lambda: _certificates(self.loaded.settings), self._renew_tls),
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the files of keys and certificates."""
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Watch them no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - logged; without it no key would be rotated any more
                _log.exception("the look at the files of keys and certificates failed inside the gateway")
            await asyncio.sleep(_LOOK)

    async def look(self) -> None:
        """Read what has changed since the last look; where it is wrong, what was there before stays."""
        for watched in self._watched:
            async with self._lock:
                await watched.look()

    async def _renew_tls(self) -> None:
        await self._put_tls(self.loaded.settings, self._gateway.renew_tls)

    async def _put_tls(self, settings: Settings, put_others: Callable[[], Awaitable[None]]) -> None:
        """Put all certificates in effect, those of the admin port with the others, or none.

        Raises:
            OSError: a file cannot be read, or does not hold what it should.
        """
        wanted = admin_tls(settings)
        fresh = None if wanted is None else await asyncio.to_thread(server_context, wanted)
        await put_others()
        if self._admin is not None and fresh is not None:
            self._admin.current = fresh

    async def _renew_keys(self) -> None:
        self._put_keys(await asyncio.to_thread(api_keys, self.loaded.settings))

    def _put_keys(self, keys: Keys | None) -> bool:
        """Put keys in effect; whether they are others than before."""
        known = self._gateway.keys
        self._gateway.replace_keys(keys)
        return known != keys

    # -- all settings -----------------------------------------------------------------------------------------------

    async def reload(self) -> Reloaded:
        """Read the settings again and put in effect what can be."""
        async with self._lock:
            loaded = await asyncio.to_thread(self._read)
            wanted, later = merged(self.loaded, loaded)
            faults = [str(fault) for fault in loaded.faults if fault.fatal]
            faults = faults or [str(fault) for fault in faults_of(wanted.settings) if fault.fatal]
            faults = faults or list(self._obstacles(wanted.settings))
            return _told(Reloaded(faults=tuple(faults)) if faults else await self._put(wanted, later))

    async def _put(self, wanted: Loaded, later: Iterable[str]) -> Reloaded:
        before = self.loaded.settings.model_copy(update={"backends": self._given})
        settings = wanted.settings
        try:
            keys = await asyncio.to_thread(api_keys, settings)
            await self._put_tls(settings, lambda: self._gateway.reconfigure(proxy_config(settings)))
        except ValueError as error:
            return Reloaded(faults=(f"{variable('api_keys_file')}: {error}",))
        except OSError as error:
            return Reloaded(faults=(f"certificates: {error}",))
        changed = [name for name in Settings.model_fields if getattr(settings, name) != getattr(before, name)]
        if self._put_keys(keys) and not set(changed) & set(_KEYS):
            changed.append("api_keys_file")
        self._put_backends(settings)
        self._put_tuning(before, settings)
        if self._share and (config := share_config(settings)):
            self._share.reconfigure(config)
        logging.getLogger().setLevel(settings.log_level.upper())
        present = {backend.name: backend for backend in (*self.loaded.settings.backends, *settings.backends)}
        running = tuple(each for name, each in present.items() if self._is_here(name, settings))
        self._given = settings.backends
        self.loaded = replace(wanted, settings=settings.model_copy(update={"backends": running}))
        for name in changed:
            self._tell(None, f"{variable(name)} was read again")
        return Reloaded(tuple(map(variable, changed)), tuple(map(variable, later)))

    def _is_here(self, name: str, settings: Settings) -> bool:
        """Whether a backend is served: one that was added at run time stays, one that left the settings does not."""
        return name in _names(settings.backends) or name not in _names(self._given)

    def _obstacles(self, settings: Settings) -> Iterator[str]:
        """What stands against the backends that are wanted."""
        where = variable("backends")
        before = {backend.name: backend for backend in self.loaded.settings.backends}
        for backend in settings.backends:
            known = before.get(backend.name)
            if known is None and backend.name in self._gateway.tuning.backends:
                yield f"{where}: {backend.name!r} has not left yet, expected another name or some patience"
            elif known is not None and _place(known) != _place(backend):
                yield f"{where}: {backend.name!r} is another engine now, expected another name for it"

    def _put_backends(self, settings: Settings) -> None:
        before = {backend.name: backend for backend in self.loaded.settings.backends}
        for wanted, backend in zip(settings.backends, backends(settings), strict=True):
            known = before.get(wanted.name)
            if known is None:
                self._gateway.add_backend(backend)
                self._tell(wanted.name, "added")
            elif known != wanted:
                self._gateway.change_backend(backend)
                if known.limit != wanted.limit:
                    self._pin(wanted.name, wanted.limit)
                self._tell(wanted.name, "its settings were read again")
        for name in _names(self._given) - _names(settings.backends):
            self._gateway.remove_backend(name)
            self._tell(name, "leaves: it gets no new request and is forgotten when it is idle")

    def _pin(self, name: str, limit: int | None) -> None:
        tuning = self._gateway.tuning
        pinned = replace(tuning.backends[name], limit=limit)
        self._gateway.retune(replace(tuning, backends={**tuning.backends, name: pinned}))

    def _put_tuning(self, before: Settings, settings: Settings) -> None:
        """What the operator changed by hand stays, except for what changed in the settings."""
        tuning = wanted = self._gateway.tuning
        if any(getattr(before, name) != getattr(settings, name) for name in _LANES):
            wanted = replace(wanted, lanes=lanes(settings))
        if before.tpot_objective != settings.tpot_objective:
            wanted = replace(wanted, tpot_objective=settings.tpot_objective)
        if wanted != tuning:
            self._gateway.retune(wanted)

    # -- single backends --------------------------------------------------------------------------------------------

    async def add(self, text: str) -> Reloaded:
        """Add the backends that ``text`` describes, as GATEWAY_BACKENDS does; a restart forgets them."""
        async with self._lock:
            try:
                given = Settings.model_validate({"backends": text})
            except ValidationError as error:
                found = invalid(error.errors(include_url=False), {"backends": text})
                return _told(Reloaded(faults=tuple(map(str, found))))
            running = self.loaded.settings.backends
            together = self.loaded.settings.model_copy(update={"backends": running + given.backends})
            faults = [str(fault) for fault in faults_of(together) if fault.fatal] or [
                f"{variable('backends')}: {name!r} has not left yet, expected another name or some patience"
                for name in sorted(_names(given.backends) & set(self._gateway.tuning.backends))
            ]
            if faults or not given.backends:
                return _told(Reloaded(faults=tuple(faults) or (f"{variable('backends')}: none are described",)))
            self.loaded = replace(self.loaded, settings=together)
            for backend in backends(given):
                self._gateway.add_backend(backend)
                self._tell(backend.name, "added")
            return _told(Reloaded(tuple(f"{name} added" for name in sorted(_names(given.backends)))))

    async def remove(self, name: str) -> Reloaded:
        """Let a backend finish what it runs, and forget it; a restart brings back one that the settings have."""
        async with self._lock:
            if name not in self._gateway.tuning.backends:
                known = ", ".join(self._gateway.tuning.backends)
                return _told(Reloaded(faults=(f"there is no backend {name!r}, expected one of {known}",)))
            try:
                self._gateway.remove_backend(name)
            except ValueError as error:
                return _told(Reloaded(faults=(str(error),)))
            staying = tuple(backend for backend in self.loaded.settings.backends if backend.name != name)
            self.loaded = replace(self.loaded, settings=self.loaded.settings.model_copy(update={"backends": staying}))
            self._given = tuple(backend for backend in self._given if backend.name != name)
            self._tell(name, "leaves: it gets no new request and is forgotten when it is idle")
            return _told(Reloaded((f"{name} leaves",)))


def merged(running: Loaded, wanted: Loaded) -> tuple[Loaded, list[str]]:
    """What can be in effect without a restart, and the fields that wait for one."""
    old, new = running.settings, wanted.settings
    fixed = set(Settings.model_fields) - LIVE
    if [name for name, _ in old.lanes] != [name for name, _ in new.lanes]:
        fixed |= set(_LANES)
    if (old.listen_tls_cert is None) != (new.listen_tls_cert is None):
        fixed |= set(_LISTENER_TLS)
    if (old.share_url is None) != (new.share_url is None):
        fixed.add("share_url")
    if (old.admin_tls_cert is None) != (new.admin_tls_cert is None):
        fixed |= set(_ADMIN_TLS)
    if bool(old.backends) != bool(new.backends):
        fixed.add("backends")
    update = {name: getattr(new, name) for name in Settings.model_fields if name not in fixed}
    sources = {name: (running if name in fixed else wanted).sources[name] for name in running.sources}
    later = sorted(name for name in fixed if getattr(old, name) != getattr(new, name))
    return Loaded(old.model_copy(update=update), sources), later


def _told(reloaded: Reloaded) -> Reloaded:
    if reloaded.faults:
        _log.error("nothing was changed, what was in effect stays: %s", "; ".join(reloaded.faults))
    else:
        _log.info("changed: %s", ", ".join(reloaded.changed) or "nothing")
        if reloaded.later:
            _log.warning("a restart is needed for %s", ", ".join(reloaded.later))
    return reloaded


def _names(given: Iterable[BackendSettings]) -> set[str]:
    return {backend.name for backend in given}


def _place(backend: BackendSettings) -> tuple[object, ...]:
    """What makes it this engine and no other, or cannot be changed under way."""
    files = tuple(getattr(backend, name) for name in _CERTIFICATES)
    return backend.url, backend.kind, backend.management_url, backend.metrics_url, backend.tls_verify, files


def _paths(settings: object, fields: Iterable[str]) -> list[str]:
    return [path for path in (getattr(settings, name) for name in fields) if path is not None]


def _certificates(settings: Settings) -> list[str]:
    own = [path for backend in settings.backends for path in _paths(backend, _CERTIFICATES)]
    return _paths(settings, (*_LISTENER_TLS, *_ADMIN_TLS, *_CERTIFICATES)) + own


class _Watched:
    """Files that are read again when one of them changes. ``what`` they are is told to people."""

    def __init__(self, what: str, paths: Callable[[], list[str]], renew: Callable[[], Awaitable[None]]) -> None:
        self._what = what
        self._paths = paths
        self._renew = renew
        self._seen: dict[str, tuple[int, ...] | None] = {}
        self._trouble = ""

    async def look(self) -> None:
        """Read them again where one has changed; until that goes well, at every look."""
        seen = await asyncio.to_thread(lambda: {path: _stamp(path) for path in self._paths()})
        if seen == self._seen:
            return
        others = ", ".join(path for path in seen if seen[path] != self._seen.get(path))
        try:
            await self._renew()
        except (OSError, ValueError) as error:
            trouble = f"{others}: {error}"
            if trouble != self._trouble:
                _log.error("the %s before stay: %s", self._what, trouble)
            self._trouble = trouble
            return
        if self._seen:
            _log.info("%s were read again: %s", self._what, others)
        self._seen, self._trouble = seen, ""


def _stamp(path: str) -> tuple[int, ...] | None:
    """Changes whenever the file does; Kubernetes and others put another file in its place."""
    try:
        found = os.stat(path)  # noqa: PTH116 - the path may be a link, whose target counts
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
