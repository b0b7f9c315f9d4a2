"""Read the settings, with where each value came from and every fault in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path
from typing import Any, Final

from dotenv.parser import Binding, parse_stream
from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from gateway.settings.checks import cross_faults
from gateway.settings.faults import Fault, invalid, unknown
from gateway.settings.model import PREFIX, Settings, variable

ENV_FILE: Final = PREFIX + "ENV_FILE"

# Kubernetes gives every pod the addresses of the Services around it. A Service named "gateway" makes GATEWAY_PORT a
# "tcp://..." and adds names that would otherwise pass for misspelt settings (docs: enableServiceLinks).
_LINK_NAME: Final = re.compile(r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_LINK_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


@unique
class Source(Enum):
    """Where a value came from."""

    ENVIRONMENT = "environment"
    FILE = "env file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read. Where there are faults, ``settings`` holds defaults in place of the faulty values."""

    settings: Settings
    sources: Mapping[str, Source]  # by field
    faults: tuple[Fault, ...] = ()

    @property
    def ok(self) -> bool:
        """No fault that ends the start."""
        return not any(fault.fatal for fault in self.faults)


@dataclass(slots=True)
class _Given:
    """The raw texts, by field; what is taken later wins."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    def take(self, values: Mapping[str, Any], source: Source) -> None:
        for name, value in values.items():
            if name in Settings.model_fields and not _is_link(variable(name), value):
                self.values[name] = value
                self.sources[name] = source


def load(env_file: str | None = None) -> Loaded:
    """Settings from the environment, and from ``env_file`` or the file that GATEWAY_ENV_FILE names. Never raises."""
    given = _Given()
    faults: list[Fault] = []
    path = env_file or os.environ.get(ENV_FILE)
    if path:
        faults += _read_file(Path(path), given)
    faults += _unknown(os.environ, "")
    given.take(EnvSettingsSource(Settings)(), Source.ENVIRONMENT)
    settings, wrong = _validate(given.values)
    bad = frozenset().union(*(fault.fields for fault in wrong))
    faults += wrong
    faults += [fault for fault in cross_faults(settings) if not fault.fields & bad]
    sources = {name: given.sources.get(name, Source.DEFAULT) for name in Settings.model_fields}
    return Loaded(settings, sources, tuple(faults))


def _validate(values: Mapping[str, Any]) -> tuple[Settings, list[Fault]]:
    try:
        return Settings(**values), []
    except ValidationError as error:
        faults = list(invalid(error.errors(include_url=False), values))
    bad = frozenset().union(*(fault.fields for fault in faults))
    return Settings(**{name: value for name, value in values.items() if name not in bad}), faults


def _read_file(path: Path, given: _Given) -> list[Fault]:
    try:
        with path.open(encoding="utf-8") as stream:
            bindings = list(parse_stream(stream))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        return [Fault(ENV_FILE, f"got {str(path)!r}, expected a readable file ({reason})")]
    given.take(DotEnvSettingsSource(Settings, env_file=path, env_file_encoding="utf-8")(), Source.FILE)
    where = f" in {path}"
    faults = [
        Fault(f"{path}, line {_line(binding)}", "cannot be read, expected NAME=value")
        for binding in bindings
        if binding.error or (binding.key is not None and binding.value is None)
    ]
    return faults + list(_unknown({binding.key: binding.value or "" for binding in bindings if binding.key}, where))


def _line(binding: Binding) -> int:
    """A binding's text begins with the empty lines before it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _unknown(variables: Mapping[str, str], where: str) -> Iterator[Fault]:
    known = {variable(name) for name in Settings.model_fields} | ({ENV_FILE} if not where else set())
    for name, value in sorted(variables.items()):
        if name.upper().startswith(PREFIX) and name.upper() not in known and not _is_link(name, value):
            yield unknown(name, value, where)


def _is_link(name: str, value: str) -> bool:
    return _LINK_NAME.fullmatch(name) is not None or _LINK_ADDRESS.match(value) is not None
