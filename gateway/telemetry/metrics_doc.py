"""Writes ``docs/metrics.md`` from the definitions: ``python -m gateway.telemetry.metrics_doc > docs/metrics.md``."""

from __future__ import annotations

import sys
from typing import Final

from prometheus_client.utils import floatToGoString

from gateway.telemetry.definitions import SECTIONS, Definition

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m gateway.telemetry.metrics_doc > docs/metrics.md`; edit gateway/telemetry/definitions.py. -->

`GET /metrics` on the admin port, open to all, in Prometheus' text format. Times are seconds.

- The number of series is bounded. A model that is neither configured nor was ever answered by a backend counts as
  `other`; so does every model or client beyond the cap. A request without a model, lane or backend has `none`.
- Label values are cut to 100 characters; what is not printable becomes `_`.
- Figures of speed (time to first token, gaps, time per output token) are of completed streams. An answer that is not
  streamed has none of them; its duration and its tokens count.
- `class` is the lane of the length-aware queue.
- Beside these stand the usual `process_*`, `python_gc_*` and `python_info`.

## First questions

```promql
# Is anything refused, and why?
sum by (reason) (rate(gateway_shed_total[1m]))
# How long do clients wait for the first token, and how much of it is the gateway's queue?
histogram_quantile(0.99, sum by (class, le) (rate(gateway_time_to_first_token_seconds_bucket[5m])))
histogram_quantile(0.99, sum by (class, le) (rate(gateway_queue_wait_seconds_bucket{outcome="admitted"}[5m])))
# Which engine is full, and which is slower than it should be?
gateway_inflight_requests / gateway_concurrency_limit
gateway_pace_seconds / gateway_pace_target_seconds
# Which engine fails?
sum by (backend, outcome) (rate(gateway_backend_requests_total{outcome!="completed"}[5m]))
```
"""


def render() -> str:
    """The whole document."""
    sections = (f"## {title}\n\n" + "\n".join(map(_entry, section)) for title, section in SECTIONS)
    return _HEAD + "\n" + "\n".join(sections)


def _entry(definition: Definition) -> str:
    labels = f"{{{', '.join(definition.labels)}}}" if definition.labels else ""
    buckets = f"Buckets: {' '.join(map(floatToGoString, definition.edges))}.\n\n" if definition.edges else ""
    return (
        f"### `{definition.name}{labels}`\n\n"
        f"{definition.kind.value.capitalize()}. {definition.meaning}\n\n{buckets}"
        f"When it moves: {definition.action}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(render())
