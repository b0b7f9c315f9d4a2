"""Set-up of the process log: stdlib logging to stderr, plain for people or JSON for collectors, never blocking."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.telemetry.sink import LineSink

LEVELS: Final = ("debug", "info", "warning", "error")
STYLES: Final = ("plain", "json")
_LONGEST: Final = 16 * 1024  # characters of a message, of a traceback


class SinkHandler(logging.Handler):
    """Hands formatted entries to a LineSink; ``close`` flushes it."""

    def __init__(self, sink: LineSink) -> None:
        """The handler owns ``sink`` from now on."""
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one entry. Never raises: an entry that cannot be formatted is told of in one line instead."""
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - a wrong format string must not reach the code that logs
            text = (
                f"ERROR gateway.telemetry.logs: entry of {record.name}:{record.lineno} cannot be formatted: {error!r}"
            )
        self._sink.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """Write what is queued and stop."""
        self._sink.stop()
        super().close()


class PlainFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 WARNING gateway.proxy.prober: text``, a traceback on the lines below."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Render ``record``, cut to a bound."""
        return super().format(record)[:_LONGEST]


class JsonFormatter(logging.Formatter):
    """One JSON object an entry: time (UTC), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render ``record`` on one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = _bounded(self.formatException(record.exc_info))
        return orjson.dumps(fields).decode()


def configure(level: str, style: str, target: str = "stderr") -> logging.Handler:
    """Send all logging to ``target``, from ``level`` on, in ``style``; ``close()`` of the handler flushes.

    Replaces the root logger's handlers, and closes them.

    Raises:
        ValueError: an unknown level or style.
        OSError: ``target`` is a file that cannot be opened.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} given, expected one of {', '.join(LEVELS)}")
    if style not in STYLES:
        raise ValueError(f"log style {style!r} given, expected one of {', '.join(STYLES)}")
    handler = SinkHandler(LineSink(target))
    handler.setFormatter(JsonFormatter() if style == "json" else PlainFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return handler


def _bounded(text: str) -> str:
    return text[:_LONGEST].encode("utf-8", "replace").decode()
