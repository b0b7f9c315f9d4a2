"""What is shipped for Prometheus and Grafana, and every metric that it names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
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
