"""What one backend was seen doing: gauges of now, counters since the last decision, the unloaded pace.

Everything the relay touches on each chunk is here, as plain attributes. The law that judges these figures is in
``limit.py``; this file only measures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf, sqrt
from operator import attrgetter
from typing import Final

from gateway.admission.pace import Line, LowBase, Ratio
from gateway.model import Ticket, Usage

TICK: Final = 0.1
"""Seconds between samples while anything runs or waits."""

LOW_CONCURRENCY: Final = 4
"""Samples of the unloaded pace are taken with at most so many requests in flight: the only place where it shows."""

STEPS_PROMPT: Final = 2_048
"""Prompts from this many tokens on take several engine steps to read (vLLM's least default of
``max_num_batched_tokens``): one that has no first token yet is being read, not standing in a queue."""

LONG_PROMPT: Final = 8_192
"""Prompts from this many tokens on occupy an engine's prefill for about a second: they go one after another."""

HUGE_PROMPT: Final = 32_768
"""Prompts from this many tokens on are read for longer than a decision window (seconds on any single accelerator)."""

SOON: Final = 1_000
"""Output tokens that a huge prompt's answer may have for the next huge prompt to wait for its end."""

FRESH: Final = 512
"""Prompt tokens to be read, from which on the time to the first token is that of reading them."""

MOSTLY: Final = 0.5
MOMENT: Final = 0.5  # seconds that prompts may take to be read behind another one
BESIDE: Final = 3.0  # times as long as alone a prompt takes to be read beside streams, at most
RESTING: Final = 0.01  # the least that a window in which nobody left counts
WARM: Final = 8
"""Gaps after which bursts can be told from single tokens."""

STALL_SECONDS: Final = 0.5
STALL_TOKENS: Final = 5
KNOWN_STARTS: Final = 4  # first tokens after which their rate is known
LINE_MEMORY: Final = 0.75  # what is left of answers after one decision
LOW_MEMORY: Final = 0.97  # and after one more answer
OWN_TOKENS: Final = 10  # of an answer whose own pace counts: a shorter one's is chance
OWN_FEW: Final = 20  # answers from which their spread is known
BEYOND_CHANCE: Final = 3.0  # standard deviations of what was sent by chance
TTFT_SPAN: Final = 10.0  # seconds that a TTFT sample counts


Own = tuple[float, float, float, int]
"""A stream that ended: its pace, beside how many, when its first token came, its tokens."""


class Window:
    """The measurements of one backend. ``now`` in seconds; token counts as predicted or as seen, never both mixed."""

    __slots__ = (
        "arrivals", "base_stream", "base_ttft", "base_whole", "busy_sum", "busy_whole", "calm_at", "crowded",
        "cut_at", "drops", "e2e", "even_before", "firsts", "full", "held", "held_ticks", "huge", "huge_ticks",
        "inflight", "last_byte", "line", "line_low", "long", "mark_inflight", "mark_read", "mark_seconds",
        "mark_tokens", "narrow", "objective", "others_at", "own", "preemptions", "read", "reading", "reading_pace",
        "recalled_rate", "running", "served", "slots", "stalls", "standing", "starting", "starts", "stream_answers",
        "stream_seconds", "stream_tokens", "ticked_arrivals", "ticked_firsts", "ticked_tokens", "ticks", "tokens",
        "ttft", "unread_tokens", "unstarted", "whole", "whole_answers", "whole_seconds", "whole_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        # Gauges: true at any instant.
        self.inflight = 0
        self.whole = 0  # of those, the ones whose answer comes in one piece
        self.tokens = 0  # predicted KV tokens at the end of every request in flight
        self.unstarted = 0  # streams without a first token
        self.unread_tokens = 0.0  # of their prompts, what is read anew
        self.reading = 0  # of those, the ones with a prompt of several steps
        self.long = 0  # of those, the ones that go one after another
        self.huge = 0  # of those, the ones whose prompt is read for longer than a window
        self.running: dict[int, Running] = {}
        self.last_byte = -inf  # when its backend last said anything
        self.narrow = False  # fewer may be in flight than the limit says, for what has no first token
        self.objective = inf  # the tightest TTFT objective of what was sent, seconds
        self.others_at = -inf  # when a request of another than the last lane was last sent here
        self.crowded = False  # its engine says that it runs others' requests as well: the unloaded pace cannot be seen
        self.slots: int | None = None  # that its engine says it has, as it fills them all and more wait
        # Sums for ever; a window is the difference to its mark.
        self.stream_seconds = 0.0
        self.stream_tokens = 0
        self.ticked_tokens = 0  # of those, the ones before the last tick
        self.firsts = 0  # streams that had their first token
        self.ticked_firsts = 0  # of those, the ones before the last tick
        self.read = 0.0  # prompt tokens of streams that had their first token
        self.mark_seconds = 0.0
        self.mark_tokens = 0
        self.mark_read = 0.0
        self.mark_inflight = 0
        # What is remembered across decisions.
        self.base_stream = LowBase()
        self.base_whole = LowBase()
        self.own: deque[Own] = deque(maxlen=64)  # the last streams that ended
        self.even_before: float | None = None  # their evenness before the load last climbed
        self.calm_at = 0.0  # when it had
        self.line = Line(LINE_MEMORY)  # through answers in one piece to what was sent after the last step
        self.line_low = Line(LOW_MEMORY)  # through those that had at most a few beside them
        self.base_ttft = LowBase()  # of prompts that are read at once
        self.reading_pace = LowBase()  # seconds per token of a prompt, of those that are read alone
        self.ttft: deque[tuple[float, float]] = deque(maxlen=256)
        self.cut_at = -inf  # answers to requests sent before are not counted
        self.e2e: float | None = None  # mean seconds of answers in one piece
        self.served = Ratio(0.05)  # request-seconds per cost unit of finished requests
        self.starting = Ratio(0.1)  # seconds in which streams had no first token, per first token
        self.recalled_rate: float | None = None  # first tokens a second, as an earlier gateway saw them
        self.held = False  # a request was held by the token limit since the last tick
        self._clear()

    def _clear(self) -> None:
        self.arrivals = 0
        self.full = 0
        self.ticked_arrivals = (0, 0)  # both, as of the last tick
        self.drops = 0
        self.stream_answers = 0
        self.whole_answers = 0
        self.whole_seconds = 0.0  # of answers to what was sent after the last step
        self.whole_tokens = 0.0
        self.busy_sum = 0
        self.busy_whole = 0
        self.ticks = 0
        self.starts = 0  # streams sent
        self.held_ticks = 0
        self.huge_ticks = 0
        self.stalls = 0
        self.preemptions = 0.0
        self.standing: float = inf

    def restart(self) -> None:
        """Begin the next window."""
        self.mark_seconds = self.stream_seconds
        self.mark_tokens = self.stream_tokens
        self.mark_read = self.read
        self.mark_inflight = self.inflight
        self._clear()

    @property
    def outputs(self) -> int:
        """Output events of all streams so far."""
        return self.stream_tokens + self.firsts

    @property
    def unread(self) -> int:
        """Streams that wait for their first token, but for one whose prompt takes several steps to read."""
        return self.unstarted - min(self.reading, 1)

    @property
    def start_rate(self) -> float | None:
        """First tokens a second while streams wait for theirs; before a few were seen what is remembered, or None."""
        seen = self.ticked_firsts >= KNOWN_STARTS
        return self.starting.tokens / self.starting.seconds if seen else self.recalled_rate

    @property
    def age(self) -> float:
        """Seconds of the window so far; idle time does not count."""
        return self.ticks * TICK

    @property
    def new_seconds(self) -> float:
        """Stream-seconds of the gaps of this window."""
        return self.stream_seconds - self.mark_seconds

    @property
    def new_tokens(self) -> int:
        """Output events that ended these gaps."""
        return self.stream_tokens - self.mark_tokens

    @property
    def resting(self) -> float:
        """Requests that left for each stream that was sent, at most 1: more is read while the load climbs."""
        grown = max(0, self.inflight - self.mark_inflight)
        return max(RESTING, 1.0 - grown / self.starts) if self.starts else 1.0

    @property
    def refilled(self) -> float:
        """Streams that were sent for each request that left, at most 1: a drain has few prompts to read."""
        gone = self.starts + max(0, self.mark_inflight - self.inflight)
        return max(RESTING, self.starts / gone) if gone else 1.0

    @property
    def decodes(self) -> bool:
        """Whether nothing was sent and no prompt read: only answers under way went on."""
        return not (self.starts or self.unstarted or self.read > self.mark_read)

    @property
    def blameless(self) -> bool:
        """Whether a huge prompt was read for most of the window: it stretches every gap at any concurrency."""
        return 2 * self.huge_ticks >= self.ticks > 0

    @property
    def reads(self) -> bool:
        """Whether prompts took most of the window to read: what waits for its first token waits for that.

        The prompts that were through in it, and the longest that is not: engines read in order of arrival.
        """
        pace = self.reading_pace.value
        if pace is None:
            return False
        longest = self._longest_unread
        under_way = longest.fresh if longest is not None else 0.0
        return (self.read - self.mark_read + under_way) * pace >= MOSTLY * self.age

    def held_up(self, now: float) -> bool:
        """Whether all that have no first token wait for the longest of their prompts, which is being read.

        The others would be through in a moment, and it was not sent longer ago than it may take beside streams.
        """
        longest, pace = self._longest_unread, self.reading_pace.value
        if longest is None or pace is None:
            return False
        others = self.unread_tokens - longest.fresh
        return others * pace <= MOMENT and now - longest.sent <= BESIDE * longest.fresh * pace + MOMENT

    @property
    def _longest_unread(self) -> Running | None:
        """The stream without a first token that has most to be read; of what comes in one piece nobody can tell."""
        unread = (each for each in self.running.values() if each.unread)
        return max(unread, key=attrgetter("fresh"), default=None)

    def enter(self, running: Running) -> None:
        """A request goes to the backend."""
        self.inflight += 1
        running.low = self.inflight <= LOW_CONCURRENCY
        self.tokens += running.ticket.work.tokens
        self.running[running.id] = running
        running.begin()

    def leave(self, permit_id: int) -> None:
        """A request is over, however it ended."""
        running = self.running.pop(permit_id)
        running.end()
        self.inflight -= 1
        self.tokens -= running.ticket.work.tokens

    def stream_answer(self, running: Running, usage: Usage | None) -> None:
        """Count a stream that ended well, and its own pace where the backend said how long it was."""
        self.stream_answers += 1
        tokens = usage.completion_tokens if usage is not None else None
        if tokens is not None and tokens >= OWN_TOKENS and (own := running.own_pace(tokens)) is not None:
            self.own.append((*own, tokens))

    @property
    def evenness(self) -> float | None:
        """The mean pace of the last streams over what 19 in 20 of them stay below; None where there are few.

        A climb of the load makes uneven who ran in it, by the prompts that were read: until there are enough who began
        after it, at least what it was before.
        """
        calm = [each for each in self.own if each[2] >= self.calm_at]
        if len(calm) >= OWN_FEW:
            return self._even(calm)
        even, before = self._even(self.own), self.even_before
        return even if before is None else max(before, even or 0.0)

    def _even(self, streams: Collection[Own]) -> float | None:
        """The pace of each as it would have been beside as many as run now.

        While the limit climbs, whoever ran when there were few was faster, and that says nothing of how even they are.
        """
        if len(streams) < OWN_FEW:
            return None
        base, now = self.base_stream.value or 0.0, self.inflight
        paces = [(base + max(0.0, pace - base) * now / beside, tokens) for pace, beside, _, tokens in streams]
        high = sorted(pace for pace, _ in paces)[int(0.95 * (len(paces) - 1))]
        mean = sum(pace * tokens for pace, tokens in paces) / sum(tokens for _, tokens in paces)
        return min(1.0, mean / high) if high else None

    @property
    def climbs(self) -> bool:
        """Whether more were sent than left, beyond what chance brings: the load steps up, or a burst is let in."""
        return self.inflight - self.mark_inflight > BEYOND_CHANCE * sqrt(self.starts) > 0.0

    def note_climb(self, now: float) -> None:
        """The load climbs until ``now``."""
        self.even_before, self.calm_at = self.evenness, now

    def whole_answer(self, running: Running, usage: Usage | None, now: float) -> None:
        """Count an answer that came in one piece: its pace is its whole time over its output tokens.

        For routes without output tokens (embeddings, rerank, score) a request is one token. A request of which
        nothing could be read (an unknown route) and that reports no usage teaches nothing.
        """
        shape = running.ticket.shape
        seconds = now - running.sent
        self.whole_answers += 1
        self.e2e = seconds if self.e2e is None else self.e2e + 0.05 * (seconds - self.e2e)
        reported = usage.completion_tokens if usage is not None else None
        if reported is None and not (shape.prompt_bytes or shape.prompt_tokens or shape.media_tokens):
            return
        tokens = running.pace_tokens(reported)
        if running.low and self.inflight <= LOW_CONCURRENCY:
            self.base_whole.add(seconds / tokens, doubtful=self.crowded)
            if not self.crowded:
                self.line_low.fade()
                self.line_low.add(tokens, seconds)
        if running.sent >= self.cut_at:
            self.whole_seconds += seconds
            self.line.add(tokens, seconds)
            self.whole_tokens += tokens

    def forget_whole(self, until: float) -> None:
        """Count only answers in one piece to what is sent from ``until`` on."""
        self.cut_at = until
        self.line = Line(LINE_MEMORY)

    def tick(self) -> None:
        """Take the samples of every 100 ms."""
        self.ticks += 1
        if self.narrow:
            self.arrivals, self.full = self.ticked_arrivals  # whom it held back did not meet the limit
        self.ticked_arrivals = self.arrivals, self.full
        unread = self.unread
        if unread or self.firsts > self.ticked_firsts:
            self.starting.add(TICK, self.firsts - self.ticked_firsts)
            self.ticked_firsts = self.firsts
        self.ticked_tokens = self.stream_tokens
        self.busy_sum += self.inflight
        self.busy_whole += self.whole
        if self.huge:
            self.huge_ticks += 1
        else:
            self.standing = min(self.standing, unread)
        if self.held:
            self.held_ticks += 1
            self.held = False

    def count_silent(self, now: float) -> None:
        """Count the streams that are silent now while others go on: the mark of preemption."""
        for running in self.running.values():
            running.check_silence(now)


class Running:
    """One request in flight whose answer comes in one piece. Also the permit's ``Progress``."""

    __slots__ = ("cached", "id", "low", "sent", "ticket", "window")

    def __init__(self, permit_id: int, ticket: Ticket, window: Window, now: float) -> None:
        self.id = permit_id
        self.ticket = ticket
        self.window = window
        self.sent = now
        self.low = False  # few were in flight when it was sent
        self.cached = 0.0  # tokens of its prompt that the backend is thought to have in its cache

    def output(self, events: int, now: float) -> None:  # noqa: ARG002 - part of Progress
        """Tell that the backend lives."""
        self.window.last_byte = now

    def pace_tokens(self, reported: int | None) -> float:
        """Tokens over which its time is spread: output tokens as reported or predicted, 1 where there are none."""
        shape = self.ticket.shape
        output = self.ticket.work.output_tokens if reported is None else reported
        return max(1.0, output / shape.choices) if shape.generates else 1.0

    def begin(self) -> None:
        """It was sent."""
        self.window.whole += 1

    def end(self) -> None:
        """It is over."""
        self.window.whole -= 1

    def own_pace(self, tokens: int) -> tuple[float, float, float] | None:  # noqa: ARG002 - a stream knows it
        """Seconds per token after the first, of an answer of so many; how many streams went on meanwhile; its begin.

        None where it cannot be told.
        """
        return None

    @property
    def fresh(self) -> float:
        """Tokens of its prompt that are read anew."""
        return self.ticket.work.prompt_tokens - self.cached

    @property
    def unread(self) -> bool:
        """Whether it is seen that its prompt is not read yet; never of an answer in one piece."""
        return False

    def check_silence(self, now: float) -> None:
        """An answer in one piece is silent by nature."""

    @property
    def started(self) -> bool:
        """Whether output was seen; never for an answer in one piece."""
        return False


class Streaming(Running):
    """One stream in flight."""

    __slots__ = (
        "_began", "_beside", "_burst", "_choices", "_huge", "_last", "_lasting", "_long", "_mean", "_objective",
        "_open", "_reading", "_seen", "_stalled", "_warm",
    )  # fmt: skip

    def __init__(self, permit_id: int, ticket: Ticket, window: Window, now: float, objective: float | None) -> None:
        super().__init__(permit_id, ticket, window, now)
        self._objective = objective  # TTFT, seconds
        self._choices = ticket.shape.choices  # so many sequences share the stream
        self._began = 0.0  # when its first token came
        self._beside = 0.0  # and the seconds that all streams had had by then
        self._last: float | None = None
        self._mean = 0.0  # gap, lately, while few were in flight
        self._warm = 0  # gaps that it rests on
        self._burst = 0  # events that came with the last long gap; 0: not known yet
        self._seen = 0
        self._stalled = False
        self._open = False
        self._reading = ticket.work.prompt_tokens >= STEPS_PROMPT
        self._long = ticket.work.prompt_tokens >= LONG_PROMPT
        self._huge = ticket.work.prompt_tokens >= HUGE_PROMPT
        # Its context slows every step while it decodes as well: the next one waits for its end, where that is near.
        self._lasting = self._huge and ticket.work.output_tokens <= SOON

    @property
    def started(self) -> bool:
        """Whether its first token came."""
        return self._last is not None

    @property
    def unread(self) -> bool:
        """Whether its first token is still to come."""
        return self._last is None

    def begin(self) -> None:
        """It was sent."""
        self._open = True
        if self._objective is not None and self._objective < self.window.objective:
            self.window.objective = self._objective
        self.window.starts += 1
        self.window.long += self._long
        self._count_unstarted(1)

    def end(self) -> None:
        """It is over; what it reports from now on is not counted."""
        self._open = False
        if self._last is None:
            self._count_unstarted(-1)
        if self._last is None or self._lasting:
            self.window.long -= self._long

    def _count_unstarted(self, step: int) -> None:
        window = self.window
        window.unstarted += step
        window.unread_tokens = window.unread_tokens + step * self.fresh if window.unstarted else 0.0
        if self._reading:
            window.reading += step
        if self._huge:
            window.huge += step

    def output(self, events: int, now: float) -> None:
        """Count ``events`` output events at ``now``: a handful of attribute updates, for it runs on every chunk."""
        window = self.window
        window.last_byte = now
        last = self._last
        if last is None:
            self._first_token(now)
            return
        self._last = now
        gap = now - last
        if gap > STALL_SECONDS:
            # After a hiccup of the machine or the network each stream brings a burst, one after the other: what the
            # others got since the last tick says nothing.
            self._check_stall(window.ticked_tokens)
        if window.inflight <= LOW_CONCURRENCY:
            self._sample_base(gap, events)
        window.stream_seconds += gap * self._choices
        window.stream_tokens += events
        self._seen = window.stream_tokens
        self._stalled = False

    def _sample_base(self, gap: float, events: int) -> None:
        # Engines that emit several tokens at once have gaps of nearly nothing among long ones: a burst is one sample.
        self._mean += 0.2 * (gap / events - self._mean)
        self._warm += 1
        if self._warm <= WARM:
            return
        if gap < 0.2 * self._mean:
            self._burst += events if self._burst else 0
            return
        if self._burst:
            self.window.base_stream.add(gap * self._choices / self._burst, doubtful=self.window.crowded)
        self._burst = events

    def _first_token(self, now: float) -> None:
        if not self._open:
            return
        self._began = self._last = now
        self._count_unstarted(-1)
        window = self.window
        window.firsts += 1
        self._beside = window.stream_seconds
        if not self._lasting:
            window.long -= self._long
        self._seen = window.stream_tokens
        if self.low and not self._reading and window.inflight <= LOW_CONCURRENCY:
            window.base_ttft.add(now - self.sent, doubtful=window.crowded)
        fresh = self.fresh
        window.read += fresh
        if fresh >= FRESH and not window.unstarted:
            window.reading_pace.add((now - self.sent) / fresh)
        if self._objective is not None and self.sent > window.cut_at:
            window.ttft.append((now, (now - self.sent) / self._objective))

    def own_pace(self, tokens: int) -> tuple[float, float, float] | None:
        """The same, as it saw it; None where nothing came, or several sequences share the stream."""
        seconds = 0.0 if self._last is None else self._last - self._began
        if seconds <= 0.0 or self._choices > 1:
            return None
        return seconds / (tokens - 1), (self.window.stream_seconds - self._beside) / seconds, self._began

    def check_silence(self, now: float) -> None:
        """Count it once as stalled if it is silent while the others go on."""
        if self._last is not None and now - self._last > STALL_SECONDS:
            self._check_stall(self.window.stream_tokens)

    def _check_stall(self, tokens: int) -> None:
        # Judged by what the others got meanwhile: where a prefill stops everybody, nobody is preempted.
        window = self.window
        if not self._stalled and tokens - self._seen > STALL_TOKENS * window.inflight:
            self._stalled = True
            window.stalls += 1
