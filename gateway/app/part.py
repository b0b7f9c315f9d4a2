"""One process of a gateway that has several: ``python -m gateway.app.part brain|worker SOCKET FD [--port N]``.

Started by ``crew``, which reads from ``FD`` when it is ready. Its standard input tells of the crew: of a second signal,
and by its end that the crew is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.admission.estimator import Estimator
from gateway.app.compose import Service, listen
from gateway.app.configs import load_all, proxy_config
from gateway.app.exits import EXIT_CONFIG, EXIT_START, StartError
from gateway.app.process import Signals, leave, run, settle
from gateway.brain.worker import Worker
from gateway.settings import Loaded
from gateway.settings.plain import admission_config, api_keys, backends
from gateway.telemetry.logs import configure

_log = logging.getLogger("gateway")

BRAIN: Final = "brain"
WORKER: Final = "worker"


def main(argv: Sequence[str] | None = None) -> int:
    """Run until a signal, or until the crew is gone."""
    parser = argparse.ArgumentParser(
        prog="gateway.app.part", description="One process of a gateway: see gateway serve."
    )
    parser.add_argument("part", choices=(BRAIN, WORKER))
    parser.add_argument("meet", type=Path, metavar="SOCKET")
    parser.add_argument("tell", type=int, metavar="FD")
    parser.add_argument("--port", type=int)
    parser.add_argument("--env-file")
    arguments = parser.parse_args(argv)
    loaded = load_all(arguments.env_file)
    if not loaded.ok:  # the crew has said what
        return EXIT_CONFIG
    handler = configure(loaded.settings.log_level, loaded.settings.log_format)
    try:
        return run(_serve(loaded, arguments))
    except StartError as error:
        _log.error("%s", error)
        return EXIT_START
    finally:
        handler.close()


async def _serve(loaded: Loaded, arguments: argparse.Namespace) -> int:
    signals = Signals(parent=sys.stdin.fileno())
    if arguments.part == BRAIN:
        read = partial(load_all, arguments.env_file)
        service = Service(loaded, backends(loaded.settings), read, arguments.meet)
        await service.start()
        signals.on_hangup(service.reload)
        _ready(arguments.tell, {"admin": service.admin_url})
        try:
            await signals.next()
            return await leave(service.gateway, signals)
        finally:
            await service.stop()
    settings = loaded.settings
    estimator = Estimator(admission_config(settings).estimator)
    config = proxy_config(settings.model_copy(update={"port": arguments.port}))
    worker = Worker(arguments.meet, config, backends(settings), estimator, api_keys(settings))
    signals.on_hangup(lambda: None)  # the brain tells what changes
    if not await signals.unless_told(listen(worker.start(), settings, "")):
        await worker.stop()
        return 0
    _ready(arguments.tell, {"clients": worker.front.url})
    await signals.next()
    return await leave(worker, signals)


def _ready(descriptor: int, said: Any) -> None:
    settle()
    with contextlib.suppress(BrokenPipeError):  # the crew is gone; standard input tells
        os.write(descriptor, json.dumps(said).encode() + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
