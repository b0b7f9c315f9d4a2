"""The audit of dependencies: what it looks at, and what it makes of an answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

import pytest
from packaging.version import Version

from tests import audit


def answer(*dependencies: Mapping[str, object]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


FINE = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
BAD = {
    "name": "c",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}, {"id": "X", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(FINE, UNKNOWN), (0, "no known vulnerability in 1 of 2 packages")),
        (answer(FINE, BAD), (1, "c 2: PYSEC-1, fixed in 3\nc 2: X, fixed in no version yet")),
        (answer(UNKNOWN), (0, "not audited: the index knows of no vulnerabilities of any package")),
        ("", (0, "not audited: pip-audit got no answer")),
        (None, (0, "not audited: pip-audit got no answer")),
        ("[1]", (0, "not audited: pip-audit got no answer")),
    ],
)
def test_only_a_known_vulnerability_fails(given: str | None, expected: tuple[int, str]) -> None:
    assert audit.verdict(given, 2) == expected


def test_it_looks_at_what_users_install_and_nothing_else() -> None:
    packages = audit.installed()
    assert {"aiohttp", "httptools", "multidict", "orjson", "pydantic-core", "yarl"} <= packages.keys()
    assert not {"pytest", "ruff", "mypy", "inference-gateway"} & packages.keys()


def test_S13_the_parser_is_one_that_refuses_a_bare_carriage_return() -> None:
    assert Version(audit.installed()["aiohttp"]) >= Version("3.14")
    (taken,) = (need.specifier for need in audit._needs(audit.ROOT, ("",)) if need.name == "aiohttp")
    assert "3.13.9" not in taken


def test_an_audit_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip-audit", 60)

    monkeypatch.setattr(subprocess, "run", hangs)
    assert audit._asked({"a": "1"}) is None
