"""What a diagnosis rests on: plain figures of the last minute.

They come from finished requests, looks at admission's state, and what was learned of each engine. ``FactSheet`` takes
the requests one by one, so that a caller may pause in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from statistics import fmean, median
from typing import Final, NamedTuple

from gateway.model import BackendState, GatewayState, HintsUse, Outcome, Reason
from gateway.telemetry.clients import ClientCounts
from gateway.telemetry.curve import Curves
from gateway.telemetry.entry import Entry
from gateway.telemetry.wear import Slowdown

GAP: Final = 0.75  # seconds between two outputs from which on it may be a stall
LONG_PROMPT: Final = 4_096  # tokens: an engine reads it for many steps, or for one very long one
STREAMS: Final = 2_000  # of one backend whose outputs are looked at one by one: those that are added first
FRESH: Final = 10.0  # seconds for which an engine's gauges count
_TOGETHER: Final = 0.15  # seconds within which the streams of one step go on
_MOST: Final = 0.8  # of the streams in flight: as good as all of them
_PAIRS: Final = 5  # short requests beside long ones, and alone, at least
_STANDING: Final = ("down", "standing")
_CROWDED: Final = frozenset({Reason.QUEUE_FULL, Reason.DEADLINE, Reason.QUEUE_TIMEOUT, Reason.RETRY_BUDGET})
_SPOILT: Final = frozenset({
    Outcome.BACKEND_ERROR, Outcome.CONNECT_FAILED, Outcome.BACKEND_LOST, Outcome.BACKEND_SILENT,
})  # fmt: skip

Look = tuple[float, GatewayState]
"""Admission's state at an instant of the requests' clock."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Times at which all streams stood still at once: how many, and seconds."""

    count: int
    total: float
    longest: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Median TTFT in seconds of short requests that came while a long prompt was read, and of the others.

    The wait in the gateway counts: where nothing starts in an engine, little is sent to it.
    """

    beside: float
    alone: float
    requests: int
    share: float  # of all short requests
    prompt: int  # tokens of the longest
    refused: int = 0  # short requests that were refused while it was read, because too many were there
    refused_share: float = 0.0  # of those that came while it was read
    refused_alone: float = 0.0  # the same share at other times


@dataclass(frozen=True, slots=True)
class Gauges:
    """An engine's own figures, means over the looks. Each is None where the engine does not tell it."""

    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None  # in the window
    inflight: float  # the gateway's own count at the same looks
    contradicted: bool = False  # they tell of far fewer requests than are in flight


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend. Means and shares are over the looks; rates are a second, times seconds, paces seconds a token."""

    state: BackendState  # the youngest
    running: float
    unstarted: float
    full: float  # share of looks at which its limit was reached
    held: float  # share at which its token limit left places of the other empty
    growth: float  # the limit now over that at the first look
    moves: int  # changes of the limit
    cuts: int  # of those, downwards
    standing: int  # of those, because requests stood before their first token
    pace: float | None
    unheard: float  # seconds for which it had work and nothing came of it, up to now
    longest_silence: float | None  # that a request of it came back from
    gauges: Gauges | None  # None: none that are fresh
    answers: int
    failures: int  # requests that it spoilt
    prompt_rate: float  # what it had to compute: without what its cache had
    output_rate: float
    ttft: float | None  # median, from the engine's side
    ttft_alone: float | None  # the same with half as many in flight, or fewer
    stalls: Stalls
    beside: Beside | None
    slowdown: Slowdown | None


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. ``seconds`` is the length of the window; counts are of requests that ended in it.

    ``looked`` are the seconds between the first look and the last: fewer where the gateway has just started.
    """

    seconds: float
    looked: float
    backends: tuple[BackendFacts, ...]
    received: int = 0
    first_attempts: int = 0
    completed: int = 0
    crowded: int = 0  # refused because too many were there
    gone: int = 0
    retried: int = 0  # attempts that say of themselves that they are another
    early: int = 0  # clients that came back before the time they were told
    kept: int = 0  # and those that waited
    late: float | None = None  # share of answers that missed an objective; None without objectives
    queued: float = 0.0  # requests in the queue, in the mean
    clients: tuple[ClientCounts, ...] = ()
    loop_lag: float = 0.0
    canaries: tuple[tuple[str, str], ...] = ()  # backends whose canary differs, and how
    tpot_objective: float | None = None
    short_ttft_objective: float | None = None  # of the first lane


class _Stream(NamedTuple):
    offered: float  # from then on it waited for whatever was before it, in the gateway or in the engine
    sent: float
    first: float
    last: float
    prompt: int
    lane: str | None


@dataclass(slots=True)
class _Sheet:
    """What one backend's requests came to."""

    answers: int = 0
    failures: int = 0
    prompt: int = 0
    told: int = 0  # of those the prompts of which it said how much was cached
    cached: int = 0
    output: int = 0
    streams: list[_Stream] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)

    @property
    def computed(self) -> float:
        """Prompt tokens that were not cached; where nobody asked, streams do not say, and fare as the others do."""
        return self.prompt * (1.0 - self.cached / self.told) if self.told else self.prompt


class FactSheet:
    """Takes the requests that ended in the last ``seconds``, the youngest first."""

    def __init__(self, now: float, seconds: float, state: GatewayState) -> None:
        self._now = now
        self._seconds = seconds
        self._state = state
        self._counts: defaultdict[str, int] = defaultdict(int)  # a Counter takes three times as long
        self._sheets: dict[str, _Sheet] = {}
        self._ttft = {lane.name: lane.ttft_objective for lane in state.lanes if lane.ttft_objective is not None}
        self._judged = self._missed = 0
        self._turned_away: list[float] = []  # when those of the first lane came that were refused as too many
        self._short = state.lanes[0].name if state.lanes else None

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Take one request."""
        counts = self._counts
        counts["received"] += 1
        counts["first_attempts"] += entry.retry == 0
        counts["retried"] += entry.retry > 0
        counts["completed"] += entry.outcome is Outcome.COMPLETED
        counts["gone"] += entry.outcome is Outcome.CLIENT_GONE
        if entry.reason in _CROWDED:
            counts["crowded"] += 1
            if entry.lane == self._short and len(self._turned_away) < STREAMS:
                self._turned_away.append(entry.received)
        if entry.backend is None:
            return
        sheet = self._sheets.get(entry.backend)
        if sheet is None:
            sheet = self._sheets[entry.backend] = _Sheet()
        sheet.failures += entry.outcome in _SPOILT
        if entry.stamps and entry.sent is not None and len(sheet.streams) < STREAMS:
            self._add_stream(sheet, entry, entry.received + entry.sent / 1e6)
        if entry.outcome is Outcome.COMPLETED:
            self._add_answer(sheet, entry)

    @staticmethod
    def _add_stream(sheet: _Sheet, entry: Entry, sent: float) -> None:
        stamps, came = entry.stamps, entry.received
        prompt = entry.prompt_tokens or entry.estimated_prompt_tokens
        offered = sent if entry.offered is None else came + entry.offered / 1e6
        stream = _Stream(offered, sent, came + stamps[0] / 1e6, came + stamps[-1] / 1e6, prompt, entry.lane)
        sheet.streams.append(stream)
        if max(map(sub, stamps[1:], stamps), default=0) >= GAP * 1e6:
            sheet.gaps += [
                (came + early / 1e6, came + late / 1e6) for early, late in pairwise(stamps) if late - early >= GAP * 1e6
            ]

    def _add_answer(self, sheet: _Sheet, entry: Entry) -> None:
        sheet.answers += 1
        output = entry.output_tokens or entry.output_events
        sheet.prompt += entry.prompt_tokens or entry.estimated_prompt_tokens
        if entry.prompt_tokens and entry.cached_tokens is not None:
            sheet.told += entry.prompt_tokens
            sheet.cached += min(entry.cached_tokens, entry.prompt_tokens)
        sheet.output += output
        ttft, tpot = self._ttft.get(entry.lane or ""), self._state.tpot_objective
        if entry.stamps and (ttft is not None or tpot is not None):
            stamps = entry.stamps
            self._judged += 1
            slow = tpot is not None and output > 1 and (stamps[-1] - stamps[0]) / 1e6 / (output - 1) > tpot
            self._missed += slow or (ttft is not None and stamps[0] / 1e6 > ttft)

    # -- the whole --------------------------------------------------------------------------------------------------

    def facts(
        self,
        looks: Sequence[Look],
        curves: Curves,
        clients: Iterable[ClientCounts] = (),
        loop_lag: float = 0.0,
        canaries: Iterable[tuple[str, str]] = (),
    ) -> Facts:
        """All facts; ``looks`` are those of the window, the oldest first, at least one."""
        counts, (began, first), (ended, last) = self._counts, looks[0], looks[-1]
        came = {kept: last.retries_seen.get(kept, 0) - first.retries_seen.get(kept, 0) for kept in (True, False)}
        return Facts(
            seconds=self._seconds,
            looked=ended - began,
            backends=tuple(
                self._backend(state, [_of(each, state.name) for _, each in looks], curves) for state in last.backends
            ),
            received=counts["received"],
            first_attempts=counts["first_attempts"],
            completed=counts["completed"],
            crowded=counts["crowded"],
            gone=counts["gone"],
            retried=counts["retried"],
            early=came[False],
            kept=came[True],
            late=self._missed / self._judged if self._judged else None,
            queued=fmean(sum(lane.depth for lane in state.lanes) for _, state in looks),
            clients=tuple(clients),
            loop_lag=loop_lag,
            canaries=tuple(canaries),
            tpot_objective=last.tpot_objective,
            short_ttft_objective=last.lanes[0].ttft_objective if last.lanes else None,
        )

    def _backend(self, state: BackendState, seen: Sequence[BackendState | None], curves: Curves) -> BackendFacts:
        name, looks = state.name, [each for each in seen if each is not None]
        sheet = self._sheets.get(name, _Sheet())
        paces = [each.pace for each in looks if each.pace is not None]
        times = [stream.first - stream.sent for stream in sheet.streams]
        pace = fmean(paces) if paces else None
        running, alone = fmean(each.running for each in looks), curves.first_token_alone(name, self._now)
        return BackendFacts(
            state=state,
            running=running,
            unstarted=fmean(each.unstarted for each in looks),
            full=_share(looks, _is_full),
            held=_share(looks, _is_held),
            growth=state.limit / looks[0].limit,
            moves=_changes(state) - _changes(looks[0]),
            cuts=_changes(state, "down") - _changes(looks[0], "down"),
            standing=state.limit_changes.get(_STANDING, 0) - looks[0].limit_changes.get(_STANDING, 0),
            pace=pace,
            unheard=curves.unheard(name, state.silence, self._now),
            longest_silence=curves.longest_silence(name),
            gauges=_gauges(looks),
            answers=sheet.answers,
            failures=sheet.failures,
            prompt_rate=sheet.computed / self._seconds,
            output_rate=sheet.output / self._seconds,
            ttft=median(times) if times else None,
            ttft_alone=alone[0] if alone is not None and alone[1] <= 0.5 * running else None,
            stalls=_stalls(sheet, 8.0 * (pace or 0.0)),
            beside=_beside(sheet.streams, self._short, self._turned_away),
            slowdown=curves.slowdown(name, self._now, state.pace_base),
        )


def _of(state: GatewayState, name: str) -> BackendState | None:
    return next((each for each in state.backends if each.name == name), None)


def _changes(state: BackendState, wanted: str = "") -> int:
    return sum(count for (direction, _), count in state.limit_changes.items() if wanted in {"", direction})


def _share(looks: Sequence[BackendState], so: Callable[[BackendState], bool]) -> float:
    return sum(map(so, looks)) / len(looks)


def _is_full(state: BackendState) -> bool:
    return state.running >= max(1, int(state.limit))


def _is_held(state: BackendState) -> bool:
    limit = state.token_limit
    return limit is not None and state.tokens >= 0.8 * limit and state.running < 0.9 * state.limit


def _gauges(looks: Sequence[BackendState]) -> Gauges | None:
    """Means of an engine's own figures over the looks at which they were fresh."""
    youngest = looks[-1].engine
    contradicted = youngest is not None and youngest.hints_use is HintsUse.CONTRADICTED
    fresh = [each for each in looks if each.hints_age is not None and each.hints_age <= FRESH]
    if not fresh and not contradicted:
        return None
    totals = [each.hints.preemptions_total for each in fresh if each.hints.preemptions_total is not None]
    return Gauges(
        running=_mean(each.hints.running for each in fresh),
        waiting=_mean(each.hints.waiting for each in fresh),
        kv_usage=_mean(each.hints.kv_usage for each in fresh),
        preemptions=max(0.0, totals[-1] - totals[0]) if totals else None,
        inflight=fmean(each.running for each in fresh or looks),
        contradicted=contradicted,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _stalls(sheet: _Sheet, least: float) -> Stalls:
    """Gaps of at least ``least`` seconds that all streams had at once, without a long prompt to read meanwhile."""
    lengths: list[float] = []
    group: list[tuple[float, float]] = []
    for gap in sorted((gap for gap in sheet.gaps if gap[1] - gap[0] >= least), key=lambda gap: gap[1]):
        if group and gap[1] - group[-1][1] > _TOGETHER:
            lengths += _stall(group, sheet.streams)
            group = []
        group.append(gap)
    if group:
        lengths += _stall(group, sheet.streams)
    return Stalls(len(lengths), sum(lengths), max(lengths, default=0.0))


def _stall(group: Sequence[tuple[float, float]], streams: Sequence[_Stream]) -> list[float]:
    """The length of a stall that ``group``, gaps that end together, are; empty where they are none."""
    start, end = median(gap[0] for gap in group), group[-1][1]
    across = sum(stream.first <= start and stream.last >= end for stream in streams)
    begun = any(start + _TOGETHER < stream.first < end - _TOGETHER for stream in streams)  # it worked meanwhile
    read = any(
        stream.prompt >= LONG_PROMPT and stream.sent < end and stream.first > (start + end) / 2 for stream in streams
    )
    everybody = len(group) > 1 and len(group) >= _MOST * across
    return [end - start] if everybody and not begun and not read else []


def _beside(streams: Sequence[_Stream], short: str | None, refused: Sequence[float]) -> Beside | None:
    """What long prompts do to short requests; None where too few met."""
    reads = [stream for stream in streams if stream.prompt >= LONG_PROMPT]
    shorts = [stream for stream in streams if stream.lane == short and stream.prompt < LONG_PROMPT]
    beside: list[float] = []
    alone: list[float] = []
    for stream in shorts:
        met = any(read.sent <= stream.first and stream.offered <= read.first for read in reads)
        (beside if met else alone).append(stream.first - stream.offered)
    turned = sum(any(read.sent <= came <= read.first for read in reads) for came in refused)
    if not beside or len(beside) + turned < _PAIRS or len(alone) < _PAIRS:
        return None
    others = len(refused) - turned
    return Beside(
        median(beside),
        median(alone),
        len(beside),
        len(beside) / len(shorts),
        max(read.prompt for read in reads),
        turned,
        turned / (turned + len(beside)),
        others / (others + len(alone)),
    )
