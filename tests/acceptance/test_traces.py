"""``traceparent`` passes through always; with a collector, the gateway's own spans join the client's trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gateway.app.compose import Service
from gateway.app.configs import load_all
from gateway.app.exits import StartError
from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.tap import Tap
from tests.real.wire import exchange
from tests.telemetry.collector import Collector, values

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACING = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=opaque"))

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.mark.parametrize("exported", [False, True])
def test_an_engine_gets_the_clients_trace_as_it_came(
    exported: bool, engine: Engines, gateway: Gateways, collector: Collector
) -> None:
    settings = {"otlp_endpoint": f"{collector.url}/"} if exported else {}
    with Tap(engine("flat").port) as tap:
        process = gateway(backends=tap.url, **settings)
        asking = chat("flat", max_tokens=5, stream_options={"include_usage": True})
        answer = exchange(process.port, replace(asking, headers=TRACING))
        assert answer.status == 200
        asked = [bytes(each.heard) for each in tap.connections if b"/v1/chat/completions" in each.heard]
        assert len(asked) == 1
        lines = asked[0].lower().split(b"\r\n")
        assert [line for line in lines if line.startswith((b"traceparent:", b"tracestate:"))] == [
            f"{name}: {value}".encode() for name, value in TRACING
        ]
        assert process.program.stop() == 0
    spans = {span.name: span for span in collector.spans()}
    assert set(spans) == ({"chat flat", "queue", "engine"} if exported else set())
    if exported:
        request = spans["chat flat"]
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
        assert values(request.attributes)["gen_ai.usage.output_tokens"] == 5
        assert "gen_ai.server.time_to_first_token" in collector.metrics()


async def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "gateway.telemetry.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(
        StartError, match=r"GATEWAY_OTLP_ENDPOINT: .* not installed: pip install 'inference-gateway\[otel\]'"
    ):
        Service(load_all(None), ())
