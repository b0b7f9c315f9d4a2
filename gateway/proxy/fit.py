"""What can never fit: refused at the door, since the engine would refuse it too, after it had waited for its turn.

A context length is held against what a request needs at the very least, so that nothing that fits is refused: the
exact count of token ids, else the fewest tokens that its text can be. What lies between is for the engine to say. An
operator's own caps are a matter of policy, and are held against the estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from gateway.dialects.base import EngineDialect
from gateway.dialects.engines import ENGINES
from gateway.dialects.least import least_tokens
from gateway.model import Backend, Shape, Ticket
from gateway.proxy.inbound import Refused

_SURE: Final = 1.25  # an estimate that is so many times an operator's cap is above it
_SUMMED: Final = frozenset({"chat", "completions", "messages"})  # refused where prompt and cap do not fit together
_CHECKED: Final = _SUMMED | {"responses"}  # of which vLLM shortens the cap
_NOBODY: Final[frozenset[str]] = frozenset()


class Fit:
    """Context lengths by backend and model, and the operator's caps by model; under "" is what holds for the rest."""

    def __init__(
        self, backends: Sequence[Backend], max_prompt: Mapping[str, int], max_output: Mapping[str, int]
    ) -> None:
        self._set: dict[str, int] = {}
        self._learned: dict[str, dict[str, int]] = {}
        self._shortens: dict[str, bool] = {}
        for backend in backends:
            self.know(backend)
        self.cap(max_prompt, max_output)

    def cap(self, max_prompt: Mapping[str, int], max_output: Mapping[str, int]) -> None:
        """Hold requests to these caps from now on."""
        self._max_prompt = max_prompt
        self._max_output = max_output

    def know(self, backend: Backend) -> None:
        """Take what is configured of a backend, that was known or not."""
        self._set.pop(backend.name, None)
        if backend.max_model_len is not None:
            self._set[backend.name] = backend.max_model_len
        self._shortens[backend.name] = _shortens(ENGINES.get(backend.kind))

    def learn(self, backend: str, engine: EngineDialect, lengths: Mapping[str, int | None]) -> None:
        """Take the context lengths of the models that ``backend`` serves, as it says them itself."""
        self._shortens[backend] = _shortens(engine)
        self._learned[backend] = {model: length for model, length in lengths.items() if length is not None}

    def too_small(self, ticket: Ticket, body: bytes, serving: Sequence[str]) -> frozenset[str]:
        """Backends among ``serving`` that surely cannot hold the request, whose body is ``body``.

        Raises:
            Refused: none of them can, or it is more than the operator allows.
        """
        self._hold_to_caps(ticket)
        shape = ticket.shape
        if shape.route.label not in _CHECKED or not (self._set or self._learned):
            return _NOBODY
        known = {name: length for name in serving if (length := self._length(name, shape.model)) is not None}
        if not known:
            return _NOBODY
        cap = (shape.max_output or 0) if shape.route.label in _SUMMED else 0
        prompt = _least(ticket, body, min(known.values()) - cap)
        small = frozenset(name for name in known if prompt + (0 if self._shortens[name] else cap) > known[name])
        if small and len(small) == len(serving):
            raise _exceeded(
                f"This model's maximum context length is {max(known.values())} tokens. However, the prompt has at "
                f"least {max(prompt, 1)}, and {cap} are asked for the output. Shorten the prompt or ask for less."
            )
        return small

    def _length(self, backend: str, model: str | None) -> int | None:
        return self._set.get(backend) or self._learned.get(backend, {}).get(model or "")

    def _hold_to_caps(self, ticket: Ticket) -> None:
        shape = ticket.shape
        most = _cap(self._max_prompt, shape)
        if most is not None and not shape.truncates:
            exact = shape.prompt_tokens
            tokens = (ticket.work.prompt_tokens - shape.media_tokens) / _SURE if exact is None else exact
            if tokens / shape.choices > most:
                about = f"{exact}" if exact is not None else f"about {round(tokens * _SURE)}"
                raise _exceeded(
                    f"The prompt has {about} tokens; at most {most} are taken here (GATEWAY_MAX_PROMPT_TOKENS)."
                )
        most = _cap(self._max_output, shape)
        if most is not None and shape.max_output is not None and shape.max_output > most:
            raise _exceeded(
                f"{shape.max_output} output tokens are asked for; at most {most} are given here "
                "(GATEWAY_MAX_OUTPUT_TOKENS)."
            )


def _cap(caps: Mapping[str, int], shape: Shape) -> int | None:
    return caps.get(shape.model or "", caps.get("")) if caps else None


def _shortens(engine: EngineDialect | None) -> bool:
    """Whether a cap that does not fit is no reason to refuse; of an engine that is not known yet that is not sure."""
    return engine is None or engine.shortens


def _least(ticket: Ticket, body: bytes, room: int) -> int:
    """The fewest tokens that the longest prompt of the request can have.

    The text is looked at only where it is estimated at more than ``room``. Media count none: their cost is a guess.
    """
    shape = ticket.shape
    if shape.truncates:
        return 0
    if shape.prompt_tokens is not None:
        return shape.prompt_tokens // max(shape.choices, 1)
    return least_tokens(body) if ticket.work.prompt_tokens > room else 0


def _exceeded(message: str) -> Refused:
    # 400 and not 413: urllib3 sends a request again on 413 where there is a Retry-After.
    return Refused(HTTPStatus.BAD_REQUEST, "context_length_exceeded", message)
