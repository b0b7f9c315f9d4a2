"""One line for each fault: the name, what was given (never a secret), what is expected, the nearest right name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from annotated_types import Ge, Gt, Le
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.settings.keys import KEY_FIELDS
from gateway.settings.model import PREFIX, Settings, variable
from gateway.settings.values import BACKEND_FIELDS, Kind, looks_secret, masked


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a setting; ``fatal`` ends the start, otherwise it is a warning."""

    name: str
    problem: str
    fields: frozenset[str] = frozenset()  # the fields that it is about
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


def metadata(field: FieldInfo) -> list[Any]:
    """What is annotated to a field, also inside ``X | None``."""
    inner = [note for part in get_args(field.annotation) for note in getattr(part, "__metadata__", ())]
    return [*field.metadata, *inner]


def kind(field: FieldInfo) -> Kind:
    """How the values of a field are spelt."""
    return next(note for note in metadata(field) if isinstance(note, Kind))


def shown(settings: Settings, name: str) -> str:
    """The value of a field as one would write it, secrets masked; empty where it is unset."""
    value = getattr(settings, name)
    return "" if value in (None, (), {}) else kind(Settings.model_fields[name]).show(value)


def is_secret(field: FieldInfo) -> bool:
    """Whether a field's value must never be shown."""
    return (
        kind(field).secret
        or SecretStr in {field.annotation, *get_args(field.annotation)}
        or any(SecretStr in get_args(part) for part in get_args(field.annotation))
    )


def expected(field: FieldInfo) -> str:
    """What a field takes, with its bounds."""
    bounds = [
        *(f"at least {note.ge}" for note in metadata(field) if isinstance(note, Ge)),
        *(f"above {note.gt}" for note in metadata(field) if isinstance(note, Gt)),
        *(f"at most {note.le}" for note in metadata(field) if isinstance(note, Le)),
    ]
    return ", ".join([kind(field).expected, *bounds])


def invalid(problems: Iterable[ErrorDetails], given: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each thing that the model found wrong with the texts in ``given``."""
    for problem in problems:
        field = str(problem["loc"][0])
        if field in _ENTRIES and len(problem["loc"]) > 1:
            yield _invalid_entry(field, problem)
        else:
            yield _invalid_value(field, problem, str(given[field]))


def _invalid_value(field: str, problem: ErrorDetails, text: str) -> Fault:
    detail = _detail(problem)
    shown = "a text (not shown)" if is_secret(Settings.model_fields[field]) else masked(text)
    why = f" ({detail})" if detail else ""
    return Fault(
        variable(field), f"got {shown}{why}, expected {expected(Settings.model_fields[field])}", frozenset({field})
    )


_ENTRIES: Final = {
    "backends": (BACKEND_FIELDS, "got neither, expected a URL or an object with url"),
    "api_keys": (KEY_FIELDS, "got something else, expected an object with name and keys"),
}


def _invalid_entry(field: str, problem: ErrorDetails) -> Fault:
    known, otherwise = _ENTRIES[field]
    _, index, *inner = problem["loc"]
    name = f"{variable(field)}[{index}]" + (f".{inner[0]}" if inner else "")
    fields = frozenset({field})
    if not inner:
        return Fault(name, otherwise, fields)
    key = str(inner[0])
    if problem["type"] == "missing":
        return Fault(name, f"is missing, expected {known[key]}", fields)
    if problem["type"] == "extra_forbidden":
        return Fault(name, f"no such key{nearest(key, known)}", fields)
    shown = "a value (not shown)" if looks_secret(key) else masked(str(problem["input"]))
    detail = _detail(problem)
    return Fault(name, f"got {shown}{f' ({detail})' if detail else ''}, expected {known[key]}", fields)


def _detail(problem: ErrorDetails) -> str:
    """What our own parsers said; the model's own words are said better by ``expected``."""
    return str(problem.get("ctx", {}).get("error", ""))


def unknown(name: str, text: str, where: str) -> Fault:
    """A ``GATEWAY_`` variable that is none of ours."""
    known = {variable(field): is_secret(info) for field, info in Settings.model_fields.items()}
    own = name.upper().removeprefix(PREFIX)  # what all have in common makes none of them alike
    near = difflib.get_close_matches(own, [other.removeprefix(PREFIX) for other in known], n=3)
    secret = looks_secret(name) or any(known[PREFIX + other] for other in near)
    shown = "a text (not shown)" if secret else masked(text)
    return Fault(name, f"no such setting{where} (got {shown}){nearest(name.upper(), known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` where a known name is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
