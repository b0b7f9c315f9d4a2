"""Comments on an admitted stream before its first event: only where wanted, and never before the engine's head."""

from __future__ import annotations

import asyncio

import openai
import pytest

from gateway.model import Outcome, Reason
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    GUARD,
    SSE_HEAD,
    Message,
    Peer,
    Script,
    StartBackend,
    chunked,
    event,
    open_house,
    reply,
    request,
)

COMMENT = b": heartbeat\n\n"
DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Held:
    """An engine that sends its head, and the rest when it is told to."""

    def __init__(self, head: bytes = SSE_HEAD, rest: bytes = chunked(event("a")) + DONE) -> None:
        self.go = asyncio.Event()
        self.head = head
        self.rest = rest

    async def script(self, peer: Peer, _message: Message) -> None:
        await peer.send(self.head)
        await self.go.wait()
        await peer.send(self.rest)


async def test_comments_come_until_the_first_event_and_not_after(backend: StartBackend) -> None:
    held = Held()
    engine = await backend(held.script)
    async with open_house(engine, heartbeat=0.02) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        head = await client.head()
        assert (head.status, head.get("Transfer-Encoding")) == (200, "chunked")
        for _ in range(3):
            assert await client.chunk() == COMMENT
        held.go.set()
        body = b""
        while part := await client.chunk():
            body += part
        assert body.replace(COMMENT, b"") == event("a") + b"data: [DONE]\n\n"
        assert body.endswith(event("a") + b"data: [DONE]\n\n")
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.COMPLETED
        assert record.bytes_out == len(event("a") + b"data: [DONE]\n\n"), "nothing counts comments"
        assert record.timeline.output_events == 1
        assert record.timeline.first_output is not None
        assert house.controller.granted[0].progress.events == 1  # type: ignore[attr-defined]


async def test_after_the_first_event_a_pause_gets_no_comment(backend: StartBackend) -> None:
    held = Held(SSE_HEAD + chunked(event("a")), DONE)
    engine = await backend(held.script)
    async with open_house(engine, heartbeat=0.01) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event("a")
        await asyncio.sleep(0.1)
        held.go.set()
        assert await client.chunk() == b"data: [DONE]\n\n"


async def _before_the_head(peer: Peer, _message: Message) -> None:
    await asyncio.sleep(0.1)
    await peer.send(reply(b'{"error":"x"}', "400 Bad Request"))


async def _refused(peer: Peer, _message: Message) -> None:
    await peer.send(reply(b"", "429 Too Many Requests", (("Content-Type", "text/event-stream"),), length=False)[:-2])
    await asyncio.sleep(0.1)
    await peer.send(b"Content-Length: 0\r\n\r\n")


@pytest.mark.parametrize(("script", "status"), [(_before_the_head, 400), (_refused, 429)])
async def test_before_the_engine_s_head_nothing_is_sent(backend: StartBackend, script: Script, status: int) -> None:
    engine = await backend(script)
    async with open_house(engine, heartbeat=0.01) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).status == status


async def test_a_request_that_waits_in_the_queue_gets_nothing_either(backend: StartBackend) -> None:
    held = Held()
    engine = await backend(held.script)
    async with open_house(engine, limit=1, heartbeat=0.01) as house:
        first, second = await house.client(), await house.client()
        await first.send(request(body=CHAT_STREAM))
        await first.head()
        await second.send(request(body=CHAT_STREAM))
        await asyncio.sleep(0.1)
        house.expire(Reason.QUEUE_TIMEOUT)
        assert (await second.answer()).status == 429
        held.go.set()


WHOLE = reply(b"", headers=(("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")), length=False)
ZIPPED = SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"
COUNTED = reply(b"", headers=(("Content-Type", "text/event-stream"), ("Content-Length", "5")), length=False)


@pytest.mark.parametrize(
    ("head", "rest", "body"),
    [
        (WHOLE, chunked(b"{}") + b"0\r\n\r\n", b"{}"),
        (ZIPPED, chunked(b"\x1f") + b"0\r\n\r\n", b"\x1f"),
        (COUNTED, b"12345", b"12345"),
    ],
)
async def test_what_a_comment_would_spoil_gets_none(
    backend: StartBackend, head: bytes, rest: bytes, body: bytes
) -> None:
    held = Held(head, rest)
    engine = await backend(held.script)
    async with open_house(engine, heartbeat=0.01) as house:
        client = await house.client()
        await client.send(request(body=CHAT if head is WHOLE else CHAT_STREAM))
        message = await client.head()
        await asyncio.sleep(0.1)
        held.go.set()
        assert (await client.body(message)).body == body


async def test_without_the_setting_there_is_none(backend: StartBackend) -> None:
    held = Held()
    engine = await backend(held.script)
    async with open_house(engine) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        message = await client.head()
        await asyncio.sleep(0.1)
        held.go.set()
        assert (await client.body(message)).body == event("a") + b"data: [DONE]\n\n"


async def test_a_stream_that_ends_empty_after_comments_is_broken_off(backend: StartBackend) -> None:
    held = Held(rest=b"0\r\n\r\n")
    engine = await backend(held.script)
    async with open_house(engine, heartbeat=0.01) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == COMMENT
        held.go.set()
        rest = await client.rest()
        assert not rest.endswith(b"0\r\n\r\n"), "no clean end"
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.BACKEND_LOST


async def test_the_openai_sdk_does_not_see_them(backend: StartBackend) -> None:
    held = Held()
    engine = await backend(held.script)
    async with (
        open_house(engine, heartbeat=0.01) as house,
        openai.AsyncOpenAI(api_key="k", base_url=f"{house.gateway.url}/v1", max_retries=0, timeout=GUARD) as sdk,
    ):
        stream = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        asyncio.get_running_loop().call_later(0.1, held.go.set)
        assert [part.choices[0].delta.content async for part in stream] == ["a"]
