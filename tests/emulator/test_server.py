"""The emulated server at work: lengths, disconnects, several answers, and what it tells of itself."""

import asyncio
import io
import re
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.emulator.profiles import FLAT
from gateway.emulator.server import EmulatedServer
from tests.emulator.helpers import until

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}


async def answer(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        document: dict[str, Any] = await response.json()
        return document


# ------------------------------------------------------------------------------------------------------ lengths


async def test_a_word_is_a_token_both_ways(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    document = await answer(session, server.url + CHAT, HELLO | {"max_tokens": 40})
    assert document["usage"] | {"prompt_tokens": 3, "completion_tokens": 40, "total_tokens": 43} == document["usage"]
    assert len(document["choices"][0]["message"]["content"].split()) == 40
    assert document["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("more", "tokens", "reason"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5, "length"),
        ({"max_tokens": 9, "emulator_output_tokens": 4}, 4, "stop"),
        ({"max_tokens": 9, "emulator_output_tokens": 90}, 9, "length"),
        ({"emulator_output_tokens": 30}, 30, "stop"),
    ],
)
async def test_the_caller_bounds_or_sets_the_length(
    server: EmulatedServer, session: aiohttp.ClientSession, more: dict[str, int], tokens: int, reason: str
) -> None:
    document = await answer(session, server.url + CHAT, HELLO | more)
    assert (document["usage"]["completion_tokens"], document["choices"][0]["finish_reason"]) == (tokens, reason)


async def test_unbounded_lengths_are_drawn_by_seed(session: aiohttp.ClientSession) -> None:
    drawn = []
    for seed in (1, 1, 2):
        async with EmulatedServer(replace(FLAT, base=1e-5), ("tiny",), seed=seed) as server:
            documents = [await answer(session, server.url + CHAT, HELLO | {"min_tokens": 5}) for _ in range(5)]
        drawn.append([document["usage"]["completion_tokens"] for document in documents])
    assert drawn[0] == drawn[1] != drawn[2]
    assert min(map(min, drawn)) >= 5
    assert len(set(drawn[0])) > 1


async def test_completions_end_after_sixteen_tokens_unless_told(
    server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    for prompt, tokens in (("a b", 2), ([5, 6, 7], 3), (["a b", "c"], 3), ([[1, 2], [3]], 3)):
        document = await answer(session, f"{server.url}/v1/completions", {"prompt": prompt})
        assert document["usage"]["prompt_tokens"] == tokens
        assert document["usage"]["completion_tokens"] == 16 * len(document["choices"])


async def test_parts_of_a_message_count(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    parts = [
        {"type": "text", "text": "one two"},
        {"type": "input_audio", "input_audio": {"data": "A" * 21_336, "format": "mp3"}},  # one second
    ]
    ask = {"messages": [{"role": "user", "content": parts}, {"role": "user", "content": None}], "max_tokens": 1}
    document = await answer(session, server.url + CHAT, ask)
    assert document["usage"]["prompt_tokens"] == 2 + 13


async def test_embeddings_come_as_floats_or_packed(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    url = f"{server.url}/v1/embeddings"
    floats = await answer(session, url, {"input": ["a b", "c"]})
    assert [len(item["embedding"]) for item in floats["data"]] == [8, 8]
    packed = await answer(session, url, {"input": "a b", "encoding_format": "base64"})
    assert packed["data"][0]["embedding"] == "AAAAAAAAAAAAAIA/AAAAAAAAAAAAAAAAAAAAAAAAAAA="
    assert server.state()["finished"] == 3


# --------------------------------------------------------------------------------------------------- disconnects


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(slow_server: EmulatedServer, stream: bool) -> None:
    ask = orjson.dumps(HELLO | {"max_tokens": 5, "stream": stream})
    host, port = slow_server.url.removeprefix("http://").split(":")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(ask)}\r\n\r\n"
    writers = []
    for _ in range(3):  # two run, one waits
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + ask)
        writers.append(writer)
    await until(slow_server, running=1, waiting=2)  # the others join with the next step
    for left, writer in enumerate(writers, 1):
        writer.close()
        await until(slow_server, aborted=left)
    await until(slow_server, running=0, waiting=0, kv_tokens=0, finished=0)


async def test_a_stop_cuts_what_runs(session: aiohttp.ClientSession) -> None:
    server = EmulatedServer(replace(FLAT, base=60.0), ("tiny",))
    await server.start()
    response = await session.post(server.url + CHAT, json=HELLO | {"max_tokens": 5, "stream": True})
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await response.read()
    assert server.state()["running"] == 0
    response.close()


async def test_a_connection_serves_one_stream_after_the_other(
    server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    peers = set()
    for _ in range(3):
        async with session.post(server.url + CHAT, json=HELLO | {"max_tokens": 3, "stream": True}) as response:
            assert response.connection is not None
            peers.add(response.connection.transport.get_extra_info("sockname"))  # type: ignore[union-attr]
            assert (await response.text()).endswith("data: [DONE]\n\n")
    assert len(peers) == 1


# ------------------------------------------------------------------------------------------------ streams


async def test_a_token_is_a_chunk_and_answers_keep_their_number(
    server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    ask = HELLO | {"max_tokens": 20, "stream": True, "n": 2}
    texts = {0: "", 1: ""}
    async with session.post(server.url + CHAT, json=ask) as response:
        async for line in response.content:
            if line.startswith(b'data: {"id'):
                (choice,) = orjson.loads(line[6:])["choices"]
                texts[choice["index"]] += choice["delta"]["content"]
    assert [len(text.split()) for text in texts.values()] == [20, 20]
    whole = await answer(session, server.url + CHAT, HELLO | {"max_tokens": 20})
    assert texts[0] == texts[1] == whole["choices"][0]["message"]["content"]


async def test_the_head_of_a_stream_leaves_at_once(slow_server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    async with session.post(slow_server.url + CHAT, json=HELLO | {"max_tokens": 5, "stream": True}) as response:
        assert response.status == 200  # a minute before the first token
        assert response.headers["Transfer-Encoding"] == "chunked"


async def test_the_id_is_the_callers(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    headers = {"X-Request-Id": "my-req-42"}
    async with session.post(server.url + CHAT, json=HELLO | {"max_tokens": 1}, headers=headers) as response:
        assert (await response.json())["id"] == "chatcmpl-my-req-42"


# ------------------------------------------------------------------------------------------- cheap routes


async def test_what_it_tells_of_itself(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    await answer(session, server.url + CHAT, HELLO | {"max_tokens": 4})
    async with session.get(f"{server.url}/emulator/state") as response:
        assert await response.json() == {
            "running": 0,
            "waiting": 0,
            "kv_tokens": 0,
            "preemptions": 0,
            "cached_tokens": 0,
            "finished": 1,
            "aborted": 0,
            "admin_calls": 0,
        }
    async with session.get(f"{server.url}/v1/models") as response:
        models = (await response.json())["data"]
        assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", 2048)]
    async with session.get(f"{server.url}/version") as response:
        assert await response.json() == {"version": "0.32.0"}
    for path in ("/health", "/ping"):
        async with session.get(server.url + path) as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_metrics_count(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    await answer(session, server.url + CHAT, HELLO | {"max_tokens": 4})
    await answer(session, server.url + CHAT, HELLO | {"emulator_output_tokens": 2})
    async with session.get(f"{server.url}/metrics") as response:
        text = await response.text()
    label = '{engine="0",model_name="tiny"}'
    for name, value in (
        ("prompt_tokens_total", 6),
        ("generation_tokens_total", 6),
        ("num_preemptions_total", 0),
        ("prefix_cache_queries_total", 0),
        ("prefix_cache_hits_total", 0),
        ("num_requests_running", 0),
        ("time_to_first_token_seconds_count", 2),
        ("inter_token_latency_seconds_count", 4),
        ("e2e_request_latency_seconds_count", 2),
    ):
        assert f"\nvllm:{name}{label} {value:.1f}\n" in text
    for reason, count in (("length", 1), ("stop", 1), ("abort", 0)):
        assert f'finished_reason="{reason}",model_name="tiny"}} {count:.1f}\n' in text
    assert re.search(
        r'cache_config_info\{block_size="1",enable_prefix_caching="False",engine="0",num_gpu_blocks="1048576"\} 1\.0',
        text,
    )


@pytest.mark.parametrize(
    ("path", "body", "details"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a b c d e"}]}, "prompt_tokens_details"),
        (CHAT, {"messages": [{"role": "user", "content": "a b c d e"}], "n": 3}, "prompt_tokens_details"),
        ("/v1/completions", {"prompt": [1, 2, 3, 4, 5]}, "prompt_tokens_details"),
        ("/v1/responses", {"instructions": "a b", "input": "c d e"}, "input_tokens_details"),
    ],
)
async def test_usage_tells_what_was_cached(
    caching_server: EmulatedServer, session: aiohttp.ClientSession, path: str, body: dict[str, Any], details: str
) -> None:
    first, again = [await answer(session, caching_server.url + path, {"model": "tiny"} | body) for _ in range(2)]
    assert (first["usage"].get(details) or {"cached_tokens": 0})["cached_tokens"] == 0
    assert again["usage"][details]["cached_tokens"] == 4


async def test_a_stream_tells_it_too_and_its_answer_is_part_of_the_next_prompt(
    caching_server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    said = await answer(session, caching_server.url + CHAT, HELLO | {"max_tokens": 20})
    turns = [*HELLO["messages"], said["choices"][0]["message"], {"role": "user", "content": "and?"}]
    stream = {"model": "tiny", "messages": turns, "stream": True, "stream_options": {"include_usage": True}}
    async with session.post(caching_server.url + CHAT, json=stream | {"max_tokens": 2}) as response:
        events = [line for line in (await response.text()).splitlines() if '"usage"' in line]
    # All but the answer's last token, which was given and never read.
    assert orjson.loads(events[-1].removeprefix("data: "))["usage"]["prompt_tokens_details"] == {"cached_tokens": 22}


async def test_metrics_tell_what_was_cached(
    caching_server: EmulatedServer, server: EmulatedServer, session: aiohttp.ClientSession
) -> None:
    for engine, queried, found in ((caching_server, 6, 2), (server, 0, 0)):
        for _ in range(2):
            document = await answer(session, engine.url + CHAT, HELLO | {"max_tokens": 2})
        assert (document["usage"]["prompt_tokens_details"] is None) is (found == 0)
        async with session.get(f"{engine.url}/metrics") as response:
            text = await response.text()
        assert f'enable_prefix_caching="{bool(found)}"' in text
        assert f'vllm:prefix_cache_queries_total{{engine="0",model_name="tiny"}} {queried}.0' in text
        assert f'vllm:prefix_cache_hits_total{{engine="0",model_name="tiny"}} {found}.0' in text


async def test_metrics_show_what_runs(slow_server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    response = await session.post(slow_server.url + CHAT, json=HELLO | {"max_tokens": 5, "stream": True})
    async with session.get(f"{slow_server.url}/metrics") as scrape:
        text = await scrape.text()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in text
    assert f'vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} {3 / 1_048_576}' in text
    response.close()


async def test_tokenize_counts_words(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    document = await answer(session, f"{server.url}/tokenize", {"prompt": "a b c"})
    assert (document["count"], document["tokens"]) == (3, [0, 1, 2])
    assert (await answer(session, f"{server.url}/tokenize", HELLO))["count"] == 3
    assert (await answer(session, f"{server.url}/v1/messages/count_tokens", HELLO))["input_tokens"] == 3
    assert (await answer(session, f"{server.url}/detokenize", {"tokens": [1, 2]}))["prompt"] == "tide wind"


@pytest.mark.parametrize("path", ["/sleep", "/pause", "/collective_rpc", "/v1/load_lora_adapter"])
async def test_admin_routes_obey_and_are_counted(
    server: EmulatedServer, session: aiohttp.ClientSession, path: str
) -> None:
    async with session.post(server.url + path) as response:
        assert response.status == 200
    assert server.state()["admin_calls"] == 1


async def test_a_body_of_many_megabytes_is_read(server: EmulatedServer, session: aiohttp.ClientSession) -> None:
    long = io.BytesIO(orjson.dumps({"model": "tiny", "prompt": "word " * 600_000}))
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{server.url}/v1/completions", data=long, headers=headers) as response:
        assert response.status == 400
        assert "at least 600000 input tokens" in await response.text()


async def test_two_servers_do_not_share_a_port() -> None:
    async with EmulatedServer(FLAT) as first:
        second = EmulatedServer(FLAT, port=int(first.url.rsplit(":", 1)[1]))
        with pytest.raises(OSError, match="in use"):
            await second.start()
