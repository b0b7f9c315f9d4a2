"""What every dialect offers, and what the proxy asks of it.

A dialect is one file that knows one engine family's language and no other dialect. It never sees a socket: it
classifies a path, reads a request's shape, listens to a response and renders a refusal in the route's own shape.
The relay always sends the original bytes; readers only listen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from http import HTTPStatus
from typing import Protocol

from gateway.model import Health, Hints, Rejection, Route, Shape, Usage


@unique
class Fault(Enum):
    """What a response said went wrong inside a body that its status line called a success."""

    BUSY = "busy"  # the engine is full: backpressure
    FAILED = "failed"  # anything else


class ResponseReader(Protocol):
    """Listens to one response body. Any split of the same bytes gives the same totals.

    ``feed`` is on the path of every chunk: it allocates as little as it can and parses JSON only where it must
    (usage, first output, in-band errors).
    """

    @property
    def usage(self) -> Usage | None:
        """What the backend reported so far; None where it reported nothing."""

    @property
    def fault(self) -> Fault | None:
        """An error said in band, under a status line that called the response a success."""

    @property
    def complete(self) -> bool:
        """The body's own end was seen ([DONE], message_stop, response.completed, every finish_reason, whole JSON)."""

    @property
    def between_events(self) -> bool:
        """No event is cut in two at this point: ``Dialect.stream_failure`` may be appended to what was relayed."""

    @property
    def asides(self) -> tuple[int, int] | None:
        """What the last call of ``feed`` or ``finish`` found that benchmark clients count otherwise; None as a rule.

        (chunks with a choice but no output, output events that ``vllm bench serve`` 0.33.0 does not take for output);
        see ``Timeline``.
        """

    def feed(self, data: bytes) -> int:
        """Take the next bytes; return how many output events (chunks with output) ended in them."""

    def finish(self) -> int:
        """The body ended: read what is left; return the output events found in it (0 or 1 as a rule)."""


@unique
class Plane(Enum):
    """Which of a backend's ports is asked; a backend may have them all on one."""

    SERVING = "serving"  # where requests go
    MANAGEMENT = "management"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Probe:
    """One question: ``GET path`` on one of the backend's ports."""

    path: str
    plane: Plane = Plane.SERVING

    @staticmethod
    def verdict(status: int) -> Health:
        """What an answer with ``status`` says of the backend.

        A 4xx is a live server that does not know the question (older version, other plane, a key): not DOWN.
        """
        if status < HTTPStatus.BAD_REQUEST:
            return Health.UP
        return Health.UNKNOWN if status < HTTPStatus.INTERNAL_SERVER_ERROR else Health.DOWN


@dataclass(frozen=True, slots=True)
class Gauges:
    """Where gauges are and how they are read: the answers to ``paths`` together. Nothing to read is ``Hints()``.

    ``{model}`` in a path stands for the name of a model that the backend serves.
    """

    paths: tuple[str, ...]
    read: Callable[[Sequence[str]], Hints]
    plane: Plane = Plane.SERVING


class Dialect(Protocol):
    """One engine family's language."""

    @property
    def name(self) -> str:
        """The dialect's own name."""

    def route(self, method: str, path: str) -> Route | None:
        """Class of ``path`` (normalised by ``dialects.paths``), or None where this dialect does not know it."""

    def read_request(self, route: Route, content_type: str, body: bytes, *, blocks: bool = False) -> Shape:
        """Shape of the request. Never raises: what cannot be read is left at its default (the engine judges it).

        ``blocks``: hash the blocks of its prompt as well.
        """

    def response_reader(self, shape: Shape, status: int, content_type: str) -> ResponseReader:
        """A reader for this response."""

    def rejection(self, route: Route, rejection: Rejection, message: str, status: int) -> tuple[str, bytes]:
        """(content type, body) of a refusal in the error shape of ``route``."""

    def failure(self, route: Route, message: str, status: int, code: str) -> tuple[str, bytes]:
        """(content type, body) of another error of the gateway's own (403, 413, 502, 504 ...), in the same shape.

        ``code`` is a short machine-readable word such as ``bad_gateway``.
        """

    def stream_failure(self, route: Route, message: str, status: int, code: str) -> bytes:
        """One in-band event that says the same in the middle of a stream (only where ``between_events``)."""


class EngineDialect(Protocol):
    """What the prober asks of a backend of one kind, and what else the proxy must know of it."""

    @property
    def kind(self) -> str:
        """What ``Backend.kind`` says."""

    @property
    def health(self) -> Sequence[Probe]:
        """The cheapest questions that a dead engine does not answer well; the first that is answered well is kept."""

    @property
    def gauges(self) -> Sequence[Gauges]:
        """Where the gauges may be; the first that has any is kept. Empty where the engine has none."""

    @property
    def closes_when_full(self) -> bool:
        """A full server closes a connection without an answer: backpressure, not death."""

    @property
    def single_use(self) -> bool:
        """An idle connection costs the engine a place, so each is used once."""

    @property
    def any_model(self) -> bool:
        """It serves its one model by whatever name it is asked for: the names it gives choose nothing."""

    @property
    def shortens(self) -> bool:
        """It gives less output where prompt and cap do not fit together, instead of refusing the request."""

    @property
    def neighbours(self) -> Sequence[tuple[int, Plane, int]]:
        """(serving port, other plane, its port on the same host), as the engine's defaults have it."""
