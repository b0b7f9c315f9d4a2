"""Which dialect speaks for a request, and whether it may pass at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gateway.dialects.admin import denied
from gateway.dialects.anthropic import Anthropic
from gateway.dialects.base import Dialect
from gateway.dialects.llamacpp import LlamaCpp
from gateway.dialects.lmdeploy import LMDeploy
from gateway.dialects.mindie import MindIE
from gateway.dialects.native import Choice, Native
from gateway.dialects.openai import OpenAI
from gateway.dialects.passthrough import Passthrough
from gateway.dialects.paths import normalise
from gateway.dialects.sglang import SGLang
from gateway.dialects.tgi import TGI
from gateway.dialects.triton import Triton
from gateway.dialects.vllm_legacy import VLLMLegacy
from gateway.model import Access, Route

ADMIN: Final = Route("admin", Access.DENY)
INVALID: Final = Route(
    "invalid", Access.DENY
)  # the path cannot be read: a fault of the request, not of its sender's rights
_ALLOWED_ADMIN: Final = Route("admin", Access.BYPASS)
_PREFLIGHT: Final = Route("preflight", Access.BYPASS)

_REMEMBERED: Final = 1024
_REMEMBERED_LENGTH: Final = 256


class Dialects:
    """All dialects, in the order they are asked: the common APIs, the engines' own, and the one for the rest."""

    def __init__(
        self,
        dialects: Sequence[Dialect],
        natives: Sequence[Native],
        fallback: Passthrough,
        *,
        allow_admin: bool = False,
    ) -> None:
        """``allow_admin`` lets the engines' admin routes pass, without admission."""
        self._dialects = tuple(dialects)
        self._all_natives = self._natives = tuple(natives)
        self._fallback = fallback
        self._admin = _ALLOWED_ADMIN if allow_admin else ADMIN
        self._known: dict[tuple[str, str], tuple[Dialect, Route]] = {}

    def prefer(self, kinds: Collection[str]) -> None:
        """Where a body could be meant for several engines, take it for one of ``kinds``, those that are there."""
        self._natives = tuple(sorted(self._all_natives, key=lambda native: native.kind not in kinds))
        self._known.clear()

    def resolve(self, method: str, raw_path: str) -> tuple[Dialect, Route]:
        """Dialect and route of a request target as the client wrote it (``paths.normalise`` is for matching only).

        ``Access.DENY`` is ``ADMIN`` (answer 403) or ``INVALID`` (answer 400). OPTIONS always passes: a browser's
        preflight carries no key and works no engine.
        """
        key = (method, raw_path)
        found = self._known.get(key)
        if found is None:
            found = self._find(method, raw_path)
            if len(raw_path) <= _REMEMBERED_LENGTH:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = found
        return found

    def _find(self, method: str, raw_path: str) -> tuple[Dialect, Route]:
        if method == "OPTIONS":
            return self._fallback, _PREFLIGHT
        path = normalise(raw_path)
        if path is None:
            return self._fallback, INVALID
        if denied(method, path):
            return self._fallback, self._admin
        for dialect in self._dialects:
            route = dialect.route(method, path)
            if route is not None:
                return dialect, route
        rest = self._fallback.route(method, path)
        claims = [(native, form) for native in self._natives for form in native.forms(method, path)]
        if claims:
            choice = Choice(claims, self._fallback, rest)
            return choice, choice.first
        return self._fallback, rest


def standard(*, allow_admin: bool = False) -> Dialects:
    """The dialects of this package. MindIE's come first where nothing tells whose an engine's own route is."""
    natives = (MindIE(), VLLMLegacy(), TGI(), Triton(), SGLang(), LMDeploy(), LlamaCpp())
    return Dialects((OpenAI(), Anthropic()), natives, Passthrough(), allow_admin=allow_admin)
