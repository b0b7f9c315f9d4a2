"""An emulated MindIE: the engine model behind the HTTP server that MindIE-LLM 3.0.0 has, byte for byte where it counts.

async with EmulatedMindIE(PROFILES["910b-mindie"], link_num=300) as server:
    print(server.url, server.management_url, server.metrics_url)

What a proxy must cope with is here: a thread to a connection and a closed door behind them (``door``), framings and
errors of its own (``replies``, ``asks``), ``Connection: close`` on whole answers, errors as bare text
inside a stream, a half-closed client taken for one that left, three ports, and metrics that are off by default.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

import orjson

from gateway.emulator.door import Door
from gateway.emulator.driver import Driver
from gateway.emulator.engine import Engine, Profile
from gateway.emulator.exchange import LAST_CHUNK, Exchange
from gateway.emulator.intake import Limits, RequestError, count_tokens
from gateway.emulator.mindie import asks, replies
from gateway.emulator.mindie.asks import Question, Read, Refusal
from gateway.emulator.mindie.gauges import MindIEGauges
from gateway.emulator.mindie.http import (
    KEEP_ALIVE,
    REQUESTS,
    Answer,
    Request,
    json_answer,
    read_request,
    stream_head,
    whole,
)
from gateway.emulator.mindie.state import Service, health, slots, told
from gateway.emulator.replies import Reply, framed
from gateway.emulator.server import MEAN_OUTPUT

LINK_NUM: Final = 1000  # maxLinkNum
POLL: Final = 0.2  # seconds between two looks whether a client is still there
TOKEN_TIMEOUT: Final = 600.0
E2E_TIMEOUT: Final = 600.0
_NAME: Final = r"[\w.-]+"


@dataclass(frozen=True, slots=True)
class _Inference:
    """One way to be asked for tokens. ``stream``: None where the body says so."""

    read: Read
    make: Callable[[Question, str, int], Reply]
    stream: bool | None = None


_CHAT: Final = _Inference(asks.chat, replies.Chat)
_COMPLETION: Final = _Inference(asks.completion, replies.Completion)
_BY_PATH: Final = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _COMPLETION,
    "/generate_stream": _Inference(asks.tgi, replies.TGI, stream=True),
    "/": _Inference(asks.tgi, replies.RootTGI),
    "/infer": _Inference(asks.infer, replies.Infer),
    "/infer_token": _Inference(asks.infer, replies.Infer),
}
_GENERATE: Final = {
    "inputs": _Inference(asks.tgi, replies.TGI, stream=False),
    "prompt": _Inference(asks.vllm, replies.VLLM),
}
_BY_VERB: Final = {
    "infer": _Inference(asks.triton_tokens, replies.TritonTokens, stream=False),
    "generate": _Inference(asks.triton_text, replies.TritonText, stream=False),
    "generate_stream": _Inference(asks.triton_text, replies.TritonText, stream=True),
}
_TRITON: Final = re.compile(rf"/v2/models/({_NAME})/(infer|generate|generate_stream|stopInfer)")
_MODEL: Final = re.compile(rf"/v[12]/models/({_NAME})(/config)?")
_MANAGED: Final = re.compile(rf"/v2/models/({_NAME})/(ready|getSlotCount)")
_TIMED: Final = re.compile(r"/health/timed(-\d{1,3})?")
# What the server obeys and a proxy must not let through; each call is counted, so that a test can see that none came.
_ADMIN: Final = re.compile(
    r"/stopService|/v1/(?:un)?load_lora_adapter|/v[12]/role/\w+|/v1/engine-server/fault-handling-command"
)

Handler = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Answer | None]]


class EmulatedMindIE:
    """Serves one emulated engine the way MindIE does.

    ``ports``: of the serving, the management and the metrics plane (0: a free one); one port alone is all three.
    ``link_num`` is maxLinkNum, ``monitored`` what MIES_SERVICE_MONITOR_MODE=1 switches on. ``tls`` wraps every port.
    ``speed`` runs the engine that many times as fast as its profile says; timeouts are in engine seconds.
    """

    def __init__(
        self,
        profile: Profile,
        models: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (0, 0, 0),
        link_num: int = LINK_NUM,
        monitored: bool = False,
        token_timeout: float = TOKEN_TIMEOUT,
        e2e_timeout: float = E2E_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        speed: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Prepare; ``start`` opens the ports. The name of the profile is the model's where none is given."""
        self._profile = profile
        self._models = tuple(models) or (profile.name,)
        self._host, self._ports, self._speed = host, list(ports), speed
        self._monitored = monitored
        self._token_timeout, self._e2e_timeout = token_timeout, e2e_timeout
        self._tls = tls
        chance = random.Random(seed)  # noqa: S311 - lengths of made-up answers
        draw = lambda: max(1, round(chance.expovariate(1.0 / MEAN_OUTPUT)))  # noqa: E731 - one use
        self._limits = Limits(self._models, profile.max_model_len, draw)
        self._ids = itertools.count(1)
        self._doors = [Door(self._converse(handlers), link_num, tls) for handlers in self._planes()]
        self._failing = asyncio.Event()
        self.link_num = link_num
        self.service = Service.NORMAL
        self.admin_calls = 0
        self.half_closed = 0  # clients that ended their side while they waited
        self.kept_alive = 0  # connections that brought more than one request

    # -- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the ports.

        Raises:
            OSError: one cannot be opened.
        """
        self._driver = Driver(self._profile, self._speed)
        self._gauges = MindIEGauges(self._driver.engine, self._models[0], self._driver.now)
        for index, door in enumerate(self._doors):
            self._ports[index] = await door.open(self._host, self._ports[index])

    async def stop(self) -> None:
        """Close the ports and every connection; what runs is forgotten."""
        for door in self._doors:
            await door.close()
        self._driver.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _url(self, port: int) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{port}"

    @property
    def url(self) -> str:
        """Where it serves."""
        return self._url(self._ports[0])

    @property
    def management_url(self) -> str:
        """Where it tells of its health and state."""
        return self._url(self._ports[1 % len(self._ports)])

    @property
    def metrics_url(self) -> str:
        """Where it exposes metrics."""
        return self._url(self._ports[-1])

    @property
    def door(self) -> Door:
        """The door of the port that serves, to look at."""
        return self._doors[0]

    @property
    def engine(self) -> Engine:
        """The engine behind it, to look at."""
        return self._driver.engine

    def fail_running(self) -> None:
        """Let every request that runs now lose its engine."""
        self._failing.set()
        self._failing = asyncio.Event()

    # -- HTTP -------------------------------------------------------------------------------------------------------

    def _planes(self) -> list[tuple[Handler, ...]]:
        if len(self._ports) == 1:
            return [(self._serving, self._management, self._metrics)]
        return [(self._serving,), (self._management,), (self._metrics,)]

    def _converse(
        self, handlers: Sequence[Handler]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for count in range(REQUESTS):
                async with asyncio.timeout(KEEP_ALIVE):
                    request = await read_request(reader, writer)
                if request is None:
                    return
                self.kept_alive += count == 1
                if not await self._reply(request, handlers, reader, writer) or request.close:
                    return

        return converse

    async def _reply(
        self, request: Request, handlers: Sequence[Handler], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether its connection goes on."""
        request.uuid = f"{next(self._ids):08x}-0000-4000-8000-000000000000"
        answer: Answer | None = None
        try:
            for handler in handlers:
                answer = await handler(request, reader, writer)
                if answer is not None:
                    break
        except Refusal as refusal:
            answer = Answer(refusal.status, refusal.body)
        except _Gone:
            return False
        if answer is None:
            answer = Answer(404)
        if answer.status:
            writer.write(whole(request, answer))
        await writer.drain()
        return not answer.status

    # -- the plane that serves --------------------------------------------------------------------------------------

    async def _serving(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer | None:
        if request.method == "POST":
            return await self._posted(request, reader, writer)
        if request.path == "/v1/models":
            return Answer(body=orjson.dumps(self._model_list(), option=orjson.OPT_INDENT_2))
        if request.path == "/v2":
            return json_answer({"name": "MindIE Server", "version": "3.0.0", "extensions": {}})
        found = _MODEL.fullmatch(request.path)
        if found is None:
            return None
        self._known(found[1])
        return json_answer({"id": found[1], "object": "model", "owned_by": "MindIE Server"})

    async def _posted(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer | None:
        if request.path == "/v1/tokenizer":
            count = count_tokens({"prompt": asks.read_json(request.body).get("inputs", "")})
            return json_answer({"token_number": count, "tokens": []})
        found = _TRITON.fullmatch(request.path)
        if found is not None:
            self._known(found[1])
            if found[2] == "stopInfer":
                raise Refusal("The request id is not found.", HTTPStatus.NOT_FOUND)
            return await self._infer(request, _BY_VERB[found[2]], reader, writer)
        if request.path == "/generate":
            document = asks.read_json(request.body)
            named = next((key for key in _GENERATE if document.get(key) is not None), None)
            if named is None:
                raise Refusal("`inputs` or `prompt` must be necessary and data type must be string.")
            return await self._infer(request, _GENERATE[named], reader, writer)
        inference = _BY_PATH.get(request.path)
        return await self._infer(request, inference, reader, writer) if inference is not None else None

    def _known(self, model: str) -> None:
        if model not in self._models:
            raise Refusal(f"Model {model} not found.", HTTPStatus.NOT_FOUND)

    def _model_list(self) -> dict[str, Any]:
        cards = [
            {"id": name, "object": "model", "owned_by": "MindIE Server", "parent": "null", "root": name}
            for name in self._models
        ]
        return {"data": cards, "object": "list"}

    # -- inference --------------------------------------------------------------------------------------------------

    async def _infer(
        self, request: Request, form: _Inference, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer:
        try:
            question = form.read(asks.read_json(request.body), self._limits)
        except RequestError as error:  # of the parts that all emulated servers share
            raise Refusal(str(error)) from error
        self._gauges.received()
        reply = form.make(question, f"endpoint_common_{next(self._ids)}", int(time.time()))
        exchange = Exchange(question.ask, self._gauges, self._driver)
        if not exchange.start():
            raise Refusal("Failed to enqueue inferRequest.", HTTPStatus.FAILED_DEPENDENCY)
        streams = question.ask.stream if form.stream is None else form.stream
        if streams:
            exchange.stream_to(writer.transport, stream_head(request), reply)
        fault = await self._watch(exchange, question.timeout, reader, writer)
        if not streams:
            if fault is None:
                return Answer(body=reply.whole())
            raise Refusal(fault, HTTPStatus.INTERNAL_SERVER_ERROR)
        if fault is not None:  # no status can say so any more: the bare text, and the end
            writer.write(framed(fault.encode()) + LAST_CHUNK)
        return Answer(0)

    async def _watch(
        self, exchange: Exchange, patience: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str | None:
        """Until all is produced, with a look every 200 ms whether somebody still waits; what went wrong, if anything.

        Raises:
            _Gone: the client left, or ended its side, which is taken for the same.
        """
        work = asyncio.ensure_future(exchange.wait())
        failing, started, last = self._failing, self._driver.now(), (0, self._driver.now())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=POLL)
                if last[0] != exchange.produced:
                    last = exchange.produced, self._driver.now()
                if work.done():
                    break
                if reader.at_eof() or writer.is_closing():
                    self.half_closed += not writer.is_closing()
                    raise _Gone
                if failing.is_set():
                    return "Failed to get engine response"
                late = self._late(patience, last[1], started)
                if late is not None:
                    return f"Engine callback timeout: {late}"
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        return None

    def _late(self, patience: float, last: float, started: float) -> str | None:
        """The first bound that is passed, as MindIE names it."""
        now = self._driver.now()
        bounds = (
            (last + patience, "client timeout"),
            (last + self._token_timeout, "server tokenTimeout"),
            (started + self._e2e_timeout, "server e2eTimeout"),
        )
        due, name = min(bounds)
        return name if now > due else None

    # -- the other planes -------------------------------------------------------------------------------------------

    async def _management(
        self, request: Request, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
    ) -> Answer | None:
        if _ADMIN.fullmatch(request.path):
            self.admin_calls += 1
            return Answer()
        if request.method not in {"GET", "HEAD"}:
            return None
        managed = _MANAGED.fullmatch(request.path)
        if managed is not None:
            self._known(managed[1])
            if managed[2] == "getSlotCount":
                return json_answer(slots(self._profile, self.engine))
        if _TIMED.fullmatch(request.path):
            return json_answer({"status": "healthy"})
        found = health("/health" if managed else request.path, self.service)
        return found or told(request.path, self._profile, self.engine, self._models)

    async def _metrics(
        self, request: Request, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
    ) -> Answer | None:
        if (request.method, request.path) != ("GET", "/metrics"):
            return None
        if not self._monitored:
            raise Refusal(
                "Environment variable MIES_SERVICE_MONITOR_MODE is not set.", HTTPStatus.INTERNAL_SERVER_ERROR
            )
        return Answer(body=self._gauges.text())  # labelled JSON, though it is none


class _Gone(Exception):  # noqa: N818 - says what happened
    """The client is not there any more."""
