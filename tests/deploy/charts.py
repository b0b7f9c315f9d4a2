"""The Helm chart, rendered by Helm's own library; ``python -m tests.deploy.charts`` writes what is rendered from it.

The plain manifests in deploy/kustomize are the chart's own output, so there is one description of how the gateway is
run; together with tests/deploy/golden they are what a change of the chart is held against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.helpers import ROOT

CHART: Final = ROOT / "deploy/helm/inference-gateway"
KUSTOMIZE: Final = ROOT / "deploy/kustomize"
NAME: Final = "inference-gateway"

_ENGINE: Final = {
    "image": "vllm/vllm-openai:v0.23.0",
    "args": ["--model", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8000"],
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "startupProbe": {
        "exec": {"command": ["curl", "-sf", "http://127.0.0.1:8000/health"]},
        "periodSeconds": 10,
        "failureThreshold": 180,
    },
}
BASE: Final[dict[str, Any]] = {"backends": ["http://engine:8000"]}
SIDECAR: Final[dict[str, Any]] = {"mode": "sidecar", "sidecar": {"engine": _ENGINE}, "replicas": 2}
DISCOVERY: Final[dict[str, Any]] = {
    "discovery": {
        "mode": "kubernetes",
        "services": [{"name": "engines", "port": 8000}, {"name": "npu", "port": 1025, "namespace": "prod"}],
    },
    "replicas": 3,
    "networkPolicy": {"enabled": True, "admin": [{"podSelector": {}}], "egress": [{"ports": [{"port": 443}]}]},
}
MONITORING: Final[dict[str, Any]] = {**BASE, "serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
EVERYTHING: Final[dict[str, Any]] = {
    **MONITORING,
    "backends": [{"url": "http://gpu1:8000", "limit": 32}, {"url": "https://npu1:1025", "kind": "mindie"}],
    "settings": {"tpot_objective": "100ms", "limit_max": 1_000_000, "cors": False, "log_format": "plain"},
    "envFromSecret": "gateway-secrets",
    "share": {"urlFromSecret": {"name": "gateway-store"}},
    "extraEnv": [
        {"name": "GATEWAY_ADMIN_TOKEN", "valueFrom": {"secretKeyRef": {"name": "gateway", "key": "token"}}},
    ],
    "image": {
        "repository": "registry.example.com/gateway",
        "digest": f"sha256:{'0' * 64}",
        "pullSecrets": [{"name": "p"}],
    },
    "drain": {"longestStreamSeconds": 1800, "endpointsSeconds": 5},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "hosts": ["llm.example.com"],
        "tls": [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}],
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
    },
    "grafanaDashboard": {"enabled": True, "datasourceUid": "main"},
    "autoscaling": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "chat"}}}],
        "admin": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 8000}]}],
    },
    "podLabels": {"team": "llm"},
    "podAnnotations": {"example.com/why": "test"},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "pool", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "volumes": [{"name": "tls", "secret": {"secretName": "engine-tls"}}],
    "volumeMounts": [{"name": "tls", "mountPath": "/etc/tls", "readOnly": True}],
}


def helm() -> Any:
    """Helm's library; skips the test where it is not installed."""
    return pytest.importorskip("helm_python", reason="pip install helm-python-sdk")


def rendered(values: Mapping[str, Any], name: str = NAME) -> str:
    """The manifests of a release in the namespace ``llm``, as one stream of documents without empty ones."""
    with helm().Chart.load(CHART) as chart:
        files: dict[str, str] = chart.render(dict(values), name=name, namespace="llm")
    texts = (text.strip() for path, text in sorted(files.items()) if not path.endswith("NOTES.txt"))
    return "".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts if text)


def documents(text: str) -> list[dict[str, Any]]:
    """The manifests of a stream."""
    return [document for document in yaml.safe_load_all(text) if document]


_MONITORS: Final = frozenset({"ServiceMonitor", "PrometheusRule"})
_COPIES: Final = frozenset({"PrometheusRule", "ConfigMap"})  # these are other files of deploy/, word for word

GOLDENS: Final[dict[Path, Callable[[], str]]] = {
    KUSTOMIZE / "base/gateway.yaml": lambda: rendered(BASE),
    KUSTOMIZE / "sidecar/gateway.yaml": lambda: rendered(SIDECAR),
    KUSTOMIZE / "monitoring/monitoring.yaml": lambda: _only(rendered(MONITORING), _MONITORS.__contains__),
    Path(__file__).parent / "golden/everything.yaml": lambda: _only(
        rendered(EVERYTHING), lambda kind: kind not in _COPIES
    ),
    Path(__file__).parent / "golden/discovery.yaml": lambda: rendered(DISCOVERY),
}
"""What is written down of the chart's output, by file."""


def _only(stream: str, wanted: Callable[[str], bool]) -> str:
    parts = (part for part in stream.split("---\n") if part)
    return "".join(f"---\n{part}" for part in parts if wanted(yaml.safe_load(part)["kind"]))


def main() -> None:
    """Write them."""
    for path, text in GOLDENS.items():
        path.write_text(text())


if __name__ == "__main__":
    main()
