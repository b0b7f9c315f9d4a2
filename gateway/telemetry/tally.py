"""The figures of ``vllm bench serve`` over finished requests, and what only a gateway can tell beside them.

Definitions were read in vLLM's ``benchmarks/serve.py`` and ``benchmarks/lib/endpoint_request_func.py`` of 0.32.0 and
0.33.0. Four things differ, because a gateway sees traffic and no benchmark: time starts when a request's head is here
(the client's starts before it connects); the duration runs from the first request to the last response's end;
requests that their client gave up are told apart from failures; answers that are not streamed count, without TTFT, TPOT
and ITL.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.model import Outcome
from gateway.telemetry.entry import Entry, Rule
from gateway.telemetry.peaks import Peaks
from gateway.telemetry.spread import GapPool, Spread, spread

OBJECTIVES: Final = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says. Times are seconds, rates are a second; ``began`` is on the clock of the entries."""

    rule: Rule
    began: float
    duration: float
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    good: int | None  # None: no objective was given
    peak_output: int
    peak_concurrency: int
    peak_concurrency_exact: int
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2el: Spread
    received: int
    first_attempts: int
    engine_attempts: int
    aborted: int
    refused: Mapping[str, int]  # by reason
    failures: Mapping[str, int]  # by outcome, refusals left out
    queue_wait: Spread
    engine_ttft: Spread
    first_output: Spread
    whole: int  # answers that were not streamed
    chunks_for_tokens: int  # streams without usage, whose chunks were counted for tokens
    estimated_prompts: int  # answers whose prompt tokens are the gateway's estimate
    estimated_outputs: int  # the same of answers that were not streamed, and their output tokens
    silent: int  # streams that ended well without a chunk that counts
    others: int  # requests that generate nothing (embeddings ...): in no figure
    models: tuple[str, ...]

    def rate(self, count: float) -> float:
        """``count`` a second."""
        return count / self.duration if self.duration else 0.0


@dataclass(slots=True)
class Tally:
    """Adds up entries, in the order in which the requests came.

    ``objectives`` are seconds by ``ttft``, ``tpot`` and ``e2el``; ``percents`` the percentiles wanted.
    """

    rule: Rule = Rule.V33
    objectives: Mapping[str, float] = field(default_factory=dict)
    percents: Sequence[float] = (99.0,)
    _ttft: list[float] = field(default_factory=list, init=False)
    _tpot: list[float] = field(default_factory=list, init=False)
    _e2el: list[float] = field(default_factory=list, init=False)
    _queue_wait: list[float] = field(default_factory=list, init=False)
    _engine_ttft: list[float] = field(default_factory=list, init=False)
    _first_output: list[float] = field(default_factory=list, init=False)
    _gaps: GapPool = field(default_factory=GapPool, init=False)
    _peaks: Peaks = field(default_factory=Peaks, init=False)
    _counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int), init=False)
    _refused: Counter[str] = field(default_factory=Counter, init=False)
    _failures: Counter[str] = field(default_factory=Counter, init=False)
    _models: dict[str, None] = field(default_factory=dict, init=False)
    _began: float | None = field(default=None, init=False)
    _ended: float = field(default=0.0, init=False)

    # -- adding -----------------------------------------------------------------------------------------------------

    def add_all(self, entries: Iterable[Entry]) -> None:
        """Take entries, none of which came before one that was taken already."""
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take one entry."""
        counts = self._counts
        if not entry.generates:
            counts["others"] += 1
            return
        counts["received"] += 1
        counts["first_attempts"] += entry.retry == 0
        counts["engine_attempts"] += entry.attempts
        self._began = entry.received if self._began is None else self._began
        self._ended = max(self._ended, entry.finished_at)
        if entry.offered is not None and entry.admitted is not None:
            self._queue_wait.append((entry.admitted - entry.offered) / 1e6)
        if entry.outcome is Outcome.COMPLETED:
            self._add_completed(entry)
        elif entry.outcome is Outcome.CLIENT_GONE:
            counts["aborted"] += 1
        elif entry.reason is not None:
            self._refused[entry.reason.value] += 1
        else:
            self._failures[entry.outcome.value] += 1

    def _add_completed(self, entry: Entry) -> None:
        if not entry.stream:
            self._counts["whole"] += 1
            self._add_answer(entry, entry.finished, ())
            return
        stamps = entry.counted(self.rule)
        if entry.stamps:
            self._first_output.append(entry.stamps[0] / 1e6)
        if stamps:
            self._add_answer(entry, entry.ended(self.rule, stamps), stamps)
        else:
            self._counts["silent"] += 1

    def _add_answer(self, entry: Entry, ended: int, stamps: Sequence[int]) -> None:
        """Take a success: ``ended`` and the stamps of its chunks are microseconds after its head came."""
        self._counts["completed"] += 1
        if entry.model:
            self._models[entry.model] = None
        tokens = self._add_tokens(entry)
        first = stamps[0] if stamps else ended
        ttft, e2el = first / 1e6, ended / 1e6
        tpot = (ended - first) / (tokens - 1) / 1e6 if tokens > 1 else 0.0
        self._e2el.append(e2el)
        if stamps:
            self._add_stream(entry, stamps)
            if tokens > 1:
                self._tpot.append(tpot)
        measured = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
        self._counts["good"] += all(measured[name] <= bound for name, bound in self.objectives.items())
        received = round(entry.received * 1e6)
        self._peaks.add(received, received + ended, stamps)

    def _add_stream(self, entry: Entry, stamps: Sequence[int]) -> None:
        self._ttft.append(stamps[0] / 1e6)
        self._gaps.add(stamps)
        if entry.sent is not None:
            self._engine_ttft.append((stamps[0] - entry.sent) / 1e6)

    def _add_tokens(self, entry: Entry) -> int:
        """Count an answer's tokens; return those of its output."""
        prompt, output = entry.prompt_tokens, entry.output_tokens
        if prompt is None:
            self._counts["estimated_prompts"] += 1
            prompt = entry.estimated_prompt_tokens
        if output is None:
            self._counts["chunks_for_tokens" if entry.stream else "estimated_outputs"] += 1
            output = entry.output_events if entry.stream else entry.estimated_output_tokens
        self._counts["input_tokens"] += prompt
        self._counts["output_tokens"] += output
        return output

    # -- the figures ------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> tuple[list[float], ...]:
        """The raw values, so far. Sorting each by itself, in turn with other work, leaves little for ``figures``."""
        return self._ttft, self._tpot, self._e2el, self._queue_wait, self._engine_ttft, self._first_output

    def figures(self) -> Figures:
        """What was added so far."""
        counts = self._counts
        refused, failures = self._refused, self._failures
        ttft, tpot, e2el, queue_wait, engine_ttft, first_output = (
            spread(values, self.percents) for values in self.samples
        )
        return Figures(
            rule=self.rule,
            began=self._began or 0.0,
            duration=self._ended - (self._began or 0.0),
            completed=counts["completed"],
            failed=refused.total() + failures.total() + counts["silent"],
            input_tokens=counts["input_tokens"],
            output_tokens=counts["output_tokens"],
            good=counts["good"] if self.objectives else None,
            peak_output=self._peaks.output,
            peak_concurrency=self._peaks.concurrency,
            peak_concurrency_exact=self._peaks.concurrency_exact,
            ttft=ttft,
            tpot=tpot,
            itl=self._gaps.spread(self.percents),
            e2el=e2el,
            received=counts["received"],
            first_attempts=counts["first_attempts"],
            engine_attempts=counts["engine_attempts"],
            aborted=counts["aborted"],
            refused=dict(refused.most_common()),
            failures=dict(failures.most_common()),
            queue_wait=queue_wait,
            engine_ttft=engine_ttft,
            first_output=first_output,
            whole=counts["whole"],
            chunks_for_tokens=counts["chunks_for_tokens"],
            estimated_prompts=counts["estimated_prompts"],
            estimated_outputs=counts["estimated_outputs"],
            silent=counts["silent"],
            others=counts["others"],
            models=tuple(self._models),
        )


def tallied(entries: Iterable[Entry], tally: Tally) -> Figures:
    """Figures over ``entries`` in any order."""
    tally.add_all(sorted(entries, key=lambda entry: entry.received))
    return tally.figures()
