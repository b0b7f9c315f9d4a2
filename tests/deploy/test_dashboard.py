"""The dashboard: it loads with any Prometheus, and asks for what exists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.helpers import dashboards, panels, queries
from tests.deploy.test_rules import check

ALL = list(dashboards())


@pytest.fixture(params=ALL, ids=lambda dashboard: str(dashboard["uid"]))
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_it_asks_which_prometheus_when_it_is_imported(dashboard: dict[str, Any]) -> None:
    (source,) = dashboard["__inputs"]
    assert (source["name"], source["type"], source["pluginId"]) == ("DS_PROMETHEUS", "datasource", "prometheus")
    expected = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    asking = [panel for panel in panels(dashboard) if panel["type"] != "row"]
    assert all(panel["datasource"] == expected for panel in asking)
    assert all(target["datasource"] == expected for panel in asking for target in panel["targets"])
    assert all(variable["datasource"] == expected for variable in dashboard["templating"]["list"])


def test_it_brings_no_id_of_somebodys_grafana(dashboard: dict[str, Any]) -> None:
    assert dashboard["id"] is None
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize("query", [query for each in ALL for query in queries(each)])
def test_every_metric_and_label_exists(query: str) -> None:
    check(query)


def test_what_matters_is_shown(dashboard: dict[str, Any]) -> None:
    text = " ".join(queries(dashboard))
    for name in (
        *("gateway_concurrency_limit", "gateway_inflight_requests", "gateway_queue_depth", "gateway_shed_total"),
        *("gateway_time_to_first_token_seconds_bucket", "gateway_time_per_output_token_seconds_bucket"),
        *("gateway_pace_seconds", "gateway_backend_up", "gateway_finding", "gateway_retry_attempts_total"),
    ):
        assert name in text
