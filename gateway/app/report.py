"""``gateway report``: the figures of a benchmark from live traffic, or from a file of records."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from gateway.app.admin import AdminError, admin_port
from gateway.app.exits import EXIT_START, EXIT_USAGE
from gateway.telemetry.entry import Entry
from gateway.telemetry.record_file import Unreadable, entries_in
from gateway.telemetry.report import Heading, csv_report, objectives_of, percents_of, result, rule_of, text_report
from gateway.telemetry.selection import Selection, instant
from gateway.telemetry.tally import Tally, tallied


def run_report(arguments: argparse.Namespace) -> int:
    """Print what is asked for; the exit code is one of those that ``cli`` lists."""
    try:
        sys.stdout.write(_from_files(arguments) if arguments.files else asyncio.run(_from_gateway(arguments)))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except (AdminError, Unreadable) as failure:
        sys.stderr.write(f"{failure}\n")
        return EXIT_START
    return 0


# ------------------------------------------------------------------------------------------------- a running gateway


async def _from_gateway(arguments: argparse.Namespace) -> str:
    async with admin_port(arguments.admin, arguments.env_file) as ask:
        if arguments.runs:
            return await ask("GET", "/report/runs", ())
        if arguments.start:
            await ask("PUT", f"/report/runs/{quote(arguments.start, '')}/start", ())
            return f"Run {arguments.start} goes on until `gateway report --stop {arguments.start}`.\n"
        if arguments.stop:
            await ask("PUT", f"/report/runs/{quote(arguments.stop, '')}/stop", ())
        return await ask("GET", "/report", list(_query(arguments)))


def _query(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    now = time.time()
    given = {
        "run": arguments.run_name or arguments.stop,
        "window": arguments.window,
        "request_id_prefix": arguments.request_id_prefix,
        "model": arguments.model,
        "compat": arguments.compat,
        "percentiles": arguments.percentiles,
        "format": arguments.format,
    }
    yield from ((name, value) for name, value in given.items() if value)
    for name in ("since", "until"):  # in the time zone of whoever asks
        if text := getattr(arguments, name):
            yield name, repr(instant(text, now))
    yield from (("goodput", objective) for objective in arguments.goodput)


# ------------------------------------------------------------------------------------------------------ record files


def _from_files(arguments: argparse.Namespace) -> str:
    for name in ("admin", "window", "run_name", "start", "stop", "runs"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.removesuffix('_name')} asks a running gateway: not together with --from")
    now = time.time()
    since, until = (text and instant(text, now) for text in (arguments.since, arguments.until))
    selection = Selection(since or None, until or None, arguments.request_id_prefix or "", arguments.model)
    tally = Tally(rule_of(arguments.compat), objectives_of(arguments.goodput), percents_of(arguments.percentiles))
    figures = tallied(filter(selection.takes, read_files(arguments.files)), tally)
    heading = Heading(selection.prefix or None, selection.model)
    if arguments.format == "json":
        return json.dumps(result(figures, heading), indent=2) + "\n"
    return csv_report(figures, heading) if arguments.format == "csv" else text_report(figures, heading)


def read_files(paths: list[str]) -> Iterator[Entry]:
    """The entries of all files; lines that cannot be read are told on stderr.

    Raises:
        ValueError: a file cannot be read.
        Unreadable: a file holds no entry.
    """
    for path in paths:
        try:
            yield from entries_in(Path(path), lambda told: sys.stderr.write(f"{told}\n"))
        except OSError as error:
            raise ValueError(f"--from {path}: {error.strerror}") from error
