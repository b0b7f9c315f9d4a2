"""`gateway completion`: what a shell makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import main
from tests.deploy.helpers import ran, tool

BASH = """
source {script}
complete -p gateway
complete() {{ COMP_WORDS=(gateway "$@"); COMP_CWORD=$#; COMPREPLY=(); _shtab_gateway; echo "${{COMPREPLY[@]}}"; }}
complete em
complete curve --b
complete emulate --kind m
complete check-config --env-file {folder}/my
"""


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / f"_gateway.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def test_bash_completes_verbs_options_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.env").touch()
    typed = BASH.format(script=script("bash", tmp_path, capsys), folder=tmp_path)
    registered, *answers = ran(tool("bash", "apt-get install bash"), "--norc", "-c", typed).splitlines()
    assert registered.endswith("-F _shtab_gateway gateway")
    assert [answer.split() for answer in answers] == [["emulate"], ["--backend"], ["mindie"], [f"{tmp_path}/my.env"]]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_can_read_theirs(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(tool(shell, f"apt-get install {shell}"), "-n", script(shell, tmp_path, capsys)) == ""
