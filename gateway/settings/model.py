"""Every setting of the gateway: one model, prefix ``GATEWAY_``; one class a section, in the order of the documents.

A setting is added here and mapped in ``plain.py`` or ``gateway/app/configs.py``; ``python -m gateway.settings``
writes it into the documents. Defaults come from the config of the room that the setting tunes.
"""

from __future__ import annotations

from typing import Annotated, Final

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.admission.config import (
    BalanceConfig,
    BreakerConfig,
    EstimatorConfig,
    LimitConfig,
    QueueConfig,
    ShedConfig,
)
from gateway.settings.values import (
    ApiKeys,
    Backends,
    Buckets,
    Bytes,
    Discover,
    Draws,
    File,
    Flag,
    Gateways,
    Header,
    Host,
    Lanes,
    LaneSeconds,
    LaneWeights,
    LogFormat,
    LogLevel,
    ModelTokens,
    Networks,
    Number,
    Port,
    Prefix,
    Ratio,
    Replicas,
    Seconds,
    Secret,
    SessionSources,
    SharedBy,
    StoreUrl,
    Text,
    Tokens,
    Url,
    Whole,
)

PREFIX: Final = "GATEWAY_"

_PRIVATE: Final = (
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
    *("::1/128", "fc00::/7", "fe80::/10"),
)
_LIMIT: Final = LimitConfig()
_QUEUE: Final = QueueConfig()
_SHED: Final = ShedConfig()
_ESTIMATOR: Final = EstimatorConfig()
_BREAKER: Final = BreakerConfig()
_BALANCE: Final = BalanceConfig()


class _Engines(BaseModel):
    """The engines behind the gateway.

    The short form is a list of URLs. The JSON form takes for each engine `url` and, where wanted, `name` (default:
    host:port; it names the engine in metrics and logs), `kind` (the engine family; default `auto`: found out by
    asking, see engines.md), `models` (default: whatever is asked), `api_key` (sent as bearer token in place of the
    client's), `limit` (a fixed concurrency instead of the adaptive one), `max_model_len` (its context length in
    tokens; default: as vLLM says it in /v1/models), `weight`, `tier` (0 to 9; engines of a higher tier are used while
    those of the lower ones have no room), `management_url` and `metrics_url` (where an engine has its health and its
    gauges on ports of their own, as MindIE has), and `tls_verify`, `tls_ca`, `tls_cert`, `tls_key`, which take the
    place of the settings of that name for this engine.
    """

    backends: Backends = Field(
        default=(),
        description="The engines. Unset: an embedded emulated engine, to look around.",
        examples=[
            "http://gpu1:8000,http://gpu2:8000",
            '[{"name": "a", "url": "http://gpu1:8000", "models": ["qwen3-8b"], "limit": 32}]',
            '[{"url": "https://npu1:1025", "kind": "mindie", "management_url": "https://npu1:1026"}]',
        ],
    )
    discover: Discover = Field(
        default=(),
        description="Where engines are found that come and go, beside those of GATEWAY_BACKENDS. dns+http://NAME:PORT "
        "is every address of a name, such as a headless Service; k8s+http://SERVICE.NAMESPACE:PORT is every ready "
        "endpoint of a Service, watched at the API server with the Pod's own account. Where none is found any more, "
        "those known stay.",
        examples=["dns+http://engines.prod.svc.cluster.local:8000", "k8s+http://engines.prod:8000"],
    )
    discover_interval: Annotated[Seconds, Gt(0)] = Field(
        default=5.0, description="Between two questions for the addresses of a name in DNS."
    )
    discover_api_key: Secret | None = Field(
        default=None, description="Sent as a bearer token to every engine that is found."
    )


class _Balance(BaseModel):
    """Which engine, where several serve a request. See affinity.md."""

    affinity: Draws = Field(
        default=_BALANCE.affinity.value,
        description="What draws a request to one engine before others. none: nothing, each goes to the emptiest for "
        "its limit. session: requests of one session go together. prefix: a request goes where most of its prompt is "
        "cached already.",
    )
    affinity_bound: Annotated[Ratio, Gt(0), Le(10)] = Field(
        default=_BALANCE.bound,
        description="An engine that has more in flight than its fair share and so much of it again, and a few that "
        "chance brings, draws nobody.",
    )
    affinity_patience: Annotated[Seconds, Ge(0)] = Field(
        default=_BALANCE.patience,
        description="The longest a request waits for the engine that it is drawn to while another has room; never "
        "where a cold prefill would cost the engines less. 0: it does not.",
    )
    session_by: SessionSources = Field(
        default=("conversation",),
        description="What names the session of a request, the first that it has: a header, `conversation` or "
        "`prompt_cache_key` of the body, `user`, or who its API key says it is.",
        examples=["header:x-session-id,conversation,user", "key"],
    )
    failover_budget: Annotated[Ratio, Ge(0), Le(1)] = Field(
        default=_BALANCE.failovers,
        description="Share of requests that may be tried on another engine, where nothing of them was processed on the "
        "first. Beyond it, and a few, they fail.",
    )
    choice_header: Flag = Field(
        default=False,
        description="Answers say which engine served them and why: X-Gateway-Backend: NAME; headroom, prefix, session, "
        "spill or failover.",
    )


class _Listeners(BaseModel):
    """Where the gateway listens.

    On the admin port `/livez`, `/readyz` and `/metrics` answer everybody; all else there (`/state`) answers loopback
    only, or whoever gives the token as `Authorization: Bearer ...`.
    """

    host: Host = Field(default="0.0.0.0", description="Address for clients.")  # noqa: S104 - a gateway is there to be reached
    port: Port = Field(default=8080, description="Port for clients.")
    listen_tls_cert: File | None = Field(
        default=None,
        description="Certificate for clients (PEM, with its chain; it may hold the key as well). Unset: plain HTTP. A "
        "file that changed is read again by itself.",
    )
    listen_tls_key: File | None = Field(default=None, description="Its key, unencrypted.")
    listen_tls_client_ca: File | None = Field(
        default=None, description="Authorities of clients' certificates. Where set, every client must show one."
    )
    admin_host: Host = Field(default="0.0.0.0", description="Address for probes, metrics and state.")  # noqa: S104 - the same
    admin_port: Port = Field(default=8081, description="Port for probes, metrics and state.")
    admin_tls_cert: File | None = Field(
        default=None,
        description="Certificate for the admin port, as GATEWAY_LISTEN_TLS_CERT. Unset: plain HTTP. With it probes and "
        "Prometheus need `scheme: https`; `gateway report` and the like on this machine trust it.",
    )
    admin_tls_key: File | None = Field(default=None, description="Its key, unencrypted.")
    admin_token: Secret | None = Field(
        default=None, description="Token that opens the admin port to other than loopback."
    )


class _Keys(BaseModel):
    """Who may come.

    Where neither of these is set, everybody may, with any key or none, and what key a client sends goes on to the
    engine. Where one is, a request needs a known key, as `Authorization: Bearer`, `x-api-key` or `api-key`, whatever
    its path and method (only a browser's preflight needs none), and no client's key reaches an engine.

    The short form is a list of keys. The JSON form, which the file has, takes for each holder a `name` (it names
    the client in metrics and logs) and `keys` (one, or several while one replaces another), and where wanted
    `weight` (its share of a lane against that of another holder, default 1), `priority` (`critical`, `standard` or
    `sheddable`; a header may lower it and never raises it), `requests_per_minute`, `tokens_per_minute` (prompt and
    output), `max_in_flight` and `models`. The file holds hashes only. `gateway keys new` makes a key and its entry,
    `gateway keys hash` the hash of a key. A file that changed is read again by itself; where something in it is
    wrong, the keys before stay.
    """

    api_keys: ApiKeys = Field(
        default=(),
        description="API keys of clients. Unset, and no file: no key is asked for.",
        examples=[
            "sha256:8c2cd44ff069b3c9430d16c2ba17b66506532b2b90558d91d7c20130e950d64e",
            '[{"name": "team-a", "keys": "sha256:...", "requests_per_minute": 60, "models": ["qwen3-8b"]}]',
        ],
    )
    api_keys_file: File | None = Field(default=None, description="File with more of them, hashed.")
    forward_client_keys: Flag = Field(
        default=False,
        description="Send clients' keys on to engines that have no `api_key` of their own, although the gateway asks "
        "for keys itself.",
    )


class _Share(BaseModel):
    """What API keys have used, counted by several gateways together: see shared-quotas.md.

    The store is a Valkey or Redis, 6.2 or newer, and needs the extra `inference-gateway[valkey]`. It keeps no keys and
    no requests, only counts under hashes of the names of keys. Without it each gateway holds a key to a part of its
    quotas, and nothing else changes. A reload puts another URL, timeout or block in effect.
    """

    share_url: StoreUrl | None = Field(
        default=None,
        description="The store. Unset: each gateway counts by itself. A certificate authority of one's own: "
        "?ssl_ca_certs=FILE.",
        examples=[
            "redis://valkey:6379/0",
            "rediss://gateway:PASSWORD@valkey.example.com:6380/0",
            "redis+sentinel://sentinel1:26379,sentinel2:26379/mymaster/0",
        ],
    )
    share_prefix: Prefix = Field(
        default="gateway", description="How the names in the store begin; gateways with the same one share."
    )
    share_timeout: Annotated[Seconds, Gt(0), Le(5)] = Field(
        default=0.05,
        description="Time that the store has to answer; a request waits for two answers at most, and nearly always for "
        "none. Beyond it each gateway keeps to its part of the quotas, until the store answers again.",
    )
    share_block: Annotated[Ratio, Ge(0), Le(0.5)] = Field(
        default=0.05,
        description="Part of a quota that a gateway claims ahead for a busy key, so that its requests do not wait for "
        "the store; never more than an eighth of what is left. 0: each request asks.",
    )
    share_lease: Annotated[Seconds, Ge(0.5), Le(60)] = Field(
        default=10.0,
        description="Silence after which the places (`max_in_flight`) of a gateway are given to others.",
    )
    share_gateways: Annotated[Whole, Ge(1)] = Field(
        default=1,
        description="How many gateways share, for one that starts while there is no store; else the store tells.",
    )


class _Objectives(BaseModel):
    """What is fast enough. Without objectives the gateway keeps each engine near its knee by itself."""

    ttft_objective: LaneSeconds = Field(
        default={},
        description="Time to first token that clients expect; a bare value is for the first (short) lane.",
        examples=["1", "short=1,long=8"],
    )
    tpot_objective: Annotated[Seconds, Gt(0)] | None = Field(
        default=None, description="Time per output token that clients expect.", examples=["50ms"]
    )
    objective_headroom: Annotated[Ratio, Gt(0), Le(1)] = Field(
        default=_LIMIT.objective_headroom,
        description="Share of the TPOT objective that the mean pace is held at where single answers spread far around "
        "it; where they are seen to spread less, the mean comes closer.",
    )


class _Queue(BaseModel):
    """Who waits, and for how long: lanes by predicted length, so that short requests pass long ones."""

    lanes: Lanes = Field(
        default=tuple((lane.name, lane.threshold) for lane in _QUEUE.lanes),
        description="Lanes, each for requests of up to so many predicted tokens (prompt and output).",
        examples=["short=1000,long", "short=500,medium=8000,long"],
    )
    lane_weights: LaneWeights = Field(
        default={},
        description="Shares of the engine while all lanes wait; a bare value is for the first lane. "
        "Unset: 2 in the first lane and 1 in the others.",
        examples=["short=2,long=1"],
    )
    max_wait: LaneSeconds = Field(
        default={},
        description="How long a request may wait; a bare value is for all lanes. Unset: half of the lane's TTFT "
        "objective, else 1 s in the first lane and 4 s in the others, and up to 30 s while a backend is far from full.",
        examples=["500ms", "short=1,long=4"],
    )
    queue_max_requests: Annotated[Whole, Ge(0)] = Field(
        default=_QUEUE.max_requests, description="Requests that may wait in all. 0: nobody waits."
    )
    queue_max_bytes: Annotated[Bytes, Ge(0)] = Field(
        default=_QUEUE.max_bytes, description="Request bodies that may wait in all, in bytes."
    )
    lane_quantum: Annotated[Number, Gt(0)] = Field(
        default=_QUEUE.lane_quantum, description="Cost served per visit of a lane (an output token costs 1)."
    )
    client_quantum: Annotated[Number, Gt(0)] = Field(
        default=_QUEUE.client_quantum, description="Cost served per visit of a client inside its lane."
    )
    reserve_critical: Annotated[Ratio, Ge(0), Le(0.5)] = Field(
        default=_QUEUE.reserve_critical,
        description="Share of each limit that only critical requests may take, while there are any.",
    )
    priority_floor: Annotated[Ratio, Ge(0), Le(0.4)] = Field(
        default=_QUEUE.floor,
        description="Share of the work served that standard and sheddable requests get at least, each, while they "
        "wait and others go before them.",
    )
    reserve_short: Annotated[Ratio, Ge(0), Le(1)] = Field(
        default=_QUEUE.reserve_short,
        description="Share of each limit kept for the first lane; 0.3 where several gateways share an engine.",
    )
    long_prefills: Annotated[Whole, Ge(0)] = Field(
        default=_QUEUE.long_prefills,
        description="Requests of the last lane that may be before their first token on one engine. 0: no bound.",
    )


class _Limit(BaseModel):
    """How many requests may run on one engine: found by itself from the pace of the answers."""

    limit_initial: Annotated[Number, Ge(1)] = Field(default=_LIMIT.initial, description="Where the limit starts.")
    limit_min: Annotated[Whole, Ge(1)] = Field(default=_LIMIT.minimum, description="The limit never falls below.")
    limit_max: Annotated[Whole, Ge(1)] = Field(default=_LIMIT.maximum, description="The limit never rises above.")
    limit_window: Annotated[Seconds, Gt(0)] = Field(
        default=_LIMIT.window, description="Time between two decisions, at least."
    )
    limit_tolerance: Annotated[Number, Gt(1)] = Field(
        default=_LIMIT.tolerance,
        description="Multiple of the unloaded pace that 19 answers in 20 stay below where no objective is set; "
        "less where it is slower than people read (0.25 s per token, or four times the unloaded pace).",
    )
    limit_tolerance_non_streamed: Annotated[Number, Gt(1)] = Field(
        default=_LIMIT.tolerance_non_streamed, description="The same where most answers are not streamed."
    )
    token_limit: Annotated[Tokens, Ge(1)] | None = Field(
        default=_LIMIT.token_limit, description="Fixed bound on the KV tokens in flight on one engine. Unset: learned."
    )
    replicas: SharedBy = Field(
        default=Replicas(),
        description="Gateways that share these engines, this one among them: each takes its share of every limit, "
        "found or fixed. A number, or where their admin ports are: those that answer /readyz are counted every second, "
        "so the share of one that dies is the others' three seconds later. dns+http://NAME:PORT is every address of a "
        "name. Where the admin port has TLS it is https://, whose certificate is not checked: nothing is told there.",
        examples=["3", "dns+http://gateways.prod.svc:8081", "http://gw1:8081,http://gw2:8081"],
    )


class _Shedding(BaseModel):
    """What refused clients are told, and how storms of retries end."""

    retry_after_max: Annotated[Seconds, Ge(1)] = Field(
        default=_SHED.retry_after_max, description="The longest Retry-After that is given."
    )
    overload_ratio: Annotated[Number, Gt(1)] = Field(
        default=_SHED.overload_ratio, description="Arrived work over dispatched work that counts as overload."
    )
    overload_after: Annotated[Seconds, Ge(0)] = Field(
        default=_SHED.overload_after,
        description="How long overload lasts before clients are told not to retry, until no more arrives than leaves.",
    )
    retry_budget: Annotated[Ratio, Ge(0), Le(1)] = Field(
        default=_SHED.retry_budget, description="Share of retries among arrivals that is taken while overloaded."
    )


class _Estimator(BaseModel):
    """What is assumed of a request's length until the engine's own counts have taught better."""

    bytes_per_token: Annotated[Number, Gt(0)] = Field(
        default=_ESTIMATOR.bytes_per_token, description="UTF-8 bytes of prompt text to a token."
    )
    tokens_per_message: Annotated[Number, Ge(0)] = Field(
        default=_ESTIMATOR.tokens_per_message, description="Tokens that the chat template adds to each message."
    )
    default_output_tokens: Annotated[Tokens, Ge(1)] = Field(
        default=_ESTIMATOR.default_output, description="Output of a request that nothing is known about."
    )
    prompt_weight: Annotated[Ratio, Gt(0)] = Field(
        default=_ESTIMATOR.prompt_weight, description="Cost of a prompt token against an output token."
    )


class _Breaker(BaseModel):
    """When an engine counts as dead, and when it is tried again."""

    breaker_failures: Annotated[Whole, Ge(1)] = Field(
        default=_BREAKER.failures, description="Failures in a row (no connection, or 5xx) that take an engine out."
    )
    breaker_cooldown: Annotated[Seconds, Gt(0)] = Field(
        default=_BREAKER.cooldown, description="How long it stays out at first; doubled at each relapse."
    )
    breaker_cooldown_max: Annotated[Seconds, Gt(0)] = Field(
        default=_BREAKER.cooldown_max, description="The longest time it stays out."
    )
    breaker_silence: Annotated[Seconds, Gt(0)] = Field(
        default=_BREAKER.silence,
        description="Time without a byte from any running request after which it counts as hung, besides what the "
        "slowest engine could take to read and answer what it has: 100 prompt tokens a second, one output token. What "
        "clients wait for in vain adds up, however soon each of them leaves.",
    )


class _Clients(BaseModel):
    """What clients may send, and how they are told apart."""

    max_body_size: Annotated[Bytes, Ge(1)] = Field(
        default=64 * 1024 * 1024, description="The largest request body; a larger one gets 413."
    )
    body_memory: Annotated[Bytes, Ge(1)] = Field(
        default=256 * 1024 * 1024,
        description="Memory for request bodies in all, in each process: each counts, above its first 64 KiB, from the "
        "time it is read until its answer begins. Beyond it a large body gets 429. For a moment a body is there two or "
        "three times.",
    )
    max_request_line: Annotated[Bytes, Ge(256)] = Field(default=16 * 1024, description="The longest request line.")
    max_header_size: Annotated[Bytes, Ge(256)] = Field(
        default=64 * 1024, description="The longest header field; a whole head: four times that."
    )
    max_headers: Annotated[Whole, Ge(16)] = Field(default=256, description="Header fields of one request.")
    client_header: Header | None = Field(
        default=None,
        description="Header that names the client, for fair shares. Unset: the API key (hashed), else the address.",
        examples=["x-tenant"],
    )
    priority_header: Header | None = Field(
        default=None,
        description="Header that tells a request's priority: critical, standard or sheddable. Clients are trusted with "
        "it, so set it only behind something that sets or strips the header. Unset: all are standard.",
        examples=["x-priority"],
    )
    client_keepalive: Annotated[Seconds, Gt(0)] = Field(
        default=75.0, description="How long an idle connection of a client is kept."
    )
    client_timeout: Annotated[Seconds, Gt(0)] = Field(
        default=120.0, description="A client that takes or sends no byte for so long is gone."
    )
    client_min_rate: Annotated[Bytes, Ge(0)] = Field(
        default=1024,
        description="Bytes a second at which a client that goes on for longer than that must send its body on the "
        "whole, and take its answer: one that drips is cut. 0: no bound.",
    )
    workers: Annotated[Whole, Ge(0), Le(256)] = Field(
        default=1,
        description="Processes that relay, all on one port; 0 is one for each core. More than one get a process beside "
        "them that decides for all, so that limits, queues and figures are those of one gateway.",
    )
    load_header: Flag = Field(
        default=False,
        description="Answers tell a balancer in front how full this gateway is: endpoint-load-metrics (ORCA), the "
        "header by which Envoy weighs endpoints. For a gateway beside each engine.",
    )
    backlog: Annotated[Whole, Ge(1)] = Field(default=4096, description="Connections that may wait to be accepted.")
    max_prompt_tokens: ModelTokens = Field(
        default={},
        description="The longest prompt that is taken, for each model or for all; a longer one gets 400. Token ids "
        "are counted, text is estimated: a quarter above counts as longer.",
        examples=["8000", "qwen3-8b=30000,8000"],
    )
    max_output_tokens: ModelTokens = Field(
        default={},
        description="The most output tokens that a request may ask for, in the same form; one that asks for more gets "
        "400, one that sets no cap of its own passes.",
        examples=["2000"],
    )
    trusted_proxies: Networks = Field(
        default=_PRIVATE,
        description="Peers that may say for whom they speak: X-Forwarded-For and its like (Forwarded, X-Real-IP ...) "
        "go on to the engines from these only; the gateway itself decides nothing by them.",
        examples=["10.0.0.0/8"],
    )
    cors: Flag = Field(
        default=True,
        description="Let browsers read the gateway's own answers (429, 413 ...): those to requests with an Origin "
        "carry Access-Control-Allow-Origin: *. The engines' answers pass as they are.",
    )
    heartbeat: Annotated[Seconds, Ge(0)] = Field(
        default=0.0,
        description="Silence after which an admitted stream whose engine has sent a head and no event yet gets a "
        "comment line, as SDKs ignore it; every so often, until the first event. The body then differs from the "
        "engine's. 0: none.",
        examples=["15s"],
    )
    allow_admin_routes: Flag = Field(
        default=False,
        description="Pass the engines' own administration (sleep, LoRA loading, stopService ...) to clients.",
    )
    drain_grace: Annotated[Seconds, Ge(0)] = Field(
        default=30.0, description="After SIGTERM, how long running requests may go on before they are cut."
    )


class _Upstream(BaseModel):
    """How the engines are spoken to, and asked for their health. Nothing bounds the length of an answer as a whole."""

    connect_timeout: Annotated[Seconds, Gt(0)] = Field(default=5.0, description="Time to connect to an engine.")
    connect_attempts: Annotated[Whole, Ge(1)] = Field(
        default=3, description="Engines tried in turn for one request while nothing of it was sent."
    )
    first_byte_timeout: Annotated[Seconds, Ge(0)] = Field(
        default=600.0,
        description="Silence before the first byte of a streamed answer, besides a second for each 100 prompt tokens. "
        "0: no bound.",
    )
    answer_timeout: Annotated[Seconds, Ge(0)] = Field(
        default=3600.0,
        description="Silence before an answer that is not streamed, besides the same and a second for each output "
        "token. 0: no bound.",
    )
    idle_timeout: Annotated[Seconds, Ge(0)] = Field(
        default=300.0,
        description="Silence between two bytes of an answer, or of a WebSocket in either direction. 0: no bound.",
    )
    upstream_keepalive: Annotated[Seconds, Ge(0)] = Field(
        default=4.0,
        description="How long an idle connection to an engine is kept; below the engine's own (uvicorn: 5 s).",
    )
    upstream_max_idle: Annotated[Whole, Ge(0)] = Field(default=256, description="Idle connections kept to one engine.")
    models_timeout: Annotated[Seconds, Gt(0)] = Field(
        default=5.0, description="Time an engine has to name its models where /v1/models is the union of several."
    )
    models_interval: Annotated[Seconds, Ge(0)] = Field(
        default=30.0,
        description="Time between two questions to an engine for its models: requests go to the engines that name "
        "theirs. 0: it is not asked.",
    )
    probe_interval: Annotated[Seconds, Gt(0)] = Field(default=2.0, description="Time between two probes of an engine.")
    probe_timeout: Annotated[Seconds, Gt(0)] = Field(
        default=5.0,
        description="Time an engine has to answer a probe. A slow answer is no failure: a busy engine is slow.",
    )
    probe_failures: Annotated[Whole, Ge(1)] = Field(
        default=3, description="Failures in a row that make an engine down."
    )
    probe_successes: Annotated[Whole, Ge(1)] = Field(default=2, description="Answers in a row that make it up again.")
    tls_verify: Flag = Field(default=True, description="Check the certificates of engines with an https URL.")
    tls_ca: File | None = Field(default=None, description="PEM file of the authorities. Unset: the system's.")
    tls_cert: File | None = Field(
        default=None, description="PEM file of the client certificate, where engines ask for one."
    )
    tls_key: File | None = Field(default=None, description="PEM file of its key, where it is not in the same file.")


class _Telemetry(BaseModel):
    """Logs and metrics."""

    access_log: Text = Field(
        default="stdout",
        description="Where the line of JSON for each request goes: stdout, stderr, off, or a file's path.",
        examples=["/var/log/gateway/access.log"],
    )
    log_level: LogLevel = Field(default="info", description="What the process log tells.")
    log_format: LogFormat = Field(default="plain", description="How the process log is written.")
    metrics_max_models: Annotated[Whole, Ge(1)] = Field(
        default=20, description="Models with series of their own; the others are counted as `other`."
    )
    metrics_max_clients: Annotated[Whole, Ge(0)] = Field(
        default=0, description="Clients with series of their own. 0: no series by client."
    )
    metrics_buckets: Buckets = Field(
        default={},
        description="Bucket edges that replace the built-in ones, by metric name.",
        examples=['{"gateway_queue_wait_seconds": [0.1, 1, 10]}'],
    )
    otlp_endpoint: Url | None = Field(
        default=None,
        description="OpenTelemetry collector (OTLP over HTTP) for a trace of each request and the gen_ai metrics. "
        "Needs the extra `inference-gateway[otel]`. Headers, sampling, intervals: the SDK's own OTEL_ variables.",
        examples=["http://collector:4318"],
    )


class _Report(BaseModel):
    """The benchmark report, from live traffic: `gateway report`. docs/report.md says how to read it."""

    report_window: Annotated[Seconds, Gt(0)] = Field(
        default=3600.0, description="How long a finished request can be reported on."
    )
    report_memory: Annotated[Bytes, Ge(0)] = Field(
        default=64 * 1024 * 1024,
        description="Memory for that; where it is too little, the oldest go sooner. A streamed answer of 200 tokens "
        "takes 1.6 KB.",
    )
    inject_usage: Flag = Field(
        default=False,
        description="Ask engines for the token counts of streams whose client did not, and take the chunk that has "
        "them out of the answer. Off, because the body then differs from what the client sent, and an engine that "
        "knows no `stream_options` refuses it; vLLM, SGLang and llama.cpp know it.",
    )
    state_file: Text | None = Field(
        default=None,
        description="File that keeps what was learned (limits and unloaded pace of each engine, tokens and output "
        "lengths of each model) over a restart. Written every 30 s and at the end, read at the start; one that cannot "
        "be used is told of in the log. Unset: everything is learned again.",
        examples=["/var/lib/gateway/state.json"],
    )
    state_from: Gateways = Field(
        default=(),
        description="Admin ports of the gateways that this one stands by for: while it has nothing to do it asks them "
        "every 3 s what they learned, and goes on from there when its first request comes. It may be among them, so "
        "both of a pair can have the same settings. Needs the same `GATEWAY_ADMIN_TOKEN` on both; where their admin "
        "port has TLS, a certificate that the system trusts or `GATEWAY_ADMIN_TLS_CERT` is.",
        examples=["http://gw1:8081,http://gw2:8081"],
    )
    records_file: Text | None = Field(
        default=None,
        description="File that gets a line of JSON for each finished request, for reports later and for replays.",
        examples=["/var/lib/gateway/records.jsonl"],
    )
    records_file_size: Annotated[Bytes, Ge(64 * 1024)] = Field(
        default=256 * 1024 * 1024, description="Size at which that file is renamed and a new one begun."
    )
    records_files_kept: Annotated[Whole, Ge(0)] = Field(
        default=3, description="Renamed files that are kept: `.1` is the youngest."
    )


class _Diagnosis(BaseModel):
    """What the gateway finds out about the engines: `gateway curve`, `gateway diagnose`. See docs/diagnosis.md."""

    curve_age: Annotated[Seconds, Gt(0)] = Field(
        default=86_400.0, description="How long what was seen at a level of requests in flight is remembered."
    )
    diagnosis_window: Annotated[Seconds, Ge(10)] = Field(
        default=60.0, description="The last while that a diagnosis rests on."
    )
    canary_interval: Annotated[Seconds, Ge(0)] = Field(
        default=0.0,
        description="Time between two canaries to each engine: short fixed prompts at temperature 0, whose answers are "
        "compared with the first ones. 0: none are sent.",
        examples=["5m"],
    )


class _Emulator(BaseModel):
    """The emulated engine that `serve` embeds where no engines are set; `gateway emulate` runs one by itself."""

    emulator_profile: Text = Field(
        default="a100-llama3-8b", description="The engine to emulate; `gateway emulate --list`."
    )


SECTIONS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("Engines", _Engines),
    ("Several engines", _Balance),
    ("Listeners", _Listeners),
    ("API keys", _Keys),
    ("Quotas of several gateways", _Share),
    ("Objectives", _Objectives),
    ("Clients", _Clients),
    ("Talking to the engines", _Upstream),
    ("Queue", _Queue),
    ("Concurrency limit", _Limit),
    ("Shedding and retries", _Shedding),
    ("Length estimates", _Estimator),
    ("Circuit breaker", _Breaker),
    ("Logs and metrics", _Telemetry),
    ("Benchmark report", _Report),
    ("Diagnosis", _Diagnosis),
    ("Emulated engine", _Emulator),
)


class Settings(
    _Emulator,
    _Diagnosis,
    _Report,
    _Telemetry,
    _Breaker,
    _Estimator,
    _Shedding,
    _Limit,
    _Queue,
    _Upstream,
    _Clients,
    _Objectives,
    _Share,
    _Keys,
    _Listeners,
    _Balance,
    _Engines,
    BaseSettings,
):
    """All settings. ``load`` gives the values, so that it knows where each came from; nothing is read here."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature of the library
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what ``load`` gives and nothing else."""
        return (init_settings,)


def variable(field: str) -> str:
    """Name of a field's environment variable."""
    return PREFIX + field.upper()
