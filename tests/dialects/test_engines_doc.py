"""docs/engines.md names every kind, every route and every use of hints that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.dialects.engines import ENGINES
from gateway.dialects.registry import standard
from gateway.model import HintsUse

TEXT = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("|")]


def test_every_kind_has_its_row_with_the_questions_that_it_is_asked() -> None:
    rows = {row[0].strip("`"): row for row in ROWS if row[0].strip("`") in ENGINES}
    assert rows.keys() == ENGINES.keys()
    for kind, engine in ENGINES.items():
        for probe in engine.health:
            assert probe.path in rows[kind][3], kind


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(/[a-z_]+|/)`", "".join(row[0] for row in ROWS)))))
def test_every_route_of_the_table_is_an_engine_s_own(path: str) -> None:
    dialect, _ = standard().resolve("POST", path)
    assert dialect.name == "native"


def test_every_use_of_hints_is_explained() -> None:
    explained = {row[0].strip("`") for row in ROWS}
    assert {use.value for use in HintsUse} <= explained
