"""``gateway simulate`` as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = "arrival_s,prompt_tokens,output_tokens\n"
CLEAN = {"PATH": "/usr/bin:/bin"}


def simulate(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - this package
        [sys.executable, "-m", "gateway", "simulate", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=CLEAN | settings,
    )  # fmt: skip


def document(*arguments: str, **settings: str) -> Any:
    done = simulate(*arguments, "--json", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def overload(tmp_path: Path) -> str:
    """Twenty a second for half a minute, of which the engine below serves some eight."""
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "".join(f"{number / 20},100,{50 + number % 7}\n" for number in range(600)))
    return str(path)


SMALL = ("--profile", "flat", "--constant", "max_num_seqs=4")


def test_a_trace_is_told_in_a_table_with_and_without_the_gateway(overload: str) -> None:
    done = simulate(overload, *SMALL, GATEWAY_TTFT_OBJECTIVE="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("600 requests in 30 s (20.03/s), mean 100 prompt and 53 output tokens, on 1 x flat\n")
    for line in ("goodput, requests/s", "TTFT p50 / p95 / p99, s", "Wait in the queue", "Refused attempts: "):
        assert line in done.stdout
    assert "In objective: answered within TTFT short 2 s, from the first attempt on." in done.stdout
    assert done.stdout.count(" (4)\n") >= 3, "the limit over time, with four in flight"


def test_the_settings_of_the_environment_are_those_of_serve(overload: str) -> None:
    told = document(overload, *SMALL, GATEWAY_TTFT_OBJECTIVE="2")
    pinned = document(
        overload,
        *SMALL,
        GATEWAY_BACKENDS=json.dumps(
            [{"name": f"npu{limit}", "url": f"http://npu{limit}:8000", "limit": limit} for limit in (2, 3)]
        ),
    )
    assert told["objectives"] == {"tpot": None, "ttft": {"short": 2.0, "long": None}}
    assert told["gateway"]["goodput"] > 2 * told["no_gateway"]["goodput"]
    assert [engine["name"] for engine in pinned["engines"]] == ["npu2", "npu3"]
    limits = {tuple(state["limit"] for state in point["engines"].values()) for point in pinned["gateway"]["limits"]}
    assert limits == {(2.0, 3.0)}


def test_every_request_is_accounted_for_and_every_refusal_has_its_reason(overload: str) -> None:
    found = document(overload, *SMALL, "--timeout", "20", "--retries", "1")
    gateway = found["gateway"]
    assert sum(gateway["endings"].values()) == sum(found["no_gateway"]["endings"].values()) == 600
    assert set(gateway["refused_attempts"]) <= {"deadline", "queue_timeout", "retry_budget", "queue_full"}
    assert gateway["amplification"] >= 1.0
    assert gateway["queue_wait"]["p50"] <= gateway["queue_wait"]["p99"] <= gateway["queue_wait"]["max"]
    assert found == document(overload, *SMALL, "--timeout", "20", "--retries", "1"), "the same seed, the same figures"


def test_a_mix_is_drawn_at_its_rate_and_what_does_not_fit_is_left_out_and_told() -> None:
    found = document(
        "--mix", "sharegpt=3", "--mix", "long-context", "--rate", "4", "--duration", "60", "--profile", "910b-qwen3-8b"
    )
    offered = found["offered"]
    assert 180 <= offered["requests"] <= 300
    assert offered["longer_than_the_context"] > 0
    assert set(found["gateway"]["lanes"]) == {"short", "long"}


CODE = ("--mix", "code", "--rate", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected either a trace or --mix, and with --mix a --rate"),
        (("--mix", "sharegpt"), "--mix: expected a --rate with it, in requests a second"),
        (("--mix", "sharegtp", "--rate", "1"), "did you mean sharegpt"),
        (("--mix", "code=-1", "--rate", "1"), "--mix code: got '-1', expected a share above 0"),
        (("--mix", "code", "--rate", "0"), "argument --rate: got '0', expected a number above 0"),
        ((*CODE, "--profile", "h100"), "--profile: got 'h100', expected one of "),
        ((*CODE, "--constant", "bass=1"), "did you mean base"),
        ((*CODE, "--constant", "max_num_seqs=x"), "max_num_seqs: got 'x', expected a whole number, 0 or more"),
        ((*CODE, "--constant", "base=0"), "--constant base: 0.0 given, more than 0 expected: a step takes time"),
        (("--mix", "128k", "--rate", "1", "--profile", "310p"), "is longer than the engine's 8192 tokens of context"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_is_expected(arguments: tuple[str, ...], message: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_trace_a_missing_one_and_a_wrong_setting_are_told_apart(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(HEAD + "0,100,ten\n")
    done = simulate(str(wrong))
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"{wrong}, line 2, column output_tokens: got 'ten', expected a whole number of tokens, 0 to 10000000\n"
    )
    wrong.write_bytes(b"\xff\xfe\x00")
    assert simulate(str(wrong)).stderr == f"{wrong}: expected text in UTF-8\n"
    missing = simulate(str(tmp_path / "no.csv"))
    assert (missing.returncode, missing.stderr) == (3, f"{tmp_path / 'no.csv'}: No such file or directory\n")
    fault = simulate("--mix", "code", "--rate", "1", GATEWAY_TPOT_OBJECTIVE="soon")
    assert fault.returncode == 1
    assert "GATEWAY_TPOT_OBJECTIVE" in fault.stderr
