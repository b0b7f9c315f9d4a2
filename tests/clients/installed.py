"""The clients, and where each of them is installed.

The SDKs for Python are development dependencies. The others are large: ``python -m tests.clients.installed`` installs
them below .cache, and where they are not there their tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.real.process import ROOT

CACHE: Final = ROOT / ".cache" / "clients"
PROGRAMS: Final = Path(__file__).parent / "programs"
PYTHON: Final = CACHE / "python" / "bin" / "python"
NODE_MODULES: Final = CACHE / "node" / "node_modules"
FOR_PYTHON: Final = ("langchain-openai>=1,<2", "litellm>=1.110,<2")
FOR_NODE: Final = ("openai@6", "@anthropic-ai/sdk@1")
PATIENCE: Final = 120.0  # seconds; a guard against hanging

# An SDK that stands behind a company's proxy would ask that for a loopback address, and LiteLLM fetches prices.
ALONE: Final = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@dataclass(frozen=True)
class Client:
    """A library that people call engines with; ``tries`` is how often it asks by default, refused each time."""

    name: str
    program: str
    tries: int

    @property
    def in_development(self) -> bool:
        """Whether it is a development dependency."""
        return self.name in {"openai", "anthropic"}

    def interpreter(self) -> str | None:
        """What runs the program, None where the client is not installed."""
        if self.program.endswith(".mjs"):
            return shutil.which("node") if NODE_MODULES.is_dir() else None
        if self.in_development:
            return sys.executable
        return str(PYTHON) if PYTHON.exists() else None

    def run(self, url: str, *what: str) -> dict[str, Any]:
        """What the program prints: by name what came of each thing that it was to do."""
        interpreter = self.interpreter()
        assert interpreter is not None
        program = PROGRAMS / self.program
        if program.suffix == ".mjs":  # node looks for modules beside the program
            program = Path(shutil.copy(program, CACHE / "node"))
        done = subprocess.run(  # noqa: S603 - an interpreter found above, our own program
            [interpreter, str(program), url, *what],
            capture_output=True,
            text=True,
            env=os.environ | ALONE,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        got: dict[str, Any] = json.loads(done.stdout)
        return got


CLIENTS: Final = (
    Client("openai", "openai_python.py", tries=3),
    Client("anthropic", "anthropic_python.py", tries=3),
    Client("langchain", "langchain_python.py", tries=3),
    Client("litellm", "litellm_python.py", tries=3),
    Client("openai for node", "openai_node.mjs", tries=3),
    Client("anthropic for node", "anthropic_node.mjs", tries=3),
)


def install() -> None:
    """Install what is not there yet; without node its clients are left out."""
    if not PYTHON.exists():
        venv.create(CACHE / "python", with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *FOR_PYTHON], check=True)  # noqa: S603 - our own arguments
    npm = shutil.which("npm")
    if npm is not None:
        (CACHE / "node").mkdir(exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--silent"]
        subprocess.run([npm, "install", *quiet, *FOR_NODE], check=True, cwd=CACHE / "node")  # noqa: S603 - npm, found above


if __name__ == "__main__":
    install()
