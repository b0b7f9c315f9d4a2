from __future__ import annotations

import re
from pathlib import Path

from gateway.settings import SECTIONS, Settings, load, variable
from gateway.settings.docs import CONFIGURATION, EXAMPLE, configuration, example_env
from gateway.settings.faults import expected, kind


def test_the_written_files_are_what_the_model_says() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") == example_env(), "run: make config"
    assert CONFIGURATION.read_text(encoding="utf-8") == configuration(), "run: make config"


def test_every_setting_stands_in_one_section_with_a_description() -> None:
    listed = [name for _, section in SECTIONS for name in section.model_fields]
    assert listed == list(Settings.model_fields)
    for field in Settings.model_fields.values():
        assert field.description
        assert expected(field)


def test_the_example_file_is_right_when_all_of_it_is_taken(tmp_path: Path) -> None:
    taken = tmp_path / "all.env"
    taken.write_text(re.sub(r"^#(GATEWAY_\w+=)", r"\1", example_env(), flags=re.MULTILINE), encoding="utf-8")
    loaded = load(str(taken))
    assert [str(fault) for fault in loaded.faults] == []
    assert {name for name, source in loaded.sources.items() if source.value == "env file"} == {
        name for name in Settings.model_fields if f"#{variable(name)}=\n" not in example_env()
    }


def test_every_shown_default_reads_back_as_the_default() -> None:
    for name, field in Settings.model_fields.items():
        if field.default is not None:
            shown = kind(field).show(field.default)
            assert getattr(Settings.model_validate({name: shown} if shown else {}), name) == field.default
