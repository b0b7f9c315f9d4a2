"""The real vLLM, directly and through the gateway: the same answers, and the same crowd. ``make test-vllm`` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.real.cases import ANSWERS, ERRORS, LONG_TEXT, STREAM, USAGE, chat, completion, message, response
from tests.real.conftest import kept, running_gateway
from tests.real.crowd import HEAD, Crowd, crowd
from tests.real.gateway import GatewayProcess
from tests.real.hf_model import write_hf_model
from tests.real.process import eventually, free_port
from tests.real.same_bytes import comparable_body, comparable_headers, framing
from tests.real.vllm_cpu import READY, START, VllmServer, serve
from tests.real.wire import Reply, Request, exchange

pytestmark = [pytest.mark.real, pytest.mark.vllm, pytest.mark.timeout(1200)]

SEQUENCES: Final = 4  # that run in the engine at once
CROWD: Final = 300
TOKENS: Final = 128  # of each answer
OBJECTIVE: Final = 4.0  # seconds of TTFT

CASES: Final[dict[str, Request]] = {
    **ANSWERS,
    **ERRORS,
    "chat, thinking of nothing": chat({"messages": []}),
    "chat, unknown model": chat({"model": "no-such-model"}),
    "chat, unknown model, streamed": chat(STREAM, {"model": "no-such-model"}),
    "completion, echoed": completion({"echo": True, "max_tokens": 3}),
    "completion, best of none": completion({"n": 0}),
    "tokenize, vLLM's own": Request("POST", "/tokenize", {"model": "tiny", "prompt": "the world 你好"}),
    "detokenize, vLLM's own": Request("POST", "/detokenize", {"model": "tiny", "tokens": [300, 301]}),
    "version": Request("GET", "/version"),
}
SURELY_TOO_LONG: Final = ("too long", "too long, streamed", "too long a message", "too long a response, streamed")
ANSWERED: Final = (
    *("chat", "chat, streamed", "chat, streamed with usage", "chat, usage in every chunk"),
    *("chat, log probabilities", "chat, streamed log probabilities", "chat, unusual white space"),
    *("completion", "completion, streamed", "completion, several prompts", "completion, prompt of tokens"),
    *("message", "message, streamed", "response", "response, streamed", "models", "health", "version"),
    *("tokenize, vLLM's own", "detokenize, vLLM's own", "completion, echoed"),
)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM with a tiny random model."""
    assert READY.exists(), "vLLM is not installed: run `make test-vllm`"
    folder = tmp_path_factory.mktemp("vllm")
    write_hf_model(folder / "tiny")
    port = free_port()
    program = serve(folder / "tiny", port, folder / "log", sequences=SEQUENCES)
    with kept(program):
        program.wait_until_ready(port, "/health", START)
        exchange(port, chat())  # the first answer of a new server takes longer
        yield VllmServer(port)


@pytest.fixture(scope="module")
def before_vllm(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of which only the backend is set."""
    with running_gateway(tmp_path_factory.mktemp("before_vllm"), backends=vllm.url) as process:
        yield process


def events(reply: Reply) -> list[Any]:
    """The events of a stream in their order; neighbours that carry text alone are joined.

    vLLM joins the tokens that wait for its writer into one event, directly as well as through the gateway.
    """
    joined: list[Any] = []
    for event in filter(None, comparable_body(reply).decode().split("\n\n")):
        data = event.partition("data: ")[2]
        frame, text = without_text(json.loads(data.replace("INSTANT", "0"))) if data.startswith("{") else (event, None)
        if joined and text is not None and joined[-1][0] == frame:
            joined[-1] = (frame, joined[-1][1] + text)
        else:
            joined.append((frame, text))
    return joined


def without_text(event: Any) -> tuple[Any, str | None]:
    """(what stands around the text, the text); None where the event has none."""
    event.pop("sequence_number", None)  # of the Responses API: it counts the deltas
    choices = event.get("choices")
    if isinstance(event.get("delta"), str):
        return event, event.pop("delta")
    if isinstance(event.get("delta"), dict) and isinstance(event["delta"].get("text"), str):
        return event, event["delta"].pop("text")
    if isinstance(choices, list) and len(choices) == 1 and not event.get("usage"):
        holder = choices[0].get("delta", choices[0])
        name = "content" if "content" in holder else "text"
        if isinstance(holder.get(name), str) and not choices[0].get("logprobs"):
            return event, holder.pop(name)
    return event, None


def assert_same(through: Reply, direct: Reply) -> None:
    assert through.status == direct.status
    assert [*map(undated, comparable_headers(through))] == [*map(undated, comparable_headers(direct))]
    assert framing(through) == framing(direct)
    if (direct.header("content-type") or "").startswith("text/event-stream"):
        assert events(through) == events(direct)
        assert through.body.endswith(direct.body[-14:])
    else:
        assert comparable_body(through) == comparable_body(direct)


def undated(header: tuple[str, str]) -> tuple[str, str]:
    """The header, of a date its name only."""
    return (header[0], "") if header[0] == "date" else header


@pytest.mark.parametrize("name", [name for name in CASES if name not in SURELY_TOO_LONG])
def test_same_answer(name: str, vllm: VllmServer, before_vllm: GatewayProcess) -> None:
    direct, through = (exchange(port, CASES[name]) for port in (vllm.port, before_vllm.port))
    if name in ANSWERED:
        assert direct.status == 200, direct.body
    assert_same(through, direct)


@pytest.mark.parametrize("name", SURELY_TOO_LONG)
def test_what_cannot_fit_is_refused_at_the_door_as_the_engine_would(
    name: str, vllm: VllmServer, before_vllm: GatewayProcess
) -> None:
    direct, through = (exchange(port, CASES[name]) for port in (vllm.port, before_vllm.port))
    assert through.status == direct.status == 400
    assert through.json().keys() == direct.json().keys()
    for reply in (direct, through):
        assert b"maximum context length" in reply.body


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/chat/completions", "/v1/nothing"])
def test_other_methods(method: str, path: str, vllm: VllmServer, before_vllm: GatewayProcess) -> None:
    """P36 (envoyproxy/ai-gateway#965): a browser's question is the engine's to answer."""
    asked = (("Origin", "http://a.example"), ("Access-Control-Request-Method", "POST"))
    direct, through = (exchange(port, Request(method, path, headers=asked)) for port in (vllm.port, before_vllm.port))
    assert through.status == direct.status
    assert [*map(undated, comparable_headers(through))] == [*map(undated, comparable_headers(direct))]
    assert through.body == direct.body


@pytest.mark.parametrize("asked", [chat(USAGE), completion(USAGE), message(STREAM), response(STREAM)])
def test_the_gateway_counts_what_vllm_counts(asked: Request, before_vllm: GatewayProcess) -> None:
    """Streams of all four routes: what vLLM says of their tokens reaches the access log."""
    mark = f"count {asked.path}"
    named = Request(asked.method, asked.path, asked.body, (("X-Request-Id", mark),))
    assert exchange(before_vllm.port, named).status == 200
    eventually(lambda: len(before_vllm.logged(mark)) == 1, "the request is in the access log")
    (line,) = before_vllm.logged(mark)
    assert line["outcome"] == "completed"
    assert line["completion_tokens"] == 24
    assert 1 <= line["output_events"] <= 24


def test_the_sdk(vllm: VllmServer, before_vllm: GatewayProcess) -> None:
    said = []
    for port in (vllm.port, before_vllm.port):
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=0, max_tokens=16, stream=True
            )
            said.append("".join(chunk.choices[0].delta.content or "" for chunk in stream))
            with pytest.raises(BadRequestError, match="context length"):
                client.completions.create(model="tiny", prompt=LONG_TEXT)
            with pytest.raises(NotFoundError, match="does not exist"):
                client.completions.create(model="other", prompt="hi")
    assert said[0] == said[1] != ""


def question(turn: int, user: int, refusals: int) -> Request:
    """Never the same twice."""
    return completion(STREAM, {"prompt": f"run {turn}, user {user}, try {refusals}", "max_tokens": TOKENS})


async def measured(vllm: VllmServer, port: int, turn: int) -> Crowd:
    """A crowd at ``port``, and how full the engine's batch was meanwhile."""
    tokens, steps = vllm.work()
    run = await crowd(port, CROWD, partial(question, turn))
    eventually(lambda: vllm.busy() == 0, "the engine is idle again")
    after = vllm.work()
    return replace(run, tokens_per_step=(after[0] - tokens) / (after[1] - steps))


async def test_a_crowd(
    vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three hundred at once: whoever the gateway admits starts in time, and the engine is as full as without it."""
    folder = tmp_path_factory.mktemp("before_a_crowd")
    direct = await measured(vllm, vllm.port, 0)
    with running_gateway(folder, backends=vllm.url, ttft_objective=f"{OBJECTIVE:g}s") as gateway:
        first = await measured(vllm, gateway.port, 1)  # it knows nothing of the engine yet
        second = await measured(vllm, gateway.port, 2)
    with capsys.disabled():
        rows = (direct.row("direct"), first.row("gateway"), second.row("the same"))
        sys.stdout.write("\n".join(["", HEAD, *rows, ""]))
    assert len(direct.served) == len(first.served) == len(second.served) == CROWD
    assert direct.ttft_p99() > OBJECTIVE, "the engine is too fast for this crowd"
    assert max(first.ttfts() + second.ttfts()) <= OBJECTIVE
    assert min(first.tokens_per_step, second.tokens_per_step) >= 0.95 * direct.tokens_per_step
