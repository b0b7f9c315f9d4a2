"""The real openai SDK against the emulated server."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from gateway.emulator.scenario import wav
from gateway.emulator.server import EmulatedServer
from tests.emulator.helpers import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def client(server: EmulatedServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_chat(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=7)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 7)
    stream = await client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


async def test_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="tiny", prompt="a b c", max_tokens=4)
    stream = await client.completions.create(model="tiny", prompt="a b c", max_tokens=4, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_responses(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="tiny", input="a b c", max_output_tokens=4)
    stream = await client.responses.create(model="tiny", input="a b c", max_output_tokens=4, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


async def test_embeddings(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="tiny", input=["a b", "c"])
    assert [item.embedding.index(1.0) for item in answer.data] == [2, 1]


async def test_transcriptions(client: openai.AsyncOpenAI, server: EmulatedServer) -> None:
    whole = await client.audio.transcriptions.create(model="tiny", file=("clip.wav", wav(4.0)))
    assert len(whole.text.split()) == 10  # 2.5 words a second
    assert whole.usage is not None
    assert whole.usage.type == "duration"
    assert whole.usage.seconds == 4
    stream = await client.audio.transcriptions.create(model="tiny", file=("clip.wav", wav(4.0)), stream=True)
    chunks = [chunk.model_extra or {} async for chunk in stream]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text.split() == whole.text.split()
    counted = await client.audio.transcriptions.create(
        model="tiny", file=("clip.wav", wav(4.0)), stream=True, extra_body={"stream_include_usage": True}
    )
    *_, last = [chunk.model_extra or {} async for chunk in counted]
    assert last["usage"] == {"prompt_tokens": 52, "total_tokens": 62, "completion_tokens": 10}
    assert server.state()["finished"] == 3


async def test_errors_are_the_sdks_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        await client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        await client.completions.create(model="tiny", prompt="a " * 3000)


async def test_a_cancelled_call_frees_the_engine(slow_server: EmulatedServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{slow_server.url}/v1", api_key="none") as client:
        call = asyncio.create_task(client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=9))
        await until(slow_server, running=1)
        call.cancel()
        await until(slow_server, running=0, aborted=1)


async def test_the_synchronous_client(server: EmulatedServer) -> None:
    def call() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=7)
            stream = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=7, stream=True)
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    whole, streamed = await asyncio.to_thread(call)
    assert whole == streamed
