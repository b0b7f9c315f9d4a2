"""Canaries: short fixed questions to each backend, now and then, whose answers somebody compares.

They go past admission, at most one at a time and backend: one short request more or less is no load. A backend that is
down or drained is left alone, and so is one that does not speak chat.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.dialects.kinds import first_model
from gateway.proxy.fetch import Answer, Unanswered, fetch
from gateway.proxy.http import request_head
from gateway.proxy.upstream import Upstream

_log = logging.getLogger(__name__)

PATIENCE: Final = 60.0  # seconds; a slow answer is no wrong one
_SOON: Final = 5.0  # seconds after the start, so that first answers are there before something happens
_TOKENS: Final = 32
_NOT_SPOKEN: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
_TEXTS: Final = ("reasoning", "reasoning_content", "content")


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """What is asked, and how often (seconds).

    ``compare`` takes a backend's name, the number of the prompt and the answer, and says whether it is as before.
    """

    interval: float
    prompts: Sequence[str]
    compare: Callable[[str, int, str], bool]


class Canaries:
    """One task per backend. ``is_out`` says whether a backend is down or drained."""

    def __init__(self, plan: CanaryPlan, upstreams: Mapping[str, Upstream], is_out: Callable[[str], bool]) -> None:
        self._plan = plan
        self._upstreams = upstreams
        self._is_out = is_out
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Ask from now on."""
        for upstream in self._upstreams.values():
            self.add(upstream)

    def add(self, upstream: Upstream) -> None:
        """Ask one backend more, for as long as it is among them."""
        self._tasks.append(asyncio.create_task(self._run(upstream)))

    async def stop(self) -> None:
        """End every task."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, upstream: Upstream) -> None:
        await asyncio.sleep(min(_SOON, self._plan.interval))
        for number in itertools.cycle(range(len(self._plan.prompts))):
            name = upstream.backend.name
            if name not in self._upstreams:
                return
            try:
                spoken = self._is_out(name) or await self.check(upstream, number)
            except Exception:  # noqa: BLE001 - logged; the next one may do better
                _log.exception("the canary to backend %s failed inside the gateway", name)
                spoken = True
            if not spoken:
                _log.info("backend %s does not speak chat: it gets no canaries", name)
                return
            await asyncio.sleep(self._plan.interval)

    async def check(self, upstream: Upstream, number: int) -> bool:
        """Ask one prompt, and again where the answer is another than before; False where it is not understood."""
        for _ in range(2):
            try:
                answer = await _asked(upstream, self._plan.prompts[number])
            except (OSError, Unanswered) as error:
                _log.debug("backend %s left a canary unanswered: %s", upstream.backend.name, error)
                return True
            text = _text(answer.body) if answer.status == HTTPStatus.OK else None
            if text is None:
                return answer.status not in _NOT_SPOKEN
            if self._plan.compare(upstream.backend.name, number, text):
                return True
        return True


async def _asked(upstream: Upstream, prompt: str) -> Answer:
    model = next(iter(upstream.backend.models), None)
    if model is None:
        model = first_model((await _sent(upstream, b"GET", b"/v1/models", b"")).body)
    document: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": _TOKENS,
        "stream": False,
    }
    body = orjson.dumps(document if model is None else {"model": model, **document})
    return await _sent(upstream, b"POST", b"/v1/chat/completions", body)


async def _sent(upstream: Upstream, method: bytes, path: bytes, body: bytes) -> Answer:
    line = b"%b %b%b HTTP/1.1" % (method, upstream.prefix, path)
    lines = b"\r\nAccept: application/json\r\nUser-Agent: inference-gateway-canary"
    lines += b"\r\nContent-Type: application/json" if body else b""
    length = len(body) if body else None
    head = request_head(line, lines, host=upstream.host, length=length, api_key=upstream.api_key, close=True)
    return await fetch(upstream, head, PATIENCE, body)


def _text(body: bytes) -> str | None:
    """The words of an answer, thoughts included; None where it is none."""
    try:
        message = orjson.loads(body)["choices"][0]["message"]
        return "".join(text for name in _TEXTS if isinstance(text := message.get(name), str))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
