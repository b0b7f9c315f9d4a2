"""Canaries: what is asked, of whom, and what is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import pytest

from gateway.model import Backend
from gateway.proxy.canary import Canaries, CanaryPlan
from gateway.proxy.server import Gateway
from gateway.proxy.upstream import Upstream
from tests.proxy.helpers import (
    ConstantEstimator,
    CountingController,
    Message,
    Peer,
    ScriptedBackend,
    StartBackend,
    always,
    proxy_config,
    reply,
    wait_until,
)
from tests.real.process import free_port

JSON = [("Content-Type", "application/json")]
PROMPTS = ("one?", "two?")
MODELS = b'{"data": [{"id": "qwen"}]}'


def completion(**message: object) -> bytes:
    return orjson.dumps({"choices": [{"message": {"role": "assistant", **message}}]})


def engine_that_says(*answers: bytes) -> Callable[[Peer, Message], object]:
    """Names its model, and gives one answer after the other, the last one for ever."""
    left = list(answers)

    async def script(peer: Peer, message: Message) -> None:
        if message.start.startswith("GET"):
            await peer.send(reply(MODELS, headers=JSON))
        else:
            await peer.send(reply(left.pop(0) if len(left) > 1 else left[0], headers=JSON))

    return script


class Compared:
    def __init__(self, *, alike: bool = True) -> None:
        self.taken: list[tuple[str, int, str]] = []
        self.alike = alike

    def __call__(self, backend: str, number: int, answer: str) -> bool:
        self.taken.append((backend, number, answer))
        return self.alike


def canaries(
    compare: Compared, engine: ScriptedBackend | str, *, out: bool = False, interval: float = 0.001, **backend: object
) -> tuple[Canaries, Upstream]:
    url = engine if isinstance(engine, str) else engine.url
    upstream = Upstream(Backend("a", url, **backend), proxy_config(connect_timeout=0.2))  # type: ignore[arg-type]
    plan = CanaryPlan(interval, PROMPTS, compare)
    return Canaries(plan, {"a": upstream}, lambda _name: out), upstream


async def test_it_asks_at_temperature_0_under_the_engine_s_own_model(backend: StartBackend) -> None:
    engine, compared = await backend(engine_that_says(completion(content="yes"))), Compared()  # type: ignore[arg-type]
    sender, upstream = canaries(compared, engine, api_key="secret")
    assert await sender.check(upstream, 1)
    question = engine.requests[-1]
    assert question.start == "POST /v1/chat/completions HTTP/1.1"
    assert question.get("Authorization") == "Bearer secret"
    assert orjson.loads(question.body) == {
        "model": "qwen",
        "messages": [{"role": "user", "content": "two?"}],
        "temperature": 0,
        "max_tokens": 32,
        "stream": False,
    }
    assert compared.taken == [("a", 1, "yes")]


async def test_a_configured_model_is_asked_for_without_a_look_at_the_list(backend: StartBackend) -> None:
    engine, compared = await backend(always(reply(completion(content="yes"), headers=JSON))), Compared()
    sender, upstream = canaries(compared, engine, models=("llama", "other"))
    assert await sender.check(upstream, 0)
    assert [orjson.loads(each.body)["model"] for each in engine.requests] == ["llama"]


async def test_an_engine_without_a_list_of_models_is_asked_for_none(backend: StartBackend) -> None:
    engine, compared = await backend(always(reply(completion(content="yes"), headers=JSON))), Compared()
    sender, upstream = canaries(compared, engine)
    assert await sender.check(upstream, 0)
    assert "model" not in orjson.loads(engine.requests[-1].body)


async def test_thoughts_count_as_words(backend: StartBackend) -> None:
    thinking = completion(reasoning_content="hm, ", content=None)
    engine, compared = await backend(engine_that_says(thinking)), Compared()  # type: ignore[arg-type]
    sender, upstream = canaries(compared, engine)
    await sender.check(upstream, 0)
    assert compared.taken == [("a", 0, "hm, ")]


async def test_an_answer_that_differs_is_asked_for_once_more(backend: StartBackend) -> None:
    engine = await backend(engine_that_says(completion(content="no"), completion(content="never")))  # type: ignore[arg-type]
    compared = Compared(alike=False)
    sender, upstream = canaries(compared, engine)
    assert await sender.check(upstream, 0)
    assert [answer for _, _, answer in compared.taken] == ["no", "never"]


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [
        (reply(b'{"error": "busy"}', "503 Service Unavailable", JSON), True),
        (reply(b"not JSON", headers=JSON), True),
        (reply(b'{"choices": []}', headers=JSON), True),
        (reply(b'{"choices": [{"message": null}]}', headers=JSON), True),
        (reply(b'{"detail": "Not Found"}', "404 Not Found", JSON), False),
        (reply(b'{"error": "no chat template"}', "400 Bad Request", JSON), False),
    ],
)
async def test_what_is_no_answer_is_not_compared(backend: StartBackend, answer: bytes, spoken: bool) -> None:
    engine, compared = await backend(always(answer)), Compared()
    sender, upstream = canaries(compared, engine, models=("llama",))
    assert await sender.check(upstream, 0) is spoken
    assert compared.taken == []


async def test_silence_is_not_compared(backend: StartBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.canary.PATIENCE", 0.01)

    async def silent(_peer: Peer, _message: Message) -> None:
        await asyncio.sleep(3600.0)

    compared = Compared()
    sender, upstream = canaries(compared, await backend(silent), models=("llama",))
    assert await sender.check(upstream, 0)
    sender, upstream = canaries(compared, f"http://127.0.0.1:{free_port()}")
    assert await sender.check(upstream, 0)
    assert compared.taken == []


async def test_prompts_are_asked_in_turn(backend: StartBackend) -> None:
    engine, compared = await backend(engine_that_says(completion(content="yes"))), Compared()  # type: ignore[arg-type]
    sender, _ = canaries(compared, engine)
    sender.start()
    await wait_until(lambda: len(compared.taken) >= 3)
    await sender.stop()
    assert [number for _, number, _ in compared.taken[:3]] == [0, 1, 0]


async def test_an_engine_that_does_not_speak_chat_is_asked_once(
    backend: StartBackend, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await backend(always(reply(b"{}", "404 Not Found", JSON)))
    sender, _ = canaries(Compared(), engine, models=("bge-m3",))
    with caplog.at_level("INFO"):
        sender.start()
        await wait_until(lambda: all(task.done() for task in sender._tasks))
    assert len(engine.requests) == 1
    assert "backend a does not speak chat: it gets no canaries" in caplog.text


async def test_a_backend_that_is_out_is_left_alone(backend: StartBackend) -> None:
    engine = await backend(engine_that_says(completion(content="yes")))  # type: ignore[arg-type]
    sender, _ = canaries(Compared(), engine, out=True)
    sender.start()
    await asyncio.sleep(0.02)
    await sender.stop()
    assert engine.requests == []


async def test_a_fault_of_the_gateway_s_own_is_logged_and_the_next_canary_sent(
    backend: StartBackend, caplog: pytest.LogCaptureFixture
) -> None:
    engine, calls = await backend(engine_that_says(completion(content="yes"))), 0  # type: ignore[arg-type]

    def broken(_backend: str, _number: int, _answer: str) -> bool:
        nonlocal calls
        calls += 1
        raise RuntimeError("planted")

    upstream = Upstream(Backend("a", engine.url), proxy_config())
    sender = Canaries(CanaryPlan(0.001, PROMPTS, broken), {"a": upstream}, lambda _name: False)
    sender.start()
    await wait_until(lambda: calls >= 2)
    await sender.stop()
    assert "the canary to backend a failed inside the gateway" in caplog.text


async def test_the_gateway_sends_them_from_its_start_to_its_end(backend: StartBackend) -> None:
    engine, compared = await backend(engine_that_says(completion(content="yes"))), Compared()  # type: ignore[arg-type]
    plan = CanaryPlan(0.001, PROMPTS, compared)
    controller = CountingController(["a"])
    house = Gateway(proxy_config(), [Backend("a", engine.url)], controller, ConstantEstimator(), (), plan)
    await house.start()
    await wait_until(lambda: len(compared.taken) >= 2)
    await house.stop()
    asked = len(compared.taken)
    await asyncio.sleep(0.02)
    assert len(compared.taken) == asked
