"""The words that travel between the rooms.

Plain values without behaviour of their own: no clock, no I/O. Times are seconds of one monotonic clock that the
caller chooses; token counts are model tokens; sizes are bytes.

What is made anew for each request is nobody's to change, though only its hash says so: a frozen dataclass calls a
function for every field of every object.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, unique
from operator import sub
from typing import Final, Protocol


class Word(Enum):
    """An Enum that is looked up fast: ``Enum`` itself hashes the name of a member, by a call, at each look-up."""

    __hash__ = object.__hash__


# --------------------------------------------------------------------------------------------------------------
# What a client asks for
# --------------------------------------------------------------------------------------------------------------


@unique
class Access(Word):
    """What the gateway does with a route."""

    ADMIT = "admit"  # works the engine: goes through admission and holds a permit
    BYPASS = "bypass"  # cheap for the engine (models, health, tokenize): relayed at once, never queued
    DENY = "deny"  # the engine's own administration: refused unless the operator allows it


@dataclass(frozen=True, slots=True)
class Route:
    """A class of request paths. ``label`` is of low cardinality: it names metric series and log fields.

    ``model`` is the model's name where the path has it (Triton's do).
    """

    label: str
    access: Access
    model: str | None = field(default=None, compare=False)


BLOCK_BYTES: Final = 512
"""Bytes of decoded prompt text under one hash of ``Shape.blocks``: some 128 tokens, a few blocks of an engine's own."""

BLOCKS_MAX: Final = 1_024
"""Blocks of one prompt that are told apart; what follows the first 512 KiB of it counts for nobody's cache."""


@dataclass(slots=True, unsafe_hash=True)
class Shape:
    """What one request asks for, as far as its bytes tell; nothing here is estimated.

    ``prompt_bytes`` counts UTF-8 bytes of the *decoded* prompt strings (JSON escapes and base64 media excluded);
    ``dense_bytes`` of them are digits, hex or base64, ``sign_bytes`` other ASCII signs and ``wide_bytes`` no ASCII:
    a token of each is of another length;
    ``prompt_tokens`` is set only where the count is exact (token-id prompts); ``media_tokens`` is the dialect's own
    count or fixed prior for images and audio. ``max_output`` is the caller's cap on output tokens per choice, None
    where it gave none. ``choices`` multiplies output (n, best_of, batched prompts). ``generates`` is False for
    routes without output tokens (embeddings, rerank, score). ``truncates``: the caller lets the engine shorten the
    prompt. ``session``: a connection that stays open for whatever comes (a WebSocket). ``conversation`` is what the
    caller names to be served where its earlier turns were. ``blocks`` are hashes of the prompt's whole blocks of
    ``BLOCK_BYTES``, each over everything before it as well, so that two prompts share a prefix as far as these are
    equal; empty where nobody asked for them.
    """

    route: Route
    model: str | None = None
    stream: bool = False
    prompt_bytes: int = 0
    dense_bytes: int = 0
    sign_bytes: int = 0
    wide_bytes: int = 0
    prompt_tokens: int | None = None
    media_tokens: int = 0
    messages: int = 0
    max_output: int | None = None
    choices: int = 1
    generates: bool = True
    user: str | None = None
    truncates: bool = False
    session: bool = False
    conversation: str | None = None
    blocks: tuple[int, ...] = ()


SLOWEST_READING: Final = 100.0
"""Prompt tokens a second that no engine in use falls below (an Ascend 310P reads some 600)."""

SLOWEST_WRITING: Final = 1.0
"""Output tokens a second of one answer that no engine in use falls below (a full 310P writes 1.4)."""

_LONGEST: Final = 100_000  # output tokens: caps above are no forecast


@dataclass(slots=True, unsafe_hash=True)
class WorkEstimate:
    """Predicted work of one request, in tokens. ``cost`` weighs a prompt token a quarter of an output token."""

    prompt_tokens: int
    output_tokens: int
    cost: float

    @property
    def tokens(self) -> int:
        """KV tokens the request will hold at its end."""
        return self.prompt_tokens + self.output_tokens


@unique
class Priority(IntEnum):
    """Who goes first under overload; a lower number goes before."""

    CRITICAL = 0  # before all others, with a share of the places that only it may take
    STANDARD = 1
    SHEDDABLE = 2  # what the others leave, and refused first; never less than its floor

    @property
    def label(self) -> str:
        """As it is written in headers, logs and metrics."""
        return self.name.lower()


@dataclass(slots=True, unsafe_hash=True)
class Ticket:
    """One request as admission sees it. ``id`` is unique for the process and increases with arrival.

    ``client`` is the fairness key (API key hash, user or address). ``attempt`` counts the client's own retries
    (``x-stainless-retry-count``; 0 is a first attempt). ``read_timeout`` is how long the client said it waits, in
    seconds, None if it did not say. ``fingerprint`` recognises the same call sent again by clients that do not
    count their retries. ``body_bytes`` is what it holds in memory while it waits. ``avoid`` names backends that
    cannot serve this very request: too small for it, or already found unreachable. ``weight`` is its client's share
    of a lane, against that of another client. ``session`` names what it belongs together with (a conversation, a user),
    empty where nothing does: such requests go to one backend where that is asked for. ``tried`` counts backends that it
    was sent to already and that processed nothing of it; ``refused``: the last of them had no room.
    """

    id: int
    shape: Shape
    work: WorkEstimate
    client: str = ""
    attempt: int = 0
    read_timeout: float | None = None
    fingerprint: int = 0
    body_bytes: int = 0
    avoid: frozenset[str] = frozenset()
    priority: Priority = Priority.STANDARD
    weight: float = 1.0
    session: str = ""
    tried: int = 0
    refused: bool = False

    @property
    def reading(self) -> float:
        """Seconds that its prompt may take on the slowest engine."""
        return self.work.prompt_tokens / SLOWEST_READING

    @property
    def writing(self) -> float:
        """Seconds that its answer may take there before a byte of it is sent: none for a stream."""
        if self.shape.stream:
            return 0.0
        return min(max(self.work.output_tokens, self.shape.max_output or 0), _LONGEST) / SLOWEST_WRITING


# --------------------------------------------------------------------------------------------------------------
# What admission answers
# --------------------------------------------------------------------------------------------------------------


class Progress(Protocol):
    """Where the relay reports the output of one running request; bound to its backend's window."""

    def output(self, events: int, now: float) -> None:
        """Tell that ``events`` (>= 1) output events arrived at ``now``. The first call is the first token."""


@unique
class Choice(Word):
    """Why a request went to the backend that it went to. The values label metrics and log lines."""

    HEADROOM = "headroom"  # the emptiest for its limit
    PREFIX = "prefix"  # it has more of the prompt in its cache than any other
    SESSION = "session"  # it is where this session's requests go
    SPILL = "spill"  # where it belongs there was no room, or already more than a fair share
    FAILOVER = "failover"  # another backend was tried before, and nothing of the request was processed there


@dataclass(slots=True, unsafe_hash=True)
class Permit:
    """The right to have one request in flight on ``backend`` until it is settled, exactly once."""

    id: int
    ticket: Ticket
    backend: str
    granted_at: float
    progress: Progress
    choice: Choice = Choice.HEADROOM


class Watcher(Protocol):
    """Who wants to know of every permit when it begins and ends. Must not raise and must not block.

    ``outputs`` are the output events that the permit's backend has put out so far, over all of its requests.
    """

    def granted(self, permit: Permit, outputs: int) -> None:
        """Take a permit that was just given."""

    def settled(self, permit: Permit, outcome: Outcome, outputs: int, now: float) -> None:
        """Take a permit that is over."""


@unique
class ShareWay(Enum):
    """How it was decided whether a request fits what its key may do at all gateways together."""

    AHEAD = "ahead"  # by units that were claimed ahead
    ASKED = "asked"  # by the store's word, for which it waited
    ALONE = "alone"  # by this gateway's share, without the store


@unique
class ShareFailure(Enum):
    """Why the store that gateways share was of no use."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    DENIED = "denied"  # the password, or the rights of its user
    LOADING = "loading"
    READONLY = "readonly"  # a replica
    MEMORY = "memory"
    ERROR = "error"


@unique
class Reason(Word):
    """Why a request was refused or thrown out. The values label ``gateway_shed_total``."""

    QUEUE_FULL = "queue_full"  # refused at the door: too many or too many bytes wait already
    DEADLINE = "deadline"  # refused at the door: could not start before its lane's bound or its client gives up
    QUEUE_TIMEOUT = "queue_timeout"  # admitted to the queue, then its time ran out
    RETRY_BUDGET = "retry_budget"  # a retry while retries are more than their share of the load
    NO_BACKEND = "no_backend"  # nobody can serve it now
    DRAINING = "draining"  # the gateway is shutting down
    KEY_REQUESTS = "key_requests"  # its API key's requests of this minute are spent
    KEY_TOKENS = "key_tokens"  # its API key's tokens of this minute are spent
    KEY_IN_FLIGHT = "key_in_flight"  # its API key has as many requests running as it may


OF_KEY: Final = frozenset({Reason.KEY_REQUESTS, Reason.KEY_TOKENS, Reason.KEY_IN_FLIGHT})
"""The key's own bound is reached, however idle the backends are."""


@dataclass(slots=True, unsafe_hash=True)
class Rejection:
    """A refusal. ``retry_after``: seconds, jittered, within 1..60; ``should_retry`` None leaves it to the client."""

    ticket: Ticket
    reason: Reason
    retry_after: float
    should_retry: bool | None = None


Verdict = Permit | Rejection


# --------------------------------------------------------------------------------------------------------------
# What became of it
# --------------------------------------------------------------------------------------------------------------


@unique
class Outcome(Word):
    """How a request ended, decided in one place (proxy/handler). The values label metrics and log lines."""

    COMPLETED = "completed"  # the backend's answer reached its end (2xx)
    REFUSED = "refused"  # the gateway's own refusal; never settled, it held no permit
    CLIENT_ERROR = "client_error"  # the backend answered 4xx (other than 429) or 501: the caller's fault
    CLIENT_GONE = "client_gone"  # the client left before the end
    BACKEND_BUSY = "backend_busy"  # backpressure: 429, 503, 529, or the same said inside a 200
    BACKEND_ERROR = "backend_error"  # 5xx other than 501 and 503, or an error said inside a 200
    CONNECT_FAILED = "connect_failed"  # no connection; nothing of the request was sent
    BACKEND_LOST = "backend_lost"  # the connection ended or broke before the answer's end
    BACKEND_SILENT = "backend_silent"  # no byte for longer than the timeout
    INTERNAL_ERROR = "internal_error"  # the gateway's own fault


@dataclass(slots=True, unsafe_hash=True)
class Usage:
    """Token counts as the backend reported them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def _table(edges: Sequence[float], first: int, most: int) -> list[int]:
    """The bucket of each whole number below ``most``, where bucket ``first`` ends with the first of ``edges``."""
    table: list[int] = []
    for index, edge in enumerate(edges, first):
        table += [index] * (min(int(edge) + 1, most) - len(table))
    return table


class Gaps:
    """Gaps between output events of one stream: count, sum, and log buckets of at most 0.5 % relative error.

    Bucket i holds gaps in (BASE**(i-1), BASE**i] seconds; those up to a microsecond share one bucket, and so do those
    over 71 minutes. A few dozen buckets in practice, 2,230 at most.
    """

    __slots__ = ("buckets", "count", "total")

    BASE: Final = 1.01
    _FIRST: Final = -1388  # the bucket that ends just above a microsecond
    _EDGES: Final = [1.01**index * 1e6 for index in range(-1388, 841)]  # upper ends in microseconds
    _TABLE: Final = _table(_EDGES, -1388, 1 << 16)  # buckets of gaps of whole microseconds, up to 65 ms
    _FEW: Final = 256  # gaps that are looked up one by one sooner than sorted

    def __init__(self) -> None:
        """Start empty."""
        self.count = 0
        self.total = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, gap: float, times: int = 1) -> None:
        """Count ``times`` gaps of ``gap`` seconds each."""
        self.count += times
        self.total += gap * times
        index = self._FIRST + bisect_left(self._EDGES, gap * 1e6)
        self.buckets[index] = self.buckets.get(index, 0) + times

    @classmethod
    def between(cls, stamps: Sequence[int]) -> Gaps:
        """The gaps between instants in microseconds that never fall."""
        found = cls()
        gaps = list(map(sub, stamps[1:], stamps))
        if len(gaps) <= cls._FEW and max(gaps, default=0) < len(cls._TABLE):
            buckets, table = found.buckets, cls._TABLE
            for gap in gaps:
                bucket = table[gap]
                buckets[bucket] = buckets.get(bucket, 0) + 1
        else:
            found._count(sorted(gaps))
        found.count, found.total = len(gaps), sum(gaps) / 1e6
        return found

    def _count(self, gaps: Sequence[int]) -> None:
        """Count gaps in rising order: a bucket is looked up once and not once for each gap."""
        edges, last, start = self._EDGES, len(self._EDGES), 0
        while start < len(gaps):
            place = bisect_left(edges, gaps[start])
            end = bisect_right(gaps, edges[place], start) if place < last else len(gaps)
            self.buckets[self._FIRST + place] = end - start
            start = end

    @classmethod
    def value(cls, index: int) -> float:
        """Middle of bucket ``index`` in seconds: within 0.5 % of every gap counted there."""
        return float(cls.BASE**index * 2.0 / (1.0 + cls.BASE))


STAMPS_MAX: Final = 131_072  # stamps kept of one stream: half a MiB
_no_stamps: Final = array("I").__copy__  # ``array("I")`` takes twice as long


@dataclass(slots=True)
class Timeline:
    """The instants of one request; marked as they happen, None until then.

    ``output_events`` counts output chunks as the dialect reads them: chunks, not tokens. ``stamps`` are their instants
    in whole microseconds since ``received``, for the first ``STAMPS_MAX`` chunks and the first 71 minutes; it is also
    what a chunk costs least to note, so gaps are worked out from it when somebody asks.

    What counts as output differs between versions of ``vllm bench serve``. ``blanks`` are stamps of chunks that have a
    choice but no output (the role, a bare finish reason): 0.32.0 takes them for tokens. ``unheard`` are stamps of
    output events that 0.33.0 does not count: it reads ``reasoning`` and not the older ``reasoning_content``.
    """

    received: float
    read: float | None = None  # the request's body was complete
    offered: float | None = None  # the ticket went to admission; the wait in the queue starts here
    admitted: float | None = None  # the permit was granted
    sent: float | None = None  # the first byte of the request went to the backend
    headers: float | None = None  # the backend's response head was complete
    first_output: float | None = None
    last_output: float | None = None
    finished: float | None = None
    paused: float = 0.0  # seconds for which the client took nothing of what was there for it
    output_events: int = 0
    stamps: array[int] = field(default_factory=_no_stamps)
    blanks: array[int] | None = None
    unheard: array[int] | None = None
    _gaps: Gaps | None = field(default=None, init=False, repr=False)

    def output(self, events: int, now: float) -> None:
        """Mark ``events`` (>= 1) output events at ``now``. This is on the path of every chunk."""
        if self.first_output is None:
            self.first_output = now
        self.last_output = now
        self.output_events += events
        if self.output_events <= STAMPS_MAX:
            try:
                stamp = int((now - self.received) * 1e6)
                if events == 1:
                    self.stamps.append(stamp)
                else:
                    self.stamps.extend((stamp,) * events)
            except OverflowError:  # more than 71 minutes
                pass

    def aside(self, blanks: int, unheard: int, now: float) -> None:
        """Mark what ``ResponseReader.asides`` told at ``now``."""
        if blanks:
            self.blanks = self._marked(self.blanks, blanks, now)
        if unheard:
            self.unheard = self._marked(self.unheard, unheard, now)

    def _marked(self, stamps: array[int] | None, chunks: int, now: float) -> array[int]:
        stamps = array("I") if stamps is None else stamps
        stamp = int((now - self.received) * 1e6)
        if stamp < 1 << 32:
            stamps.extend((stamp,) * min(chunks, STAMPS_MAX - len(stamps)))
        return stamps

    @property
    def gaps(self) -> Gaps:
        """Gaps between the output events so far, of those that have stamps."""
        gaps = self._gaps
        if gaps is None or gaps.count + 1 < len(self.stamps):
            gaps = self._gaps = Gaps.between(self.stamps)
        return gaps


@dataclass(slots=True)
class Record:
    """Everything that is known of one finished request; what observers get."""

    request_id: str
    ticket: Ticket | None  # None where the request never became one (denied, too large, bypass)
    route: Route
    method: str
    path: str
    timeline: Timeline
    outcome: Outcome
    status: int  # as sent to the client; 0 where nothing was sent
    lane: str | None = None
    backend: str | None = None
    choice: Choice | None = None  # why that backend; None where none was chosen
    reason: Reason | None = None
    retry_after: float | None = None
    usage: Usage | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    attempts: int = 0  # upstream attempts of this gateway
    error: str | None = None  # one short line, never the caller's data
    traceparent: str | None = None  # as the client sent it (W3C Trace Context)


class Observer(Protocol):
    """Who wants to know of every finished request. Must not raise and must not block."""

    def observe(self, record: Record) -> None:
        """Take one finished request."""


# --------------------------------------------------------------------------------------------------------------
# Backends
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackendTls:
    """How a backend with https URLs is spoken to; None leaves it to what holds for all. Paths of PEM files."""

    verify: bool | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """One configured engine. ``limit`` fixes its concurrency; ``models`` empty means: serves whatever is asked.

    ``max_model_len``: tokens of prompt and output together; None: as the engine says, if it does. ``tier``: backends
    of a higher one are used while those of the lower ones have no room.
    ``management_url`` and ``metrics_url`` are where its other planes are, None where they are not said.
    """

    name: str
    url: str
    kind: str = "openai"
    models: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    limit: int | None = None
    max_model_len: int | None = None
    weight: float = 1.0
    tier: int = 0
    management_url: str | None = None
    metrics_url: str | None = None
    tls: BackendTls = field(default_factory=BackendTls)


@unique
class Health(Word):
    """What the prober last found."""

    UNKNOWN = "unknown"  # not probed yet: eligible
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Hints:
    """An engine's own gauges. They only ever lower a limit; any may be absent. Ratios are 0..1."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    preemptions_total: float | None = None


# --------------------------------------------------------------------------------------------------------------
# State, as shown by /state and scraped by metrics
# --------------------------------------------------------------------------------------------------------------


@unique
class HintsUse(Enum):
    """What becomes of an engine's own gauges."""

    UNKNOWN = "unknown"  # not looked for yet
    USED = "used"
    ABSENT = "absent"  # it has none, or none that can be read
    STALE = "stale"  # not answered for long: they have lapsed
    CONTRADICTED = "contradicted"  # they tell of far fewer requests than are in flight: another engine's, or frozen


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the prober knows of one backend. ``health_at`` and ``hints_at`` are the questions that are asked, if any.

    ``models`` are those that it says it serves, with their context length in tokens where it tells that; None before it
    was asked. ``trouble`` is why the last question for its health brought no good answer, without addresses.
    """

    kind: str
    detected: bool = False  # found out by asking, not configured
    health_at: str | None = None
    hints_at: str | None = None
    hints_use: HintsUse = HintsUse.UNKNOWN
    models: Mapping[str, int | None] | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class BackendState:
    """One backend's books at one instant. ``pace`` and ``pace_target`` are seconds per output event."""

    name: str
    url: str
    health: str  # up | down | unknown, or open | half_open where the breaker holds it, or drained by the operator
    limit: float
    token_limit: float | None
    running: int
    tokens: int
    unstarted: int
    pace: float | None
    pace_base: float | None
    pace_target: float | None
    limit_changes: dict[tuple[str, str], int]  # (direction, reason) -> count
    hints_age: float | None
    limit_min: float | None = None  # the limit never falls below; None where it is fixed
    silence: float = 0.0  # seconds without a byte from any running request; 0 while nothing runs
    hints: Hints = field(default_factory=Hints)  # the engine's own gauges, ``hints_age`` seconds old
    engine: EngineState | None = None
    choices: Mapping[str, int] = field(default_factory=dict)  # why -> requests sent to it
    prompt_tokens: int = 0  # of answers that say how many of them were cached
    cached_tokens: int = 0  # those


@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane's queue at one instant. Waits in seconds."""

    name: str
    depth: int
    cost: float
    oldest_wait: float
    max_wait: float
    threshold: int | None = None  # predicted tokens; None in the last lane
    weight: float = 1.0
    ttft_objective: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class PriorityState:
    """One priority's share of the queues at one instant."""

    name: str
    depth: int


@dataclass(frozen=True, slots=True)
class ModelState:
    """What was learned of one model, by its name as requests have it. In tokens; rates are to a byte of text."""

    name: str
    generates: bool
    prompts: int  # long ones that the rates were learned from
    rates: Mapping[str, float]  # by sort of byte
    template: float  # what the chat template adds once
    answers: int = 0
    output: float | None = None  # mean of an answer


@dataclass(frozen=True, slots=True)
class GatewayState:
    """All of admission at one instant."""

    backends: tuple[BackendState, ...]
    lanes: tuple[LaneState, ...]
    draining: bool
    overloaded: bool  # sustained overload: retries are discouraged
    retries_seen: dict[bool, int]  # clients that came back after a refusal: {kept the wait: count}
    tpot_objective: float | None = None  # seconds
    models: tuple[ModelState, ...] = ()  # those asked for last, the latest first
    priorities: tuple[PriorityState, ...] = ()
    replicas: int = 1  # gateways that share the engines: the limits are this one's part
