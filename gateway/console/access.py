"""Who may see what on the admin port."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Final

OPEN_PATHS: Final = frozenset({
    "/livez", "/readyz", "/healthz", "/metrics",
    "/", "/status.css", "/status.js", "/charts.js", "/icon.svg",  # the page; its figures are not open
})  # fmt: skip
TOKEN_SETTING: Final = "GATEWAY_ADMIN_TOKEN"  # noqa: S105 - the setting's name, not its value

# A request that carries one of these came through another proxy: its peer says nothing of where it began.
FORWARDED_HEADERS: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


@dataclass(frozen=True, slots=True)
class Denial:
    """An answer of ``status`` 401 or 403 that says why."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of one request: its peer's address, two of its headers, and whether another proxy relayed it."""

    peer: str | None
    host: str | None
    authorization: str | None
    forwarded: bool


def denial(path: str, caller: Caller, token: str | None) -> Denial | None:
    """Why ``caller`` may not see ``path``; None where it may.

    Probes, metrics and the files of the status page are open. The rest takes the token, or a caller on this machine.
    For the latter, Host must be an address or ``localhost``: a web page that rebinds its own name to 127.0.0.1 sends
    that name.
    """
    if path in OPEN_PATHS:
        return None
    if token and caller.authorization is not None:
        if _matches(caller.authorization, token):
            return None
        return Denial(401, f"wrong token: expected Authorization: Bearer and the value of {TOKEN_SETTING}")
    if caller.forwarded or not _is_loopback(caller.peer):
        remedy = "send it as Authorization: Bearer" if token else "it is not set: set it to open this to others"
        return Denial(403, f"{path} answers callers on this machine only, or who gives {TOKEN_SETTING} ({remedy})")
    if not _is_local_name(caller.host):
        return Denial(403, f"Host {caller.host!r} given, expected localhost or an address")
    return None


def _matches(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(_bytes(given.strip()), _bytes(token))
    return same and scheme.lower() == "bearer"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_loopback(peer: str | None) -> bool:
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local_name(host: str | None) -> bool:
    if not host:
        return False
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
