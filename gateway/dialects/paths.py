"""One spelling of a request path, for matching only: the path is forwarded as the client wrote it.

An engine may accept more than one spelling of an admin route, and a proxy in between may add its own: percent
encodings (once or twice), dot segments, doubled slashes, the absolute form, and ``%uXXXX``, which cpp-httplib (MindIE,
llama.cpp) decodes. ``normalise`` undoes more than any of them does, so a match against the deny table errs on the
side of refusing.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_DECODINGS: Final = 4  # a path that is still encoded after so many rounds hides something
_WIDE_ESCAPE: Final = re.compile(rb"%[uU]([0-9a-fA-F]{4})")
_ESCAPE: Final = re.compile(rb"%(?:[0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ABSOLUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]*")
_PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")


def normalise(raw_path: str) -> str | None:
    """``raw_path`` (a request target: query and authority allowed) in one spelling, without a trailing slash.

    None where it cannot be read: control characters, bytes that are not UTF-8, escapes within escapes without end.
    """
    if _PLAIN.fullmatch(raw_path):
        return raw_path
    path = _decode(_ABSOLUTE.sub("", raw_path, count=1) if "://" in raw_path else raw_path)
    if path is None or _CONTROL.search(path):
        return None
    return _resolve(path)


def _decode(target: str) -> str | None:
    """The target's path, decoded until nothing is left to decode."""
    path = _before_query(target).encode("utf-8", "surrogateescape")
    for _ in range(_DECODINGS):
        if not _ESCAPE.search(path):
            break
        path = unquote_to_bytes(_WIDE_ESCAPE.sub(_wide, path))
    else:
        return None
    try:
        return _before_query(path.decode())
    except UnicodeDecodeError:
        return None


def _wide(match: re.Match[bytes]) -> bytes:
    return chr(int(match.group(1), 16)).encode("utf-8", "surrogatepass")


def _before_query(target: str) -> str:
    return target.partition("?")[0].partition("#")[0]


def _resolve(path: str) -> str:
    """Dot segments and empty segments gone; a backslash counts as a slash, as browsers and IIS take it."""
    segments: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        if segment == "..":
            if segments:
                segments.pop()
        elif segment not in {"", "."}:
            segments.append(segment)
    return "/" + "/".join(segments)
