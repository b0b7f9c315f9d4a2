"""Engines' own APIs: what they have in common, and the choice between several at one path.

Such an API is a file of data: which paths it has, by which fields of a body it is known, whether it streams, how many
tokens an unset cap means, what the items of a stream say, and how it words an error. Several engines share a path
(``/generate``, ``/``), so who is meant is told by the body's fields, and where these leave it open, by the kinds of the
configured backends: ``registry`` puts their dialects first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from gateway.dialects.base import Dialect, ResponseReader
from gateway.dialects.items import PLAIN, ItemReader, Items
from gateway.dialects.reply import BodyReader, UnreadReader, streams
from gateway.dialects.request import parse, shape_of
from gateway.model import Access, Rejection, Route, Shape

Document = dict[str, Any]


def _as_is(_document: Document, shape: Shape) -> Shape:
    return shape


def _always(_document: Document) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """One way of asking at one path.

    ``keys``: the body has one of them (empty: any body), and ``speaks`` holds. ``stream``: whether it streams, None
    where the body's ``stream`` says so, and ``stream_unset`` where it does not. ``unset_cap``: output tokens where the
    body sets no cap. ``read`` corrects the shape where the API has fields of its own.
    """

    route: Route
    keys: frozenset[str] = frozenset()
    speaks: Callable[[Document], bool] = _always
    stream: bool | None = None
    stream_unset: bool = False
    unset_cap: int | None = None
    generates: bool = True
    read: Callable[[Document, Shape], Shape] = _as_is
    items: Items = PLAIN

    def fits(self, document: Document) -> bool:
        """Whether a body is asked in this form."""
        return (not self.keys or not self.keys.isdisjoint(document)) and self.speaks(document)

    def shape(self, document: Document, body: bytes, *, blocks: bool = False) -> Shape:
        """Shape of a request in this form."""
        read = shape_of(self.route, document, body, generates=self.generates, blocks=blocks)
        shape = self.read(document, read)
        stream = self.stream
        if stream is None:
            stream = shape.stream or (self.stream_unset and "stream" not in document)
        cap = self.unset_cap if shape.max_output is None else shape.max_output
        return replace(shape, stream=stream, max_output=cap)


class Native(Protocol):
    """One engine's own API."""

    @property
    def name(self) -> str:
        """The dialect's own name."""

    @property
    def kind(self) -> str:
        """The kind of backend that speaks it."""

    def forms(self, method: str, path: str) -> Sequence[Form]:
        """The ways of asking at a path (normalised by ``dialects.paths``); none where this API does not have it.

        The labels of their routes are this API's alone.
        """

    def error(self, route: Route, message: str, status: int) -> bytes:
        """A JSON error of the gateway's own, as this API words it."""


JSON: Final = "application/json"
Claim = tuple[Native, Form]


class Choice:
    """The dialect of one path: the claims to it in their order, and the dialect for bodies that none of them fits."""

    name = "native"

    def __init__(self, claims: Sequence[Claim], fallback: Dialect, unclaimed: Route) -> None:
        """``claims`` is not empty; ``unclaimed`` is the fallback's route."""
        self._claims = tuple(claims)
        self._fallback = fallback
        self._unclaimed = unclaimed
        self._by_label: Mapping[str, Claim] = {form.route.label: (native, form) for native, form in claims}

    @property
    def first(self) -> Route:
        """The route before the body is known."""
        return self._claims[0][1].route

    def route(self, method: str, path: str) -> Route:  # noqa: ARG002 - made for one path
        """See ``Dialect``."""
        return self.first

    def read_request(
        self,
        route: Route,  # noqa: ARG002 - the body tells
        content_type: str,
        body: bytes,
        *,
        blocks: bool = False,
    ) -> Shape:
        """See ``Dialect``; the shape's route is the one that is meant."""
        document = parse(body)
        if document is not None:
            for _, form in self._claims:
                if form.fits(document):
                    return form.shape(document, body, blocks=blocks)
        return self._fallback.read_request(self._unclaimed, content_type, body, blocks=blocks)

    def response_reader(self, shape: Shape, status: int, content_type: str) -> ResponseReader:
        """See ``Dialect``."""
        claim = self._by_label.get(shape.route.label)
        if claim is None:
            return self._fallback.response_reader(shape, status, content_type)
        if shape.route.access is not Access.ADMIT:
            return UnreadReader()
        items = claim[1].items
        if streams(shape, status, content_type):
            return ItemReader(items)
        return BodyReader(status, content_type, items.counts)

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:
        """See ``Dialect``."""
        claim = self._by_label.get(route.label)
        if claim is None:
            return self._fallback.rejection(route, rejection, message, status)
        return JSON, claim[0].error(route, message, status)

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:
        """See ``Dialect``."""
        claim = self._by_label.get(route.label)
        if claim is None:
            return self._fallback.failure(route, message, status, code)
        return JSON, claim[0].error(route, message, status)

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:
        """See ``Dialect``."""
        return b"data: " + self.failure(route, message, status, code)[1] + b"\n\n"
