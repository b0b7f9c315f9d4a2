"""How API keys are spelt in the environment and in their file, and how they are shown: never."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
)

SHORT: Final = 20  # characters of a key below which somebody might guess it
_PREFIX: Final = "sha256:"
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MOST: Final = 4 * 1024 * 1024  # bytes of a file: twenty thousand keys


def hashed(key: str) -> str:
    """``key`` as its file has it."""
    return _PREFIX + hashlib.sha256(key.encode()).hexdigest()


def _printable(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", key.get_secret_value()):
        raise ValueError
    return key


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class KeySettings(BaseModel):
    """One holder of keys in GATEWAY_API_KEYS or its file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    keys: Annotated[
        tuple[Annotated[SecretStr, AfterValidator(_printable)], ...], BeforeValidator(_listed), Field(min_length=1)
    ]
    weight: Annotated[float, AllowInfNan(False), Ge(0.01), Le(100)] = 1.0
    priority: Literal["critical", "standard", "sheddable"] = "standard"
    requests_per_minute: Annotated[int, Ge(1)] | None = None
    tokens_per_minute: Annotated[int, Ge(1)] | None = None
    max_in_flight: Annotated[int, Ge(1)] | None = None
    models: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each key."""
        return tuple(bytes.fromhex(_as_hash(key).removeprefix(_PREFIX)) for key in self.keys)

    @property
    def is_hashed(self) -> bool:
        """No key stands there itself."""
        return all(_HASH.fullmatch(key.get_secret_value()) for key in self.keys)

    @property
    def is_guessable(self) -> bool:
        """One stands there that is short."""
        return any(len(key.get_secret_value()) < SHORT for key in self.keys)


def _as_hash(key: SecretStr) -> str:
    text = key.get_secret_value()
    return text if _HASH.fullmatch(text) else hashed(text)


KEY_FIELDS: Final = {
    "name": "a name of 1 to 100 characters",
    "keys": "one key or a list of keys: sha256:HEX as `gateway keys hash` prints it, or the key itself",
    "weight": "a number, 0.01 to 100",
    "priority": "critical, standard or sheddable",
    "requests_per_minute": "a whole number of at least 1",
    "tokens_per_minute": "a whole number of at least 1",
    "max_in_flight": "a whole number of at least 1",
    "models": "a list of model names",
}


def parse_keys(value: object) -> object:
    """``KEY,KEY`` or a JSON list of objects -> a list of dicts.

    Raises:
        ValueError: it begins like JSON and is none.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text[:1] not in {"[", "{"}:
        keys = [key.strip() for key in text.split(",") if key.strip()]
        return [{"name": _name(key), "keys": [key]} for key in keys]
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the JSON breaks at character {error.pos}") from None
    return entries if isinstance(entries, list) else [entries]


def _name(key: str) -> str:
    """A name for a key that was given none: of its hash, which tells nothing of it."""
    return f"key-{_as_hash(SecretStr(key)).removeprefix(_PREFIX)[:8]}"


def show_keys(entries: tuple[KeySettings, ...]) -> str:
    """Who may do what, without the keys."""
    return json.dumps(
        [
            {**entry.model_dump(mode="json", exclude_defaults=True), "keys": ["***"] * len(entry.keys)}
            for entry in entries
        ]
    )


_ENTRIES: Final = TypeAdapter(tuple[KeySettings, ...])


def read_keys(path: str) -> tuple[KeySettings, ...]:
    """The entries of a key file: the JSON list of GATEWAY_API_KEYS, with hashes only.

    Raises:
        ValueError: it cannot be read, or something in it is wrong; never says a key.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MOST + 1)
        text = raw.decode()
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    if len(raw) > _MOST:
        raise ValueError(f"it is larger than {_MOST} bytes")
    if text.strip() and text.strip()[0] not in "[{":
        raise ValueError("expected a JSON list of objects with name and keys")
    try:
        entries = _ENTRIES.validate_python(parse_keys(text))
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from None
    for entry in entries:
        if not entry.is_hashed:
            raise ValueError(
                f"a key of {entry.name!r} stands there itself, expected its hash: sha256:... of `gateway keys hash`"
            )
    if wrong := next(contradictions(entries), None):
        raise ValueError(wrong)
    return entries


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        index, *inner = problem["loc"] or ("",)
        field = str(inner[0]) if inner else ""
        wanted = KEY_FIELDS.get(field) or f"an object with name, keys and any of {', '.join(list(KEY_FIELDS)[2:])}"
        what = "no such key" if problem["type"] == "extra_forbidden" else "wrong"
        yield f"entry {index}{'.' * bool(field)}{field} is {what}, expected {wanted}"


def contradictions(entries: tuple[KeySettings, ...]) -> Iterator[str]:
    """Names that stand twice, and keys that are of two holders."""
    for name, times in Counter(entry.name for entry in entries).items():
        if times > 1:
            yield f"{times} entries are named {name!r}, expected one with all of its keys"
    holders: dict[bytes, str] = {}
    for entry in entries:
        for digest in entry.digests:
            if holders.setdefault(digest, entry.name) != entry.name:
                yield f"{holders[digest]!r} and {entry.name!r} have the same key, expected each to have its own"
