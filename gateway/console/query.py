"""What the admin port's newer routes share: reading a query, and JSON answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import orjson
from aiohttp import web


def only(query: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse parameters that nobody knows: a misspelt one would be left out in silence.

    Raises:
        ValueError: naming them.
    """
    if unknown := sorted(set(query) - set(known)):
        raise ValueError(f"got {', '.join(unknown)}, expected any of {', '.join(known)}")


def one_of(name: str, given: str, known: Collection[str]) -> str:
    """``given``, which must be in ``known``.

    Raises:
        ValueError: naming the parameter, what was given and what is expected.
    """
    if given not in known:
        raise ValueError(f"{name}: got {given!r}, expected one of {', '.join(known) or 'none: nothing was served yet'}")
    return given


def count(name: str, query: Mapping[str, str], otherwise: int) -> int:
    """A whole number of at least 0.

    Raises:
        ValueError: naming the parameter, what was given and what is expected.
    """
    given = query.get(name, str(otherwise))
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):  # noqa: PLR2004 - of a 64-bit number
        raise ValueError(f"{name}: got {given!r}, expected a whole number")
    return int(given)


def answer(value: object, status: int = 200) -> web.Response:
    """``value`` as JSON for people and programs."""
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)
    return web.Response(body=body, status=status, content_type="application/json")
