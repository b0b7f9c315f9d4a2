"""The proxy's settings as plain frozen values. Times are seconds, sizes are bytes; None switches a timeout off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MIB = 1024 * 1024


PRIVATE: Final = (
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
    *("::1/128", "fc00::/7", "fe80::/10"),
)
"""Loopback, private, link-local and carrier-grade NAT networks (RFC 6890)."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How backends with an https URL are spoken to. Paths of PEM files; ``cert`` may hold the key as well."""

    verify: bool = True
    ca: str | None = None  # None: the system's authorities
    cert: str | None = None  # client certificate, where the backend demands one (MindIE's default does)
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """How clients reach the gateway. Paths of PEM files; ``cert`` may hold the key as well."""

    cert: str
    key: str | None = None
    client_ca: str | None = None  # None: clients need no certificate


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How backends are asked for their health and gauges."""

    interval: float = 2.0
    timeout: float = 5.0  # a slow answer is not a failure: only a refused connection or a bad status counts
    failures: int = 3  # consecutive hard failures before a backend counts as down
    successes: int = 2  # consecutive good answers before it counts as up again
    models_interval: float | None = 30.0  # None: engines are not asked which models they serve


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Everything about moving bytes.

    ``first_byte_timeout`` bounds the silence before the first body byte of a streamed answer; an answer that is not
    streamed is silent until generation ends, so ``answer_timeout`` bounds that one. To both comes the time that the
    request itself may take on the slowest engine. ``idle_timeout`` bounds the silence between bytes after the first.
    No limit bounds the whole. ``upstream_keepalive`` must stay below the engine's own idle timeout (uvicorn's is 5 s),
    so that a connection is never reused while the engine closes it.
    """

    host: str = "0.0.0.0"  # noqa: S104 - a proxy listens for other machines
    port: int = 8080  # 0: any free port
    backlog: int = 4096
    max_body: int = 64 * _MIB
    body_memory: int = 256 * _MIB  # of all bodies together, from their first byte until their answers begin
    max_line: int = 16 * 1024  # request line
    max_header: int = 64 * 1024  # one header field; a whole head: four times that
    max_headers: int = 256  # header fields of one request
    client_keepalive: float = 75.0
    client_timeout: float = 120.0  # a client that takes or sends no byte for so long is gone
    client_min_rate: float = 1024.0  # bytes a second, after that time, that a body comes or an answer is taken at
    client_header: str | None = None  # header that names the client for fairness; None: hash of its API key, or address
    session_by: tuple[str, ...] = ("conversation",)  # what names a session: the first of these that a request has
    hash_prompts: bool = True  # where there are several backends: prompts are told apart by the hashes of their blocks
    choice_header: bool = False  # answers say which backend served them, and why
    priority_header: str | None = None  # header that tells a request's priority; None: all are standard
    allow_admin_routes: bool = False
    load_header: bool = False  # answers say how full the gateway is, for a balancer in front
    forward_client_keys: bool = False  # clients' keys go on to the backends although the gateway itself asks for keys
    inject_usage: bool = False  # ask engines for the token counts of streams, and keep them from clients
    max_prompt_tokens: Mapping[str, int] = field(default_factory=dict)  # by model; "": all others
    max_output_tokens: Mapping[str, int] = field(default_factory=dict)
    trusted_proxies: tuple[str, ...] = PRIVATE  # networks whose peers may say for whom they speak
    cors: bool = True  # the gateway's own answers may be read by pages of any origin
    heartbeat: float | None = None  # between comments on a stream that has a head and no event yet
    connect_timeout: float = 5.0
    connect_attempts: int = 3  # backends tried in turn for one request while none of it was sent
    first_byte_timeout: float | None = 600.0
    answer_timeout: float | None = 3600.0
    idle_timeout: float | None = 300.0
    upstream_keepalive: float = 4.0
    max_idle: int = 256  # idle connections kept per backend
    models_timeout: float = 5.0  # per backend, where /v1/models is the union of several
    drain_grace: float = 30.0
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    listener_tls: ListenerTls | None = None  # None: plain HTTP
