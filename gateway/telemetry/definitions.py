"""Every metric of the gateway: name, type, labels, buckets, what it means and what to do when it moves.

Names follow prometheus.io/docs/practices/naming: one prefix, base units, ``_total`` on counters. Histogram edges take
in those of vLLM (``vllm/v1/metrics/loggers.py``) and of OpenTelemetry's GenAI conventions in the range that matters
here, so that panels for those join on ``le``; time to first token goes on to 160 s because ten seconds, where
OpenTelemetry stops, is blind under overload. ``docs/metrics.md`` is written from this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

# --------------------------------------------------------------------------------------------------------------
# Buckets, in seconds
# --------------------------------------------------------------------------------------------------------------

TTFT_EDGES: Final = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
PACE_EDGES: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
DURATION_EDGES: Final = (
    *(0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)
QUEUE_WAIT_EDGES: Final = (
    *(0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
RETRY_AFTER_EDGES: Final = (1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0)
ESTIMATE_ERROR_EDGES: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
OVERHEAD_EDGES: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)


@unique
class Kind(Enum):
    """Metric types of Prometheus' text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. ``meaning`` is its help text; ``action`` is what an operator does when it moves."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    action: str
    edges: tuple[float, ...] = ()


def _counter(name: str, *labels: str, meaning: str, action: str) -> Definition:
    return Definition(name, Kind.COUNTER, labels, meaning, action)


def _gauge(name: str, *labels: str, meaning: str, action: str) -> Definition:
    return Definition(name, Kind.GAUGE, labels, meaning, action)


def _histogram(name: str, *labels: str, edges: tuple[float, ...], meaning: str, action: str) -> Definition:
    return Definition(name, Kind.HISTOGRAM, labels, meaning, action, edges)


# --------------------------------------------------------------------------------------------------------------
# Requests
# --------------------------------------------------------------------------------------------------------------

REQUESTS: Final = _counter(
    "gateway_requests_total",
    *("model", "route", "code", "outcome"),
    meaning="Finished requests. code is the status sent to the client, 0 where nothing was sent; outcome says how it "
    "ended, whatever the code: an error inside a 200 is backend_error.",
    action="Compare outcomes. refused: see gateway_shed_total. backend_busy, backend_error, backend_lost and "
    "backend_silent: see gateway_backend_requests_total for which engine, and its log. client_gone: clients time out, "
    "see the time to first token. internal_error: a fault of the gateway, see its log.",
)
BACKEND_REQUESTS: Final = _counter(
    "gateway_backend_requests_total",
    *("backend", "outcome"),
    meaning="Finished requests that were given to a backend, by how they ended.",
    action="One backend with more errors than the others: look at that engine. All alike: look at the clients, the "
    "model or the network in front of all engines.",
)
CLIENT_REQUESTS: Final = _counter(
    "gateway_client_requests_total",
    *("client", "outcome"),
    meaning="Finished requests by client (hash of its API key, its user or its address). Clients are named only where "
    "the operator allows it, as /metrics is open: by default all count as other.",
    action="One client far above the others sheds itself first; talk to its owner, or give it a gateway of its own.",
)
PRIORITY_REQUESTS: Final = _counter(
    "gateway_priority_requests_total",
    *("priority", "outcome"),
    meaning="Finished requests by priority: critical, standard or sheddable. All are standard where no header is "
    "trusted (GATEWAY_PRIORITY_HEADER).",
    action="sheddable refused: meant, while others need the engines. critical refused: even they alone are too much.",
)
DURATION: Final = _histogram(
    "gateway_request_duration_seconds",
    *("model", "outcome"),
    edges=DURATION_EDGES,
    meaning="From the request's head to its end, for routes that work the engine.",
    action="Mostly output length: judge speed by time to first token and time per output token. A rise with neither "
    "of them moving means longer answers.",
)

# --------------------------------------------------------------------------------------------------------------
# Speed. Only completed streams: an answer that is not streamed has neither a first token nor gaps.
# --------------------------------------------------------------------------------------------------------------

TTFT: Final = _histogram(
    "gateway_time_to_first_token_seconds",
    *("model", "class"),
    edges=TTFT_EDGES,
    meaning="What the client waits: from the request's head to the first output, the wait in the gateway's queue "
    "included. Completed streams only.",
    action="Compare with gateway_queue_wait_seconds and gateway_backend_time_to_first_token_seconds: the first says "
    "that more comes in than the engines serve, the second that an engine is slow or prompts grew.",
)
BACKEND_TTFT: Final = _histogram(
    "gateway_backend_time_to_first_token_seconds",
    "backend",
    edges=TTFT_EDGES,
    meaning="The engine's share of it: from the first byte sent to the backend to the first output. Completed streams "
    "only.",
    action="Rises alone: longer prompts, a cold prefix cache, or a queue inside the engine "
    "(gateway_unstarted_requests). On one backend only: that engine is degraded.",
)
ITL: Final = _histogram(
    "gateway_inter_token_latency_seconds",
    "model",
    edges=PACE_EDGES,
    meaning="Gaps between output chunks of one stream, of all completed streams; a chunk may hold several tokens. The "
    "sum is exact, the bucket of a gap within 0.5 % of an edge may be the neighbour.",
    action="A high P99 with a steady median: long prompts stall running streams (chunked prefill), or KV preemption. "
    "Both rise: too many in flight for the engine, the limit should fall within seconds.",
)
TPOT: Final = _histogram(
    "gateway_time_per_output_token_seconds",
    "model",
    edges=PACE_EDGES,
    meaning="(last output - first output) / (output tokens - 1) of completed streams with two tokens or more; tokens "
    "as the backend reported them, else counted chunks.",
    action="Above the objective for minutes: see whether gateway_concurrency_limit falls; if it stands at its "
    "minimum, the engine itself became slower.",
)
QUEUE_WAIT: Final = _histogram(
    "gateway_queue_wait_seconds",
    *("class", "outcome"),
    edges=QUEUE_WAIT_EDGES,
    meaning="Wait in the gateway's queue, by how it ended: admitted, queue_timeout (its time ran out) or client_gone. "
    "What is refused at the door does not wait and is not counted here.",
    action="Near gateway_queue_max_wait_seconds for long: sustained overload. Add engines, or accept that the rest is "
    "shed.",
)
OVERHEAD: Final = _histogram(
    "gateway_overhead_seconds",
    edges=OVERHEAD_EDGES,
    meaning="The gateway's own time for a request that reached a backend: reading its body's meaning, choosing, "
    "connecting. Neither the client's upload nor the queue is in it.",
    action="Above a few ms: slow connections to a backend, very large bodies, or a gateway short of CPU "
    "(gateway_event_loop_lag_seconds).",
)

# --------------------------------------------------------------------------------------------------------------
# Refusals and retries
# --------------------------------------------------------------------------------------------------------------

SHED: Final = _counter(
    "gateway_shed_total",
    "reason",
    meaning="Requests refused or thrown out of the queue by the gateway, by reason.",
    action="queue_full, deadline, queue_timeout: more comes in than can be served in time; add engines or lower the "
    "load. retry_budget: clients retry too much. no_backend: see gateway_backend_up. draining: a normal restart.",
)
RETRY_ATTEMPTS: Final = _counter(
    "gateway_retry_attempts_total",
    meaning="Requests that said they are a retry (x-stainless-retry-count above 0).",
    action="A rise means that clients time out or are refused; its share of gateway_requests_total is the retry "
    "amplification.",
)
RETRY_AFTER: Final = _histogram(
    "gateway_retry_after_seconds",
    edges=RETRY_AFTER_EDGES,
    meaning="What refused clients were told to wait.",
    action="Rising: the queue drains more slowly than it fills. At its maximum: sustained overload.",
)
RETRY_ARRIVALS: Final = _counter(
    "gateway_retry_arrivals_total",
    "kept",
    meaning="Clients that came back after a refusal; kept says whether they waited as told.",
    action='Many kept="false": a client or a proxy between ignores Retry-After; find it in the access log by client.',
)

# --------------------------------------------------------------------------------------------------------------
# Tokens
# --------------------------------------------------------------------------------------------------------------

PROMPT_TOKENS: Final = _counter(
    "gateway_prompt_tokens_total",
    *("model", "source"),
    meaning="Prompt tokens of answered requests; source is usage (the backend's count) or estimate (it gave none).",
    action="Growing faster than requests: prompts became longer; expect a higher time to first token.",
)
OUTPUT_TOKENS: Final = _counter(
    "gateway_output_tokens_total",
    *("model", "source"),
    meaning="Output tokens; source is usage (the backend's count), chunks (counted in the stream) or estimate.",
    action="Its rate is the throughput. It should stay level under overload; if it falls while load rises, the engine "
    "is beyond its knee or preempting.",
)
ESTIMATE_ERROR: Final = _histogram(
    "gateway_estimate_error_ratio",
    "tokens",
    edges=ESTIMATE_ERROR_EDGES,
    meaning="How far the tokens that a request was taken for were from what the backend reported of it, as a share of "
    "the latter; tokens says which: prompt or output. Of completed answers.",
    action="A median above 0.1 for prompt: very mixed traffic behind one model name, or unusual text. Requests near a "
    "lane's threshold then land in the wrong lane; set the threshold where few requests are. Output lengths are a "
    "guess from past answers and may be far off.",
)

# --------------------------------------------------------------------------------------------------------------
# Backends, now
# --------------------------------------------------------------------------------------------------------------

INFLIGHT_REQUESTS: Final = _gauge(
    "gateway_inflight_requests",
    "backend",
    meaning="Requests that run on a backend now.",
    action="At gateway_concurrency_limit: the backend is full and the rest queues. Far below it with a queue: the "
    "token limit holds (gateway_inflight_tokens).",
)
INFLIGHT_TOKENS: Final = _gauge(
    "gateway_inflight_tokens",
    "backend",
    meaning="KV tokens that those requests are expected to hold at their end.",
    action="At gateway_token_limit: long requests fill the KV cache; the limit on requests is not what holds.",
)
UNSTARTED_REQUESTS: Final = _gauge(
    "gateway_unstarted_requests",
    "backend",
    meaning="Streams that run on a backend and have no output yet.",
    action="Standing above 1: a queue inside the engine; the limit is cut until it is gone.",
)
CONCURRENCY_LIMIT: Final = _gauge(
    "gateway_concurrency_limit",
    "backend",
    meaning="How many requests may run on a backend: learned, or fixed by the configuration.",
    action="Falls and stays low: the engine is slower than it was when idle. Swings: see "
    "gateway_concurrency_limit_changes_total for the reason.",
)
LIMIT_MINIMUM: Final = _gauge(
    "gateway_concurrency_limit_minimum",
    "backend",
    meaning="The concurrency limit never falls below; absent while the limit is fixed.",
    action="gateway_concurrency_limit stands at it: the engine is far too slow, or out of order; see /diagnosis.",
)
TOKEN_LIMIT: Final = _gauge(
    "gateway_token_limit",
    "backend",
    meaning="Bound on gateway_inflight_tokens; absent while none is known.",
    action="Falling: the engine preempted or its KV cache is nearly full.",
)
LIMIT_CHANGES: Final = _counter(
    "gateway_concurrency_limit_changes_total",
    *("backend", "direction", "reason"),
    meaning="Moves of the concurrency limit, and why.",
    action="Cuts for one reason only name the bottleneck of that engine.",
)
CHOICES: Final = _counter(
    "gateway_backend_choices_total",
    *("backend", "choice"),
    meaning="Requests sent to a backend, and why there: headroom (the emptiest), prefix or session (it is drawn "
    "there), spill (where it is drawn to there was no room, or more than a fair share), failover (another one was "
    "tried first).",
    action="Much spill beside prefix or session: few prompts draw most of the load, or the engines are full. Failover: "
    "an engine cannot be reached.",
)
CACHE_TOKENS: Final = _counter(
    "gateway_prefix_cache_tokens_total",
    *("backend", "found"),
    meaning="Prompt tokens of answers that say how many of them were cached; found says whether these were.",
    action='The rate of found="true" over that of both is the hit rate. Low on one of several engines: see '
    "GATEWAY_AFFINITY. Low on all: prompts have little in common, or do not begin with what they have.",
)
PACE: Final = _gauge(
    "gateway_pace_seconds",
    "backend",
    meaning="Smoothed seconds per output token that the limit is steered by; absent until known.",
    action="Compare with gateway_pace_target_seconds: above it the limit falls.",
)
LATENCY_BASELINE: Final = _gauge(
    "gateway_latency_baseline_seconds",
    "backend",
    meaning="Unloaded seconds per output token, learned while at most four requests run; absent until known.",
    action="Much above that of a like engine: it was learned while the engine was loaded from elsewhere. Set "
    "GATEWAY_TPOT_OBJECTIVE, or restart the gateway at a quiet time.",
)
PACE_TARGET: Final = _gauge(
    "gateway_pace_target_seconds",
    "backend",
    meaning="Seconds per output token that the limit aims at: from the objective, else a multiple of the baseline.",
    action="Moves only with the baseline or the configuration.",
)
BACKEND_UP: Final = _gauge(
    "gateway_backend_up",
    "backend",
    meaning="1 while the gateway may send requests to the backend (up, or not probed yet), 0 while it is down or held "
    "by the breaker.",
    action="0: see the engine's log and /state. All at 0: clients get 503; the gateway goes on trying by itself.",
)
BACKEND_DRAINED: Final = _gauge(
    "gateway_backend_drained",
    "backend",
    meaning="1 while the operator lets no new request go to the backend (`gateway limits --drain`).",
    action="1 and forgotten: `gateway limits --undrain`. gateway_backend_up is 0 meanwhile, as meant.",
)
BACKEND_SILENCE: Final = _gauge(
    "gateway_backend_silence_seconds",
    "backend",
    meaning="Time since the last byte of any request that runs on the backend; 0 while none runs.",
    action="Above a minute: the engine hangs, whatever its health says, unless all that it runs are long answers in "
    "one piece; gateway_finding (backend_hung) tells the two apart. After GATEWAY_BREAKER_SILENCE the breaker takes it "
    "out.",
)
KV_USAGE: Final = _gauge(
    "gateway_backend_kv_usage_ratio",
    "backend",
    meaning="Share of the KV cache that the engine itself says is in use; absent where it does not say.",
    action="Near 1: long requests fill the cache and the engine preempts; see gateway_token_limit.",
)
SCRAPE_AGE: Final = _gauge(
    "gateway_backend_scrape_age_seconds",
    "backend",
    meaning="Age of the engine's own gauges; absent where there never were any.",
    action="Growing: the engine's /metrics fails or is slow. Traffic goes on: those gauges only ever lower a limit.",
)

# --------------------------------------------------------------------------------------------------------------
# The queue, now
# --------------------------------------------------------------------------------------------------------------

QUEUE_DEPTH: Final = _gauge(
    "gateway_queue_depth",
    "class",
    meaning="Requests that wait, by length class (lane).",
    action="Above 0 for long: the engines are full. Only the long class: long prompts wait for each other, as meant.",
)
QUEUE_PRIORITY: Final = _gauge(
    "gateway_queue_priority_depth",
    "priority",
    meaning="Requests that wait, by priority.",
    action="critical waits: no engine has room even for them, or one that is large waits for its tokens to fit.",
)
QUEUE_TOKENS: Final = _gauge(
    "gateway_queue_tokens",
    "class",
    meaning="Predicted work that waits, in tokens of output (a prompt token counts as a part of one).",
    action="Large with a small depth: few very long requests wait.",
)
QUEUE_OLDEST: Final = _gauge(
    "gateway_queue_oldest_wait_seconds",
    "class",
    meaning="How long the oldest waiting request has waited.",
    action="At gateway_queue_max_wait_seconds: requests are about to be thrown out (queue_timeout). Beyond it: a burst "
    "waits for its prompts to be read by an engine that is far from full.",
)
QUEUE_MAX_WAIT: Final = _gauge(
    "gateway_queue_max_wait_seconds",
    "class",
    meaning="How long a request may wait in this class.",
    action="Moves only with the configuration.",
)

# --------------------------------------------------------------------------------------------------------------
# The gateway itself
# --------------------------------------------------------------------------------------------------------------

FINDING: Final = _gauge(
    "gateway_finding",
    *("cause", "backend"),
    meaning="1 while /diagnosis finds this cause; backend is none where it is about the gateway or its clients. Absent "
    "otherwise.",
    action="`gateway diagnose` gives the evidence and the setting to turn.",
)
CANARY_FAILURES: Final = _counter(
    "gateway_canary_failures_total",
    "backend",
    meaning="Answers to canaries (GATEWAY_CANARY_INTERVAL) that differed from the backend's first answer to the same "
    "prompt.",
    action="Any rise: the engine may answer wrongly, fast and with 200. Drain it (`gateway limits --drain`), ask it by "
    "hand, restart it.",
)
OVERLOADED: Final = _gauge(
    "gateway_overloaded",
    meaning="1 while overload is sustained and clients are told not to retry.",
    action="1 for minutes: add engines or lower the load.",
)
DRAINING: Final = _gauge(
    "gateway_draining",
    meaning="1 from the stop signal to the end of the process.",
    action="1 for longer than the grace time: a stream does not end; see gateway_inflight_requests.",
)
LOOP_LAG: Final = _gauge(
    "gateway_event_loop_lag_seconds",
    meaning="Longest delay of the event loop in the last 15 to 30 seconds; of several processes, the worst.",
    action="Above 0.05: the process is short of CPU or something blocks it; every stream stutters by as much.",
)
WORKERS: Final = _gauge(
    "gateway_workers",
    meaning="Processes that relay now.",
    action="Below GATEWAY_WORKERS: one has ended and is started again; the log says why.",
)
LOG_DROPPED: Final = _counter(
    "gateway_access_log_dropped_total",
    meaning="Lines of the access log that were lost: the disk is full, or whoever reads the log is too slow.",
    action="Free the disk or fix the log's reader. Serving is not touched.",
)
RECORDS_DROPPED: Final = _counter(
    "gateway_records_dropped_total",
    meaning="Lines of the record file that were lost: the disk is full or too slow.",
    action="Free the disk. Serving is not touched, nor is the live report.",
)
CONNECTIONS_REFUSED: Final = _counter(
    "gateway_connections_refused_total",
    meaning="Clients that got 503 as soon as they connected, as nearly all file descriptors are in use"
    " (process_open_fds, process_max_fds).",
    action="Raise ulimit -n, LimitNOFILE or the container's limit: two to a request, one to an idle connection.",
)
UNTOLD: Final = _counter(
    "gateway_untold_requests_total",
    meaning="Finished requests of which a relaying process could not tell the deciding one, as that was gone or did"
    " not keep up: no other metric, log or report has them. 0 in a gateway of one process.",
    action="While it grows, the deciding process has ended (the log says why) or its core is full:"
    " gateway_event_loop_lag_seconds.",
)
SHARE_UP: Final = _gauge(
    "gateway_share_up",
    meaning="1 while what API keys have used is counted with other gateways in a store (GATEWAY_SHARE_URL).",
    action="0: each gateway holds keys to its own share of their quotas. gateway_share_failures_total says why; see "
    "the store, and the runbook on clients that get 429.",
)
SHARE_GATEWAYS: Final = _gauge(
    "gateway_share_gateways",
    meaning="Gateways that share, as the store last told, with this one; without it each takes that part of a quota.",
    action="Fewer than there are: one does not reach the store, or has another GATEWAY_SHARE_PREFIX.",
)
SHARE_DECISIONS: Final = _counter(
    "gateway_share_decisions_total",
    "way",
    meaning="Requests of keys let in or refused: by what was claimed ahead, by the store's word for which they waited "
    "(asked), or by this gateway's share alone.",
    action="Many asked, and a slow store: raise GATEWAY_SHARE_BLOCK. Keys near their bounds ask, whatever is claimed.",
)
SHARE_CLAIMS: Final = _counter(
    "gateway_share_claims_total",
    meaning="Claims for keys that the store answered; several go in one turn.",
    action="As many as requests: most keys are near their bounds, or the block is too small.",
)
SHARE_FAILURES: Final = _counter(
    "gateway_share_failures_total",
    "reason",
    meaning="Times that the store was of no use: unreachable, timeout (GATEWAY_SHARE_TIMEOUT), denied (password or "
    "rights), loading, readonly (a replica), memory (full), error (anything else; see the log).",
    action="Once, while another one takes over: meant. Again and again: what the reason says.",
)
SHARE_ROUND_TRIP: Final = _histogram(
    "gateway_share_round_trip_seconds",
    edges=OVERHEAD_EDGES,
    meaning="From a turn of claims to its answer; whoever is decided as asked waits for up to two.",
    action="Above 0.002: the store is far or busy; keys near their bounds wait so long for each request.",
)
BUILD_INFO: Final = _gauge(
    "gateway_build_info", "version", meaning="Always 1.", action="Differs between replicas during a roll-out only."
)
CONFIG_INFO: Final = _gauge(
    "gateway_config_info",
    "hash",
    meaning="Always 1; hash is that of the effective configuration (/config on the admin port shows it).",
    action="Differs between replicas: they run with different settings.",
)

SECTIONS: Final[tuple[tuple[str, tuple[Definition, ...]], ...]] = (
    ("Requests", (REQUESTS, BACKEND_REQUESTS, CLIENT_REQUESTS, PRIORITY_REQUESTS, DURATION)),
    ("Speed", (TTFT, BACKEND_TTFT, ITL, TPOT, QUEUE_WAIT, OVERHEAD)),
    ("Refusals and retries", (SHED, RETRY_ATTEMPTS, RETRY_AFTER, RETRY_ARRIVALS)),
    ("Tokens", (PROMPT_TOKENS, OUTPUT_TOKENS, ESTIMATE_ERROR)),
    (
        "Backends",
        (
            *(INFLIGHT_REQUESTS, INFLIGHT_TOKENS, UNSTARTED_REQUESTS),
            *(
                CONCURRENCY_LIMIT,
                LIMIT_MINIMUM,
                TOKEN_LIMIT,
                LIMIT_CHANGES,
                CHOICES,
                CACHE_TOKENS,
                PACE,
                LATENCY_BASELINE,
                PACE_TARGET,
            ),
            *(BACKEND_UP, BACKEND_DRAINED, BACKEND_SILENCE, KV_USAGE, SCRAPE_AGE),
        ),
    ),
    ("Queue", (QUEUE_DEPTH, QUEUE_PRIORITY, QUEUE_TOKENS, QUEUE_OLDEST, QUEUE_MAX_WAIT)),
    (
        "The gateway itself",
        (
            FINDING,
            CANARY_FAILURES,
            OVERLOADED,
            DRAINING,
            LOOP_LAG,
            WORKERS,
            LOG_DROPPED,
            RECORDS_DROPPED,
            UNTOLD,
            CONNECTIONS_REFUSED,
            BUILD_INFO,
            CONFIG_INFO,
        ),
    ),
    (
        "Shared quotas",
        (SHARE_UP, SHARE_GATEWAYS, SHARE_DECISIONS, SHARE_CLAIMS, SHARE_FAILURES, SHARE_ROUND_TRIP),
    ),
)
DEFINITIONS: Final = tuple(definition for _, section in SECTIONS for definition in section)
