"""The words of ``gateway.model`` as bytes and back, between processes of one gateway.

``marshal`` is the fastest way there is for plain values, and these processes run the same interpreter and trust each
other: the socket between them is in a folder that only their user can enter. What a dataclass holds is found out from
its annotations, once, so that a new field travels without a word here. A ticket takes a microsecond to write and five
to read, where pickle takes nineteen either way.
"""

from __future__ import annotations

import ast
import marshal
import sys
from array import array
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

Convert = Callable[[Any], Any]
_PLAIN: Final = (bool, int, float, str, bytes, frozenset, tuple)  # these two of plain values


class Codec(Generic[T]):
    """Dataclass <-> bytes.

    Fields may be plain, tuples of plain values, enums, arrays, dataclasses, or None; others are a TypeError at once.
    """

    def __init__(self, kind: type[T]) -> None:
        self.flat, self.build = _of_dataclass(kind)

    def dumps(self, value: T) -> bytes:
        """As bytes."""
        values = self.flat(value)
        try:
            return marshal.dumps(values)
        except ValueError:  # a subclass of int or str, such as an HTTPStatus; marshal knows their own kinds alone
            return marshal.dumps(_plain(values))

    def loads(self, data: bytes | memoryview) -> T:
        """And back; an equal value."""
        return self.build(marshal.loads(data))  # type: ignore[no-any-return] # noqa: S302 - said by a process of ours


def _of_dataclass(kind: type[Any]) -> tuple[Convert, Convert]:
    """(to plain values, back), each written out for this class: a loop over its fields takes three times as long."""
    hints = get_type_hints(kind, localns={"array": _Arrays})
    if type in hints.values():  # a compiled class tells no more of ``A | None``
        hints = written(kind)
    names = [each.name for each in fields(kind) if each.init]
    scope: dict[str, Any] = {"kind": kind, "array_of": _array_of}
    ways = [_ways(hints[name], f"value.{name}", f"v{place}", scope) for place, name in enumerate(names)]
    downs, ups = "".join(f"{down}, " for down, _ in ways), ", ".join(up for _, up in ways)
    variables = "".join(f"v{place}, " for place in range(len(names)))
    source = f"def flat(value):\n return ({downs})\ndef build(values):\n {variables}= values\n return kind({ups})\n"
    exec(source, scope)  # noqa: S102 - made of the names in our own source
    return scope["flat"], scope["build"]


def _ways(hint: Any, field: str, variable: str, scope: dict[str, Any]) -> tuple[str, str]:
    """Expressions: what travels of a field, and the field from what travelled; what they name goes into ``scope``."""
    if optional := get_origin(hint) is UnionType or type(None) in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    kind = get_origin(hint) or hint
    if kind in _PLAIN:
        return field, variable
    if issubclass(kind, Enum):
        scope[f"{variable}_of"] = {each.value: each for each in kind}
        down, up = f"{field}._value_", f"{variable}_of[{variable}]"  # `value` and a call of the class are slow
    elif issubclass(kind, array):
        down, up = f"{field}.tobytes()", f"array_of({variable})"
    elif is_dataclass(kind):
        scope[f"{variable}_flat"], scope[f"{variable}_build"] = _of_dataclass(hint)
        down, up = f"{variable}_flat({field})", f"{variable}_build({variable})"
    else:
        raise TypeError(f"no codec for {kind.__name__}")
    if optional:
        down, up = (f"None if {each} is None else {way}" for each, way in ((field, down), (variable, up)))
    return down, up


def written(kind: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields as its source has them."""
    module = sys.modules[kind.__module__]
    source = Path(str(module.__file__)).with_name(f"{kind.__module__.rpartition('.')[2]}.py").read_text()
    classes = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == kind.__name__]
    names = vars(module) | {"array": _Arrays}
    return {
        line.target.id: eval(ast.unparse(line.annotation), names)  # noqa: S307 - our own source
        for line in classes[0].body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


class _Arrays:
    """``array[int]`` where Python 3.11 evaluates it."""

    def __class_getitem__(cls, _item: type[int]) -> type[array[int]]:
        return array


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return value if kind is None else kind(value)


def _array_of(data: bytes) -> array[int]:
    values = array("I")
    values.frombytes(data)
    return values
