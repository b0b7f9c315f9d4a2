"""What workers know of the backends: told by the brain whenever it changes."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Lengths = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class View:
    """``routes``: model -> the backends that serve it, under None those for models that nobody lists.

    ``engines``: backend -> its kind and the context length in tokens of each model it serves, None where it does
    not say it. ``lanes``: names and thresholds in predicted tokens, in order. ``load`` is what a balancer
    in front is told, empty where it is told nothing.
    """

    down: frozenset[str] = frozenset()
    routes: Mapping[str | None, tuple[str, ...]] = field(default_factory=dict)
    lanes: tuple[tuple[str, int | None], ...] = ()
    engines: Mapping[str, tuple[str, Lengths]] = field(default_factory=dict)
    load: str = ""


class ViewCodec:
    """As bytes and back."""

    @staticmethod
    def dumps(view: View) -> bytes:
        """As bytes."""
        return marshal.dumps((view.down, dict(view.routes), view.lanes, dict(view.engines), view.load))

    @staticmethod
    def loads(payload: memoryview) -> View:
        """And back."""
        values: Any = marshal.loads(payload)  # noqa: S302 - said by a process of this gateway
        return View(*values)


EMPTY: Final = View()
