"""The Helm chart and the plain manifests: rendered by Helm's library, held against Kubernetes' own schemas.

Not covered: an API server. Defaults, admission and what controllers do with the objects are Kubernetes' own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.app.configs import load_all
from gateway.telemetry.definitions import DEFINITIONS
from tests.deploy.charts import (
    BASE,
    CHART,
    DISCOVERY,
    EVERYTHING,
    GOLDENS,
    KUSTOMIZE,
    MONITORING,
    NAME,
    SIDECAR,
    documents,
    helm,
    rendered,
)
from tests.deploy.helpers import RULES, dashboards, ran, tool

OLDEST: Final = "1.25.0"
OLDEST_SIDECAR: Final = "1.29.0"
NEWEST: Final = "1.37.0"

# What the chart uses of resources that are not Kubernetes' own, from the Gateway API v1 and prometheus-operator v1.
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_HEAD: Final = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "labels": _TEXTS, "annotations": _TEXTS},
    },
}
_DURATION: Final = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


_NAMED: Final = {"type": "object", "required": ["name"]}
_ROUTE: Final = _closed(
    backendRefs=_list(_closed(name={"type": "string"}, port={"type": "integer"})),
    timeouts=_closed(request=_DURATION, backendRequest=_DURATION),
)
CUSTOM: Final[dict[str, dict[str, Any]]] = {
    "gateway.networking.k8s.io/v1/HTTPRoute": _closed(
        **_HEAD,
        spec=_closed(parentRefs=_list(_NAMED), hostnames=_list({"type": "string"}), rules=_list(_ROUTE)),
    ),
    "monitoring.coreos.com/v1/ServiceMonitor": _closed(
        **_HEAD,
        spec=_closed(
            selector=_closed(matchLabels=_TEXTS),
            endpoints=_list(_closed(port={"type": "string"}, path={"type": "string"}, interval=_DURATION)),
        ),
    ),
    "monitoring.coreos.com/v1/PrometheusRule": _closed(
        **_HEAD, spec=_closed(groups=_list(_closed(name={"type": "string"}, rules=_list({"type": "object"}))))
    ),
}


def check(manifests: list[dict[str, Any]], version: str) -> None:
    """Hold each manifest against its schema; an unknown field is a fault."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    jsonschema = pytest.importorskip("jsonschema", reason="pip install kubernetes-validate")
    for manifest in manifests:
        own = CUSTOM.get(f"{manifest['apiVersion']}/{manifest['kind']}")
        if own:
            jsonschema.validate(manifest, own)
        else:
            validate.validate(manifest, version, strict=True)


def of_kind(kind: str, manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def pod(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("Deployment", manifests)["spec"]["template"]["spec"]
    return spec


def settings(manifests: list[dict[str, Any]]) -> dict[str, str]:
    (container,) = pod(manifests)["containers"]
    return {
        variable["name"]: variable["value"]
        for variable in container["env"]
        if "value" in variable
        if "value" in variable
    }


@pytest.mark.parametrize("path", list(GOLDENS), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_written_down_is_what_the_chart_gives(path: Path) -> None:
    assert path.read_text() == GOLDENS[path](), "run: make manifests"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", [BASE, EVERYTHING, DISCOVERY], ids=["base", "everything", "discovery"])
def test_kubernetes_takes_it(values: dict[str, Any], version: str) -> None:
    check(documents(rendered(values)), version)


@pytest.mark.parametrize("version", [OLDEST_SIDECAR, NEWEST])
def test_kubernetes_takes_the_sidecar(version: str) -> None:
    check(documents(rendered(SIDECAR | {"autoscaling": {"enabled": True}})), version)


def test_the_schemas_find_what_is_wrong() -> None:
    for kind, breaks in (("Deployment", "replicass"), ("HTTPRoute", "rule"), ("ServiceMonitor", "endpoint")):
        manifests = documents(rendered(EVERYTHING))
        of_kind(kind, manifests)["spec"][breaks] = 1
        with pytest.raises(Exception, match=breaks):
            check(manifests, NEWEST)


@pytest.mark.parametrize(
    "values", [BASE, SIDECAR, EVERYTHING, DISCOVERY], ids=["base", "sidecar", "everything", "discovery"]
)
def test_helm_lint_is_content(values: dict[str, Any]) -> None:
    report = helm().lint(str(CHART), values, strict=True)
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    "values", [BASE, SIDECAR, EVERYTHING, DISCOVERY], ids=["base", "sidecar", "everything", "discovery"]
)
def test_the_gateway_takes_its_settings(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings(documents(rendered(values))).items():
        monkeypatch.setenv(name, value)
    loaded = load_all(None)
    assert [str(fault) for fault in loaded.faults] == []
    assert loaded.settings.backends or loaded.settings.discover


def test_values_arrive_as_they_were_given() -> None:
    given = settings(documents(rendered(EVERYTHING)))
    assert json.loads(given["GATEWAY_BACKENDS"]) == EVERYTHING["backends"]
    assert (given["GATEWAY_LIMIT_MAX"], given["GATEWAY_CORS"]) == ("1000000", "false")
    assert (given["GATEWAY_TPOT_OBJECTIVE"], given["GATEWAY_LOG_FORMAT"]) == ("100ms", "plain")
    assert (
        settings(documents(rendered({"backends": ["http://a", "http://b"]})))["GATEWAY_BACKENDS"] == "http://a,http://b"
    )


@pytest.mark.parametrize("values", [BASE, SIDECAR, EVERYTHING], ids=["base", "sidecar", "everything"])
def test_a_pod_goes_when_its_longest_stream_went(values: dict[str, Any]) -> None:
    manifests = documents(rendered(values))
    (container,) = pod(manifests)["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][-1].partition("sleep(")[2].rstrip(")"))
    stream = int(settings(manifests)["GATEWAY_DRAIN_GRACE"])
    assert pod(manifests)["terminationGracePeriodSeconds"] == pause + stream + 10


def test_the_engine_outlives_its_gateway() -> None:
    (engine,) = pod(documents(rendered(SIDECAR)))["initContainers"]
    assert engine["restartPolicy"] == "Always"  # Kubernetes ends these after the others, in reverse order


@pytest.mark.parametrize("values", [BASE, SIDECAR, EVERYTHING], ids=["base", "sidecar", "everything"])
def test_nothing_runs_as_root_or_writes(values: dict[str, Any]) -> None:
    (container,) = pod(documents(rendered(values)))["containers"]
    context = container["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not context["allowPrivilegeEscalation"]


def test_everything_finds_its_pods() -> None:
    manifests = documents(rendered(EVERYTHING))
    labels = of_kind("Deployment", manifests)["spec"]["template"]["metadata"]["labels"]
    services = [manifest for manifest in manifests if manifest["kind"] == "Service"]
    selectors = [service["spec"]["selector"] for service in services]
    selectors += [of_kind("PodDisruptionBudget", manifests)["spec"]["selector"]["matchLabels"]]
    selectors += [of_kind("NetworkPolicy", manifests)["spec"]["podSelector"]["matchLabels"]]
    selectors += [of_kind("Deployment", manifests)["spec"]["selector"]["matchLabels"]]
    assert all(selector.items() <= labels.items() for selector in selectors)
    scraped = of_kind("ServiceMonitor", manifests)["spec"]["selector"]["matchLabels"].items()
    (admin,) = [service for service in services if scraped <= service["metadata"]["labels"].items()]
    assert admin["spec"]["ports"][0]["name"] == of_kind("ServiceMonitor", manifests)["spec"]["endpoints"][0]["port"]
    target = of_kind("HorizontalPodAutoscaler", manifests)["spec"]["scaleTargetRef"]["name"]
    assert target == of_kind("Deployment", manifests)["metadata"]["name"]
    (route,) = of_kind("HTTPRoute", manifests)["spec"]["rules"]
    clients = next(service for service in services if service != admin)
    (rule,) = of_kind("Ingress", manifests)["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["name"] == clients["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == clients["spec"]["ports"][0]["name"]
    assert route["backendRefs"] == [{"name": clients["metadata"]["name"], "port": clients["spec"]["ports"][0]["port"]}]


def roles(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each Role, by its namespace, with the RoleBinding beside it."""
    found = {}
    for role in (each for each in manifests if each["kind"] == "Role"):
        place = role["metadata"].get("namespace", "llm")
        (binding,) = [
            each
            for each in manifests
            if each["kind"] == "RoleBinding" and each["metadata"].get("namespace", "llm") == place
        ]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        found[place] = {"rules": role["rules"], "subjects": binding["subjects"]}
    return found


def test_who_watches_endpoints_may_read_them_where_they_are_and_nothing_else() -> None:
    manifests = documents(rendered(DISCOVERY))
    found = roles(manifests)
    assert found.keys() == {"llm", "prod"}
    for role in found.values():
        assert role["rules"] == [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
        ]
        assert role["subjects"] == [
            {"kind": "ServiceAccount", "name": pod(manifests)["serviceAccountName"], "namespace": "llm"}
        ]
    assert pod(manifests)["automountServiceAccountToken"]
    assert settings(manifests)["GATEWAY_DISCOVER"] == "k8s+http://engines.llm:8000,k8s+http://npu.prod:1025"


@pytest.mark.parametrize(
    "values",
    [BASE, SIDECAR, EVERYTHING, DISCOVERY | {"discovery": DISCOVERY["discovery"] | {"mode": "dns"}}],
    ids=["base", "sidecar", "everything", "dns"],
)
def test_nobody_else_has_rights_or_a_token(values: dict[str, Any]) -> None:
    manifests = documents(rendered(values))
    assert roles(manifests) == {}
    assert not pod(manifests)["automountServiceAccountToken"]


def test_rights_can_be_given_by_somebody_else() -> None:
    manifests = documents(rendered(DISCOVERY | {"rbac": {"create": False}}))
    assert roles(manifests) == {}
    assert pod(manifests)["automountServiceAccountToken"]


def test_dns_is_asked_for_the_names_of_the_services() -> None:
    manifests = documents(rendered(DISCOVERY | {"discovery": DISCOVERY["discovery"] | {"mode": "dns"}}))
    assert settings(manifests)["GATEWAY_DISCOVER"] == "dns+http://engines.llm.svc:8000,dns+http://npu.prod.svc:1025"


def test_gateways_that_share_engines_find_each_other() -> None:
    manifests = documents(rendered(DISCOVERY))
    (place,) = [each for each in manifests if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"]
    host = f"{place['metadata']['name']}.llm.svc"
    assert settings(manifests)["GATEWAY_REPLICAS"] == f"dns+http://{host}:{place['spec']['ports'][0]['port']}"
    selector = {"podSelector": {"matchLabels": place["spec"]["selector"]}}
    policy = of_kind("NetworkPolicy", manifests)["spec"]
    (admin,) = [rule for rule in policy["ingress"] if rule["ports"] == [{"port": "admin"}]]
    assert selector in admin["from"]
    assert [rule["to"] for rule in policy["egress"] if "to" in rule] == [[selector]]
    for alone in (BASE, SIDECAR):
        assert "GATEWAY_REPLICAS" not in settings(documents(rendered(alone)))


_CERTIFICATE: Final = "/etc/admin-tls/tls.crt"


@pytest.mark.parametrize(
    "named",
    [
        {"settings": {"admin_tls_cert": _CERTIFICATE, "admin_tls_key": "/etc/admin-tls/tls.key"}},
        {"extraEnv": [{"name": "GATEWAY_ADMIN_TLS_CERT", "value": _CERTIFICATE}]},
    ],
    ids=["settings", "extraEnv"],
)
def test_whoever_asks_the_admin_port_speaks_tls_where_it_does(named: dict[str, Any]) -> None:
    manifests = documents(rendered(MONITORING | {"replicas": 3} | named))
    check([each for each in manifests if each["kind"] != "ServiceMonitor"], NEWEST)
    (container,) = pod(manifests)["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert [(probe["path"], probe["scheme"]) for probe in probes] == [
        ("/livez", "HTTPS"),
        ("/livez", "HTTPS"),
        ("/readyz", "HTTPS"),
    ]
    assert settings(manifests)["GATEWAY_REPLICAS"].startswith("dns+https://")
    (endpoint,) = of_kind("ServiceMonitor", manifests)["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})


def test_a_store_is_shared_by_all_replicas_and_its_password_stays_in_a_secret() -> None:
    plain = settings(documents(rendered(BASE | {"replicas": 3, "share": {"url": "redis://valkey:6379/0"}})))
    assert (plain["GATEWAY_SHARE_URL"], plain["GATEWAY_SHARE_GATEWAYS"]) == ("redis://valkey:6379/0", "3")
    watched = "redis+sentinel://a:26379,b:26379/main/0"
    assert settings(documents(rendered(BASE | {"share": {"url": watched}})))["GATEWAY_SHARE_URL"] == watched
    manifests = documents(rendered(EVERYTHING))
    (container,) = pod(manifests)["containers"]
    (url,) = [each["valueFrom"] for each in container["env"] if each["name"] == "GATEWAY_SHARE_URL"]
    assert url == {"secretKeyRef": {"name": "gateway-store", "key": "url"}}
    assert settings(manifests)["GATEWAY_SHARE_GATEWAYS"] == "4", "as many as the autoscaler may make"
    assert "GATEWAY_SHARE_GATEWAYS" not in settings(documents(rendered(BASE)))


def test_an_autoscaler_leaves_the_number_of_replicas_alone() -> None:
    assert "replicas" not in of_kind("Deployment", documents(rendered(EVERYTHING)))["spec"]


def test_sidecars_scale_on_a_metric_that_exists() -> None:
    scaler = of_kind("HorizontalPodAutoscaler", documents(rendered(SIDECAR | {"autoscaling": {"enabled": True}})))
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {each.name for each in DEFINITIONS}


def test_rules_and_dashboard_are_those_of_the_folder() -> None:
    manifests = documents(rendered(EVERYTHING))
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    by_name = {group["name"]: group for group in of_kind("PrometheusRule", manifests)["spec"]["groups"]}
    assert by_name == {group["name"]: group for group in groups}
    (text,) = of_kind("ConfigMap", manifests)["data"].values()
    (dashboard,) = dashboards()
    assert "${DS_" not in text  # Grafana fills it in for people only, not for files
    assert json.loads(text.replace('"uid": "main"', '"uid": "${DS_PROMETHEUS}"'))["panels"] == dashboard["panels"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "backends: nothing given"),
        ({"mode": "sidecar"}, "sidecar.engine: nothing given"),
        (BASE | {"mode": "daemonset"}, "mode"),
        (BASE | {"replica": 2}, "replica"),
        (BASE | {"backends": ["gpu1:8000"]}, "backends"),
        (BASE | {"settings": {"drain_grace": 5}}, "drain_grace"),
        (BASE | {"settings": {"TPOT": "5"}}, "TPOT"),
        (BASE | {"settings": {"replicas": 2}}, "replicas"),
        (BASE | {"settings": {"share_url": "redis://h"}}, "share_url"),
        (BASE | {"share": {"url": "redis://:password@h"}}, "share"),
        (BASE | {"share": {"url": "redis+sentinel://h/m?sentinel_password=p"}}, "share"),
        ({"discovery": {"mode": "dns"}}, "discovery.services: nothing given"),
        ({"discovery": {"services": [{"name": "a", "port": 1}]}}, "discovery.mode: nothing given"),
        (SIDECAR | {"discovery": DISCOVERY["discovery"]}, "discovery.mode: given in mode sidecar"),
        ({"discovery": {"mode": "dns", "services": [{"name": "a.b", "port": 1}]}}, "discovery"),
        (BASE | {"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: nothing given"),
        (BASE | {"ingress": {"enabled": True}}, "ingress.hosts: nothing given"),
        (SIDECAR | {"sidecar": {"engine": {"name": "x", "image": "y"}}}, "engine"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm().HelmError, match=told):
        rendered(values)


def test_every_value_has_its_place_in_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, part in values.items():
        known = schema["properties"][name]
        if isinstance(part, dict) and known.get("additionalProperties") is False:
            assert known["properties"].keys() == part.keys(), name


def test_long_names_stay_valid() -> None:
    for manifest in documents(rendered(BASE, name="a" * 53)):
        assert len(manifest["metadata"]["name"]) <= 63


@pytest.mark.parametrize("folder", ["base", "sidecar", "example"])
def test_kustomize_builds_it(folder: str) -> None:
    kubectl = tool("kubectl", "apt-get install kubernetes-client")
    if "Kustomize" not in ran(kubectl, "version", "--client"):
        pytest.skip("this kubectl is older than kustomize's components")
    manifests = documents(ran(kubectl, "kustomize", KUSTOMIZE / folder))
    if folder == "example":
        assert settings(manifests)["GATEWAY_BACKENDS"] == "http://gpu1:8000,http://gpu2:8000"
        assert settings(manifests)["GATEWAY_DRAIN_GRACE"] == "600"  # what is not patched stays
        assert pod(manifests)["containers"][0]["image"] == f"registry.example.com/{NAME}:0.1.0"
        assert {manifest["metadata"].pop("namespace") for manifest in manifests} == {"llm"}
    check(manifests, NEWEST)
