"""Asking a running gateway through its admin port: what ``gateway report``, ``curve`` and the like stand on."""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias

import aiohttp

from gateway.app.configs import load_all
from gateway.app.exits import EXIT_START, EXIT_USAGE
from gateway.settings import Settings, variable
from gateway.trust import trusting

_PATIENCE: Final = 60.0  # seconds that the gateway has for its answer

Query: TypeAlias = Sequence[tuple[str, str]]


class Ask(Protocol):
    """Takes method, path, query and, where something is to change, the change; returns the answer's text."""

    def __call__(self, method: str, path: str, query: Query, change: object = None) -> Awaitable[str]:
        """Ask once."""


class AdminError(Exception):
    """No answer of use; the message is for the operator."""


@asynccontextmanager
async def admin_port(url: str | None, env_file: str | None) -> AsyncIterator[Ask]:
    """How to ask the gateway at ``url``, by default the one on this machine with these settings.

    What is asked raises ValueError where the gateway refuses the question.

    Raises:
        AdminError: nobody answers there, or with something else.
    """
    settings = load_all(env_file).settings
    admin = (url or here(settings)).rstrip("/")
    believed = trust(settings, known=url is None) if admin.startswith("https:") else True
    token = settings.admin_token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    try:
        async with aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(_PATIENCE), connector=aiohttp.TCPConnector(ssl=believed)
        ) as session:
            yield lambda method, path, query, change=None: _asked(session, method, f"{admin}{path}", query, change)
    except (aiohttp.ClientError, TimeoutError) as error:
        remedy = f"--admin or {variable('admin_port')} says where it is"
        raise AdminError(f"no gateway answers at {admin} ({str(error) or 'timeout'}); {remedy}") from error


def here(settings: Settings) -> str:
    """Where the admin port of a gateway with these settings is, on this machine."""
    return f"{'http' if settings.admin_tls_cert is None else 'https'}://127.0.0.1:{settings.admin_port}"


def trust(settings: Settings, *, known: bool) -> ssl.SSLContext:
    """Who is taken for the gateway: the holder of its certificate, beside who is vouched for as usual.

    ``known``: it is on this machine, of which certificates do not speak.
    """
    context = trusting()
    if settings.admin_tls_cert is not None:
        context.load_verify_locations(settings.admin_tls_cert)
    context.check_hostname = not known
    return context


async def _asked(session: aiohttp.ClientSession, method: str, url: str, query: Query, change: object) -> str:
    async with session.request(method, url, params=query, json=change) as answer:
        text = await answer.text()
        if answer.status == HTTPStatus.OK:
            return text
        try:
            message = json.loads(text)["error"]
        except (ValueError, LookupError, TypeError):
            message = f"{url} answers {answer.status} {answer.reason}"
        if answer.status == HTTPStatus.BAD_REQUEST:
            raise ValueError(message)
        raise AdminError(message)


def run_show(arguments: argparse.Namespace, path: str, query: Query) -> int:
    """Print what ``path`` answers; the exit code is one of those that ``cli`` lists."""
    try:
        sys.stdout.write(asyncio.run(_show(arguments, path, query)))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except AdminError as failure:
        sys.stderr.write(f"{failure}\n")
        return EXIT_START
    return 0


async def _show(arguments: argparse.Namespace, path: str, query: Query) -> str:
    async with admin_port(arguments.admin, arguments.env_file) as ask:
        return await ask("GET", path, query)
