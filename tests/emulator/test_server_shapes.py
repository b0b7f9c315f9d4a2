"""The emulated server's bytes beside a real vLLM's: same status, headers, events and fields."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.emulator.server import EmulatedServer

CAPTURES = Path(__file__).parent.parent / "dialects" / "captures"

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 6}
TEXT = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 6}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ASK = {"model": "tiny", "input": "hello there", "max_output_tokens": 6}

CASES = [
    ("vllm/chat_nonstream", "/v1/chat/completions", CHAT),
    ("vllm/chat_stream", "/v1/chat/completions", CHAT | {"stream": True}),
    ("vllm/chat_stream_usage", "/v1/chat/completions", CHAT | USAGE),
    ("vllm/chat_n2", "/v1/chat/completions", CHAT | {"stream": True, "n": 2, "max_tokens": 3}),
    ("vllm/completion_nonstream", "/v1/completions", TEXT),
    ("vllm/completion_batch", "/v1/completions", TEXT | {"prompt": ["a b", "c d"], "max_tokens": 3}),
    ("vllm/completion_stream", "/v1/completions", TEXT | {"stream": True}),
    ("vllm/completion_stream_usage", "/v1/completions", TEXT | USAGE),
    ("vllm/responses", "/v1/responses", ASK),
    ("vllm/responses_stream", "/v1/responses", ASK | {"stream": True}),
    ("vllm/messages", "/v1/messages", CHAT),
    ("vllm/messages_stream", "/v1/messages", CHAT | {"stream": True}),
    ("vllm/err_toolong_stream", "/v1/chat/completions", CHAT | {"max_tokens": 2048, "stream": True}),
    ("vllm/err_unknownmodel_stream", "/v1/chat/completions", CHAT | {"model": "nope", "stream": True}),
    ("vllm_pooling/embeddings", "/v1/embeddings", {"model": "tiny", "input": "hello"}),
    ("vllm_pooling/embeddings_toolong", "/v1/embeddings", {"model": "tiny", "input": "a " * 3000}),
    ("vllm_pooling/rerank", "/v1/rerank", {"model": "tiny", "query": "q", "documents": ["a", "b"]}),
    ("vllm_pooling/score", "/v1/score", {"model": "tiny", "text_1": "q", "text_2": ["a", "b"]}),
]


def names(value: Any) -> Any:
    """Every field's name, those that hold null included."""
    if isinstance(value, dict):
        return {name: names(inner) for name, inner in value.items()}
    return [names(inner) for inner in value[:1] if isinstance(inner, dict)] if isinstance(value, list) else None


def events(body: str) -> list[tuple[str | None, Any]]:
    """(event name, fields) of a stream, each once: how many tokens, and whose goes first, does not matter."""
    found: list[tuple[str | None, Any]] = []
    for block in filter(None, body.split("\n\n")):
        match = re.fullmatch(r"(?:event: (\S+)\n)?data: (.*)", block.strip())
        assert match is not None, block
        data = match[2] if match[2] == "[DONE]" else names(orjson.loads(match[2]))
        event = (match[1], data)
        if event not in found:
            found.append(event)
    return found


def transcript(name: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of a recorded exchange with vLLM 0.32."""
    text = (CAPTURES / f"{name}.txt").read_text(encoding="utf-8")
    head, _, body = text[text.index("HTTP/1.1") :].partition("\n\n")
    lines = head.splitlines()
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    return int(lines[0].split()[1]), headers, re.sub(r"\n# time_total.*", "", body, flags=re.DOTALL)


@pytest.mark.parametrize(("name", "path", "body"), CASES, ids=[name for name, _, _ in CASES])
async def test_it_answers_as_vllm(
    server: EmulatedServer, session: aiohttp.ClientSession, name: str, path: str, body: dict[str, Any]
) -> None:
    status, headers, recorded = transcript(name)
    async with session.post(server.url + path, json=body) as response:
        answer = await response.text()
    assert response.status == status
    assert {key.lower() for key in response.headers} == set(headers)
    for header in ("content-type", "server", "vary", "transfer-encoding"):
        assert response.headers.get(header) == headers.get(header)
    if headers["content-type"].startswith("text/event-stream"):
        assert events(answer) == events(recorded)
    else:
        assert names(orjson.loads(answer)) == names(orjson.loads(recorded))


async def test_every_recorded_gauge_that_a_proxy_reads_is_there(
    server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    _, _, recorded = transcript("vllm/metrics_under_load")
    async with session.get(f"{server.url}/metrics") as response:
        ours = await response.text()
    assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "cache_config_info",
    ):
        theirs = re.findall(rf"^vllm:{name}\{{.*", recorded, re.MULTILINE)
        assert theirs, name
        assert re.findall(rf"^vllm:{name}\{{.*", ours, re.MULTILINE), name
        if name.endswith("bucket"):
            assert _bounds(name, ours) == _bounds(name, recorded)


def _bounds(name: str, text: str) -> list[str]:
    return re.findall(rf'^vllm:{name}\{{.*le="([^"]+)"', text, re.MULTILINE)
