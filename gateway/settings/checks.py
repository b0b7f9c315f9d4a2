"""What single values cannot show: settings that contradict each other."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from gateway.settings.faults import Fault, nearest
from gateway.settings.keys import SHORT
from gateway.settings.model import Settings, variable
from gateway.settings.plain import api_keys, lanes
from gateway.settings.values import show_duration, show_size
from gateway.trust import trusting

_EVERYWHERE: Final = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound


def cross_faults(settings: Settings) -> Iterator[Fault]:
    """Every contradiction in otherwise right settings."""
    for check in _CHECKS:
        yield from check(settings)


def _fault(problem: str, *fields: str, fatal: bool = True) -> Fault:
    return Fault(variable(fields[0]), problem, frozenset(fields), fatal)


def _limits(settings: Settings) -> Iterator[Fault]:
    low, start, high = settings.limit_min, settings.limit_initial, settings.limit_max
    if low > high:
        yield _fault(f"got {low}, expected at most {variable('limit_max')}={high}", "limit_min", "limit_max")
    elif not low <= start <= high:
        yield _fault(
            f"got {start:g}, expected {low} to {high} ({variable('limit_min')} to {variable('limit_max')})",
            "limit_initial",
            "limit_min",
            "limit_max",
        )


def _cooldowns(settings: Settings) -> Iterator[Fault]:
    first, longest = settings.breaker_cooldown, settings.breaker_cooldown_max
    if first > longest:
        most = f"{variable('breaker_cooldown_max')}={show_duration(longest)}"
        yield _fault(f"got {show_duration(first)}, expected at most {most}", "breaker_cooldown", "breaker_cooldown_max")


def _ports(settings: Settings) -> Iterator[Fault]:
    hosts = {settings.host, settings.admin_host}
    if settings.port == settings.admin_port != 0 and (len(hosts) == 1 or hosts & _EVERYWHERE):
        yield _fault(f"got {settings.admin_port}, expected another port than {variable('port')}", "admin_port", "port")


def _backends(settings: Settings) -> Iterator[Fault]:
    for what in ("name", "url"):
        for value, times in Counter(getattr(backend, what) for backend in settings.backends).items():
            if times > 1:
                yield _fault(f"{times} engines have the {what} {value!r}, expected each to have its own", "backends")


def _lane_names(settings: Settings) -> Iterator[Fault]:
    names = [name for name, _ in settings.lanes]
    for field in ("lane_weights", "ttft_objective", "max_wait"):
        for name in getattr(settings, field):
            if name and name not in names:
                yield _fault(
                    f"no lane is named {name!r}, expected {' or '.join(names)}{nearest(name, names)}", field, "lanes"
                )


def _waits(settings: Settings) -> Iterator[Fault]:
    for lane in lanes(settings):
        if lane.ttft_objective is not None and lane.max_wait >= lane.ttft_objective:
            yield _fault(
                f"{lane.name!r} waits up to {show_duration(lane.max_wait)}, and who waits so long misses "
                f"{variable('ttft_objective')}={show_duration(lane.ttft_objective)}; expected about half of it",
                "max_wait",
                "ttft_objective",
                "lanes",
                fatal=False,
            )


def _bodies(settings: Settings) -> Iterator[Fault]:
    if settings.queue_max_bytes < settings.max_body_size:
        yield _fault(
            f"got {show_size(settings.queue_max_bytes)}: a body of {variable('max_body_size')}="
            f"{show_size(settings.max_body_size)} can never wait; expected at least that",
            "queue_max_bytes",
            "max_body_size",
            fatal=False,
        )


def _keys(settings: Settings) -> Iterator[Fault]:
    try:
        api_keys(settings)
    except ValueError as error:
        field = "api_keys" if settings.api_keys_file is None else "api_keys_file"
        shown = f"got {settings.api_keys_file!r}: " if settings.api_keys_file else ""
        yield _fault(f"{shown}{error}", field, "api_keys", "api_keys_file")
    for entry in settings.api_keys:
        if entry.is_guessable:
            yield _fault(
                f"a key of {entry.name!r} has fewer than {SHORT} characters and may be guessed: make one by "
                "`gateway keys new`",
                "api_keys",
                fatal=False,
            )


def _body_memory(settings: Settings) -> Iterator[Fault]:
    if settings.body_memory < settings.max_body_size:
        yield _fault(
            f"got {show_size(settings.body_memory)}: a body of {variable('max_body_size')}="
            f"{show_size(settings.max_body_size)} can never be taken; expected at least that",
            "body_memory",
            "max_body_size",
            fatal=False,
        )


def _tls(settings: Settings) -> Iterator[Fault]:
    for prefix, authorities in (("", "tls_ca"), ("listen_", "listen_tls_client_ca"), ("admin_", "")):
        cert, key = f"{prefix}tls_cert", f"{prefix}tls_key"
        given = [getattr(settings, name, None) for name in (authorities, cert, key)]
        for fields, problem in _tls_problems(given[0], given[1], given[2], variable(cert)):
            yield _fault(problem, *(authorities if field == "tls_ca" else f"{prefix}{field}" for field in fields))
    if settings.listen_tls_client_ca is not None and settings.listen_tls_cert is None:
        yield _fault(
            f"authorities without {variable('listen_tls_cert')}, expected both",
            "listen_tls_client_ca",
            "listen_tls_cert",
        )


def _backend_tls(settings: Settings) -> Iterator[Fault]:
    for backend in settings.backends:
        given = backend.tls_ca, backend.tls_cert, backend.tls_key
        for fields, problem in _tls_problems(*given, "tls_cert"):
            yield _fault(f"{fields[0]} of {backend.name!r}: {problem}", "backends")


def _tls_problems(
    authorities: str | None, cert: str | None, key: str | None, cert_name: str
) -> Iterator[tuple[tuple[str, ...], str]]:
    """(fields, what is wrong with the first of them)."""
    if authorities is not None:
        try:
            trusting(authorities)
        except ssl.SSLError as error:
            problem = f"got {authorities!r} ({error.reason or error}), expected certificates as PEM"
            yield ("tls_ca",), problem
    if cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=lambda: "")
        except ssl.SSLError as error:
            problem = f"got {cert!r} ({error.reason or error}), expected a certificate and its unencrypted key as PEM"
            yield ("tls_cert", "tls_key"), problem
    elif key is not None:
        yield ("tls_key", "tls_cert"), f"a key without {cert_name}, expected both"


_CHECKS: Final[tuple[Callable[[Settings], Iterator[Fault]], ...]] = (
    _limits,
    _cooldowns,
    _ports,
    _backends,
    _lane_names,
    _waits,
    _bodies,
    _body_memory,
    _keys,
    _tls,
    _backend_tls,
)
