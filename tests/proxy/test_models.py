"""Several models over several backends: who is asked, and the one list of all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from gateway.model import Backend
from gateway.proxy.config import ProbeConfig
from tests.proxy.helpers import (
    CHAT,
    GUARD,
    House,
    Message,
    Peer,
    Script,
    ScriptedBackend,
    StartBackend,
    always,
    open_house,
    reply,
    request,
    wait_until,
)
from tests.real.process import free_port

PROBED = ProbeConfig(interval=0.01, timeout=GUARD, models_interval=0.01)


def listing(*models: str, owner: str = "vllm") -> bytes:
    data = [{"id": name, "object": "model", "owned_by": owner} for name in models]
    return reply(json.dumps({"object": "list", "data": data}).encode())


def serving(*models: str, owner: str = "vllm") -> Script:
    """Answers the list of its models, and everything else with its own name (the first model)."""

    async def answer(peer: Peer, message: Message) -> None:
        if message.target == "/v1/models":
            await peer.send(listing(*models, owner=owner))
        else:
            await peer.send(reply(json.dumps({"by": models[0]}).encode()))

    return answer


async def serve(backend: StartBackend, *models: str, owner: str = "vllm") -> ScriptedBackend:
    engine = await backend(serving(*models, owner=owner))
    engine.probe_script = engine.script
    return engine


def ask(model: str) -> bytes:
    return request(body=CHAT.replace(b'"m"', json.dumps(model).encode()))


async def test_the_prober_tells_admission_what_each_engine_serves(backend: StartBackend) -> None:
    one, two = await serve(backend, "m", "lora"), await serve(backend, "n")
    async with open_house(one, two, probe=PROBED) as house:
        await wait_until(lambda: house.controller.models == {"a": ["m", "lora"], "b": ["n"]})
        one.probe_script = serving("m")  # the adapter was unloaded
        await wait_until(lambda: house.controller.models["a"] == ["m"])


@pytest.mark.parametrize("answer", [reply(b"", "404 Not Found", ()), reply(b"no json"), listing()])
async def test_an_engine_that_no_longer_says_it_is_believed_as_before(backend: StartBackend, answer: bytes) -> None:
    engine = await serve(backend, "m")
    async with open_house(engine, probe=PROBED) as house:
        await wait_until(lambda: house.controller.models)
        engine.probe_script = always(answer)
        seen = len(engine.probes)
        await wait_until(lambda: len(engine.probes) > seen + 6)
        assert house.controller.models == {"a": ["m"]}


async def test_an_engine_that_serves_any_name_is_not_chosen_by_names(backend: StartBackend) -> None:
    engine = await serve(backend, "model.gguf", owner="llamacpp")
    async with open_house(Backend("a", engine.url, kind="llamacpp"), probe=PROBED) as house:
        await wait_until(lambda: sum(probe.target == "/v1/models" for probe in engine.probes) > 2)
        assert house.controller.models == {"a": []}


async def test_an_engine_that_is_not_known_yet_is_not_chosen_by_names(backend: StartBackend) -> None:
    """It may turn out to be one that serves any name: TGI's list does not say whose it is."""
    engine = await serve(backend, "m", owner="someone")
    listed = engine.probe_script

    async def busy(peer: Peer, message: Message) -> None:
        await (mute if message.target == "/info" else listed)(peer, message)

    engine.probe_script = busy
    probe = ProbeConfig(interval=0.01, timeout=0.05, models_interval=0.01)
    async with open_house(Backend("a", engine.url, kind="auto"), probe=probe) as house:
        await wait_until(lambda: sum(probe.target == "/info" for probe in engine.probes) > 1)
        assert house.controller.models == {}
        engine.probe_script = listed
        await wait_until(lambda: house.controller.models == {"a": ["m"]})


async def test_it_can_be_switched_off(backend: StartBackend) -> None:
    engine = await serve(backend, "m")
    probe = ProbeConfig(interval=0.01, timeout=GUARD, models_interval=None)
    async with open_house(Backend("a", engine.url, kind="vllm"), probe=probe) as house:
        await wait_until(lambda: len(engine.probes) > 6)
        assert all(probe.target != "/v1/models" for probe in engine.probes)
        assert house.controller.models == {}
        assert told(house) == {}, "nothing is left to wait for"


def told(house: House) -> Mapping[str, int | None] | None:
    """What the one engine said of its models, as the state has it."""
    (backend,) = house.gateway.state().backends
    assert backend.engine is not None
    return backend.engine.models


async def test_the_state_says_whether_an_engine_was_asked_and_what_it_said(backend: StartBackend) -> None:
    go = asyncio.Event()

    async def slow(peer: Peer, message: Message) -> None:
        if message.target == "/v1/models":
            await go.wait()
        await peer.send(reply(b"{}") if message.target == "/v1/models" else reply())

    engine = await serve(backend, "m")
    engine.probe_script = slow
    async with open_house(Backend("a", engine.url, kind="vllm"), probe=PROBED) as house:
        await wait_until(lambda: any(probe.target == "/v1/models" for probe in engine.probes))
        assert told(house) is None, "it has not answered"
        go.set()
        await wait_until(lambda: told(house) == {})
        engine.probe_script = engine.script
        await wait_until(lambda: told(house) == {"m": None})
        engine.probe_script = slow
        asked = len(engine.probes)
        await wait_until(lambda: len(engine.probes) > asked + 9)
        assert told(house) == {"m": None}, "what it said before stands"


async def test_one_list_of_all_models_and_each_once(backend: StartBackend) -> None:
    one, two = await serve(backend, "m", "both"), await serve(backend, "both", "n")
    async with open_house(one, two) as house:
        answer = await house.ask(request("GET", "/v1/models", length=False))
        assert answer.status == 200
        document = json.loads(answer.body)
        assert document["object"] == "list"
        assert sorted(card["id"] for card in document["data"]) == ["both", "m", "n"]
        assert {card["owned_by"] for card in document["data"]} == {"vllm"}, "cards are the engines' own"


async def mute(peer: Peer, _message: Message) -> None:
    await peer.ended()


@pytest.mark.parametrize(
    "trouble",
    ["refused", "silent", "closed", reply(b"{}", "500 Oops"), reply(b"[]"), reply(b"no json"), b"no http\r\n"],
)
async def test_an_engine_in_trouble_never_breaks_the_list(backend: StartBackend, trouble: str | bytes) -> None:
    async def close(peer: Peer, _message: Message) -> None:
        peer.close()

    scripts: dict[str | bytes, Script] = {"silent": mute, "closed": close}
    script = scripts.get(trouble) or always(trouble if isinstance(trouble, bytes) else b"")
    bad = f"http://127.0.0.1:{free_port()}" if trouble == "refused" else (await backend(script)).url
    good = await serve(backend, "m")
    async with open_house(bad, good, models_timeout=0.5) as house:
        answer = await house.ask(request("GET", "/v1/models", length=False))
        assert answer.status == 200
        assert [card["id"] for card in json.loads(answer.body)["data"]] == ["m"]


async def test_where_no_engine_has_a_list_one_speaks_for_itself(backend: StartBackend) -> None:
    denied = await backend(always(reply(b'{"error":"no key"}', "401 Unauthorized")))
    dead = f"http://127.0.0.1:{free_port()}"
    async with open_house(denied, dead) as house:
        answer = await house.ask(request("GET", "/v1/models", length=False))
        assert (answer.status, answer.body) == (401, b'{"error":"no key"}')


@pytest.mark.parametrize("model", ["n", "org/n", "a%20b"])
async def test_a_card_is_asked_of_the_engine_that_has_the_model(backend: StartBackend, model: str) -> None:
    one, two = await serve(backend, "m"), await serve(backend, model.replace("%20", " "))
    async with open_house(one, two, probe=PROBED) as house:
        await wait_until(lambda: len(house.controller.models) == 2)
        for _ in range(4):
            answer = await house.ask(request("GET", f"/v1/models/{model}", length=False))
            assert json.loads(answer.body) == {"by": model.replace("%20", " ")}
        assert one.requests == []


async def test_an_unknown_model_goes_on_for_an_engine_to_judge(backend: StartBackend) -> None:
    engine = await serve(backend, "m")
    engine.script = always(reply(b'{"error":{"code":404}}', "404 Not Found"))
    async with open_house(engine, probe=PROBED) as house:
        await wait_until(lambda: house.controller.models)
        assert (await house.ask(ask("unknown"))).status == 404
        assert len(engine.requests) == 1
