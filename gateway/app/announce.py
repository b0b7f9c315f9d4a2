"""What ``serve`` says once it listens: where, in front of what, and a line to try it with."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from gateway import __version__
from gateway.model import Backend, BackendTls
from gateway.proxy.config import ProxyConfig
from gateway.proxy.fetch import Unanswered, fetch
from gateway.proxy.http import request_head
from gateway.proxy.upstream import Upstream
from gateway.settings import Settings, variable

_log = logging.getLogger("gateway")

_PATIENCE: Final = 3.0  # seconds that the engines have to name a model
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - replaced, not bound


def reachable(url: str) -> str:
    """``url`` as a client on this machine would write it: nobody connects to 0.0.0.0."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts._replace(netloc=f"{_WILDCARDS[host]}:{parts.port}").geturl() if host in _WILDCARDS else url


def curl(url: str, model: str, *, keys: bool = False) -> str:
    """A command that streams a short answer of ``model`` through the gateway at ``url``; ``keys`` are asked for."""
    body = {"model": model, "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": "Hello!"}]}
    target = f"{reachable(url)}/v1/chat/completions"
    key = ' -H "Authorization: Bearer $KEY"' if keys else ""
    return f"curl -N {target}{key} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


async def first_model(url: str) -> str | None:
    """A model that the engines behind the gateway at ``url`` serve; None where none of them says so."""
    itself = Upstream(Backend("gateway", reachable(url), tls=BackendTls(verify=False)), ProxyConfig())
    head = request_head(b"GET /v1/models HTTP/1.1", b"", host=itself.host, request_id=b"gateway-start", close=True)
    try:
        answer = await fetch(itself, head, _PATIENCE)
        return str(json.loads(answer.body)["data"][0]["id"])
    except (OSError, Unanswered, ValueError, LookupError, TypeError):
        return None
    finally:
        itself.close()


def where(version: str, clients: str, admin: str, engines: Sequence[str], *, keys: bool = False) -> list[str]:
    """Where the gateway listens, what stands behind it, and whether ``keys`` are asked for."""
    open_house = f"none is asked for: whoever reaches the port may use the engines ({variable('api_keys_file')})"
    return [
        f"Inference Gateway {version}",
        f"  clients  {clients}",
        f"  admin    {admin}  (status page; /metrics /readyz /state /limits /report /diagnosis)",
        f"  engines  {', '.join(engines)}",
        f"  API keys {'are asked for' if keys else open_house}",
    ]


def trial(url: str, model: str | None, *, keys: bool = False) -> list[str]:
    """How to try it."""
    if keys:
        return ["With a key of yours in $KEY and a model in place of MODEL:", curl(url, "MODEL", keys=True)]
    if model is None:
        return ["No engine names its models yet. With a model of yours in place of MODEL:", curl(url, "MODEL")]
    return ["Try it:", curl(url, model)]


async def announce(settings: Settings, clients: str, admin: str) -> None:
    """Say where clients and operators go, and how to try it."""
    engines = [backend.url for backend in settings.backends] or [
        f"emulated {settings.emulator_profile}: set {variable('backends')} to serve real ones"
    ]
    keys = bool(settings.api_keys) or settings.api_keys_file is not None
    _say(settings, where(__version__, clients, admin, engines, keys=keys))
    _say(settings, trial(clients, None if keys else await first_model(clients), keys=keys))


def _say(settings: Settings, lines: Iterable[str]) -> None:
    """Tell people; collectors of JSON get entries of the log. Not on stdout: that is the access log's."""
    if settings.log_format == "json":
        for line in lines:
            _log.info("%s", line.strip())
    else:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
