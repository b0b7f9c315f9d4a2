"""How many requests, and how many predicted KV tokens, may be in flight on one backend.

The adaptive law is additive increase, multiplicative decrease on the *pace*: stream-seconds per output token. Request
latency would be output length in disguise. The unloaded pace is learned at low concurrency; for a continuous-batching
engine pace = A + B*n, so at five times the unloaded pace throughput is 80 % of its maximum and more concurrency buys
little but waiting. What is remembered of the pace is its slope B: it holds at every n, so no change of the limit makes
it stale, and it may be remembered for long, for one document stretches every gap of a window or two. Beside the pace it
heeds: streams that stand in the engine without a first token, the TTFT objective where one is set, refusals, failures,
and the signs of a full KV cache. Whole answers show neither pace nor first token; the line through them shows both.

Between decisions it counts what has no first token. Slots that come free, a limit that doubles and a burst of arrivals
would each send the engine more prompts than it reads in a moment; they wait better here, in a queue that is fair and
knows deadlines. By Little's law the last of ``u`` unstarted streams waits ``u`` over first tokens a second.

One decision a window, one cut per drain: after a cut, nothing is judged until the excess has left the engine, and the
pace that was measured with the excess inside is forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import floor, inf, sqrt
from typing import Final, Protocol

from gateway.admission.config import LimitConfig
from gateway.admission.growth import Growth
from gateway.admission.pace import Line, LowBase, Ratio
from gateway.admission.tokens import Change, TokenGuard
from gateway.admission.window import LOW_MEMORY, TTFT_SPAN, Window

ENOUGH_TOKENS: Final = 100  # a decision needs tokens, not only time
ENOUGH_TTFT: Final = 10
BINDS: Final = 0.75  # share of the limit in flight from which on it decides how many wait for their first token
ENOUGH_DROPS: Final = 3
RAMP: Final = 2  # windows that a burst let in by a doubling may take to be read; longer, and it is a queue
PATIENCE: Final = 5  # windows after which a decision is made on whatever is there
STALE_WINDOWS: Final = 5
CLOSEST: Final = 0.97  # share of a TPOT objective that the mean pace may come to
READING: Final = 0.25  # seconds per token that a slow reader takes: what nobody set an objective for is read
PATIENT: Final = 4.0  # times the unloaded pace, where that is more
LOOSEST: Final = 10.0  # times the unloaded pace: beyond, no engine has a tenth of its throughput left to give
BEYOND_DOUBT: Final = 1.5  # times the target: too much, whatever brought it about
OVERSHOT: Final = 1.1  # of the target: the climb has passed it, and not by chance
HALF: Final = 0.5  # of the target: far from it
NEAR: Final = 0.8
A_QUEUE: Final = 4.0  # so many that stand are a queue beyond doubt
START_WAIT: Final = 0.5  # seconds that the last of the unstarted streams may wait for its first token
START_SHARE: Final = 0.25  # or this share of the TTFT objective, where that is less
UNLOADED: Final = 3.0  # or so many times an unloaded TTFT, where that is more
FIRST_FEW: Final = 4  # that may be unstarted while nothing is known of the engine
FEWEST: Final = 2  # one that is being read, and one for the moment when it is through
LONGEST_REST: Final = 16  # windows for which a known bound is left alone, at most
TOLD_REST: Final = 128  # and where the engine itself says that it has so many slots: that does not change
REST_ANSWERS: Final = 8  # and for so many answers a window: each look beyond it costs one or two their first token
PROBE: Final = 0.125  # the first step beyond a known bound, in requests; each further one is twice as large


class Limit(Protocol):
    """A number of requests and a number of tokens, and what moves them."""

    value: float
    tokens: float
    changes: Counter[Change]
    pace: Ratio
    target: float | None

    def cap(self, window: Window) -> int:
        """Requests that may be in flight until the next tick, at least 1."""

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Decide if a decision is due. ``kv_usage``: the engine's own gauge, None where unknown or old."""

    def refuse(self, held: int) -> None:
        """The backend refused a request while it held ``held`` others of ours."""

    def level(self, most: float) -> None:
        """Be no more than this: what equal engines are found to bear."""

    def learn_capacity(self, kv_tokens: int) -> None:
        """The engine says how many tokens its KV cache holds."""

    def reopen(self) -> None:
        """The backend was dead and lives again."""


class FixedLimit:
    """A limit that the operator set. It only measures."""

    def __init__(self, value: int, config: LimitConfig, changes: Counter[Change]) -> None:
        self._period = config.window
        self.value = float(max(1, value // config.replicas))
        self.tokens = inf if config.most_tokens is None else float(config.most_tokens)
        self.changes = changes
        self.pace = Ratio(0.25)
        self.target: float | None = None

    def cap(self, window: Window) -> int:
        """The limit as set."""
        del window
        return max(1, floor(self.value))

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Keep the measured pace current."""
        del kv_usage, now
        if window.age >= self._period:
            if window.new_tokens:
                self.pace.add(window.new_seconds, window.new_tokens)
            elif window.whole_tokens:
                self.pace.add(window.whole_seconds, window.whole_tokens)
            window.restart()

    def refuse(self, held: int) -> None:
        """It stays as set."""

    def level(self, most: float) -> None:
        """It stays as set."""

    def learn_capacity(self, kv_tokens: int) -> None:
        """It stays as set."""

    def reopen(self) -> None:
        """It stays as set."""


@dataclass(slots=True)
class Reading:
    """What one window says. ``over``: measured over wanted, above 1 is too much, 0 says nothing.

    ``fit``: the limit at which the pace would reach its target; ``room``: that at which it would come near it, as a
    multiple of the present one; 0 says nothing. ``standing``: how many stood in the engine's own queue; ``moving``: how
    many of those in flight did not, where some did.
    """

    over: float = 0.0
    reason: str = "pace"
    full: bool = False  # arrivals found the limit full: it binds
    room: float = 0.0
    fit: float = 0.0
    standing: float = 0.0
    moving: float = 0.0

    def worsen(self, over: float, reason: str) -> None:
        """Take a second signal: the worse one counts."""
        if over > self.over:
            self.over, self.reason = over, reason

    def stand(self, count: float, inflight: float) -> None:
        """So many of those in flight stand in the engine's own queue."""
        self.standing = count
        self.moving = max(0.0, inflight - count)
        self.worsen(inflight / self.moving if self.moving else inf, "standing")


class AdaptiveLimit:
    """The adaptive law. All constants were measured in simulation; the evidence is in ARCHITECTURE.md."""

    def __init__(self, config: LimitConfig) -> None:
        self._config = config
        self._slow = True  # doubling, until the first cut
        self._near = False  # it was once where the pace meets its target
        self._ramping = False  # the burst that a doubling let in is still being read
        self._settling = False  # a cut is draining
        self._known = inf  # beyond this the engine was seen to queue or to refuse
        self._probe = PROBE  # the next step beyond it
        self._rest = 1  # windows from finding it to the next step beyond it
        self._wait = 0  # of those, the ones still to come
        self._answers = 0  # the same in answers
        self._recalled = 0.0  # until it is reached again: what an earlier gateway found
        self._stood = 0  # windows on end in which some stood without a first token
        self._stale = 0  # windows at the floor with the pace still over
        self._whole = False  # the pace is that of answers in one piece
        self._guard = TokenGuard(config.most_tokens)
        self.value = float(min(max(config.initial, config.minimum), config.most))
        self.tokens = self._guard.value
        self.changes: Counter[Change] = Counter()
        self.pace = Ratio(0.25)
        self._growth = Growth()
        self.target: float | None = None

    def retune(self, config: LimitConfig) -> None:
        """Go on from here with other settings.

        Where others come or go who share the engine, everybody's part of what it takes changes, and the pace at all
        parts together does not.
        """
        share = self._config.replicas / config.replicas
        self._config = config
        if share != 1.0:
            self._known *= share
            self._recalled *= share
            self._growth.rescale(share)
            self._guard.rescale(share, config.most_tokens)
            self.tokens = self._guard.value
            self._set(self.value * share, ("up" if share > 1.0 else "down", "replicas"))

    @property
    def learned_tokens(self) -> float | None:
        """The token bound as it was learned from what was seen; None where nothing was."""
        return self._guard.learned

    def recall(self, value: float, tokens: float | None) -> None:
        """Go on where an earlier gateway left off; a limit that had not grown yet grows from the start."""
        if value > self.value:
            self.value = min(value, float(self._config.most))
            self._slow = False
            self._recalled = self.value
        if tokens is not None:
            self._guard.recall(tokens)
            self.tokens = self._guard.value

    def learn_capacity(self, kv_tokens: int) -> None:
        """Bound the predicted tokens by nine tenths of the engine's KV cache."""
        self._guard.learn_capacity(kv_tokens)
        self.tokens = self._guard.value

    def reopen(self) -> None:
        """Grow fast again: what drove the limit down was the backend's death, not its load."""
        self._slow = True
        self._known = inf

    def refuse(self, held: int) -> None:
        """Stay at what it held; the next step beyond that is small and late."""
        self._slow = False
        self._note_known(held)
        self._set(min(self.value, float(held)), ("down", "refused"))

    def level(self, most: float) -> None:
        """Be no more than this."""
        if most < self.value:
            self._set(most, ("down", "equals"))

    def _note_known(self, count: float, slots: int | None = None) -> None:
        """Remember where it queues or refuses. Each time that it is found there again it is left alone for longer.

        At once for long where its gauges say that it has so many ``slots``, as far as can be seen from here.
        """
        again = abs(count - self._known) <= max(1.0, 0.05 * count)
        self._rest = min(2 * self._rest, LONGEST_REST) if again else 1
        if slots is not None and abs(count - slots) <= max(1.0, 0.05 * count):
            count, self._rest = float(slots), TOLD_REST
        self._known, self._probe, self._wait = count, PROBE, self._rest
        self._answers = REST_ANSWERS * self._rest

    def cap(self, window: Window) -> int:
        """The limit, or less while as many have no first token as the engine starts in a moment.

        Where even more wait, it takes in fewer than it lets out until they are through.
        """
        most = max(1, floor(self.value))
        if 0 < window.whole == window.inflight and not window.starts:
            return most  # answers in one piece: nothing is seen to start
        return min(most, max(1, window.inflight + floor(_startable(window) - window.unread)))

    def tick(self, window: Window, kv_usage: float | None, now: float) -> None:
        """Decide if a decision is due."""
        if self._ramping:
            longest = PATIENCE if window.narrow else RAMP
            unread = window.narrow or window.unstarted > 0.1 * window.inflight
            if unread and window.age < longest * self._config.window:
                return
            self._ramping = False
            window.restart()
        self._choose_mode(window)
        period = self._config.window
        if self._slow and _full(window):
            period *= 0.5  # many wait, and what is far from its target needs no fine judgement
        if self._whole and window.e2e:
            period = max(period, 0.5 * window.e2e)  # completions lag
        if window.age >= period and (self._enough(window) or window.age > PATIENCE * period):
            self._decide(window, kv_usage, now)
            window.restart()

    def _choose_mode(self, window: Window) -> None:
        """Judge by streams where they give tokens enough, else by whole answers where most come in one piece."""
        whole = self._whole
        if window.new_tokens >= ENOUGH_TOKENS:
            whole = False
        elif window.whole_answers or window.stream_answers:
            whole = window.whole_answers > window.stream_answers
        if whole is not self._whole:
            self._whole = whole
            self.pace, self._growth = Ratio(0.25), Growth()

    def _enough(self, window: Window) -> bool:
        return (
            window.new_tokens >= ENOUGH_TOKENS
            or (self._whole and window.whole_tokens >= ENOUGH_TOKENS)
            or len(window.ttft) >= ENOUGH_TTFT
            or window.drops >= ENOUGH_DROPS
        )

    def _decide(self, window: Window, kv_usage: float | None, now: float) -> None:
        if window.climbs:
            window.note_climb(now)
        reading = self._read_pace(window)
        self._read_standing(window, reading, now)
        self._read_ttft(window, reading, now)
        settled = not self._settling
        if self._settling and window.inflight <= max(1, floor(self.value)):
            self._settling = False
            self.pace = Ratio(0.25)
        window.count_silent(now)
        if change := self._guard.decide(window, kv_usage):
            self.changes[change] += 1
        self.tokens = self._guard.value
        if settled:
            self._move(window, reading, now)
        self._refresh_stale_base(window, reading)

    # ------------------------------------------------------------------------------------------- what it reads

    def _read_pace(self, window: Window) -> Reading:
        if self._whole:
            return self._read_whole(window)
        base = window.base_stream.value
        self.target = self._target(base, self._config.tolerance, window.evenness)
        seconds, tokens = window.new_seconds, window.new_tokens
        if not tokens or (window.blameless and self.target and seconds > self.target * tokens):
            return Reading()
        return self._judge(window, base, seconds, tokens)

    def _read_whole(self, window: Window) -> Reading:
        line, low = window.line.value, window.line_low.value
        if line is None or low is None:
            line = low = None
        base = low.pace if low else window.base_whole.value
        self.target = self._target(base, self._config.tolerance if low else self._config.tolerance_non_streamed)
        seconds, tokens = window.whole_seconds, window.whole_tokens
        if not tokens:
            # Five windows without any answer, though requests were in flight.
            silent = not window.whole_answers and window.busy_whole >= window.ticks
            dead = silent and window.age > PATIENCE * self._config.window
            return Reading(inf if dead else 0.0, "silence")
        self.pace.add(seconds, tokens)
        if not self.target or base is None:
            return Reading()
        pace = line.pace if line else self.pace.seconds / self.pace.tokens
        reading = Reading(pace / self.target, full=_full(window))
        n = window.busy_sum / window.ticks
        if n >= 0.4 * self.value:
            # A line through a few answers may be flat by chance, and a limit that was raised too far is left slowly.
            slope = max((line.steepest if line else pace) - base, 0.01 * base) / n
            reading.room = max(0.0, 0.85 * self.target - base) / slope / self.value
        if line and low:
            # Little's law: so many answers a second, each after so long a wait for its first token, beyond the natural.
            # So much of it as is beyond doubt: answers of about one length say little of where their line begins.
            wait = line.start - 2.0 * line.doubt - 2.0 * pace - low.start * max(1.0, pace / low.pace)
            queue = wait * window.whole_answers / window.age
            if queue >= max(A_QUEUE, 0.01 * n):
                reading.stand(queue, n)
        window.line.fade()
        return reading

    def _judge(self, window: Window, base: float | None, seconds: float, tokens: float) -> Reading:
        self.pace.add(seconds, tokens)
        n = window.busy_sum / window.ticks
        if not self.target or n <= 0 or seconds <= 0.0:
            return Reading()
        climbs = (n < BINDS * self.value or window.climbs) and seconds <= BEYOND_DOUBT * self.target * tokens
        unloaded = self._growth.add(window, n, base or 0.0, climbs=climbs, drains=n > self.value)
        slope = self._growth.beyond(unloaded)
        reading = Reading((unloaded + slope * n) / self.target, full=_full(window))
        reading.fit = max(0.0, self.target - unloaded) / slope
        if unloaded and n >= 0.4 * self.value:
            worst = max(slope, (seconds / tokens - unloaded) / n)
            reading.room = max(0.0, 0.85 * self.target - unloaded) / worst / self.value
        return reading

    def _target(self, base: float | None, tolerance: float, evenness: float | None = None) -> float | None:
        # The law holds the mean, and the target is about each answer: the more even they are, the closer.
        share = max(self._config.objective_headroom, min(evenness or 0.0, CLOSEST))
        objective = self._config.tpot_objective
        if objective is not None:
            return share * (objective if base is None else min(objective, LOOSEST * base / share))
        return None if base is None else share * min(tolerance * base, max(READING, PATIENT * base))

    def _read_standing(self, window: Window, reading: Reading, now: float) -> None:
        # The least of the window: a queue inside the engine that never empties is useless for throughput.
        stands = inf > window.standing >= max(1.0, _natural(window))
        self._stood = self._stood + 1 if stands else 0
        if not stands or window.huge_ticks:
            return
        idle = window.busy_sum < BINDS * self.value * window.ticks
        if not window.reads or not (window.held_up(now) or (idle and self._stood <= RAMP)):
            reading.stand(window.standing, window.inflight)
        elif not self._slow:
            reading.full, reading.room = False, 0.0  # fewer in flight would not be read sooner, nor would more

    @staticmethod
    def _read_ttft(window: Window, reading: Reading, now: float) -> None:
        ttft = window.ttft
        while ttft and ttft[0][0] < now - TTFT_SPAN:
            ttft.popleft()
        if len(ttft) >= ENOUGH_TTFT:
            # At most a tenth: long prompts that collide are not cured by a deep cut.
            ratios = sorted(ratio for _, ratio in ttft)
            reading.worsen(min(1.1, ratios[int(0.9 * (len(ratios) - 1))]), "ttft")

    # ------------------------------------------------------------------------------------------- what it does

    def _move(self, window: Window, reading: Reading, now: float) -> None:
        answers = window.stream_answers + window.whole_answers
        self._answers = max(0, self._answers - answers)
        if window.drops >= ENOUGH_DROPS and window.drops > 0.1 * (window.drops + answers):
            self._cut(0.7 * self.value, "drops", window, now)
        elif reading.over > 1 and reading.reason == "pace" and reading.fit:
            self._slow = False  # and there is nothing to settle: the slope holds while the excess drains
            self._near |= reading.over > OVERSHOT
            self._set(min(self.value, max(0.7 * self.value, reading.fit)), ("down", "pace"))
        elif reading.over > 1 and reading.reason == "standing":
            self._cut(self._without_queue(reading, window), "standing", window, now)
            if reading.moving:
                self._note_known(reading.moving, window.slots)
        elif reading.over > 1:
            self._cut(self.value * min(max(1 / reading.over, 0.7), 0.95), reading.reason, window, now)
        elif reading.over > 0 and (reading.full or (reading.room > 1 and self.value + 1 <= self._known)):
            self._raise(reading, window, now)

    def _without_queue(self, reading: Reading, window: Window) -> float:
        """A limit at which nobody stands: those that did not had room, so never fewer than they."""
        less = self.value * min(max(1 / reading.over, 0.7), 0.99)
        if not reading.moving:
            return less
        if reading.standing >= max(A_QUEUE, 0.1 * window.inflight):
            return min(self.value, reading.moving)  # it may float above what runs
        most = float(window.inflight) if window.narrow else inf
        return min(self.value, most, max(less, reading.moving))

    def _cut(self, value: float, reason: str, window: Window, now: float) -> None:
        self._slow = False
        self._settling = True
        window.forget_whole(now)
        window.ttft.clear()
        self._set(value, ("down", reason))

    def _raise(self, reading: Reading, window: Window, now: float) -> None:
        n = window.busy_sum / window.ticks
        if not self._slow:
            self._set(self.value + self._step(reading, n), ("up", "room"))
            return
        if self._whole:
            # What it brings about is seen late, once answers of their full length are through: few steps, long ones.
            step = min(4.0, max(1.05, sqrt(reading.room)))
        else:
            step = 2.0 if reading.over < HALF else 1.2 if reading.over < NEAR else 1.05
        if reading.full:
            # The pace at a lower limit says nothing of this one, and neither does the burst that is let in now.
            self.pace = Ratio(0.25)
            self._growth.forget()
            self._ramping = True
        if self._whole:
            # Completions lag: count only answers to what is sent from now on, and not to the burst that is let in.
            window.forget_whole(now + self._config.window)
        # Not far ahead of what was seen to run: twice as many, for a pace that doubles, and a burst of arrivals.
        most = inf if reading.full else 2.0 * n + 8.0 * sqrt(n)
        self._set(max(self.value, min(self.value * step, most)), ("up", "slow_start"))

    def _step(self, reading: Reading, n: float) -> float:
        """A quarter of the way to where the pace is predicted to reach its target, 20 % at most.

        Half of it before it was ever there: a climb ends at a window that many prompts made slow, well below.
        Half of the way, 25 to 50 %, back to what an earlier gateway found: its last requests were in the engine still.
        """
        if self.value < self._recalled:
            return min(
                max(1.0, self.value * min(max(sqrt(reading.room) - 1.0, 0.25), 0.5)), self._recalled - self.value
            )
        self._recalled = 0.0
        if reading.fit:
            ahead = max(0.0, reading.fit - self.value)
            self._near |= ahead <= 0.05 * self.value
            half = sqrt(1.0 + ahead / self.value)
            share = min((sqrt(half) if self._near else half) - 1.0, 0.5)
            step = max(min(1.0, ahead), self.value * share)
        else:
            share = 0.02 if reading.over >= NEAR else min(max(reading.room**0.25 - 1.0, 0.05), 0.2)
            step = max(1.0, self.value * share)
        if self.value + step > self._known:
            if self._wait or self._answers:
                self._wait = max(0, self._wait - 1)
                return max(0.0, self._known - self.value)
            if self.value > self._known and n < floor(self.value) - max(0.1, 0.02 * self.value):
                return 0.0  # the last step beyond was not tried yet
            step = min(step, self._probe)
            self._probe *= 2.0
        return step

    def _set(self, value: float, change: Change) -> None:
        value = min(max(value, float(self._config.minimum)), float(self._config.most))
        if value != self.value:
            self.value = value
            self.changes[change] += 1

    def _refresh_stale_base(self, window: Window, reading: Reading) -> None:
        at_floor = self.value <= max(2, self._config.minimum) and reading.over > 1
        self._stale = self._stale + 1 if at_floor and self._config.tpot_objective is None else 0
        if self._stale >= STALE_WINDOWS:
            # So few cannot be too many: it is the base that is wrong.
            window.base_stream, window.base_whole = LowBase(), LowBase()
            window.line_low = Line(LOW_MEMORY)
            self._stale = 0


def _natural(window: Window) -> float:
    """How many have no first token yet where nobody queues, by Little's law: starts a second times the time it takes.

    It takes two steps, the one under way and its own, or the unloaded TTFT stretched as the pace is.
    """
    if not window.new_tokens:
        return 0.0
    pace = window.new_seconds / window.new_tokens
    base, ttft = window.base_stream.value, window.base_ttft.value
    unloaded = ttft * max(1.0, pace / base) if base and ttft else 0.0
    return max(2.0 * pace, unloaded) * window.starts / window.age


def _startable(window: Window) -> float:
    """How many may have no first token: as many as the engine starts in the time that the last of them may wait."""
    rate = window.start_rate
    if rate is None:
        return FIRST_FEW
    wait = min(START_WAIT, START_SHARE * window.objective)
    return max(FEWEST, rate * max(wait, UNLOADED * (window.base_ttft.value or 0.0)))


def _full(window: Window) -> bool:
    """Arrivals see what time sees; three in ten that found the limit full say that it binds."""
    return window.full > 0 and window.full >= 0.3 * window.arrivals
