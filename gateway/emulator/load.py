"""Open-loop load: requests arrive by chance whether or not the server keeps up, from clients like the openai SDK.

    result = await Load(url, plan).run()

Bounded in time and in number: arrivals end after ``duration`` or ``max_requests``, and what still runs ``grace``
seconds later is cut.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from urllib.parse import urlsplit

from gateway.emulator import sdk
from gateway.emulator.calls import Answer, Pool, request_bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send."""

    path: str
    body: bytes
    content_type: str = "application/json"
    stream: bool = False
    kind: str = ""  # a label for the results


Mix = Callable[[random.Random], Ask]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send. Seconds, and requests a second; ``max_retries`` as a client of the SDK would set it."""

    mix: Mix
    rate: float
    duration: float
    timeout: float = 10.0
    max_retries: int = sdk.MAX_RETRIES
    seed: int = 0
    max_requests: int = 100_000
    grace: float = 0.0


@unique
class Fate(Enum):
    """What became of one request, retries included."""

    GOOD = "good"  # complete within the timeout, counted from the first attempt
    LATE = "late"  # complete after it
    REFUSED = "refused"  # the last attempt was refused: 429 or 503
    TIMEOUT = "timeout"  # the last attempt timed out
    FAILED = "failed"  # the last attempt failed otherwise
    CUT = "cut"  # the run ended before it did


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Seconds from the start of the run; ``ttft`` from the first attempt to the first byte of output."""

    kind: str
    arrival: float
    end: float
    attempts: int
    fate: Fate
    ttft: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run so far, for a live view."""

    elapsed: float  # seconds, at most ``duration``
    duration: float
    offered: int
    attempts: int
    in_flight: int
    good: int
    refusals: int  # answers 429 and 503, to any attempt
    timeouts: int  # of any attempt
    failures: int  # of any attempt, otherwise
    per_second: tuple[int, ...]  # requests that ended well in each full second so far
    latency_p50: float | None  # seconds, whole time of what ended well
    latency_p99: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    outcomes: tuple[Outcome, ...]
    duration: float  # of the arrivals
    attempts: int
    refusals: int
    timeouts: int
    failures: int
    lag: float  # the worst delay of an arrival against its time: over some 0.1 s the generator was the bottleneck

    def count(self, fate: Fate) -> int:
        """Requests that met ``fate``."""
        return sum(outcome.fate is fate for outcome in self.outcomes)

    @property
    def offered(self) -> int:
        """Requests that arrived."""
        return len(self.outcomes)

    @property
    def attempts_per_request(self) -> float:
        """Retry amplification."""
        return self.attempts / max(1, self.offered)

    def goodput(self, since: float = 0.0, until: float | None = None) -> float:
        """Requests a second that ended well between ``since`` and ``until`` (the end of arrivals) of the run."""
        end = self.duration if until is None else until
        good = sum(o.fate is Fate.GOOD and since <= o.end < end for o in self.outcomes)
        return good / (end - since)

    def latency(self, fraction: float) -> float | None:
        """A percentile of the whole time of requests that ended well, in seconds."""
        return percentile([o.end - o.arrival for o in self.outcomes if o.fate is Fate.GOOD], fraction)

    def ttft(self, fraction: float, kind: str | None = None) -> float | None:
        """A percentile of the time to the first byte of output, in seconds, of requests that ended well."""
        chosen = [o for o in self.outcomes if o.fate is Fate.GOOD and kind in {None, o.kind}]
        return percentile([o.ttft for o in chosen if o.ttft is not None], fraction)


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """Linear between closest ranks, as numpy's; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Load:
    """One run against ``url``."""

    def __init__(self, url: str, plan: Plan) -> None:
        """Prepare; ``run`` starts.

        Raises:
            ValueError: ``url`` is not http://host:port.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"url: {url!r} given, http://host:port expected")
        self._plan = plan
        self._host = parts.netloc
        self._pool = Pool(parts.hostname, parts.port or 80)
        self._arrivals = random.Random(plan.seed)  # noqa: S311 - load is to be repeatable
        self._requests = random.Random(plan.seed + 1)  # noqa: S311 - the same
        self._chance = random.Random(plan.seed + 2)  # noqa: S311 - the same
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: list[Outcome] = []
        self._started = 0.0
        self._offered = self._attempts = self._refusals = self._timeouts = self._failures = 0
        self._lag = 0.0

    async def run_watched(self, watch: Callable[[Snapshot], None], every: float = 0.5) -> Result:
        """``run``, and show ``watch`` how it stands every so many seconds and once at its end."""
        running = asyncio.create_task(self.run())
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=every)
                watch(self.snapshot())
        finally:
            running.cancel()
        return await running

    async def run(self) -> Result:
        """Send it all and wait for the ends."""
        self._started = self._now()
        try:
            await self._arrive()
            await asyncio.sleep(0)  # the last one begins
            if self._tasks and self._plan.grace:
                await asyncio.wait(self._tasks, timeout=self._plan.grace)
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._pool.close()
        return Result(
            tuple(self._outcomes),
            self._plan.duration,
            self._attempts,
            self._refusals,
            self._timeouts,
            self._failures,
            self._lag,
        )

    def snapshot(self) -> Snapshot:
        """Figures of this instant."""
        elapsed = min(self._now() - self._started, self._plan.duration)
        good = [outcome for outcome in self._outcomes if outcome.fate is Fate.GOOD]
        seconds = Counter(int(outcome.end) for outcome in good)
        latencies = [outcome.end - outcome.arrival for outcome in good]
        return Snapshot(
            elapsed,
            self._plan.duration,
            self._offered,
            self._attempts,
            len(self._tasks),
            len(good),
            self._refusals,
            self._timeouts,
            self._failures,
            tuple(seconds[second] for second in range(int(elapsed))),
            percentile(latencies, 0.5),
            percentile(latencies, 0.99),
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _arrive(self) -> None:
        due = self._arrivals.expovariate(self._plan.rate)
        while self._offered < self._plan.max_requests:
            wait = self._started + min(due, self._plan.duration) - self._now()
            if wait > 0:
                await asyncio.sleep(wait)
            if due >= self._plan.duration:
                break
            self._lag = max(self._lag, self._now() - self._started - due)
            self._offered += 1
            task = asyncio.create_task(self._call(self._plan.mix(self._requests), due))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            due += self._arrivals.expovariate(self._plan.rate)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a fault of the generator's own must not pass for the server's

    async def _call(self, ask: Ask, arrival: float) -> None:
        attempt, fate, ttft = 0, Fate.CUT, None
        try:
            while True:
                answer = await self._attempt(ask, attempt)
                fate = self._judge(answer, arrival)
                if answer.complete:
                    ttft = None if answer.first_byte is None else answer.first_byte - self._started - arrival
                    break
                delay = self._delay(answer, attempt, ask)
                if delay is None:
                    break
                await asyncio.sleep(delay)
                attempt += 1
        except asyncio.CancelledError:
            fate = Fate.CUT
            raise
        finally:
            end = self._now() - self._started
            self._outcomes.append(Outcome(ask.kind, arrival, end, attempt + 1, fate, ttft))

    async def _attempt(self, ask: Ask, attempt: int) -> Answer:
        self._attempts += 1
        headers = sdk.headers(attempt, self._plan.timeout)
        data = request_bytes(ask.path, self._host, ask.content_type, ask.body, headers)
        try:
            connection = await self._pool.take()
        except OSError as error:
            return Answer(timed_out=isinstance(error, TimeoutError))
        answer = await connection.send(data, self._plan.timeout, stream=ask.stream)
        self._pool.give_back(connection)
        return answer

    def _delay(self, answer: Answer, attempt: int, ask: Ask) -> float | None:
        if attempt >= self._plan.max_retries or (ask.stream and answer.status == 200):  # noqa: PLR2004 - OK
            return None
        status = None if answer.timed_out else answer.status
        return sdk.retry_delay(status, answer.headers, attempt, self._chance.random, time.time())

    def _judge(self, answer: Answer, arrival: float) -> Fate:
        if answer.complete:
            took = self._now() - self._started - arrival
            return Fate.GOOD if took <= self._plan.timeout else Fate.LATE
        if answer.timed_out:
            self._timeouts += 1
            return Fate.TIMEOUT
        if answer.status in {429, 503}:
            self._refusals += 1
            return Fate.REFUSED
        self._failures += 1
        return Fate.FAILED
