"""Recording rules and alerts: right, tested with Prometheus' own tool, and about metrics that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.causes import Cause
from tests.deploy.helpers import RULES, UNIT_TESTS, needs_promtool, rules, series

ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = [rule["record"] for rule in rules() if "record" in rule]
_NAMES = re.compile(r"(?<![\w:])(?:instance\w*:)?gateway_\w+(?::\w+)?|(?<![\w:\"])(?:up|process_\w+)(?=[{\[ ])")
FOREIGN = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}


def promtool(*arguments: str | Path) -> str:
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=50, check=False)  # noqa: S603, S607 - Debian's
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@needs_promtool
def test_promtool_finds_no_fault() -> None:
    told = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert told.count("SUCCESS") == len(RULES) == 2


@needs_promtool
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_promtools_unit_tests_pass(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


def unit_tests() -> dict[str, Any]:
    return {test["name"]: test for path in UNIT_TESTS for test in yaml.safe_load(path.read_text())["tests"]}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_has_a_case_that_raises_it_and_one_that_must_not(alert: dict[str, Any]) -> None:
    name, tests = alert["alert"], unit_tests()
    raised = [case for case in tests[name]["alert_rule_test"] if case["alertname"] == name]
    assert [bool(case["exp_alerts"]) for case in raised] == [False, True]
    (quiet,) = tests[f"{name} stays quiet"]["alert_rule_test"]
    assert (quiet["alertname"], quiet["exp_alerts"]) == (name, [])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_says_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description"}
    assert alert["annotations"]["description"].endswith(".")


def test_the_causes_that_alerts_name_exist() -> None:
    named = {
        cause
        for alert in ALERTS
        for causes in re.findall(r'cause(?:!~|=)"([^"]+)"', alert["expr"])
        for cause in causes.split("|")
    }
    assert named
    assert named <= {cause.value for cause in Cause}


def test_the_rules_asked_for_are_there() -> None:
    assert {alert["alert"] for alert in ALERTS} >= {
        *("GatewayRetryStorm", "GatewayLimitAtFloor", "GatewayBackendHung", "GatewaySheds", "GatewayQueueWait"),
        *("GatewayCanaryFailed", "GatewayScrapeStale", "GatewayBackendScrapeStale", "GatewayNoBackend"),
    }


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: str(rule.get("alert") or rule["record"]))
def test_every_metric_and_label_exists(rule: dict[str, Any]) -> None:
    check(rule["expr"])


def check(query: str) -> None:
    """Every name in ``query`` is exposed or recorded, and every label in braces is one of it."""
    known = series()
    names = set(_NAMES.findall(query))
    assert names, query
    for name in names:
        assert name in known or name in RECORDED or name in FOREIGN, name
    for name, braces in re.findall(r"(gateway_\w+)\{([^}]*)\}", query):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces)) - {"job", "instance"}
        assert labels <= set(known[name].labels), f"{name} has no {labels - set(known[name].labels)}"


def test_the_check_finds_what_does_not_exist() -> None:
    for wrong in ("gateway_nothing == 1", 'gateway_shed_total{colour="red"}', "instance:gateway_nothing:rate5m > 1"):
        with pytest.raises(AssertionError):
            check(wrong)
