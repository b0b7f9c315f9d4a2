"""A real Prometheus scrapes a real gateway: the rules evaluate, and every panel of the dashboard can be asked for."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.engine import chat
from tests.deploy.helpers import RULES, dashboards, needs_prometheus, queries, rules
from tests.real.gateway import GatewayProcess
from tests.real.process import PATIENCE, eventually, free_port
from tests.real.wire import exchange

pytestmark = [needs_prometheus, pytest.mark.real, pytest.mark.timeout(180)]

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: inference-gateway
    static_configs: [{{targets: ["127.0.0.1:{admin}"]}}]
  - job_name: gateway-that-is-gone
    static_configs: [{{targets: ["127.0.0.1:{nobody}"]}}]
"""


class Prometheus:
    """Debian's Prometheus on loopback."""

    def __init__(self, folder: Path, admin_port: int) -> None:
        self.port = free_port()
        config = folder / "prometheus.yml"
        paths = ", ".join(str(path) for path in RULES)
        config.write_text(CONFIG.format(rules=paths, admin=admin_port, nobody=free_port()))
        self._log = (folder / "prometheus.log").open("wb")
        arguments = [
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            *(f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"),
        ]
        self._process = subprocess.Popen(arguments, stdout=self._log, stderr=self._log)  # noqa: S603 - our own arguments

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": "error", "error": error.read().decode()}
        except OSError:
            return {"status": "error", "error": "no answer"}

    def values(self, query: str) -> list[float]:
        found = self.ask("query", query=query)
        assert found["status"] == "success", f"{query}: {found.get('error')}"
        return [float(sample["value"][1]) for sample in found["data"]["result"]]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._log.close()


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[GatewayProcess, Prometheus]]:
    """A gateway before its embedded engine, and the Prometheus that scrapes it."""
    gateway = GatewayProcess(tmp_path, {"emulator_profile": "flat"})
    prometheus = None
    try:
        gateway.wait_until_ready()
        prometheus = Prometheus(tmp_path, gateway.admin_port)
        eventually(lambda: prometheus.ask("query", query="up")["status"] == "success", "Prometheus answers")
        yield gateway, prometheus
    finally:
        if prometheus is not None:
            prometheus.stop()
        gateway.program.stop()


def test_the_rules_evaluate_on_what_a_real_gateway_exposes(scraped: tuple[GatewayProcess, Prometheus]) -> None:
    gateway, prometheus = scraped
    eventually(lambda: bool(prometheus.values("gateway_build_info")), "the gateway is scraped")
    deadline = time.monotonic() + PATIENCE
    while not any(prometheus.values("instance:gateway_requests:rate5m > 0")):
        assert time.monotonic() < deadline
        assert exchange(gateway.port, chat("flat", max_tokens=5)).status == 200

    for record in (
        *("instance:gateway_shed:ratio_rate5m", "instance:gateway_failed:ratio_rate5m"),
        *("instance:gateway_retries:ratio_rate5m", "instance_backend:gateway_limit_usage:ratio"),
    ):
        eventually(lambda record=record: prometheus.values(record) == [0.0], f"{record} is 0")  # type: ignore[misc]
    ttft = "instance_class:gateway_time_to_first_token_seconds:p99_rate5m > 0"
    eventually(lambda: bool(prometheus.values(ttft)), "TTFT is known")
    assert set(prometheus.values("gateway_backend_up")) == {1.0}

    groups = prometheus.ask("rules")["data"]["groups"]
    evaluated = [rule for group in groups for rule in group["rules"]]
    assert len(evaluated) == len(list(rules()))
    assert {rule["health"] for rule in evaluated} == {"ok"}, [rule.get("lastError") for rule in evaluated]
    states = {rule["name"]: rule["state"] for rule in evaluated if rule["type"] == "alerting"}
    assert states.pop("GatewayScrapeStale") in {"pending", "firing"}  # the second job's target is nobody
    assert set(states.values()) == {"inactive"}, states

    for query in (query for dashboard in dashboards() for query in queries(dashboard)):
        prometheus.values(query)
