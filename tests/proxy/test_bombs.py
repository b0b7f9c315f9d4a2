"""Bodies that are not what they seem: small ones that unpack without end, and such as never end."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Iterator

import pytest

from gateway.model import Outcome
from tests.proxy.helpers import CHAT, Message, Peer, StartBackend, always, chunked, open_house, reply, request

BOMB = gzip.compress(bytes(256 * 2**20), 9)  # a quarter of a megabyte that unpacks to 256
FEW = 32 * 2**20  # bytes


@pytest.fixture
def memory() -> Iterator[None]:
    """Whoever unpacks a bomb is caught by his peak."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < FEW


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("framed", ["length", "chunks"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
async def test_S14_S15_a_body_that_unpacks_without_end_goes_on_as_it_is(
    backend: StartBackend, encoding: str, framed: str
) -> None:
    engine = await backend(always(reply(b"{}", "415 Unsupported Media Type")))
    async with open_house(engine) as house:
        headers = [("Content-Encoding", encoding), ("Content-Type", "application/json")]
        if framed == "chunks":
            head = request(headers=[*headers, ("Transfer-Encoding", "chunked")], length=False)
            sent = head + chunked(BOMB) + b"0\r\n\r\n"
        else:
            sent = request(body=BOMB, headers=headers)
        assert (await house.ask(sent)).status == 415
        assert engine.requests[0].body == BOMB
        assert engine.requests[0].get("Content-Encoding") == encoding


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("stream", [True, False])
async def test_S14_S15_an_answer_that_unpacks_without_end_goes_on_as_it_is(backend: StartBackend, stream: bool) -> None:
    kind = "text/event-stream" if stream else "application/json"
    engine = await backend(always(reply(BOMB, headers=[("Content-Type", kind), ("Content-Encoding", "gzip")])))
    async with open_house(engine, inject_usage=True) as house:
        body = CHAT.replace(b"{", b'{"stream":true,', 1) if stream else CHAT
        answer = await house.ask(request(body=body, headers=[("Accept-Encoding", "gzip")]))
        assert answer.body == BOMB
        assert house.controller.outcomes == [Outcome.COMPLETED]


@pytest.mark.usefixtures("memory")
async def test_a_body_of_a_million_lists_goes_on_as_it_is(backend: StartBackend) -> None:
    """Each would be an object of 56 bytes, and the loop would stand still while they are made."""
    engine = await backend(always(reply()))
    body = b'{"model":"m","stream":true,"x":[' + b"[]," * 2**20 + b"[]]}"
    async with open_house(engine, inject_usage=True) as house:
        assert (await house.ask(request(body=body))).status == 200
        assert engine.requests[0].body == body
        (ticket,) = house.controller.offered
        assert (ticket.shape.model, ticket.shape.prompt_bytes) == (None, len(body))


async def test_a_large_body_is_read_a_piece_at_a_time(backend: StartBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    sleep = asyncio.sleep

    async def turn(seconds: float) -> None:
        turns.extend([1] * (not seconds))
        await sleep(seconds)

    engine = await backend(always(reply()))
    body = b'{"model":"m","stream":true,"prompt":[' + b"1234," * 2**19 + b"1]}"
    async with open_house(engine, inject_usage=True) as house:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", turn)
            assert (await house.ask(request(target="/v1/completions", body=body))).status == 200
        assert len(turns) >= len(body) // 2**18
        (ticket,) = house.controller.offered
        assert (ticket.shape.model, ticket.shape.prompt_tokens) == ("m", 2**19 + 1)
        assert b'"include_usage":true' in engine.requests[0].body


async def test_S16_a_form_without_end_is_cut_at_the_cap(backend: StartBackend) -> None:
    """Multipart in chunks, without a length; the part never closes."""
    engine = await backend(always(reply()))
    async with open_house(engine, max_body=2**20) as house:
        client = await house.client()
        kind = ("Content-Type", 'multipart/form-data; boundary="x"')
        target = "/v1/audio/transcriptions"
        await client.send(request(target=target, headers=[kind, ("Transfer-Encoding", "chunked")], length=False))
        await client.send(chunked(b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'))
        sent = 0

        async def without_end() -> None:
            nonlocal sent
            while True:
                await client.send(chunked(bytes(65536)))
                sent += 65536
                await asyncio.sleep(0.001)

        endless = asyncio.create_task(without_end())
        answer = await client.answer()
        assert answer.status == 413
        assert answer.get("Connection") == "close"
        assert b"GATEWAY_MAX_BODY_SIZE" in answer.body
        await client.ended()
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)
        assert sent < 32 * 2**20, "buffers of the kernel and the lingering, and no more"
        assert engine.requests == []


async def test_S10_a_fault_of_the_gateway_tells_the_client_an_id_and_nothing_else(
    backend: StartBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_peer: Peer, _message: Message) -> None:
        raise AssertionError

    engine = await backend(never)
    async with open_house(engine) as house:
        told = f"no price for {engine.url} with sk-backend-key in {{'models': ['secret-model']}}"

        def broken(*_: object) -> None:
            raise RuntimeError(told)

        house.estimator.estimate = broken  # type: ignore[assignment, method-assign]
        answer = await house.ask(request(body=CHAT, headers=[("X-Request-Id", "id-7")]))
        assert (answer.status, answer.get("X-Request-Id")) == (500, "id-7")
        shown = answer.body + repr(answer.headers).encode()
        assert not any(word in shown for word in (b"127.0.0.1", b"sk-backend-key", b"secret-model", b"RuntimeError"))
        assert "request id-7 failed inside the gateway" in caplog.text, "the log has the cause"
        record = (await house.records.count(1))[0]
        assert told not in (record.error or "")
