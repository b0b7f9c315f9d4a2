"""What the SDKs make of keys: the class of each error, and what they read of it."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import anthropic
import openai
import pytest

from gateway.settings.keys import hashed
from tests.app.house import House, engine
from tests.proxy.helpers import Message, Peer, reply

KEY = "sk-first-0123456789abcdef"
WRONG = "sk-wrong-0123456789abcdef"
CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
MESSAGE = {
    "id": "x",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


async def script(peer: Peer, message: Message) -> None:
    await peer.send(reply(json.dumps(MESSAGE if "messages" in message.target else CHAT).encode()))


def terms(**more: object) -> str:
    return json.dumps([{"name": "team", "keys": hashed(KEY), "models": ["m"], **more}])


async def test_openai(tmp_path: Path) -> None:
    async with (
        engine(script) as one,
        House(tmp_path, backends=one.url, api_keys=terms(requests_per_minute=1)).open() as house,
    ):
        url = f"{house.service.gateway.url}/v1"

        async def ask(key: str, model: str = "m") -> str | None:
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
                answer = await client.chat.completions.with_raw_response.create(
                    model=model, messages=[{"role": "user", "content": "hi"}]
                )
                assert answer.headers["x-ratelimit-remaining-requests"] == "0"
                return answer.parse().choices[0].message.content

        with pytest.raises(openai.AuthenticationError) as wrong:
            await ask(WRONG)
        assert (wrong.value.code, wrong.value.type) == ("invalid_api_key", "authentication_error")
        with pytest.raises(openai.PermissionDeniedError) as denied:
            await ask(KEY, "other")
        assert denied.value.code == "model_not_allowed"
        assert await ask(KEY) == "hello"
        with pytest.raises(openai.RateLimitError) as limited:
            await ask(KEY)
        assert limited.value.code == "rate_limit_exceeded"
        assert 55_000 < float(limited.value.response.headers["retry-after-ms"]) <= 60_000
        assert len(one.requests) == 1


async def test_a_wrong_key_is_not_tried_again(tmp_path: Path) -> None:
    async with engine(script) as one, House(tmp_path, backends=one.url, api_keys=terms()).open() as house:
        url = f"{house.service.gateway.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=WRONG, max_retries=5) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with aiohttp.ClientSession() as session, session.get(f"{house.service.admin_url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert sum(float(line.split()[-1]) for line in lines if line.startswith("gateway_requests_total{")) == 1


async def test_anthropic(tmp_path: Path) -> None:
    async with (
        engine(script) as one,
        House(tmp_path, backends=one.url, api_keys=terms(max_in_flight=1)).open() as house,
    ):

        async def ask(**key: str) -> str:
            async with anthropic.AsyncAnthropic(base_url=house.service.gateway.url, max_retries=0, **key) as client:  # type: ignore[arg-type]
                answer = await client.messages.create(
                    model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
                )
                (block,) = answer.content
                return block.text if block.type == "text" else ""

        with pytest.raises(anthropic.AuthenticationError) as wrong:
            await ask(api_key=WRONG)
        assert isinstance(wrong.value.body, dict)
        assert wrong.value.body["error"]["type"] == "authentication_error"
        assert await ask(api_key=KEY) == "hello"
        assert await ask(auth_token=KEY) == "hello"
        assert all(message.get("x-api-key") is None for message in one.requests)
