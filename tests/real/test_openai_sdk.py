"""The real ``openai`` SDK works as well through the gateway as without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.real.cases import LONG_TEXT
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually
from tests.real.tiny_model import HIDDEN

pytestmark = pytest.mark.real

MODEL: Final = "tiny"
PROMPT: Final = "Say what 世界 is."
MESSAGES: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": PROMPT}]
CAP: Final = 16


def connected(port: int) -> dict[str, Any]:
    """What both clients are made with."""
    return {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "any", "max_retries": 0}


@pytest.fixture
def client(served: int) -> Iterator[OpenAI]:
    with OpenAI(**connected(served)) as made:
        yield made


@pytest.fixture
async def async_client(served: int) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(**connected(served)) as made:
        yield made


def test_chat(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=CAP)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == CAP
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=CAP,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == CAP


def test_completions(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=CAP)
    stream = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=CAP, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text != ""


def test_responses(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=PROMPT, temperature=0, max_output_tokens=CAP)
    stream = client.responses.create(model=MODEL, input=PROMPT, temperature=0, max_output_tokens=CAP, stream=True)
    events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"


def test_embeddings(client: OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=["hello", PROMPT])
    assert [len(item.embedding) for item in answer.data] == [HIDDEN, HIDDEN]


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_errors_map_to_the_classes_of_the_sdk(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"exceeds the available context size") as too_long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG_TEXT}])
    assert too_long.value.type == "exceed_context_size_error"
    with pytest.raises(openai.NotFoundError, match="File Not Found"):
        client.images.generate(model=MODEL, prompt="a cat")
    with pytest.raises(openai.InternalServerError, match="does not support reranking") as reranking:
        client.post("/rerank", cast_to=object, body={"model": MODEL, "query": "a", "documents": ["b"]})
    assert reranking.value.status_code == 501


def test_an_error_before_a_stream_is_no_stream(client: OpenAI) -> None:
    """P27 (vllm-project/vllm-ascend#12166)."""
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG_TEXT}], stream=True)


async def test_async_chat(async_client: AsyncOpenAI) -> None:
    whole = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=CAP)
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=CAP, stream=True
    )
    said = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(said) == whole.choices[0].message.content != ""


async def test_async_responses_and_models(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model=MODEL, input=PROMPT, temperature=0, max_output_tokens=CAP)
    assert response.output_text
    assert [model.id async for model in async_client.models.list()] == [MODEL]


async def test_async_errors(async_client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        await async_client.completions.create(model=MODEL, prompt=LONG_TEXT, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_headers_that_the_sdk_shows(stream: bool, gateway: GatewayProcess) -> None:
    with OpenAI(**connected(gateway.port)) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_tokens=CAP, stream=stream
        )
        assert raw.headers["server-timing"]
        assert raw.request_id == raw.headers["x-request-id"]
        parsed = raw.parse()
        if stream:
            assert list(parsed)
    eventually(lambda: len(gateway.logged(raw.headers["x-request-id"])) == 1, "the request is in the access log")


def test_a_stream_that_the_caller_breaks_off(gateway: GatewayProcess) -> None:
    with (
        OpenAI(**connected(gateway.port)) as client,
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=100_000, stream=True) as stream,
    ):
        assert next(stream).choices
    eventually(lambda: gateway.running() == 0, "the permit is back")


def test_a_timeout_of_the_caller(gateway: GatewayProcess) -> None:
    with OpenAI(**connected(gateway.port), timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1000)
    eventually(lambda: gateway.running() == 0, "the permit is back")
