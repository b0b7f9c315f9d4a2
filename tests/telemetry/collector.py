"""A receiver of OTLP over HTTP, on loopback."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Takes what is exported."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/metrics": []}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies[self.path].append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - the library's name
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Span]:
        exported = [ExportTraceServiceRequest.FromString(body) for body in self.bodies["/v1/traces"]]
        return [
            span
            for request in exported
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, Any]:
        request = ExportTraceServiceRequest.FromString(self.bodies["/v1/traces"][0])
        return values(request.resource_spans[0].resource.attributes)

    def metrics(self) -> dict[str, Any]:
        exported = ExportMetricsServiceRequest.FromString(self.bodies["/v1/metrics"][-1])
        return {
            metric.name: metric
            for resource in exported.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def values(attributes: Any) -> dict[str, Any]:
    def value(pair: KeyValue) -> Any:
        return getattr(pair.value, str(pair.value.WhichOneof("value")))

    return {pair.key: value(pair) for pair in attributes}
