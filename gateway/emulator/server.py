"""An OpenAI-compatible server on the emulated engine, as vLLM 0.32 would answer.

async with EmulatedServer(PROFILES["c550-asr"]) as server:
    print(server.url)
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from typing import Any, Final, Self, cast

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.emulator import intake, pooled, replies
from gateway.emulator.driver import Driver
from gateway.emulator.engine import Engine, Profile
from gateway.emulator.exchange import Exchange
from gateway.emulator.gauges import Gauges
from gateway.emulator.intake import Ask, Document, Limits, RequestError

MEAN_OUTPUT: Final = 200.0  # tokens, where the caller sets no bound: about ShareGPT's mean
KEEP_ALIVE: Final = 5.0  # seconds an idle connection stays open: vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE
BACKLOG: Final = 4096
MAX_BODY: Final = 256 * 1024 * 1024
VERSION: Final = "0.32.0"

BUSY: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)

Handler = Callable[[web.BaseRequest, bytes], Awaitable["web.StreamResponse"]]
_Read = Callable[[Document, Limits], Ask]
_MakeReply = Callable[[Ask, str, int], replies.Reply]

_GENERATE: Final[dict[str, tuple[_Read, _MakeReply]]] = {
    "/v1/chat/completions": (intake.chat, replies.Chat),
    "/v1/completions": (intake.completion, replies.Completion),
    "/v1/responses": (intake.response, replies.Responses),
    "/v1/messages": (intake.message, replies.Messages),
}
_POOL: Final[dict[str, tuple[_Read, pooled.Pooled]]] = {
    "/v1/embeddings": (intake.embedding, pooled.embeddings),
    "/score": (intake.score, pooled.scores),
    "/v1/score": (intake.score, pooled.scores),
    "/rerank": (intake.rerank, pooled.rerank),
    "/v1/rerank": (intake.rerank, pooled.rerank),
    "/v2/rerank": (intake.rerank, pooled.rerank),
}
# What an engine obeys and a proxy must not let through; each call is counted, so that a test can see that none came.
_ADMIN: Final = frozenset(
    {
        "/sleep",
        "/wake_up",
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/collective_rpc",
        "/update_weights",
        "/release_kv_cache_memory",
        "/scale_elastic_ep",
        "/start_profile",
        "/stop_profile",
        "/abort_requests",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)


class _Written:
    """An answer that was written to the transport already."""

    keep_alive = True

    async def prepare(self, _request: web.BaseRequest) -> None:
        """Nothing is left to do."""

    async def write_eof(self) -> None:
        """Nothing is left to do."""


_WRITTEN: Final = cast("web.StreamResponse", _Written())


class EmulatedServer:
    """Serves one emulated engine on ``host``:``port`` (0: a free port) under the names in ``models``.

    ``speed`` runs the engine that many times as fast as its profile says. ``seed`` fixes the lengths of answers that
    the caller does not bound. GET /emulator/state tells the engine's books.
    """

    def __init__(
        self,
        profile: Profile,
        models: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Prepare; ``start`` opens the port. The name of the profile is the model's where none is given."""
        self._profile = profile
        self._models = tuple(models) or (profile.name,)
        self._host, self._port, self._speed = host, port, speed
        chance = random.Random(seed)  # noqa: S311 - lengths of made-up answers
        self._limits = Limits(
            self._models,
            profile.max_model_len,
            lambda: max(1, round(chance.expovariate(1.0 / MEAN_OUTPUT))),
            profile.block_size if profile.prefix_cache else 0,
        )
        self._ids = itertools.count(1)
        self._admin_calls = 0
        self._routes = self._build_routes()
        self.polluted = False
        """While true, answers in one piece are exclamation marks: what a KV cache full of NaN gives."""

    async def start(self) -> None:
        """Open the port.

        Raises:
            OSError: it cannot be opened.
        """
        loop = asyncio.get_running_loop()
        self._driver = Driver(self._profile, self._speed)
        self._gauges = Gauges(self._driver.engine, self._models[0])
        self._web = web.Server(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE,
            read_bufsize=256 * 1024,
        )
        self._listener = await loop.create_server(self._web, self._host, self._port, backlog=BACKLOG)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection; what runs is forgotten."""
        self._listener.close()
        self._driver.close()
        await self._web.shutdown(timeout=0.1)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def engine(self) -> Engine:
        """The engine behind it, to look at."""
        return self._driver.engine

    def state(self) -> dict[str, int]:
        """The books, as GET /emulator/state tells them."""
        engine = self.engine
        return {
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_tokens": engine.kv_tokens,
            "preemptions": engine.preemptions,
            "cached_tokens": engine.cached_tokens,
            "finished": engine.finished,
            "aborted": engine.aborted,
            "admin_calls": self._admin_calls,
        }

    # ------------------------------------------------------------------------------------------------ routing

    def _build_routes(self) -> dict[str, dict[str, Handler]]:
        posts: dict[str, Handler] = {
            **dict.fromkeys(_GENERATE, self._generate),
            **dict.fromkeys(_POOL, self._pool),
            **dict.fromkeys(_ADMIN, self._admin),
            "/v1/audio/transcriptions": self._transcribe,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/messages/count_tokens": self._count_tokens,
            "/ping": self._empty,
        }
        gets: dict[str, Handler] = {
            "/health": self._empty,
            "/ping": self._empty,
            "/version": _constant(lambda: {"version": VERSION}),
            "/load": _constant(lambda: {"server_load": self.engine.running + self.engine.waiting}),
            "/v1/models": _constant(self._model_list),
            "/is_sleeping": _constant(lambda: {"is_sleeping": False}),
            "/is_paused": _constant(lambda: {"is_paused": False}),
            "/emulator/state": _constant(self.state),
            "/metrics": self._metrics,
        }
        routes: dict[str, dict[str, Handler]] = {path: {"POST": handler} for path, handler in posts.items()}
        for path, handler in gets.items():
            routes.setdefault(path, {}).update({"GET": handler, "HEAD": handler})
        return routes

    @staticmethod
    def _request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        methods = self._routes.get(request.path)
        body = await request.read()
        if methods is None:
            return _json(b'{"detail":"Not Found"}', 404)
        handler = methods.get(request.method)
        if handler is None:
            return _json(b'{"detail":"Method Not Allowed"}', 405, {"Allow": ", ".join(methods)})
        try:
            return await handler(request, body)
        except RequestError as error:
            return _json(error.body(), error.status)

    # -------------------------------------------------------------------------------------------- engine work

    async def _generate(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        read, make_reply = _GENERATE[request.path]
        ask = read(intake.read_json(request.headers.get("Content-Type", ""), body), self._limits)
        return await self._answer(request, ask, make_reply)

    async def _transcribe(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        ask, seconds = intake.transcription(request.headers.get("Content-Type", ""), body, self._limits)
        return await self._answer(request, ask, lambda a, i, c: replies.Transcription(a, i, c, seconds))

    async def _answer(self, request: web.BaseRequest, ask: Ask, make_reply: _MakeReply) -> web.StreamResponse:
        reply = make_reply(ask, self._identity(request), int(time.time()))
        exchange = self._begin(ask)
        if not ask.stream:
            await exchange.wait()
            return _json(replies.spoilt(reply.whole()) if self.polluted else reply.whole())
        exchange.stream_to(cast("asyncio.WriteTransport", request.transport), _stream_head(), reply)
        await exchange.wait()
        return _WRITTEN

    async def _pool(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        read, render = _POOL[request.path]
        ask = read(intake.read_json(request.headers.get("Content-Type", ""), body), self._limits)
        await self._begin(ask).wait()
        return _json(render(ask, self._identity(request), int(time.time())))

    def _begin(self, ask: Ask) -> Exchange:
        exchange = Exchange(ask, self._gauges, self._driver)
        if not exchange.start():
            raise RequestError(BUSY, None, 503, "Service Unavailable")
        return exchange

    def _identity(self, request: web.BaseRequest) -> str:
        return request.headers.get("X-Request-Id") or f"{next(self._ids):016x}"

    # ------------------------------------------------------------------------------------------- cheap routes

    async def _empty(self, _request: web.BaseRequest, _body: bytes) -> web.StreamResponse:
        return web.Response(headers=_headers())

    async def _admin(self, _request: web.BaseRequest, _body: bytes) -> web.StreamResponse:
        self._admin_calls += 1
        return web.Response(headers=_headers())

    async def _metrics(self, _request: web.BaseRequest, _body: bytes) -> web.StreamResponse:
        kind = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=self._gauges.text(), headers=_headers() | kind)

    async def _tokenize(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        count = intake.count_tokens(intake.read_json(request.headers.get("Content-Type", ""), body))
        known = {"count": count, "max_model_len": self._profile.max_model_len, "token_strs": None}
        return _json(orjson.dumps(known | {"tokens": list(range(count))}))

    async def _detokenize(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        document = intake.read_json(request.headers.get("Content-Type", ""), body)
        return _json(orjson.dumps({"prompt": replies.text(len(document.get("tokens") or ())).strip()}))

    async def _count_tokens(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        count = intake.count_tokens(intake.read_json(request.headers.get("Content-Type", ""), body))
        known = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
        return _json(orjson.dumps(known))

    def _model_list(self) -> dict[str, Any]:
        card = {"object": "model", "created": int(time.time()), "owned_by": "vllm", "parent": None}
        longest = {"max_model_len": self._profile.max_model_len}
        return {"object": "list", "data": [{"id": name, "root": name} | card | longest for name in self._models]}


def _constant(read: Callable[[], object]) -> Handler:
    async def handler(_request: web.BaseRequest, _body: bytes) -> web.StreamResponse:
        return _json(orjson.dumps(read()))

    return handler


def _headers() -> dict[str, str]:
    return {"Date": formatdate(usegmt=True), "Server": "uvicorn", "Vary": "Origin"}


def _json(body: bytes, status: int = 200, more: dict[str, str] | None = None) -> web.Response:
    headers = _headers() | {"Content-Type": "application/json"} | (more or {})
    return web.Response(body=body, status=status, headers=headers)


def _stream_head() -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\ndate: {formatdate(usegmt=True)}\r\nserver: uvicorn\r\n"
        "content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()
