"""Gauges of every family, old and new, and of none."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.gauges import mindie_slots, mindie_status, prometheus
from gateway.model import Hints
from tests.dialects.helpers import CAPTURES

TWO_RANKS = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.7
vllm:num_preemptions_total{engine="0"} 5
vllm:num_preemptions_total{engine="1"} 6
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0
"""
SGLANG = """
sglang:num_running_reqs{a="b"} 5.0
sglang:num_queue_reqs{a="b"} 2.0
sglang:token_usage{a="b"} 0.25
sglang:max_total_num_tokens{a="b"} 1000.0
"""
MINDIE = """
num_requests_running{model_name="m"} 5
num_requests_waiting{model_name="m"} 6
npu_cache_usage_perc{model_name="m"} 0.5
num_preemptions_total{model_name="m"} 7
"""


def test_gauges_of_a_real_vllm_under_load() -> None:
    text = (CAPTURES / "vllm" / "metrics_under_load.txt").read_text()
    assert prometheus([text]) == Hints(4.0, 2.0, 0.0009768009768009733, 524_288, 0.0)


def test_gauges_of_a_real_llamacpp() -> None:
    text = (CAPTURES / "llamacpp" / "metrics_after.txt").read_text()
    assert prometheus([text]) == Hints(running=0.0, waiting=0.0)


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        (TWO_RANKS, Hints(7, 1, 0.7, 3200, 11)),
        (SGLANG, Hints(5, 2, 0.25, 1000)),
        (MINDIE, Hints(5, 6, 0.5, None, 7)),
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', Hints(kv_usage=0.5)),
        ("vllm:kv_cache_usage_perc{} 0.5\nvllm:gpu_cache_usage_perc{} 0.9\n", Hints(kv_usage=0.5)),
        ('vllm:cache_config{num_gpu_blocks="10",block_size="8"} 1.0', Hints(kv_capacity_tokens=80)),
        ('vllm:cache_config_info{num_gpu_blocks="None",block_size="8"} 1.0', Hints()),
        ('vllm:cache_config_info{user_block_size="4",num_gpu_blocks_override="9"} 1.0', Hints()),
        ('vllm:num_requests_waiting_by_reason{reason="capacity"} 9\n', Hints()),
        ("tgi_batch_current_size 3\ntgi_queue_size 4\n", Hints(3, 4)),
        (
            "lmdeploy:num_requests_running 1\nlmdeploy:num_requests_waiting 2\nlmdeploy:gpu_cache_usage_perc 0.1\n",
            Hints(1, 2, 0.1),
        ),
        ("llamacpp:requests_processing 1\nllamacpp:kv_cache_usage_ratio 1.5\n", Hints(running=1, kv_usage=1.0)),
        ('tgi_queue_size{m="a}b"} 4 1700000000\n', Hints(waiting=4)),
        ("tgi_queue_size\t4", Hints(waiting=4)),
        ("tgi_queue_size NaN\n", Hints()),
        ("tgi_queue_size +Inf\n", Hints()),
        ("tgi_queue_size -1\n", Hints()),
        ("tgi_queue_size x\n", Hints()),
        ("tgi_queue_size \n", Hints()),
        ('tgi_queue_size{a="b" 4\n', Hints()),
        ("# HELP tgi_queue_size 4\n", Hints()),
        ("", Hints()),
        ('{"error":"not metrics"}', Hints()),
    ],
)
def test_gauges_old_and_new(text: str, hints: Hints) -> None:
    assert prometheus([text]) == hints


@given(st.text())
def test_any_text_has_gauges_or_none(text: str) -> None:
    hints = prometheus([text])
    assert hints.kv_usage is None or 0 <= hints.kv_usage <= 1


@given(st.lists(st.sampled_from([
    "vllm:num_requests_running", "vllm:cache_config_info", "sglang:max_total_num_tokens", '{a="b"}', "{", "}", " ",
    "\n", "1", "1e308", "9" * 30, "nan", 'num_gpu_blocks="7",block_size="16"', "\x00",
])).map("".join))  # fmt: skip
def test_any_lines_have_gauges_or_none(text: str) -> None:
    prometheus([text])


STATUS = {
    "service": {"roleStatus": "RoleReady", "currentRole": "none"},
    "resource": {
        "availSlotsNum": 150,
        "availBlockNum": 900,
        "waitingRequestNum": 7,
        "runningRequestNum": 50,
        "swappedRequestNum": 0,
        "freeNpuBlockNums": 250,
        "freeCpuBlockNums": 0,
        "totalNpuBlockNums": 1000,
        "totalCpuBlockNums": 0,
    },
    "linkStatus": {"peers": []},
}
CONFIG = {"modelName": "m", "maxSeqLen": 2560, "worldSize": 1, "maxOutputLen": 512, "cacheBlockSize": 128}


def status(config: object = CONFIG, **resource: Any) -> Hints:
    document = STATUS | {"resource": {**STATUS["resource"], **resource}}  # type: ignore[dict-item]
    return mindie_status([orjson.dumps(document).decode(), orjson.dumps(config).decode()])


def test_mindie_s_status_and_config_together_tell_of_requests_and_of_the_cache() -> None:
    assert status() == Hints(running=50.0, waiting=7.0, kv_usage=0.75, kv_capacity_tokens=128_000)


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (status({}), Hints(50.0, 7.0, 0.75)),
        (status([1]), Hints(50.0, 7.0, 0.75)),
        (status(totalNpuBlockNums=0), Hints(50.0, 7.0)),
        (status(freeNpuBlockNums=2000), Hints(50.0, 7.0, 0.0, 128_000)),
        (status(freeNpuBlockNums=None), Hints(50.0, 7.0, None, 128_000)),
        (status(runningRequestNum=True, waitingRequestNum="7"), Hints(None, None, 0.75, 128_000)),
        (status(runningRequestNum=-1, waitingRequestNum=2**60), Hints(None, None, 0.75, 128_000)),
        (mindie_status(["", ""]), Hints()),
        (mindie_status(["{}", "{}"]), Hints()),
        (mindie_status(['{"resource":[]}', ""]), Hints()),
        (mindie_slots(['{"total_slots":200,"free_slots":150,"available_tokens_length":1000}']), Hints(50.0)),
        (mindie_slots(['{"total_slots":200,"free_slots":250}']), Hints(0.0)),
        (mindie_slots(['{"total_slots":200}']), Hints()),
        (mindie_slots(["Server internal error"]), Hints()),
    ],
)
def test_what_mindie_does_not_tell_stays_open(hints: Hints, expected: Hints) -> None:
    assert hints == expected


@given(st.text(), st.text())
def test_any_text_for_mindie_s_answers_is_read(one: str, other: str) -> None:
    assert mindie_status([one, other]) == Hints()
    assert mindie_slots([one]) == Hints()
