"""``config/example.env`` and ``docs/configuration.md``, written from the model; a test holds them equal to it."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.settings.faults import expected, kind
from gateway.settings.load import ENV_FILE
from gateway.settings.model import SECTIONS, variable

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "config" / "example.env"
CONFIGURATION: Final = ROOT / "docs" / "configuration.md"

_ENV_HEAD: Final = """\
# Every setting of Inference Gateway with its default. Take what you need:
#     gateway serve --env-file my.env
# A variable of the environment wins over the same name in the file. `gateway check-config` shows what is in effect.
# Written by `make config` from gateway/settings/model.py: change it there.
"""
_MD_HEAD: Final = f"""\
<!-- Written by `make config` from gateway/settings/model.py: change it there. -->

# Configuration

Every setting is an environment variable. The same names may stand in an env file, given by `--env-file` or by
`{ENV_FILE}`; the environment wins over the file. No setting is needed: each has a safe default.

`gateway check-config` prints every effective value with where it came from, and exits 1 where something is wrong. A
name that begins with `GATEWAY_` and is none of these ends the start, so that no misspelling goes unnoticed (what
Kubernetes adds for a Service named `gateway...`, such as `GATEWAY_SERVICE_HOST`, is left alone).

Durations are in seconds or carry a unit: `2`, `500ms`, `1.5s`, `1m`, `1h`. Sizes are in bytes or carry a unit:
`65536`, `512KiB`, `64MiB`. An empty value counts as unset.
"""


def default(field: FieldInfo) -> str:
    """The default as one would write it; empty where the setting is unset."""
    return "" if field.default in (None, (), {}) else kind(field).show(field.default)


def example_env() -> str:
    """All settings, commented out, with their defaults or else an example."""
    return _ENV_HEAD + "".join(_env_section(title, section) for title, section in SECTIONS)


def _env_section(title: str, section: type[BaseModel]) -> str:
    return f"\n# ---- {title} ----\n" + "".join(_env_lines(*item) for item in section.model_fields.items())


def _env_lines(name: str, field: FieldInfo) -> str:
    value = default(field) or str((field.examples or [""])[0])
    quoted = f"'{value}'" if '"' in value else value
    unset = "" if default(field) or "Unset:" in str(field.description) else " Unset by default."
    about = textwrap.wrap(f"{field.description}{unset} Takes {expected(field)}.", 116)
    return "\n" + "".join(f"# {line}\n" for line in about) + f"#{variable(name)}={quoted}\n"


def configuration() -> str:
    """The page of all settings, one table a section."""
    return _MD_HEAD + "".join(_md_section(title, section) for title, section in SECTIONS)


def _md_section(title: str, section: type[BaseModel]) -> str:
    rows = "".join(_md_row(*item) for item in section.model_fields.items())
    head = "| Variable | Default | Unit | What it does | Takes |\n|---|---|---|---|---|\n"
    return f"\n## {title}\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n{head}{rows}"


def _md_row(name: str, field: FieldInfo) -> str:
    value = default(field)
    examples = "".join(f"; `{example}`" for example in field.examples or [])
    cells = (f"`{variable(name)}`", f"`{value}`" if value else "unset", kind(field).unit, field.description or "")
    return f"| {' | '.join(cells)} | {expected(field)}{examples} |\n"


def write() -> None:
    """Write both files of a source checkout."""
    for path, text in ((EXAMPLE, example_env()), (CONFIGURATION, configuration())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
