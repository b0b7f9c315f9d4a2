"""The documents: the site builds without a warning, and every name and command in them exists."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from gateway import cli
from gateway.settings import Settings, variable
from gateway.settings.load import ENV_FILE
from gateway.telemetry.causes import Cause
from gateway.telemetry.definitions import DEFINITIONS
from tests.deploy.helpers import ROOT, ran

PAGES = sorted((*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")))
FOREIGN = {"GATEWAY_SERVICE_HOST"}  # Kubernetes' own
BUILD = {"GATEWAY_COMPILE"}  # of the wheel


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(text: str) -> list[list[str]]:
    """The words of each `gateway VERB ...` in the blocks of code of a page, without what only a shell understands."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = "\n".join(block for kind, block in fenced if kind in {"sh", "console", ""}).replace("\\\n", " ")
    found = []
    for line in blocks.splitlines():
        command = re.match(r"(?:\w+=(?:'[^']*'|\S+) )*(?:ssh .* )?gateway ([a-z-]+(?: .*)?)$", line.strip())
        if command:
            words = shlex.split(re.split(r" {2,}| # | > | \| ", command[1])[0])
            found.append(words)
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_setting_exists(page: Path) -> None:
    known = {variable(name) for name in Settings.model_fields} | {ENV_FILE} | FOREIGN | BUILD
    named = set(re.findall(r"GATEWAY_[A-Z0-9_]*[A-Z0-9](?![A-Z_*])", page.read_text()))
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_metric_exists(page: Path) -> None:
    known = {each.name for each in DEFINITIONS} | {cause.value for cause in Cause}
    named = set(re.findall(r"`(gateway_[a-z_]+)", page.read_text()))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= known


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_command_is_understood(page: Path) -> None:
    for words in commands(page.read_text()):
        try:
            parsed = cli._parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: gateway {shlex.join(words)}")
        assert isinstance(parsed, argparse.Namespace)


def test_commands_are_found() -> None:
    found = [words for page in PAGES for words in commands(page.read_text())]
    assert ["serve"] in found
    assert len(found) > 20


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_file_that_is_linked_to_exists(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", ["README", "docs/quickstart"])
def test_the_translation_has_the_same_commands(name: str) -> None:
    english, chinese = ((ROOT / f"{name}{suffix}").read_text() for suffix in (".md", ".zh.md"))
    assert commands(chinese) == [[word.replace("gpu", "npu") for word in words] for words in commands(english)]
    assert len(re.findall(r"^## ", chinese, re.MULTILINE)) == len(re.findall(r"^## ", english, re.MULTILINE))
    assert len(re.findall("[\u4e00-\u9fff]", chinese)) > 500


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ran(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site, cwd=ROOT, environment=environment)
    home = (site / "index.html").read_text()
    assert "<h1" in home
    loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?://[^\"\s>]+)", home)
    assert loaded == []
