"""The books of each backend: what it runs, how much it may, whether it lives.

Health never halts everything. Backends are ranked by how sound they look, and the best rank present is eligible: when
probes call every backend dead, or every breaker is open, the least bad ones go on being tried (panic mode). A backend
that is producing output is alive whatever its probe says: a busy engine misses probes. Backpressure (429, 503, 529) is
congestion and moves the limit, never the breaker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, inf
from operator import attrgetter, itemgetter
from typing import Final

from gateway.admission.affinity import Cache, CacheMap, digest
from gateway.admission.breaker import ENDS, Breaker, Signal
from gateway.admission.config import AdmissionConfig, LimitConfig
from gateway.admission.lag import Lag
from gateway.admission.limit import AdaptiveLimit, FixedLimit, Limit
from gateway.admission.memory import BackendMemory, place
from gateway.admission.session import Session
from gateway.admission.tokens import KV_FULL
from gateway.admission.tuning import BackendTuning
from gateway.admission.window import LOW_CONCURRENCY, TICK, Running, Window
from gateway.model import BLOCK_BYTES, Backend, BackendState, Health, Hints, Outcome, Ticket, Usage

HINTS_LAPSE: Final = 10.0  # seconds; vLLM's gauges are 3 to 6 s old under load
ALIVE: Final = 5.0  # seconds that output vouches for a backend
CRITICAL_LAPSE: Final = 60.0  # seconds after the last critical request for which places are kept for the next
DRAINED: Final = 4
RAMP: Final = 10.0  # seconds until one that joined or came back is filled to its limit: it is cold
REST_MOST: Final = 60.0  # seconds that an engine's own Retry-After is heeded, at most
SPARE: Final = 0.4  # of its limit: with fewer in flight it has places that nobody who comes soon will miss
MET: Final = 0.75  # of its limit: so many in flight say what it is worth
MET_LAPSE: Final = 30.0  # seconds for which they do
ALIKE: Final = 2.5  # times another's unloaded pace, at most: the two are engines of one kind
EQUAL: Final = 1.001  # times its KV cache as well, at most: the same hardware runs the same model the same way
EQUALS: Final = 4  # engines that tell what one of them can bear
ABOVE: Final = 1.1  # times the limit that most of its equals stay below
MOVED: Final = 1.5  # times another capacity: less than that moves no session
BLOCK_TOKENS: Final = BLOCK_BYTES / 4.0  # about, of an engine's cache under one block of text


class Books:
    """One backend."""

    def __init__(self, backend: Backend, config: AdmissionConfig, caches: CacheMap) -> None:
        self.backend = backend
        self.name = backend.name
        self.digest = digest(backend.name)
        self.weight = backend.weight
        self.tier = backend.tier
        self._caches = caches
        self.cache: Cache = caches.join()
        self.room = 1.0  # its limit, weighted: what load is held against
        self.reading = 0.0  # of the time that a request stays, what a token of a prompt takes to be read
        self.share = 1.0  # what it can hold, against the others
        self.pull = 1.0  # what it can serve, against the others; steady, for it places sessions
        self._ramp = 1.0  # of its limit, while it joins or comes back
        self._rests_until = -inf  # its engine asked for quiet
        self.choices: dict[str, int] = {}  # why -> requests sent to it
        self.prompt_tokens = 0  # of answers that say how many of them were cached
        self.cached_tokens = 0  # those
        self._stay = 0.0  # seconds that a request stays, lately
        self.window = Window()
        self._law = AdaptiveLimit(config.limit)
        self.limit: Limit = self._law
        self.breaker = Breaker(config.breaker)
        self.health = Health.UNKNOWN
        self.lag = Lag()
        self.slow = False  # it is far slower than it was, and the others are not
        self.drained = False  # the operator wants no new request to go to it
        self.suspect = False  # down, drained, slow, or its breaker not closed: look closer
        self._met_at = -inf  # when about as many were in flight as its limit allows
        self.turn = 0  # the last permit given for it: ties go to the least recent
        self.pinned: int | None = None  # the limit where it is fixed, for all gateways together
        self._replicas = config.limit.replicas
        self.cap = 0  # requests that may be in flight
        self.cap_common = 0  # the same where none of them is critical
        self.cap_others = 0  # the same where none is of the first lane
        self._share_others = 1.0 - config.queue.reserve_short
        self._share_critical = config.queue.reserve_critical
        self._critical_at = -inf  # when a critical request last came for it
        self._kept = False  # places are kept for such
        self._silence = config.breaker.silence
        self._sessions = 0  # in flight
        self._owed_since = -inf  # when something was first owed, less what it had been silent for before
        self._silent = 0.0  # seconds for which it had owed and said nothing, when it last owed nothing more
        self._hints = Hints()
        self._hinted_at = -inf
        self._full: float | None = None  # running while others waited, as the gauges last said
        self._most = self._most_before = 0  # in flight at once since the gauges were last heard, and before that
        self.retune(config.limit, BackendTuning(backend.limit))

    def retune(self, config: LimitConfig, tuning: BackendTuning) -> None:
        """Go on with other settings. A limit that is unpinned goes on where the law left it."""
        self._law.retune(config)
        if tuning.limit != self.pinned or config.replicas != self._replicas:
            self.pinned = tuning.limit
            self._replicas = config.replicas
            self.limit = self._law if tuning.limit is None else FixedLimit(tuning.limit, config, self._law.changes)
            self.window.restart()
        self.window.objective = inf  # known again with the next request
        self._limit_min = config.minimum
        self.drained = tuning.drained
        self.room = self.limit.value * self.weight
        self._set_caps()
        self._judge()

    def note_critical(self, now: float) -> None:
        """A critical request came: from now on some places are kept for the next."""
        self._critical_at = now
        if not self._kept:
            self._kept = True
            self._set_caps()

    def _set_caps(self) -> None:
        value = self.limit.value
        self.cap = self.limit.cap(self.window)
        if self._ramp < 1.0:
            self.cap = min(self.cap, max(LOW_CONCURRENCY, floor(value * self._ramp)))
        self.window.narrow = self.cap < floor(value)
        self.cap_others = max(1, floor(value * self._share_others))
        kept = round(value * self._share_critical) if self._kept else 0
        self.cap_common = max(1, min(self.cap, floor(value) - kept))

    def rank(self, now: float) -> int:
        """0: sound, or due a trial; 1: its engine asked for quiet, or is slow; 2: its probe fails.

        3: its breaker is open; 4: drained, never to be used.
        """
        if self.drained:
            return DRAINED
        if not self.breaker.ready(now):
            return 3
        if self.health is Health.DOWN and not (self.window.inflight and now - self.window.last_byte < ALIVE):
            return 2
        return int(now < self._rests_until or self.slow)

    def join(self) -> None:
        """It is new, or comes back: it is filled little by little."""
        self._ramp = 0.0
        self._set_caps()

    def note_slow(self, *, slow: bool) -> None:
        """It is far slower than it was: where others are not, it is sent nothing; or it no longer is."""
        if slow is not self.slow:
            self.slow = slow
            self._judge()

    def rest(self, seconds: float, now: float) -> None:
        """Its engine asks not to be sent anything for so long; where others are sound, it is not."""
        self._rests_until = max(self._rests_until, now + min(seconds, REST_MOST))
        self._judge()

    @property
    def interval(self) -> float:
        """Seconds between two requests that leave it, as long as as many run."""
        return self._stay / max(1, self.window.inflight)

    def found(self, now: float) -> bool:
        """Whether its limit was met, and lately; else it only says how much was sent to it so far."""
        return self.pinned is not None or self.measured(now)

    def measured(self, now: float) -> bool:
        """Whether its limit was found by being met, and lately."""
        return now - self._met_at < MET_LAPSE and self._was_cut

    @property
    def _was_cut(self) -> bool:
        return any(direction == "down" for direction, _ in self.limit.changes)

    @property
    def spare(self) -> bool:
        """Whether it is far from full: many more could run, only that prompts are read one after the other.

        A limit that still doubles does not say so, and before one that is set by hand nobody waits for prompts.
        """
        return self.pinned is None and self.window.inflight < SPARE * self.limit.value and self._was_cut

    def note_prompt(self, running: Running, matched: int) -> None:
        """A prompt was sent here, of which ``matched`` leading blocks are thought to be cached."""
        ticket = running.ticket
        running.cached = matched * tokens_per_block(ticket) if matched else 0.0
        if ticket.shape.blocks:
            self._caches.note(self.cache, ticket.shape.blocks)
        if ticket.session:
            self._caches.settle(ticket.session, self.cache)

    def enter(self, running: Running, now: float) -> None:
        """A request goes to this backend."""
        window = self.window
        if window.inflight == self._sessions:  # nothing is owed
            self._owed_since = now - self._silent
        self._sessions += isinstance(running, Session)
        window.enter(running)
        self.turn = running.id
        if self.breaker.open and now >= self.breaker.until and self.breaker.trial is None:
            self.breaker.trial = running.id

    def leave(self, permit_id: int, outcome: Outcome, usage: Usage | None, now: float) -> None:
        """A request is over: measure it, judge the backend's life, free what it held.

        Raises:
            KeyError: no such request runs here.
        """
        running = self.window.running[permit_id]
        session = isinstance(running, Session)
        signal, lives = ENDS[outcome]
        self._sessions -= session
        if signal is Signal.SAMPLE and not session:
            self._measure(running, usage, now)
        elif signal is Signal.DROP and not running.started:
            self.window.drops += 1
        if lives:
            self.window.last_byte = now
        if self.breaker.note(lives, permit_id, now):
            self.limit.reopen()
            self.join()
        if self.suspect or not lives:
            self._judge()
        self.window.leave(permit_id)
        if not session and self.window.inflight == self._sessions:
            self._rest(running, now)
        if outcome is Outcome.BACKEND_BUSY and not running.started:
            self.limit.refuse(self.window.inflight)
            self._set_caps()

    def _rest(self, last: Running, now: float) -> None:
        """Nothing is owed any more. Clients that leave before it counts as hung must not hide that it hangs.

        One that left sooner than the slowest engine answers says nothing, for good or ill.
        """
        quiet = self._quiet(now)
        patience = _reading(last) + last.ticket.writing
        self._silent = quiet - patience if now - last.sent > patience else min(quiet, self._silent)

    def _measure(self, running: Running, usage: Usage | None, now: float) -> None:
        window = self.window
        window.served.add(now - running.sent, running.ticket.work.cost)
        self._stay += 0.1 * (now - running.sent - self._stay) if self._stay else now - running.sent
        if usage is not None and usage.cached_tokens is not None:
            self.prompt_tokens += usage.prompt_tokens or 0
            self.cached_tokens += usage.cached_tokens
            if running.ticket.shape.blocks:
                self._caches.correct(self.cache, running.cached, usage.cached_tokens)
        if running.ticket.shape.stream:
            window.stream_answer(running, usage)
        else:
            window.whole_answer(running, usage, now)

    def note_health(self, health: Health) -> None:
        """Take the prober's finding."""
        if (health is Health.DOWN) is not (self.health is Health.DOWN):
            self._caches.clear(self.cache)  # whatever it had, it lost
            self.join()
        self.health = health
        self._judge()

    def _judge(self) -> None:
        self.suspect = (
            self.health is Health.DOWN or self.breaker.open or self.drained or self.slow or self._rests_until > -inf
        )

    def note_hints(self, hints: Hints, now: float) -> None:
        """Take the engine's own gauges."""
        before, after = self._hints.preemptions_total, hints.preemptions_total
        if before is not None and after is not None:
            self.window.preemptions += max(0.0, after - before)
        if hints.kv_capacity_tokens is not None:
            self.limit.learn_capacity(hints.kv_capacity_tokens // self._replicas)
            self._caches.hold(self.cache, hints.kv_capacity_tokens / BLOCK_TOKENS)
        self._hints = hints
        self._hinted_at = now
        ours = max(self._most, self._most_before)  # the gauges are seconds old
        self._most, self._most_before = self.window.inflight, self._most
        self.window.crowded = (hints.running or 0.0) > ours + LOW_CONCURRENCY
        self._note_slots(hints)

    def _note_slots(self, hints: Hints) -> None:
        """The engine has so many slots where it runs as many twice on end, others wait, and its cache is not full.

        It has not where it runs more, or fewer while others wait.
        """
        window, running = self.window, hints.running or 0.0
        full = running > 0.0 and bool(hints.waiting) and (hints.kv_usage or 0.0) <= KV_FULL and not window.crowded
        if full and running == self._full:
            window.slots = int(running)
        elif full or running > (window.slots or 0):
            window.slots = None
        self._full = running if full else None

    def tick(self, now: float) -> None:
        """Take the samples of every 100 ms, decide where due, notice silence."""
        window = self.window
        window.tick()
        self.lag.tick(window, self.owing - window.whole - window.unstarted)
        self._most = max(self._most, window.inflight)
        fresh = now - self._hinted_at <= HINTS_LAPSE
        if not fresh:
            window.crowded, window.slots = False, None
        self.limit.tick(window, self._hints.kv_usage if fresh else None, now)
        if window.inflight >= MET * self.limit.value:
            self._met_at = now
        self._kept = now - self._critical_at < CRITICAL_LAPSE
        self._ramp = min(1.0, self._ramp + TICK / RAMP)
        self._set_caps()
        if now >= self._rests_until > -inf:
            self._rests_until = -inf
            self._judge()
        if self.owing and not self.breaker.open and self._quiet(now) > self._silence and self._hangs(now):
            self.breaker.trip(now)
            self._judge()

    def remember(self) -> BackendMemory:
        """What was learned of it, and can be relied on."""
        window, law = self.window, self._law
        bases = (window.base_stream, window.base_whole, window.base_ttft)
        stream, whole, ttft = (None if base.doubtful else base.value for base in bases)
        served = (window.served.seconds, window.served.tokens)
        all_of_them = self._replicas  # gateways may be more or fewer when this is recalled
        tokens = None if law.learned_tokens is None else law.learned_tokens * all_of_them
        limit = law.value * all_of_them
        low, rate = window.line_low.value, window.start_rate
        line = None if low is None or window.base_whole.doubtful else (max(0.0, low.start), low.pace)
        rate = rate * all_of_them if rate else None
        return BackendMemory(self.name, place(self.backend.url), limit, tokens, stream, whole, ttft, served, line, rate)

    def recall(self, memory: BackendMemory) -> None:
        """Go on from what an earlier gateway learned."""
        window = self.window
        tokens = memory.token_limit
        self._law.recall(memory.limit / self._replicas, None if tokens is None else tokens / self._replicas)
        for base, value in (
            (window.base_stream, memory.base_stream),
            (window.base_whole, memory.base_whole),
            (window.base_ttft, memory.base_ttft),
        ):
            if value is not None:
                base.recall(value)
        window.served.seconds, window.served.tokens = memory.served
        if memory.line is not None:
            window.line_low.recall(*memory.line)
        if memory.start_rate is not None:
            window.recalled_rate = memory.start_rate / self._replicas
        self._set_caps()

    @property
    def owing(self) -> int:
        """Requests in flight that will be answered; an open session may be silent for as long as it likes."""
        return self.window.inflight - self._sessions

    def _quiet(self, now: float) -> float:
        """Seconds for which it has owed something and nothing came, over all who waited for it."""
        return now - max(self.window.last_byte, self._owed_since)

    def _hangs(self, now: float) -> bool:
        """Whether it is silent for longer than the slowest engine may be with what is in flight.

        Somebody must have waited for as long as his own request may take: a crowd of which each leaves at once proves
        nothing.
        """
        owing = [running for running in self.window.running.values() if not isinstance(running, Session)]
        patience = sum(map(_reading, owing)) + min(running.ticket.writing for running in owing)
        return self._quiet(now) > self._silence + patience and any(
            now - running.sent > _reading(running) + running.ticket.writing for running in owing
        )

    @property
    def capacity(self) -> float:
        """Cost units a second that it serves with its limit full, by Little's law; 0 before the first answer."""
        pace = self.window.served.value
        return max(1.0, self.limit.value) / pace if pace and not self.drained else 0.0

    def weigh(self, limit: float, base: float) -> None:
        """Take its limit, as far as it was found, and its unloaded pace, both as they compare with the others'."""
        self.room = limit * self.weight
        self.share = self.room * self._ramp
        pace = self.window.reading_pace.value
        self.reading = pace / self._stay if pace and self._stay else 0.0
        pull = self.room / base
        if not 1.0 / MOVED < pull / self.pull < MOVED:
            self.pull = pull

    def state(self, now: float) -> BackendState:
        """Everything, for /state and the metrics."""
        window, limit = self.window, self.limit
        base = window.base_stream.value
        return BackendState(
            name=self.name,
            url=self.backend.url,
            health="drained" if self.drained else self.breaker.state(now) or self.health.value,
            limit=limit.value,
            token_limit=None if limit.tokens == inf else limit.tokens,
            running=window.inflight,
            tokens=window.tokens,
            unstarted=window.unstarted,
            pace=limit.pace.value,
            pace_base=window.base_whole.value if base is None else base,
            pace_target=limit.target,
            limit_changes=dict(limit.changes),
            hints_age=None if self._hinted_at == -inf else now - self._hinted_at,
            limit_min=self._limit_min if self.pinned is None else None,
            silence=self._quiet(now) if self.owing else 0.0,
            hints=self._hints,
            choices=dict(self.choices),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
        )


def _reading(running: Running) -> float:
    """Seconds that the slowest engine may still take before it begins its answer."""
    return 0.0 if running.started else running.ticket.reading


def tokens_per_block(ticket: Ticket) -> float:
    """Tokens under one block of its prompt, by what the prompt is estimated at."""
    shape = ticket.shape
    return ticket.work.prompt_tokens / max(shape.prompt_bytes / BLOCK_BYTES, len(shape.blocks))


def _alike(known: Iterable[tuple[float, Books]], most: float) -> Iterator[list[tuple[float, Books]]]:
    """Those that have a figure of one kind each: nobody's is more than ``most`` times the least of its group."""
    group: list[tuple[float, Books]] = []
    for each in sorted(known, key=itemgetter(0)):
        if group and each[0] > most * group[0][0]:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _level(equals: Sequence[Books]) -> None:
    """Let no limit stand out above those of an engine's equals: what it was found to bear beyond them is chance."""
    if len(equals) >= EQUALS:
        limits = sorted([books.limit.value for books in equals])
        for books in equals:
            books.limit.level(ABOVE * limits[len(limits) // 2])


def _weigh(kind: Sequence[tuple[float, Books]], now: float) -> None:
    """Weigh engines of one kind, each with its unloaded pace."""
    most = max([books.limit.value for _, books in kind])
    for base, books in kind:
        books.weigh(books.limit.value if books.found(now) else most, base)


class Pool:
    """All backends, and which of them serve what."""

    def __init__(self, backends: Sequence[Backend], config: AdmissionConfig) -> None:
        self.caches = CacheMap()
        self.books = tuple(Books(backend, config, self.caches) for backend in backends)
        self.running = 0
        self.troubled = False  # some backend is suspect
        self._learned: dict[str, frozenset[str]] = {}  # models by backend, as it names them itself
        self._reroute()

    def _reroute(self) -> None:
        self.by_name = {books.name: books for books in self.books}
        self._tiered = tuple(sorted(self.books, key=attrgetter("tier")))
        self._unlisted = tuple(books for books in self._tiered if not books.backend.models) or self._tiered
        self._listed = self._routes()

    def add(self, backend: Backend, config: AdmissionConfig) -> None:
        """One backend more."""
        books = Books(backend, config, self.caches)
        books.join()
        self.books += (books,)
        self._reroute()

    def change(self, backend: Backend) -> None:
        """Go on with other models and another weight of a backend.

        Raises:
            KeyError: there is none of this name.
        """
        books = self.by_name[backend.name]
        books.backend, books.weight, books.tier = backend, backend.weight, backend.tier
        self._reroute()

    def remove(self, name: str) -> None:
        """Forget a backend on which nothing runs.

        Raises:
            KeyError: there is none of this name.
            ValueError: something runs there.
        """
        books = self.by_name[name]
        if books.window.inflight:
            raise ValueError(f"{books.window.inflight} requests run on {name}")
        self.caches.leave(books.cache)
        self.books = tuple(other for other in self.books if other is not books)
        self._learned.pop(name, None)
        self._reroute()
        self._look()

    def _routes(self) -> dict[str, tuple[Books, ...]]:
        """The backends of each model that anybody lists; who lists nothing yet may serve each of them."""
        nothing: frozenset[str] = frozenset()
        lists = {b: frozenset(b.backend.models) or self._learned.get(b.name, nothing) for b in self.books}
        models = {model for models in lists.values() for model in models}
        return {model: tuple(b for b in self._tiered if not lists[b] or model in lists[b]) for model in models}

    def note_models(self, backend: str, models: Iterable[str]) -> bool:
        """Take the models that a backend names itself; whether that changes anything.

        What the configuration lists for it comes first. Names only ever choose among backends: a model that nobody
        names is still sent on, for the engine to judge.
        """
        names = frozenset(models)
        if self.by_name[backend].backend.models or names == self._learned.get(backend, frozenset()):
            return False
        self._learned[backend] = names
        self._listed = self._routes()
        return True

    @property
    def sets(self) -> list[tuple[Books, ...]]:
        """Every set of backends that serves some model."""
        return [self._unlisted, *self._listed.values()]

    @property
    def routes(self) -> dict[str | None, tuple[str, ...]]:
        """Model -> names of the backends that serve it; under None those for models that nobody lists."""
        sets = [(None, self._unlisted), *self._listed.items()]
        return {model: tuple(books.name for books in serving) for model, serving in sets}

    def serving(self, model: str | None, avoid: frozenset[str]) -> tuple[Books, ...]:
        """The backends that may serve ``model``, by tier, and in the order of their configuration.

        Empty where all of them are avoided, or drained.

        A model that nobody lists goes where anything is served; where no such backend is, to any: the engine's own
        404 is the right answer.
        """
        serving = self._unlisted if model is None else self._listed.get(model, self._unlisted)
        if avoid:
            serving = tuple(books for books in serving if books.name not in avoid)
        return () if self.troubled and all(books.drained for books in serving) else serving

    def sound(self, serving: tuple[Books, ...], now: float) -> Sequence[Books]:
        """Those of the best rank present: none of them only where all are drained."""
        if not self.troubled:
            return serving
        ranks = [books.rank(now) for books in serving]
        best = min(ranks)
        return [books for books, rank in zip(serving, ranks, strict=True) if rank == best < DRAINED]

    def retune(self, config: LimitConfig, backends: Mapping[str, BackendTuning]) -> None:
        """Go on with other settings."""
        for name, tuning in backends.items():
            self.by_name[name].retune(config, tuning)
        self._look()

    @property
    def tunings(self) -> dict[str, BackendTuning]:
        """What the operator said of each backend."""
        return {books.name: BackendTuning(books.pinned, books.drained) for books in self.books}

    def enter(self, books: Books, running: Running, now: float) -> None:
        """A request goes to a backend."""
        books.enter(running, now)
        self.running += 1

    def leave(self, backend: str, permit_id: int, outcome: Outcome, usage: Usage | None, now: float) -> None:
        """A request is over.

        Raises:
            KeyError: no such backend, or no such request runs there.
        """
        books = self.by_name[backend]
        was_suspect = books.suspect
        books.leave(permit_id, outcome, usage, now)
        self.running -= 1
        if books.suspect is not was_suspect:
            self._look()

    def rest(self, backend: str, seconds: float, now: float) -> None:
        """An engine asks not to be sent anything for so long."""
        self.by_name[backend].rest(seconds, now)
        self._look()

    def note_health(self, backend: str, health: Health) -> None:
        """Take the prober's finding."""
        self.by_name[backend].note_health(health)
        self._look()

    def tick(self, now: float) -> None:
        """Take the samples of every 100 ms."""
        for books in self.books:
            books.tick(now)
        behind = sum([books.lag.behind for books in self.books])
        common = 2 * behind > len(self.books)  # what befalls more than half of them is none's own
        for books in self.books:
            books.note_slow(slow=books.lag.behind and not common)
        self._weigh(now)
        self._look()

    def _weigh(self, now: float) -> None:
        """Compare what the backends can hold and serve.

        A limit that was not met lately is as high as was needed then: such an engine is taken for an equal of the best
        of its kind, which an unloaded pace like theirs tells. Where the KV caches are of one size as well, limits that
        were met differ by chance alone, and none is let stand out.
        """
        if len(self.books) <= 1:
            return
        paces = [(base, books) for books in self.books if (base := books.window.base_stream.value) is not None]
        usual = sorted([base for base, _ in paces])[len(paces) // 2] if paces else 1.0
        for kind in _alike([(books.window.base_stream.value or usual, books) for books in self.books], ALIKE):
            measured = [books for _, books in kind if books.measured(now)]
            caches = [(blocks, books) for books in measured if (blocks := books.cache.known) is not None]
            for equals in _alike(caches, EQUAL):
                _level([books for _, books in equals])
            _weigh(kind, now)

    def _look(self) -> None:
        self.troubled = any(books.suspect for books in self.books)
