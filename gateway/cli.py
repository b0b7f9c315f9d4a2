"""The verbs of the command line. Each imports what it runs only when it runs, so that ``--help`` is instant.

Exit codes: 0, 1 a fault in the settings, 2 wrong usage, 3 the start failed (an address in use, say); 128 and the
signal's number where a second signal cut the requests that were still running.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeAlias

from gateway import __version__

_SETTINGS = (
    "Settings come from GATEWAY_ variables; `gateway check-config` shows them, docs/configuration.md lists them."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; wrong usage exits with 2."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gateway",
        description="A drop-in reverse proxy that keeps inference servers fast under overload.",
        epilog=_SETTINGS,
    )
    parser.add_argument("--version", action="version", version=f"Inference Gateway {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _serve(verbs)
    _check_config(verbs)
    _emulate(verbs)
    _demo(verbs)
    return parser


_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the type has no public name


def _serve(verbs: _Verbs) -> None:
    verb = verbs.add_parser("serve", help="run the gateway in the foreground", epilog=_SETTINGS)
    _env_file(verb)
    verb.set_defaults(run=_run_serve)


def _check_config(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "check-config",
        help="print every effective setting with its source, and every fault",
        epilog="Exits 0 where the gateway would start with these settings, else 1.",
    )
    _env_file(verb)
    verb.set_defaults(run=_run_check_config)


def _emulate(verbs: _Verbs) -> None:
    verb = verbs.add_parser("emulate", help="run an emulated engine: real HTTP, the timing of a known accelerator")
    verb.add_argument("--profile", help="the engine to emulate (default: GATEWAY_EMULATOR_PROFILE)")
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    verb.add_argument("--port", type=_port, default=8000, help="port to listen on, 0: any (default: %(default)s)")
    verb.add_argument("--model", help="model name to serve under (default: the profile's name)")
    verb.add_argument("--speed", type=_speed, default=1.0, help="run that many times as fast (default: %(default)s)")
    verb.add_argument("--list", action="store_true", help="list the profiles and exit")
    verb.set_defaults(run=_run_emulate)


def _demo(verbs: _Verbs) -> None:
    verb = verbs.add_parser("demo", help="half a minute that shows why: one overload with and without the gateway")
    verb.set_defaults(run=_run_demo)


def _env_file(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--env-file", metavar="PATH", help="read settings from this file too (or GATEWAY_ENV_FILE)")


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):  # noqa: PLR2004 - the largest port there is
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a port number, 0 to 65535")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return speed


def _run_serve(arguments: argparse.Namespace) -> int:
    from gateway.app.serve import run_serve

    return run_serve(arguments.env_file)


def _run_check_config(arguments: argparse.Namespace) -> int:
    from gateway.app.check import run_check_config

    return run_check_config(arguments.env_file)


def _run_emulate(arguments: argparse.Namespace) -> int:
    from gateway.app.emulate import list_profiles, run_emulate

    if arguments.list:
        return list_profiles()
    return run_emulate(arguments.profile, arguments.host, arguments.port, arguments.model, arguments.speed)


def _run_demo(_: argparse.Namespace) -> int:
    from gateway.app.demo import run_demo

    return run_demo()
