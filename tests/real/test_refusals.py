"""What the gateway's 429 is to its clients: an error they know, at once, that ends their retries or times them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.real.cases import STREAM, chat, completion, lasting, message, response
from tests.real.conftest import one_at_a_time, running_gateway
from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import LlamaCpp
from tests.real.process import eventually
from tests.real.wire import Reply, Request, exchange, opened, sent

pytestmark = pytest.mark.real

SERIAL: Final = count()  # no two calls are alike: one that was refused before would count as a retry


@contextmanager
def taken(gateway: GatewayProcess) -> Iterator[None]:
    """Someone else's stream holds the one permit."""
    eventually(lambda: gateway.running() == gateway.waiting() == 0, "the gateway is idle")
    with opened(gateway.port, lasting("holds the permit", stream=True)) as (_, held):
        assert held.read1()
        yield


@dataclass(frozen=True)
class Attempt:
    """One try of the SDK, as its transport saw it."""

    answered: float  # seconds of the monotonic clock
    status: int
    headers: httpx2.Headers
    retry_count: str


class Attempts(list[Attempt]):
    """The tries of one client, oldest first."""

    after_each: Callable[[], None] | None = None

    def note(self, answer: httpx2.Response) -> None:
        """Take one answer."""
        count = answer.request.headers["x-stainless-retry-count"]
        self.append(Attempt(time.monotonic(), answer.status_code, answer.headers, count))
        if self.after_each:
            self.after_each()


@contextmanager
def watched(gateway: GatewayProcess, max_retries: int) -> Iterator[tuple[OpenAI, Attempts]]:
    """The SDK, and what its transport sees."""
    attempts = Attempts()
    transport = openai.DefaultHttpxClient(event_hooks={"response": [attempts.note]})
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=max_retries, http_client=transport) as client:
        yield client, attempts


def ask(client: OpenAI, *, stream: bool) -> Any:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"question {next(SERIAL)}"}]
    return client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, stream=stream)


def retry_after_ms(headers: httpx2.Headers) -> float:
    return float(headers["retry-after-ms"])


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_raises_its_rate_limit_error(stream: bool, impatient_gateway: GatewayProcess) -> None:
    """O04 (vllm-project/vllm#41250)."""
    with (
        taken(impatient_gateway),
        watched(impatient_gateway, max_retries=0) as (client, attempts),
        pytest.raises(openai.RateLimitError) as refused,
    ):
        ask(client, stream=stream)
    error = refused.value
    assert (error.status_code, error.type, error.code, error.param) == (429, "rate_limit_error", "slow_down", None)
    assert isinstance(error.body, dict)
    assert error.body["message"]
    assert len(attempts) == 1


async def test_the_async_sdk_raises_its_rate_limit_error(impatient_gateway: GatewayProcess) -> None:
    with taken(impatient_gateway):
        async with AsyncOpenAI(base_url=f"{impatient_gateway.url}/v1", api_key="any", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.completions.create(model="tiny", prompt=f"question {next(SERIAL)}", stream=True)
    assert (refused.value.type, refused.value.code) == ("rate_limit_error", "slow_down")


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_comes_back_when_told(stream: bool, impatient_gateway: GatewayProcess) -> None:
    shed_before = sum(impatient_gateway.series("gateway_shed_total").values())
    with (
        taken(impatient_gateway),
        watched(impatient_gateway, max_retries=1) as (client, attempts),
        pytest.raises(openai.RateLimitError),
    ):
        ask(client, stream=stream)
    assert [(attempt.status, attempt.retry_count) for attempt in attempts] == [(429, "0"), (429, "1")]
    told = retry_after_ms(attempts[0].headers) / 1000
    assert attempts[1].answered - attempts[0].answered >= told >= 1
    assert sum(impatient_gateway.series("gateway_shed_total").values()) == shed_before + 2


def test_a_caller_never_sees_what_a_retry_mends(impatient_gateway: GatewayProcess) -> None:
    with watched(impatient_gateway, max_retries=2) as (client, attempts), ExitStack() as other:
        other.enter_context(taken(impatient_gateway))
        attempts.after_each = other.close  # the other one leaves while the SDK waits
        assert ask(client, stream=False).usage.completion_tokens == 4
    assert [attempt.status for attempt in attempts] == [429, 200]


def test_in_lasting_overload_the_sdk_does_not_come_back(engine: LlamaCpp, tmp_path: Path) -> None:
    settings = {"backends": one_at_a_time(engine.url), "max_wait": "100ms", "overload_after": "0s"}
    with running_gateway(tmp_path, **settings) as gateway, taken(gateway):
        for number in range(3):
            assert exchange(gateway.port, lasting(f"one too many {number}", stream=True)).status == 429
        eventually(lambda: bool(gateway.state()["overloaded"]), "more comes than can go")
        with watched(gateway, max_retries=2) as (client, attempts), pytest.raises(openai.RateLimitError):
            ask(client, stream=True)
    assert [attempt.headers["x-should-retry"] for attempt in attempts] == ["false"]


REFUSED: Final = {
    "chat": chat(),
    "chat, streamed": chat(STREAM),
    "completion": completion(),
    "completion, streamed": completion(STREAM),
    "response": response(),
    "response, streamed": response(STREAM),
    "message": message(),
    "message, streamed": message(STREAM),
    "embeddings": Request("POST", "/v1/embeddings", {"model": "tiny", "input": "hello"}),
}


def assert_refusal(reply: Reply) -> None:
    """O24, O26 (openai/openai-python#3555, openai-node#1841): seconds are whole and in 1..60, milliseconds exact."""
    assert reply.status == HTTPStatus.TOO_MANY_REQUESTS
    assert (reply.header("content-type") or "").startswith("application/json")
    seconds, milliseconds = reply.header("retry-after") or "", reply.header("retry-after-ms") or ""
    assert seconds.isdecimal()
    assert 1 <= int(seconds) <= 60
    assert int(seconds) == math.ceil(float(milliseconds) / 1000)
    assert reply.header("x-request-id")


@pytest.mark.parametrize("name", REFUSED)
def test_every_route_refuses_in_its_own_shape(name: str, impatient_gateway: GatewayProcess) -> None:
    with taken(impatient_gateway):
        reply = exchange(impatient_gateway.port, REFUSED[name])
    assert_refusal(reply)
    body = reply.json()
    if "message" in name:
        assert body["type"] == "error"
        assert body["error"]["type"] in {"rate_limit_error", "overloaded_error"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}


def test_waits_differ_between_clients(impatient_gateway: GatewayProcess) -> None:
    with taken(impatient_gateway):
        told = {exchange(impatient_gateway.port, chat()).header("retry-after-ms") for _ in range(5)}
    assert len(told) > 1


def test_no_status_line_before_admission(impatient_gateway: GatewayProcess) -> None:
    """P49 (Neroued/ninfer#137): a stream whose time in the queue runs out is refused, not begun and left empty."""
    with (
        taken(impatient_gateway),
        closing(sent(impatient_gateway.port, chat(STREAM))) as connection,
        connection.getresponse() as answer,
    ):
        assert answer.status == HTTPStatus.TOO_MANY_REQUESTS
        assert "event-stream" not in answer.headers["content-type"]
        assert answer.read().startswith(b"{")


def test_a_queued_stream_starts_when_its_turn_comes(patient_gateway: GatewayProcess) -> None:
    with taken(patient_gateway):
        queued = sent(patient_gateway.port, chat(STREAM))
        eventually(lambda: patient_gateway.waiting() == 1, "it waits")
    with closing(queued), queued.getresponse() as answer:
        assert answer.status == HTTPStatus.OK
        assert answer.read().endswith(b"data: [DONE]\n\n")
