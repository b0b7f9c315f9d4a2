"""What people read of the causes: the texts, and the documents beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.settings import Settings, variable
from gateway.telemetry.causes import MEANINGS, Cause

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "diagnosis.md", DOCS / "curve.md", *sorted((DOCS / "runbooks").glob("*.md"))]


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_section_with_meaning_evidence_and_what_to_do(cause: Cause) -> None:
    sections = re.split(r"^### ", (DOCS / "diagnosis.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith(f"{cause.value}\n")]
    for part in ("**Means**", "**Evidence**", "**Do**"):
        assert part in section


def test_no_section_is_of_a_cause_that_there_is_not() -> None:
    named = re.findall(r"^### (\w+)$", (DOCS / "diagnosis.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(named) == sorted(cause.value for cause in Cause)


def test_every_setting_that_is_named_exists() -> None:
    known = {variable(name) for name in Settings.model_fields}
    told = " ".join(line for meaning in MEANINGS.values() for line in meaning.advice)
    for text in (told, *(page.read_text(encoding="utf-8") for page in PAGES)):
        assert {name.rstrip("_") for name in re.findall(r"GATEWAY_[A-Z_]+", text)} <= known


def test_every_link_leads_somewhere() -> None:
    for page in [*PAGES, DOCS / "admin.md"]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_cause_that_a_page_names_exists() -> None:
    words = {word for page in PAGES for word in re.findall(r"`([a-z]+_[a-z_]+)`", page.read_text(encoding="utf-8"))}
    look_alike = {word for word in words if word.endswith(("_bound", "_storm", "_hung", "_down", "_busy", "_failed"))}
    assert look_alike - {"backend_busy"} <= {cause.value for cause in Cause}


def test_every_command_that_a_page_shows_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Its verb exists, and so does each of its options."""
    for page in PAGES:
        for command in re.findall(r"`(gateway [a-z]+[^`]*)`", " ".join(page.read_text(encoding="utf-8").split())):
            _, verb, *words = command.split()
            with pytest.raises(SystemExit) as ended:
                main([verb, "--help"])
            assert ended.value.code == 0, command
            helped = capsys.readouterr().out
            for option in (word for word in words if word.startswith("--")):
                assert option in helped, command
