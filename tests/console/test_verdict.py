"""The sentence at the top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.console.verdict import figure, verdict
from gateway.model import BackendState
from gateway.telemetry.history import Rates
from tests.telemetry.helpers import backend_state, gateway_state

QUIET = Rates(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
BUSY = replace(QUIET, completed=20.0, good=20.0)


def finding(severity: str, title: str, *advice: str, cause: str = "x", backend: str | None = None) -> dict[str, Any]:
    told = {"severity": severity, "title": title, "advice": list(advice), "evidence": []}
    return {**told, "cause": cause, "backend": backend}


def test_all_is_well() -> None:
    assert verdict(gateway_state(), QUIET).more == "No traffic at the moment."
    calm = verdict(gateway_state(), BUSY)
    assert (calm.level, calm.title, calm.more, calm.also) == (
        "ok",
        "All is well",
        "20 answers a second, none refused.",
        (),
    )
    assert verdict(gateway_state(), replace(BUSY, shed=0.1)).more == "20 answers a second, hardly any refused."


@pytest.mark.parametrize(
    ("backends", "level", "title"),
    [
        ([backend_state("a"), backend_state("b", health="down")], "warning", "b is out"),
        ([backend_state("a", health="half_open"), backend_state("b")], "warning", "a is out"),
        (
            [backend_state("a", health="open"), backend_state("b", health="down"), backend_state("c")],
            "warning",
            "a, b are out",
        ),
        ([backend_state("a", health="open"), backend_state("b", health="down")], "critical", "No backend is healthy"),
        (
            [backend_state("a", health="drained"), backend_state("b", health="down")],
            "critical",
            "No backend is healthy",
        ),
        ([backend_state("a", health="drained")], "critical", "Every backend is drained"),
        ([backend_state("a", health="drained"), backend_state("b")], "ok", "All is well"),
        (
            [backend_state("a", silence=90.0)],
            "ok",
            "All is well",
        ),  # answers in one piece: whether it hangs, findings say
    ],
)
def test_backends(backends: list[BackendState], level: str, title: str) -> None:
    found = verdict(gateway_state(*backends), BUSY)
    assert (found.level, found.title) == (level, title)


def test_overload_tells_how_much_is_refused() -> None:
    found = verdict(gateway_state(overloaded=True), replace(BUSY, shed=5.0))
    assert (found.level, found.title) == ("warning", "Overloaded: more comes in than the engines can serve")
    assert found.more.startswith("5 a second are refused (20%)")


def test_refusals_without_overload() -> None:
    assert verdict(gateway_state(), replace(BUSY, shed=5.0)).title == "20% of the requests are refused"


def test_failures() -> None:
    assert verdict(gateway_state(), replace(BUSY, failed=5.0)).title == "20% of the requests fail"
    assert verdict(gateway_state(), replace(BUSY, failed=1.0)).level == "ok"


def test_draining() -> None:
    assert verdict(gateway_state(draining=True), QUIET).title == "Shutting down"


def test_the_gravest_comes_first_and_the_rest_is_named() -> None:
    found = verdict(
        gateway_state(backend_state("a", health="down"), backend_state("b"), overloaded=True),
        replace(BUSY, shed=5.0),
        [finding("info", "no matter"), finding("warning", "KV is full"), finding("critical", "b hangs", "Restart it")],
    )
    assert (found.level, found.title, found.more) == ("critical", "b hangs", "Restart it")
    assert found.also == ("a is out", "KV is full", "Overloaded: more comes in than the engines can serve")


@pytest.mark.parametrize("cause", ["backend_down", "backend_hung"])
def test_what_a_finding_says_of_a_backend_is_not_said_again(cause: str) -> None:
    backends = (backend_state("a", health="down"), backend_state("b", health="open"), backend_state("c"))
    found = verdict(
        gateway_state(*backends),
        BUSY,
        [finding("critical", f"{name} is gone", cause=cause, backend=name) for name in ("a", "b")],
    )
    assert (found.title, found.also) == ("a is gone", ("b is gone",))


def test_a_finding_without_advice() -> None:
    assert verdict(gateway_state(), BUSY, [finding("warning", "KV is full")]).more == ""


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (0.04, "0.0"), (3.14, "3.1"), (3.0, "3"), (12.6, "13")])
def test_figures(value: float, shown: str) -> None:
    assert figure(value) == shown
