"""What the emulated server refuses, in the very words of vLLM 0.32."""

from typing import Any

import aiohttp
import pytest

from gateway.emulator.server import EmulatedServer

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def error(message: str, kind: str, param: str | None, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        (
            CHAT,
            HELLO | {"model": "nope"},
            404,
            error("The model `nope` does not exist. Valid aliases: tiny.", "NotFoundError", "model", 404),
        ),
        (
            CHAT,
            {"model": "tiny"},
            400,
            error(
                "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required',"
                " 'input': '<dict of 1 items>'}",
                "Bad Request",
                "body.messages",
                400,
            ),
        ),
        (
            CHAT,
            {"model": "tiny", "messages": "hello", "max_tokens": 2},
            400,
            error(
                "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid"
                " list', 'input': 'hello'}",
                "Bad Request",
                "body.messages",
                400,
            ),
        ),
        (
            CHAT,
            HELLO | {"max_tokens": 0},
            400,
            error(
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
                "BadRequestError",
                "max_tokens",
                400,
            ),
        ),
        (
            CHAT,
            HELLO | {"max_tokens": 100_000},
            400,
            error(
                "max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens."
                " (parameter=max_tokens, value=100000)",
                "BadRequestError",
                "max_tokens",
                400,
            ),
        ),
        (
            CHAT,
            HELLO | {"stream_options": {"include_usage": True}},
            400,
            error(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "BadRequestError",
                "stream_options",
                400,
            ),
        ),
        (
            CHAT,
            HELLO | {"n": 0.5},
            400,
            error("n must be at least 1, got 0.5. (parameter=n, value=0.5)", "BadRequestError", "n", 400),
        ),
        (
            "/v1/embeddings",
            {"model": "tiny", "input": "a " * 2049},
            400,
            error(
                "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input"
                " tokens, which exceeds this limit even without any output tokens. Please reduce the length of the"
                " input prompt. (parameter=input_tokens, value=2049)",
                "BadRequestError",
                "input_tokens",
                400,
            ),
        ),
        (
            "/v1/rerank",
            {"model": "tiny", "query": "q", "documents": "d"},
            400,
            error(
                "1 validation error:\n  {'type': 'list_type', 'loc': 'body.documents', 'msg': 'Input should be a valid"
                " list', 'input': 'd'}",
                "Bad Request",
                "body.documents",
                400,
            ),
        ),
        ("/v1/nope", {}, 404, {"detail": "Not Found"}),
        ("/health", {}, 405, {"detail": "Method Not Allowed"}),
    ],
    ids=[
        "model",
        "no messages",
        "messages no list",
        "max_tokens 0",
        "max_tokens over",
        "stream options",
        "n",
        "too long",
        "documents no list",
        "path",
        "method",
    ],
)
async def test_a_refusal(
    server: EmulatedServer,
    session: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    status: int,
    expected: dict[str, Any],
) -> None:
    async with session.post(server.url + path, json=body) as response:
        assert (response.status, await response.json()) == (status, expected)
    assert server.state()["finished"] == server.state()["running"] == 0


@pytest.mark.parametrize(
    ("content_type", "body", "param", "said"),
    [
        ("application/json", b"", "body", "'loc': 'body', 'msg': 'Field required', 'input': 'None'"),
        ("application/json", b'{"model": ', "body.10", "'type': 'json_invalid', 'loc': 'body.10'"),
        ("application/json", b"[]", "body", "'type': 'dict_type'"),
        ("text/plain", b"{}", None, "Unsupported Media Type: Only 'application/json' is allowed"),
    ],
    ids=["empty", "half", "list", "type"],
)
async def test_a_body_that_is_no_json_object(
    server: EmulatedServer,
    session: aiohttp.ClientSession,
    content_type: str,
    body: bytes,
    param: str | None,
    said: str,
) -> None:
    async with session.post(server.url + CHAT, data=body, headers={"Content-Type": content_type}) as response:
        answer = await response.json()
    assert response.status == 400
    assert said in answer["error"]["message"]
    assert answer["error"]["type"] == "Bad Request"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize("form", [{"model": "tiny"}, {}], ids=["no file", "no boundary"])
async def test_a_form_without_audio(
    server: EmulatedServer, session: aiohttp.ClientSession, form: dict[str, str]
) -> None:
    data = aiohttp.MultipartWriter("form-data")
    for name, value in form.items():
        data.append(value).set_content_disposition("form-data", name=name)
    kind = data.content_type if form else "multipart/form-data"
    async with session.post(
        f"{server.url}/v1/audio/transcriptions", data=data if form else b"x", headers={"Content-Type": kind}
    ) as response:
        assert response.status == 400
        assert "Field required" in await response.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_a_503_before_any_stream(
    slow_server: EmulatedServer, session: aiohttp.ClientSession, stream: bool
) -> None:
    ask = HELLO | {"max_tokens": 5, "stream": True}
    running = [await session.post(slow_server.url + CHAT, json=ask) for _ in range(4)]
    assert [response.status for response in running] == [200] * 4
    async with session.post(slow_server.url + CHAT, json=ask | {"stream": stream}) as response:
        assert response.status == 503
        assert response.headers["Content-Type"] == "application/json"
        assert "Retry-After" not in response.headers
        assert await response.json() == error(
            "The engine is currently busy and cannot accept new requests. Please try again later or on a different"
            " instance.",
            "Service Unavailable",
            None,
            503,
        )
    for response in running:
        response.close()


async def test_a_request_of_two_answers_is_refused_whole(
    slow_server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    first = await session.post(slow_server.url + CHAT, json=HELLO | {"max_tokens": 5, "stream": True, "n": 3})
    assert first.status == 200
    async with session.post(slow_server.url + CHAT, json=HELLO | {"max_tokens": 5, "n": 2}) as response:
        assert response.status == 503
    state = slow_server.state()
    assert state["running"] + state["waiting"] == 3  # the one that would have fitted is out again
    first.close()
