"""What each engine gives at each level of requests in flight, learned from live traffic.

People find this out with a benchmark at several concurrencies and write the table by hand. A gateway sees every request
begin and end, so it has the table all the time, if it asks to which level a figure belongs:

- The latency of a request belongs to the concurrency that it lived through: the mean of the requests in flight over its
  life, weighted by time.
- Throughput belongs to the time for which a level was held. Time is cut into spans of about a second of work; a span's
  answers and tokens count for its mean level, unless the level swung so much that the mean was hardly ever held. A span
  ends with an arrival and never with an answer: answers that end in the same step of the engine are not torn apart.

Each level keeps its last 1,000 requests and 300 spans, none older than ``age``: an engine that changes shows once it
has worked at that level for a while. Nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isnan, nan, sqrt
from statistics import median
from typing import Final, NamedTuple

from gateway.model import Outcome, Permit, Record, Timeline
from gateway.telemetry.ladder import bounds, rung
from gateway.telemetry.rows import Rows
from gateway.telemetry.spread import Spread, spread
from gateway.telemetry.wear import PaceLog, Slowdown

FINE: Final = 16  # rungs to an octave
SPAN: Final = 1.0  # seconds of work, at least
REQUESTS: Final = 1_000
SPANS: Final = 300
ENOUGH_REQUESTS: Final = 30
ENOUGH_SECONDS: Final = 5.0
MODELS: Final = 20  # told apart on one backend
OTHERS: Final = "other"
UNCLAIMED: Final = 100_000  # ended requests whose record is still to come
_PERCENTS: Final[tuple[float, ...]] = (95.0, 99.0)
_FEW: Final = 5  # answers


class Answer(NamedTuple):
    """One completed request. Seconds after its permit; ``ttft`` and ``tpot`` are NaN where there is none."""

    at: float
    latency: float
    ttft: float
    tpot: float
    tokens: float
    lane: float
    model: float


@dataclass(slots=True)
class Life:
    """What a request lived through, in the mean over its time: requests in flight, and the KV tokens they were to hold.

    The tokens are as admission predicts them.
    """

    level: float
    tokens: float


class Span(NamedTuple):
    """About a second of work: ``seconds`` with requests in flight, and what ended and came out meanwhile."""

    at: float
    seconds: float
    level: float
    answers: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Objectives:
    """What is fast enough: seconds, ``ttft`` by lane. TTFT is judged from the permit on."""

    ttft: dict[str, float] = field(default_factory=dict)
    tpot: float | None = None

    def __bool__(self) -> bool:
        return bool(self.ttft) or self.tpot is not None

    def met(self, lane: str, answer: Answer) -> bool:
        """Whether ``answer`` was in time; one that was not streamed has the time that a stream just in time takes."""
        ttft = self.ttft.get(lane, inf)
        tpot = inf if self.tpot is None else self.tpot
        if isnan(answer.ttft):
            return answer.latency <= ttft + tpot * answer.tokens
        return answer.ttft <= ttft and not answer.tpot > tpot


@dataclass(frozen=True, slots=True)
class Level:
    """What was seen at ``low`` to ``high`` requests in flight, ``level`` in the mean. Seconds; rates are a second."""

    low: int
    high: int
    level: float
    held: float
    seen: float  # seconds ago
    requests: int
    latency: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    requests_rate: float
    tokens_rate: float
    in_objective: float | None

    @property
    def enough(self) -> bool:
        """Whether conclusions may rest on it."""
        return self.requests >= ENOUGH_REQUESTS and self.held >= ENOUGH_SECONDS


class _Rung:
    """The evidence of one rung."""

    __slots__ = ("answers", "held", "seen", "spans")

    def __init__(self) -> None:
        self.answers = Rows(len(Answer._fields) - 1, REQUESTS)
        self.spans = Rows(len(Span._fields) - 1, SPANS)
        self.held = 0.0
        self.seen = -inf


class _Meter:
    """One backend: how many are in flight, since when, and what that came to."""

    def __init__(self, age: float) -> None:
        self.running = 0
        self.lived = self.held = 0.0  # request-seconds and token-seconds so far
        self._tokens = 0
        self.rungs: dict[int, _Rung] = {}
        self.models: dict[str, int] = {}
        self.lanes: dict[str, int] = {}
        self.paces = PaceLog()
        self.silence: float | None = None  # about the longest that a request came back from
        self._heard = 0  # output events when they last had grown
        self._unheard = 0.0  # seconds of work since, up to the last change
        self._age = age
        self._changed = 0.0
        self._events = self._counted = 1.0  # output events, and tokens reported for them
        self._clear(0)

    def _clear(self, outputs: int) -> None:
        self._outputs = outputs
        self._seconds = self._area = self._squares = self._whole = 0.0
        self._answers = 0

    def _listen(self, outputs: int, *, answered: bool, now: float) -> None:
        if answered or outputs > self._heard:
            self._heard, self._unheard = outputs, 0.0
        elif self.running:
            self._unheard += now - self._changed

    def unheard(self, silence: float, now: float) -> float:
        """See ``Curves``."""
        since = now - self._changed
        return silence if silence < since or not self.running else self._unheard + since

    def grow(self, tokens: int, outputs: int, now: float) -> None:
        """One more is in flight, predicted to hold ``tokens``."""
        self._listen(outputs, answered=False, now=now)
        worked = now if self.running else self._changed  # until then
        self._pass(now)
        if self._seconds >= SPAN:
            self._end_span(outputs, worked)
        self.running += 1
        self._tokens += tokens

    def shrink(self, tokens: int, outputs: int, *, answered: bool, now: float) -> None:
        """One less is in flight."""
        self._listen(outputs, answered=answered, now=now)
        self._pass(now)
        self.running -= 1
        self._tokens -= tokens
        self._answers += answered

    def _pass(self, now: float) -> None:
        if self.running:
            seconds = now - self._changed
            area = self.running * seconds
            self.lived += area
            self.held += self._tokens * seconds
            self._seconds += seconds
            self._area += area
            self._squares += self.running * area
        self._changed = now

    def _end_span(self, outputs: int, now: float) -> None:
        level = self._area / self._seconds
        swing = sqrt(max(0.0, self._squares / self._seconds - level * level))
        if swing <= max(0.3, 0.2 * level):
            tokens = (outputs - self._outputs) * self._counted / self._events + self._whole
            found = self._rung(level, now)
            found.spans.add(now, self._seconds, level, self._answers, tokens)
            found.held += self._seconds
            found.seen = now
        self._clear(outputs)

    def _rung(self, level: float, now: float) -> _Rung:
        index = rung(max(1, int(level + 0.5)), FINE)
        found = self.rungs.get(index)
        if found is None or found.seen < now - self._age:
            found = self.rungs[index] = _Rung()
            found.seen = now
        return found

    def answer(self, life: Life, record: Record, now: float, latency: float) -> None:
        """Take a completed request that lived through ``life``."""
        ttft, tpot = nan, nan
        tokens = self._output(record)
        timeline = record.timeline
        whole = timeline.first_output is None
        if whole:
            self._whole += tokens
        else:
            ttft, tpot = _speed(timeline, tokens, now - latency)
        if whole or tokens > 1:
            pace = latency / max(1, tokens) if whole else tpot
            self.paces.note(life.level, now, pace, life.tokens / life.level, whole=whole)
        silent = latency if whole else ttft
        self.silence = silent if self.silence is None else max(silent, 0.999 * self.silence)
        found = self._rung(life.level, now)
        lane = _code(self.lanes, record.lane or "")
        model = _code(self.models, record.ticket.shape.model or "" if record.ticket else "")
        found.answers.add(now, latency, ttft, tpot, tokens, lane, model)
        found.seen = now

    def _output(self, record: Record) -> int:
        """Output tokens as reported, else counted or estimated."""
        usage, ticket, events = record.usage, record.ticket, record.timeline.output_events
        tokens = usage.completion_tokens if usage else None
        if tokens is None:
            generates = ticket is not None and ticket.shape.generates
            return events or (ticket.work.output_tokens if ticket and generates else 0)
        if events:  # an event may bring several tokens
            self._events = 0.99 * self._events + events
            self._counted = 0.99 * self._counted + tokens
        return tokens


def _speed(timeline: Timeline, tokens: int, admitted: float) -> tuple[float, float]:
    """TTFT from the permit on, and TPOT."""
    first, last = timeline.first_output or admitted, timeline.last_output or admitted
    return first - admitted, (last - first) / (tokens - 1) if tokens > 1 else nan


def _code(known: dict[str, int], name: str) -> int:
    """A small number for ``name``; names beyond the bound share one."""
    code = known.get(name)
    if code is None:
        if len(known) >= MODELS:
            name = OTHERS
        code = known.setdefault(name, len(known))
    return code


class Curves:
    """Watches permits and observes records; one curve a backend, and one for each model where it serves several.

    ``age``: seconds after which evidence is forgotten.
    """

    def __init__(self, age: float) -> None:
        self._age = age
        self._meters: dict[str, _Meter] = {}
        self._begun: dict[int, Life] = {}  # by permit: the backend's sums then
        self._lives: dict[int, Life] = {}  # by ticket, until its record comes

    # -- learning ---------------------------------------------------------------------------------------------------

    def granted(self, permit: Permit, outputs: int) -> None:
        """Take a permit that was just given. An open session is no work in flight, though it holds a place."""
        if permit.ticket.shape.session:
            return
        meter = self._meters.get(permit.backend)
        if meter is None:
            meter = self._meters[permit.backend] = _Meter(self._age)
        meter.grow(permit.ticket.work.tokens, outputs, permit.granted_at)
        self._begun[permit.id] = Life(meter.lived, meter.held)

    def settled(self, permit: Permit, outcome: Outcome, outputs: int, now: float) -> None:
        """Take a permit that is over."""
        if permit.ticket.shape.session:
            return
        meter = self._meters[permit.backend]
        tokens = permit.ticket.work.tokens
        meter.shrink(tokens, outputs, answered=outcome is Outcome.COMPLETED, now=now)
        life, seconds = self._begun[permit.id], now - permit.granted_at
        del self._begun[permit.id]
        if seconds > 0:
            life.level, life.tokens = (meter.lived - life.level) / seconds, (meter.held - life.tokens) / seconds
        else:
            life.level, life.tokens = 1.0, float(tokens)
        self._lives[permit.ticket.id] = life
        if len(self._lives) > UNCLAIMED:
            del self._lives[next(iter(self._lives))]

    def observe(self, record: Record) -> None:
        """Take a finished request; its latency counts where it was completed."""
        life = None if record.ticket is None else self._lives.get(record.ticket.id)
        if life is None or record.ticket is None:
            return
        del self._lives[record.ticket.id]
        timeline = record.timeline
        if record.outcome is not Outcome.COMPLETED or record.backend is None:
            return
        if timeline.admitted is not None and timeline.finished is not None:
            ended = timeline.finished if timeline.last_output is None else timeline.last_output
            self._meters[record.backend].answer(life, record, ended, ended - timeline.admitted)

    # -- telling ----------------------------------------------------------------------------------------------------

    @property
    def backends(self) -> tuple[str, ...]:
        """Those that had a request."""
        return tuple(self._meters)

    def models(self, backend: str) -> tuple[str, ...]:
        """What they asked ``backend`` for; empty for requests that name no model."""
        return tuple(self._meters[backend].models)

    def levels(
        self, backend: str, now: float, objectives: Objectives, model: str | None = None, steps: int = FINE
    ) -> Iterator[Level]:
        """The curve of ``backend``, the lowest level first, for one ``model`` or all of its requests.

        ``steps`` are the rungs to an octave, at most ``FINE`` and a divisor of it. A level takes about a millisecond:
        let others have their turn between two.
        """
        meter = self._meters[backend]
        groups: dict[int, list[_Rung]] = {}
        for index in sorted(meter.rungs):
            if meter.rungs[index].seen >= now - self._age:
                groups.setdefault(rung(bounds(index, FINE)[0], steps), []).append(meter.rungs[index])
        for index, rungs in groups.items():
            found = _level(bounds(index, steps), rungs, meter, now - self._age, now, objectives, model)
            if found is not None:
                yield found

    def first_token_alone(self, backend: str, now: float) -> tuple[float, int] | None:
        """Median TTFT of ``backend`` at the lowest levels, and the highest of these; None before there were enough."""
        rungs = self._meters[backend].rungs if backend in self._meters else {}
        times: list[float] = []
        for index in sorted(rungs):
            rows = map(Answer._make, rungs[index].answers.since(now - self._age))
            times += [answer.ttft for answer in rows if not isnan(answer.ttft)]
            if len(times) >= _FEW:
                return median(times), bounds(index, FINE)[1]
        return None

    def unheard(self, backend: str, silence: float, now: float) -> float:
        """Seconds for which ``backend`` has had work and nothing came of it.

        ``silence``: as admission counts it, which leaves out what its clients did not wait for. Here all of it adds up.
        """
        meter = self._meters.get(backend)
        return silence if meter is None else meter.unheard(silence, now)

    def longest_silence(self, backend: str) -> float | None:
        """About how long an answer of ``backend`` took to begin at most, in seconds; None before the first one."""
        return self._meters[backend].silence if backend in self._meters else None

    def slowdown(self, backend: str, now: float, base: float | None) -> Slowdown | None:
        """How much slower ``backend`` has become at the same load, see ``PaceLog``; None without a comparison."""
        return self._meters[backend].paces.slowdown(now, base) if backend in self._meters else None


def _level(
    edges: tuple[int, int],
    rungs: list[_Rung],
    meter: _Meter,
    since: float,
    now: float,
    objectives: Objectives,
    model: str | None,
) -> Level | None:
    """The figures of one level; None where it was never held."""
    spans = [Span._make(row) for found in rungs for row in found.spans.since(since)]
    if not spans:
        return None
    answers = [Answer._make(row) for found in rungs for row in found.answers.since(since)]
    mine = answers if model is None else [answer for answer in answers if answer.model == meter.models[model]]
    seconds = sum(span.seconds for span in spans)
    lanes = tuple(meter.lanes)
    met = [objectives.met(lanes[int(answer.lane)], answer) for answer in mine] if objectives else []
    return Level(
        *edges,
        level=sum(span.level * span.seconds for span in spans) / seconds,
        held=sum(found.held for found in rungs),
        seen=now - max(found.seen for found in rungs),
        requests=len(mine),
        latency=_spread(mine, lambda answer: answer.latency),
        ttft=_spread(mine, lambda answer: answer.ttft),
        tpot=_spread(mine, lambda answer: answer.tpot),
        requests_rate=sum(span.answers for span in spans) / seconds * _share(mine, answers, lambda _: 1.0),
        tokens_rate=sum(span.tokens for span in spans) / seconds * _share(mine, answers, lambda each: each.tokens),
        in_objective=sum(met) / len(met) if met else None,
    )


def _share(part: list[Answer], whole: list[Answer], weight: Callable[[Answer], float]) -> float:
    total = sum(map(weight, whole))
    return sum(map(weight, part)) / total if total and part is not whole else 1.0


def _spread(answers: list[Answer], read: Callable[[Answer], float]) -> Spread | None:
    values = [value for value in map(read, answers) if not isnan(value)]
    return spread(values, _PERCENTS) if values else None
