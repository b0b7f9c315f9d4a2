"""The verbs of the command line. Each imports what it runs only when it runs, so that ``--help`` is instant.

Exit codes: 0, 1 a fault in the settings, 2 wrong usage, 3 the start failed (an address in use, say); 128 and the
signal's number where a second signal cut the requests that were still running.
"""

from __future__ import annotations

import argparse
import gc
import math
import mimetypes
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gateway import __version__

_SETTINGS = (
    "Settings come from GATEWAY_ variables; `gateway check-config` shows them, docs/configuration.md lists them."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; wrong usage exits with 2."""
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # argparse itself would show the usage of all verbs
        arguments.verb.error(f"unrecognized arguments: {' '.join(unknown)}")
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
    _report(verbs)
    _replay(verbs)
    _curve(verbs)
    _diagnose(verbs)
    _top(verbs)
    _limits(verbs)
    _keys(verbs)
    _simulate(verbs)
    _emulate(verbs)
    _demo(verbs)
    _completion(verbs)
    for verb in verbs.choices.values():
        verb.set_defaults(verb=verb)
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


def _report(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "report",
        help="print from live traffic what a benchmark would have shown",
        description="Prints the figures of `vllm bench serve` over the requests that a running gateway has served, by "
        "default those of the last ten minutes, or over the records in files.",
        epilog="docs/report.md says what each figure means.",
    )
    which = verb.add_argument_group("which requests")
    which.add_argument("--window", metavar="TIME", help="those of the last while: 90s, 10m, 1h (default: 10m)")
    which.add_argument("--since", metavar="TIME", help="from then on: 15:04, 2026-11-30T15:04, seconds of the epoch")
    which.add_argument("--until", metavar="TIME", help="up to then, spelt alike")
    which.add_argument("--request-id-prefix", metavar="TEXT", help="x-request-id begins so; vllm's is bench-HEX-")
    which.add_argument("--model", metavar="NAME", help="of this model only")
    which.add_argument("--run", dest="run_name", metavar="NAME", help="those of a run that was started by --start")
    which.add_argument("--from", dest="files", nargs="+", metavar="FILE", help="those in files of GATEWAY_RECORDS_FILE")
    runs = verb.add_argument_group("runs").add_mutually_exclusive_group()
    runs.add_argument("--start", metavar="NAME", help="begin a run")
    runs.add_argument("--stop", metavar="NAME", help="end a run and print its report")
    runs.add_argument("--runs", action="store_true", help="list runs, those of `vllm bench serve` included")
    how = verb.add_argument_group("how")
    how.add_argument(
        "--compat", metavar="VERSION", default="0.33", help="what counts: 0.33 (default), 0.32, or any output"
    )
    how.add_argument(
        "--goodput", metavar="KEY:MS", nargs="+", default=[], help="objectives: ttft:500 tpot:50 e2el:9000"
    )
    how.add_argument("--percentiles", metavar="LIST", default="99", help="such as 50,90,99 (default: %(default)s)")
    shape = how.add_mutually_exclusive_group()
    shape.add_argument("--json", dest="format", action="store_const", const="json", help="keys of vllm's result file")
    shape.add_argument("--csv", dest="format", action="store_const", const="csv", help="the same as a table")
    where = verb.add_argument_group("where")
    where.add_argument("--admin", metavar="URL", help="admin port of the gateway (default: here, GATEWAY_ADMIN_PORT)")
    _env_file(where)
    verb.set_defaults(run=_run_report)


def _replay(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "replay",
        help="send the requests of a record file to another server: same arrivals, same lengths",
        description="Sends requests that arrive as those in the file did and have as many prompt and output tokens, "
        "to an OpenAI-compatible server, and prints the figures as seen from here. The prompts are made up.",
    )
    verb.add_argument("files", nargs="+", metavar="FILE", help="what GATEWAY_RECORDS_FILE wrote")
    verb.add_argument("--to", required=True, metavar="URL", help="the server, such as http://gpu2:8000")
    verb.add_argument("--model", metavar="NAME", help="ask for this model (default: the one in the records)")
    verb.add_argument("--speed", metavar="TIMES", type=_positive, default=1.0, help="arrivals so many times as fast")
    verb.add_argument(
        "--limit", metavar="N", type=_count, default=10_000, help="requests at most (default: %(default)s)"
    )
    verb.add_argument(
        "--max-concurrency", metavar="N", type=_count, default=1_000, help="at the same moment (default: %(default)s)"
    )
    verb.add_argument("--timeout", metavar="SECONDS", type=_positive, default=600.0, help="of one request, in all")
    verb.add_argument(
        "--compat", metavar="VERSION", default="0.33", help="what counts: 0.33 (default), 0.32, or any output"
    )
    verb.add_argument("--json", dest="format", action="store_const", const="json", help="keys of vllm's result file")
    verb.set_defaults(run=_run_replay)


def _curve(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "curve",
        help="print what each engine gives at each number of requests in flight, as learned from live traffic",
        description="Prints the table that people make by hand with a benchmark at several concurrencies: latency, "
        "TTFT, TPOT and throughput at each level that was seen, with the knee and the level that serves best.",
        epilog="docs/curve.md says how to read it.",
    )
    verb.add_argument("--backend", metavar="NAME", help="of this engine only")
    verb.add_argument("--model", metavar="NAME", help="of requests for this model only")
    shape = verb.add_mutually_exclusive_group()
    shape.add_argument("--json", dest="format", action="store_const", const="json", help="as /curve answers")
    shape.add_argument("--csv", dest="format", action="store_const", const="csv", help="a line for each level")
    _where(verb)
    verb.set_defaults(run=_run_curve)


def _diagnose(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "diagnose",
        help="say what is wrong, on what evidence, and what to turn",
        epilog="docs/diagnosis.md says more of each cause.",
    )
    verb.add_argument("--json", dest="format", action="store_const", const="json", help="as /diagnosis answers")
    _where(verb)
    verb.set_defaults(run=_run_diagnose)


def _top(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "top",
        help="watch a running gateway on the terminal",
        description="Shows what the status page shows: limits, lanes, refusals, speed, findings and events.",
        epilog="Ctrl-C ends it.",
    )
    _where(verb)
    verb.add_argument(
        "--interval", metavar="SECONDS", type=_positive, default=1.0, help="between two looks (default: 1)"
    )
    verb.add_argument("--once", action="store_true", help="print it once and exit")
    verb.set_defaults(run=_run_top)


def _limits(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "limits",
        help="show and change objectives, lanes and limits of a running gateway",
        description="Shows what can be changed while the gateway runs, and changes it at once, without a restart. "
        "Nothing is written down: a restart brings the settings back.",
        epilog="Options by name can be given more than once, or with commas: --pin gpu1=32,gpu2=16",
    )
    what = verb.add_argument_group("what to change")
    what.add_argument("--tpot-objective", metavar="TIME", help="time per output token: 50ms, or none")
    for name, value, told in (
        ("ttft-objective", "LANE=TIME", "time to first token; the longest wait becomes half of it, unless given"),
        ("lane-threshold", "LANE=TOKENS", "requests of up to so many predicted tokens are of this lane"),
        ("lane-weight", "LANE=NUMBER", "its share of the engines while all lanes wait"),
        ("max-wait", "LANE=TIME", "how long a request may wait"),
        ("pin", "BACKEND=N", "fix its limit"),
        ("unpin", "BACKEND", "have its limit found again"),
        ("drain", "BACKEND", "send it no new requests; those that run may finish"),
        ("undrain", "BACKEND", "send it requests again"),
    ):
        what.add_argument(f"--{name}", metavar=value, action="append", default=[], help=told)
    verb.add_argument("--json", action="store_true", help="print what is in effect as JSON")
    _where(verb)
    verb.set_defaults(run=_run_limits)


def _keys(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "keys",
        help="make an API key, or hash one, for GATEWAY_API_KEYS_FILE",
        description="The gateway keeps no key, only its SHA-256: what is long and random needs no slower hash.",
    )
    what = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    new = what.add_parser("new", help="print a new key, and its entry for the file")
    new.add_argument("--name", default="team-a", help="its holder, as metrics and logs name it (default: %(default)s)")
    new.set_defaults(run=_run_keys_new)
    what.add_parser("hash", help="print the hash of the key on standard input").set_defaults(run=_run_keys_hash)


def _where(verb: argparse.ArgumentParser) -> None:
    where = verb.add_argument_group("where", "The token, where one is needed, is that of GATEWAY_ADMIN_TOKEN.")
    where.add_argument("--admin", metavar="URL", help="admin port of the gateway (default: here, GATEWAY_ADMIN_PORT)")
    _env_file(where)


def _simulate(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "simulate",
        help="say what these settings would make of a trace, before production sees them",
        description="Lets the requests of a trace, or of a mix at a rate, arrive at the gateway as its GATEWAY_ "
        "settings make it, in front of emulated engines and with clients that retry as SDKs do, in simulated time; "
        "and at the same engines without it.",
        epilog="docs/simulate.md describes traces, mixes and what is printed.",
    )
    what = verb.add_argument_group("what arrives")
    what.add_argument("trace", nargs="?", metavar="TRACE", help="CSV with arrival_s, prompt_tokens, output_tokens")
    what.add_argument(
        "--mix",
        metavar="NAME[=SHARE]",
        action="append",
        default=[],
        help="draw lengths of this mix; any number of them",
    )
    what.add_argument("--rate", metavar="N", type=_positive, help="requests a second of the mix")
    what.add_argument("--duration", metavar="SECONDS", type=_positive, default=300.0, help="of the mix (default: 300)")
    what.add_argument("--speed", metavar="TIMES", type=_positive, default=1.0, help="arrivals so many times as fast")
    engines = verb.add_argument_group("engines")
    engines.add_argument(
        "--profile", metavar="NAME", help="as `emulate --list` has them (default: GATEWAY_EMULATOR_PROFILE)"
    )
    engines.add_argument(
        "--constant", metavar="NAME=VALUE", action="append", default=[], help="set one of the profile's constants"
    )
    engines.add_argument(
        "--engines",
        metavar="N",
        type=_count,
        help="so many (default: one for each of GATEWAY_BACKENDS, with its limit)",
    )
    clients = verb.add_argument_group("clients")
    clients.add_argument("--clients", metavar="N", type=_count, default=20, help="distinct ones (default: %(default)s)")
    clients.add_argument("--streamed", metavar="SHARE", type=_share, default=1.0, help="of the requests (default: all)")
    clients.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_positive,
        default=600.0,
        help="to the first byte (default: 600, the SDKs')",
    )
    clients.add_argument("--retries", metavar="N", type=_number, default=2, help="after the first attempt (default: 2)")
    how = verb.add_argument_group("how")
    how.add_argument("--seed", metavar="N", type=_number, default=0, help="of all chance (default: 0)")
    how.add_argument("--json", action="store_true", help="print everything as JSON")
    _env_file(how)
    verb.set_defaults(run=_run_simulate)


def _emulate(verbs: _Verbs) -> None:
    verb = verbs.add_parser("emulate", help="run an emulated engine: real HTTP, the timing of a known accelerator")
    verb.add_argument(
        "--kind",
        choices=("vllm", "mindie"),
        default="vllm",
        help="whose HTTP server it has; mindie's other planes are on the next two ports (default: %(default)s)",
    )
    verb.add_argument(
        "--profile", help="the engine to emulate (default: GATEWAY_EMULATOR_PROFILE; mindie: 910b-mindie)"
    )
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    verb.add_argument("--port", type=_port, default=8000, help="port to listen on, 0: any (default: %(default)s)")
    verb.add_argument("--model", help="model name to serve under (default: the profile's name)")
    verb.add_argument("--speed", type=_speed, default=1.0, help="run that many times as fast (default: %(default)s)")
    verb.add_argument(
        "--link-num", type=_link_num, default=1000, help="mindie's maxLinkNum, its threads (default: %(default)s)"
    )
    verb.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt anew, as vLLM's flag does")
    verb.add_argument("--list", action="store_true", help="list the profiles and exit")
    faults = verb.add_argument_group(
        "faults", "What engines suffer, to try a gateway on. Times are the engine's seconds."
    )
    faults.add_argument("--stall", type=_positive, metavar="SECONDS", help="some steps take so much longer")
    faults.add_argument("--stall-every", type=_positive, metavar="SECONDS", help="... one in this time")
    faults.add_argument("--wear", type=_positive, metavar="SHARE", help="steps become longer by this share a minute")
    faults.add_argument(
        "--hangs-at", type=_positive, metavar="SECONDS", help="goes silent then, its health stays green"
    )
    faults.add_argument(
        "--max-queued", dest="max_num_queued_reqs", type=_count, metavar="N", help="503 beyond N requests in it"
    )
    faults.add_argument("--polluted", action="store_true", help="answers in one piece are wrong (vllm)")
    verb.set_defaults(run=_run_emulate)


def _demo(verbs: _Verbs) -> None:
    verb = verbs.add_parser("demo", help="half a minute that shows why: one overload with and without the gateway")
    verb.set_defaults(run=_run_demo)


def _completion(verbs: _Verbs) -> None:
    verb = verbs.add_parser(
        "completion",
        help="print what makes a shell complete this command",
        epilog='bash: eval "$(gateway completion bash)" in ~/.bashrc. zsh: into a file _gateway of $fpath. '
        "fish: into ~/.config/fish/completions/gateway.fish.",
    )
    verb.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    verb.set_defaults(run=_run_completion)


def _env_file(verb: argparse._ActionsContainer) -> None:
    verb.add_argument("--env-file", metavar="PATH", help="read settings from this file too (or GATEWAY_ENV_FILE)")


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):  # noqa: PLR2004 - the largest port there is
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a port number, 0 to 65535")
    return int(text)


def _link_num(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 4096):  # noqa: PLR2004 - what MindIE takes
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of connections, 1 to 4096")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return speed


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return number


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a share, 0 to 1")
    return number


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number, 0 or more")
    return int(text)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)


def _run_serve(arguments: argparse.Namespace) -> int:
    mimetypes.init(())  # no file is served: aiohttp would read the system's list of types
    gc.disable()  # what importing makes stays
    from gateway.app.serve import run_serve

    gc.enable()
    return run_serve(arguments.env_file)


def _run_check_config(arguments: argparse.Namespace) -> int:
    from gateway.app.check import run_check_config

    return run_check_config(arguments.env_file)


def _run_report(arguments: argparse.Namespace) -> int:
    from gateway.app.report import run_report

    return run_report(arguments)


def _run_replay(arguments: argparse.Namespace) -> int:
    from gateway.app.replay import run_replay

    return run_replay(arguments)


def _run_top(arguments: argparse.Namespace) -> int:
    from gateway.app.top import run_top

    return run_top(arguments)


def _run_curve(arguments: argparse.Namespace) -> int:
    from gateway.app.admin import run_show

    given = {"backend": arguments.backend, "model": arguments.model, "format": arguments.format or "text"}
    return run_show(arguments, "/curve", [(name, value) for name, value in given.items() if value is not None])


def _run_diagnose(arguments: argparse.Namespace) -> int:
    from gateway.app.admin import run_show

    return run_show(arguments, "/diagnosis", [("format", arguments.format or "text")])


def _run_keys_new(arguments: argparse.Namespace) -> int:
    from gateway.app.keys import run_new

    return run_new(arguments.name)


def _run_keys_hash(_: argparse.Namespace) -> int:
    from gateway.app.keys import run_hash

    return run_hash()


def _run_limits(arguments: argparse.Namespace) -> int:
    from gateway.app.limits import run_limits

    return run_limits(arguments)


def _run_simulate(arguments: argparse.Namespace) -> int:
    from gateway.app.simulate import run_simulate

    return run_simulate(arguments)


def _run_emulate(arguments: argparse.Namespace) -> int:
    from gateway.app.emulate import FAULTS, list_profiles, run_emulate, run_mindie

    if arguments.list:
        return list_profiles()
    place = arguments.host, arguments.port
    given = {name: getattr(arguments, name) for name in FAULTS}
    faults: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if arguments.no_prefix_cache:
        faults["prefix_cache"] = False
    if arguments.kind == "mindie":
        return run_mindie(arguments.profile, *place, arguments.model, arguments.speed, arguments.link_num, faults)
    return run_emulate(arguments.profile, *place, arguments.model, arguments.speed, faults, polluted=arguments.polluted)


def _run_demo(_: argparse.Namespace) -> int:
    from gateway.app.demo import run_demo

    return run_demo()


def _run_completion(arguments: argparse.Namespace) -> int:
    import sys

    import shtab

    parser = _parser()
    for each in (parser, *_verbs(parser)):
        for action in each._actions:  # noqa: SLF001 - there is no public way to the arguments of a parser
            if action.metavar in {"FILE", "PATH"}:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # what shtab looks for
    sys.stdout.write(shtab.complete(parser, shell=arguments.shell))
    return 0


def _verbs(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    (verbs,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))  # noqa: SLF001 - as above
    return verbs.choices.values()
