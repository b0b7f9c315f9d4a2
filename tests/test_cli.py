from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli import main


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("GATEWAY_"):
            monkeypatch.delenv(name)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"Inference Gateway {__version__}\n"


def test_what_a_verb_does_not_know_is_told_with_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("limits", "--pin", "a=1", "set", "--speed") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: gateway limits ")
    assert shown.endswith("gateway limits: error: unrecognized arguments: set --speed\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("serv",),
        ("serve", "--prot", "1"),
        ("emulate", "--port", "99999"),
        ("emulate", "--speed", "0"),
        ("report", "--start", "a", "--stop", "a"),
        ("report", "--json", "--csv"),
        ("replay", "file"),
        ("replay", "file", "--to", "http://a", "--speed", "0"),
        ("replay", "file", "--to", "http://a", "--timeout", "x"),
        ("replay", "file", "--to", "http://a", "--limit", "0"),
        ("replay", "file", "--to", "http://a", "--max-concurrency", "2.5"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 2
    assert "usage: gateway" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["serve", "check-config", "report", "replay", "top", "limits", "keys", "emulate", "demo"]
)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(verb, "--help") == 0
    assert f"usage: gateway {verb}" in capsys.readouterr().out


def test_help_imports_none_of_what_the_verbs_run() -> None:
    script = (
        "import sys\nfrom gateway.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'aiohttp', 'pydantic', 'asyncio', 'prometheus_client', 'rich', 'uvloop'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ourselves
    assert ran.stdout.splitlines()[-1] == "[]"


def test_check_config_tells_right_from_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.env"
    file.write_text("GATEWAY_PORT=9000\n", encoding="utf-8")
    assert main(["check-config", "--env-file", str(file)]) == 0
    assert any(
        line.split() == ["[OK]", "GATEWAY_PORT=9000", "env", "file"] for line in capsys.readouterr().out.splitlines()
    )
    monkeypatch.setenv("GATEWAY_PRT", "1")
    assert main(["check-config", "--env-file", str(file)]) == 1
    assert "[FAIL] GATEWAY_PRT: no such setting" in capsys.readouterr().out


def test_serve_lists_every_fault_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GATEWAY_PRT", "1")
    monkeypatch.setenv("GATEWAY_PORT", "x")
    assert main(["serve"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["[FAIL] GATEWAY_PRT", "[FAIL] GATEWAY_PORT"]
