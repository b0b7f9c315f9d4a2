"""The one thing to know first: what is the gravest trouble now, said in a sentence; for the status page and ``top``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.model import BackendState, GatewayState
from gateway.telemetry.history import Rates

_OUT: Final = frozenset({"down", "open", "half_open"})
_DRAINED: Final = "drained"
_OF_A_DEAD_BACKEND: Final = frozenset({"backend_down", "backend_hung"})
_NOTEWORTHY: Final = 0.01  # share of requests that are refused
_GRAVE: Final = 0.05  # share of requests that fail


@dataclass(frozen=True, slots=True)
class Verdict:
    """``level`` is ok, warning or critical; ``also`` are further troubles, the gravest first."""

    level: str
    title: str
    more: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Trouble:
    level: str
    title: str
    more: str = ""


def verdict(state: GatewayState, rates: Rates, findings: Iterable[Mapping[str, Any]] = ()) -> Verdict:
    """What to say first. ``findings`` are those of /diagnosis."""
    findings = tuple(findings)
    told = {each["backend"] for each in findings if each["cause"] in _OF_A_DEAD_BACKEND}
    found = [
        *_of_process(state),
        *_of_backends(state.backends, told),
        *_of_findings(findings),
        *_of_requests(state, rates),
    ]
    found.sort(key=lambda trouble: trouble.level != "critical")
    if not found:
        return Verdict("ok", "All is well", _calm(rates))
    first, *others = found
    return Verdict(first.level, first.title, first.more, tuple(each.title for each in others))


def _calm(rates: Rates) -> str:
    if not rates.completed:
        return "No traffic at the moment."
    return f"{figure(rates.completed)} answers a second, {'none' if not rates.shed else 'hardly any'} refused."


def _of_process(state: GatewayState) -> Iterator[_Trouble]:
    if state.draining:
        yield _Trouble("warning", "Shutting down", "New requests get 503; those that run may finish.")


def _of_backends(backends: tuple[BackendState, ...], told: Container[str]) -> Iterator[_Trouble]:
    """Troubles of the backends but for those that the findings have ``told`` of."""
    out = [backend.name for backend in backends if backend.health in _OUT]
    drained = [backend.name for backend in backends if backend.health == _DRAINED]
    if len(out) + len(drained) == len(backends):
        if out:
            yield _Trouble("critical", "No backend is healthy", "The gateway goes on trying them; see each one's log.")
        else:
            yield _Trouble("critical", "Every backend is drained", "Clients get 503. `gateway limits` ends a drain.")
    elif untold := [name for name in out if name not in told]:
        verb = "is" if len(untold) == 1 else "are"
        yield _Trouble(
            "warning", f"{', '.join(untold)} {verb} out", "The rest carries the load; see its log, and events."
        )


def _of_findings(findings: Iterable[Mapping[str, Any]]) -> Iterator[_Trouble]:
    for finding in findings:
        if finding["severity"] in {"critical", "warning"}:
            yield _Trouble(finding["severity"], finding["title"], next(iter(finding["advice"]), ""))


def _of_requests(state: GatewayState, rates: Rates) -> Iterator[_Trouble]:
    arriving = rates.shed + rates.completed + rates.failed + rates.gone
    refused, failed = (part / arriving if arriving else 0.0 for part in (rates.shed, rates.failed))
    if state.overloaded:
        yield _Trouble(
            "warning",
            "Overloaded: more comes in than the engines can serve",
            f"{figure(rates.shed)} a second are refused ({refused:.0%}) so that the others stay fast; clients are told "
            "when to come back.",
        )
    elif refused > _NOTEWORTHY:
        yield _Trouble("warning", f"{refused:.0%} of the requests are refused", f"{figure(rates.shed)} a second.")
    if failed > _GRAVE:
        yield _Trouble(
            "warning", f"{failed:.0%} of the requests fail", "Backends answer with errors, or end before their answer."
        )


def figure(value: float) -> str:
    """A rate for the eye."""
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"  # noqa: PLR2004 - two digits
