"""The small fields of a multipart form, without reading through the file in it.

Only the first and the last 64 KiB are searched: every client writes its fields before or after the file, not inside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_WINDOW: Final = 64 * 1024
_HEAD: Final = 256  # bytes of the file that are kept: enough for a WAV header
_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)
_PARAMETER: Final = re.compile(rb'\b(filename|name)\*?=(?:"([^"]*)"|([^;\s]+))', re.IGNORECASE)


@dataclass(slots=True)
class Form:
    """Text fields by name; ``file_size`` is in bytes, close to exact where the form holds one file."""

    fields: dict[str, str] = field(default_factory=dict)
    file_name: str = ""
    file_head: bytes = b""
    file_size: int = 0


def read_form(content_type: str, body: bytes) -> Form:
    """Fields of ``body``. Never raises: what is no form has no fields."""
    form = Form()
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return form
    delimiter = b"--" + (boundary.group(1) or boundary.group(2)).encode("utf-8", "surrogateescape")
    if len(body) <= 2 * _WINDOW:
        _read_parts(form, body, delimiter, 0)
        return form
    _read_parts(form, body[:_WINDOW], delimiter, 0)
    tail = body[-_WINDOW:]
    end = tail.find(delimiter)
    if form.file_size:
        form.file_size += len(body) - 2 * _WINDOW + (end if end >= 0 else len(tail))
    if end >= 0:
        _read_parts(form, tail, delimiter, end)
    return form


def _read_parts(form: Form, window: bytes, delimiter: bytes, start: int) -> None:
    """Read the parts of ``window`` from ``start`` on; the last may be cut off by the window's end."""
    for part in window[start:].split(delimiter)[1:]:
        head, separator, content = part.partition(b"\r\n\r\n")
        if not separator:
            continue
        found = {key.lower(): quoted or bare for key, quoted, bare in _PARAMETER.findall(head)}
        if b"filename" in found:
            form.file_name = found[b"filename"].decode(errors="replace")
            form.file_head = content[:_HEAD]
            form.file_size = len(content)
        elif b"name" in found:
            name = found[b"name"].decode(errors="replace")
            form.fields[name] = content.removesuffix(b"\r\n").decode(errors="replace")
