"""What is shipped for Prometheus and Grafana, and every metric that it names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.telemetry.definitions import DEFINITIONS, Definition, Kind

ROOT: Final = Path(__file__).parents[2]
RULES: Final = sorted((ROOT / "deploy/prometheus").glob("*.rules.yml"))
DASHBOARDS: Final = sorted((ROOT / "deploy/grafana").glob("*.json"))
UNIT_TESTS: Final = sorted(Path(__file__).parent.glob("*.test.yml"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def dashboards() -> Iterator[dict[str, Any]]:
    for path in DASHBOARDS:
        yield json.loads(path.read_text())


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every query of a dashboard, with Grafana's variables as Grafana puts them in."""
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            filled = re.sub(r"\$(job|instance|model_name)\b", ".*", target["expr"])
            yield filled.replace("$__rate_interval", "1m")


def series() -> dict[str, Definition]:
    """Every series name that the gateway exposes, those of a histogram's parts included."""
    found: dict[str, Definition] = {}
    for each in DEFINITIONS:
        parts = ("_bucket", "_sum", "_count") if each.kind is Kind.HISTOGRAM else ("",)
        found |= {each.name + part: each for part in parts}
    return found


def tool(name: str, source: str) -> str:
    """Path of a program, beside this Python or of the system; skips the test where there is none.

    ``source`` says what installs it.
    """
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin")
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"{name} is not installed: {source}")
    return found


def ran(
    *arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 50.0
) -> str:
    """What a program printed, on both channels together; fails with that where it fails."""
    ended = subprocess.run(  # noqa: S603 - programs that tool() found, with arguments of our own
        [str(each) for each in arguments],
        check=False,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert ended.returncode == 0, f"{Path(arguments[0]).name} exits with {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def instructions(dockerfile: Path, stage: int | None = None) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its text on one line; those of one stage (the first is 1), or all."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE))
    found = [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]
    if stage is None:
        return found
    starts = [index for index, (word, _) in enumerate(found) if word == "FROM"]
    return found[starts[stage - 1] : [*starts, len(found)][stage]]
