"""Token counts that the gateway asks for: what the engine gets, what the client gets, what is recorded."""

from __future__ import annotations

import json

import pytest

from gateway.model import Outcome, Usage
from tests.proxy.helpers import (
    CHAT,
    CHAT_STREAM,
    SSE_HEAD,
    Message,
    Peer,
    Script,
    StartBackend,
    always,
    chunked,
    event,
    open_house,
    reply,
    request,
)

COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
SPOKEN = event("a") + event("b")
COUNTED = Usage(9, 2)


def streamed(*parts: bytes) -> Script:
    return always(SSE_HEAD + b"".join(map(chunked, parts)) + b"0\r\n\r\n")


@pytest.mark.parametrize(
    "parts",
    [
        (event("a"), event("b"), COUNTS, DONE),
        (event("a"), event("b") + COUNTS[:30], COUNTS[30:] + DONE),
        (SPOKEN + COUNTS + DONE,),
        (event("a") + event("b")[:9], event("b")[9:], COUNTS + DONE[:4], DONE[4:]),
    ],
)
async def test_M08_the_engine_is_asked_and_the_client_sees_nothing_of_it(
    backend: StartBackend, parts: tuple[bytes, ...]
) -> None:
    engine = await backend(streamed(*parts))
    async with open_house(engine, inject_usage=True) as house:
        answer = await house.ask(request(body=CHAT_STREAM))
        assert answer.body == SPOKEN + DONE
        asked = engine.requests[0]
        assert json.loads(asked.body) == json.loads(CHAT_STREAM) | {"stream_options": {"include_usage": True}}
        assert asked.get("Content-Length") == str(len(asked.body))
        (record,) = await house.records.count(1)
        assert (record.outcome, record.usage, record.timeline.output_events) == (Outcome.COMPLETED, COUNTED, 2)
        assert record.ticket is not None
        assert record.ticket.body_bytes == len(CHAT_STREAM)


async def test_by_default_nothing_is_asked_and_nothing_taken_out(backend: StartBackend) -> None:
    engine = await backend(streamed(SPOKEN, COUNTS, DONE))
    async with open_house(engine) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).body == SPOKEN + COUNTS + DONE
        assert engine.requests[0].body == CHAT_STREAM


@pytest.mark.parametrize("options", [b"null", b'{"include_usage":true}', b'{"include_usage":false}'])
async def test_a_client_with_options_of_its_own_gets_what_it_gets(backend: StartBackend, options: bytes) -> None:
    engine = await backend(streamed(SPOKEN, COUNTS, DONE))
    body = b'{"stream_options":%b,%b' % (options, CHAT_STREAM[1:])
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=body))).body == SPOKEN + COUNTS + DONE
        assert engine.requests[0].body == body


async def test_an_answer_that_is_not_streamed_is_not_touched(backend: StartBackend) -> None:
    whole = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}'
    engine = await backend(always(reply(whole)))
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=CHAT))).body == whole
        assert engine.requests[0].body == CHAT
        assert (await house.ask(request(body=CHAT_STREAM))).body == whole  # asked to stream, it did not


async def test_a_length_that_was_announced_is_kept(backend: StartBackend) -> None:
    stream = SPOKEN + COUNTS + DONE
    engine = await backend(always(reply(stream, headers=[("Content-Type", "text/event-stream")])))
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).body == stream


async def test_an_engine_that_ends_with_its_connection(backend: StartBackend) -> None:
    async def script(peer: Peer, _: Message) -> None:
        await peer.send(reply(SPOKEN + COUNTS + DONE, headers=[("Content-Type", "text/event-stream")], length=False))
        peer.close()

    engine = await backend(script)
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=CHAT_STREAM))).body == SPOKEN + DONE


async def test_a_stream_that_breaks_in_a_held_event_ends_without_it(backend: StartBackend) -> None:
    async def script(peer: Peer, _: Message) -> None:
        await peer.send(SSE_HEAD + chunked(event("a")) + chunked(b'data: {"choices":[],"us'))
        peer.reset()

    engine = await backend(script)
    async with open_house(engine, inject_usage=True) as house:
        client = await house.client()
        await client.send(request(body=CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event("a")
        assert await client.rest() == b""
        (record,) = await house.records.count(1)
        assert record.outcome is Outcome.BACKEND_LOST
