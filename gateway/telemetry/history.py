"""The last quarter of an hour, second by second, for the status page and ``gateway top``.

A ring of a few figures: what ended in each second, the percentiles of TTFT and TPOT of what ended in the last ten, and
what ran and waited at its end. Requests are counted in the second they end in.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.model import BackendState, GatewayState, Outcome, Record

KEPT: Final = 900
"""Samples, one a second."""

BACKENDS: Final = 16
"""Backends with a history of their own; the configuration's first ones."""

LANES: Final = 8
"""Lanes with a TTFT of their own, likewise: what is fast enough differs between them."""

RECENT: Final = 10  # seconds that percentiles and rates look back on
SHED_SPAN: Final = 60  # seconds that refusals by reason are counted over
_MOST: Final = 4096  # requests that percentiles rest on: the youngest
_PERIOD: Final = 1.0

_SERVING: Final = frozenset({"up", "unknown"})
_FAILED: Final = frozenset({
    Outcome.BACKEND_BUSY, Outcome.BACKEND_ERROR, Outcome.CONNECT_FAILED, Outcome.BACKEND_LOST, Outcome.BACKEND_SILENT,
    Outcome.INTERNAL_ERROR,
})  # fmt: skip

Pair = tuple[float | None, float | None]
"""P50 and P99 in seconds; None where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One second. ``at`` is its end in seconds since the epoch; requests are those that ended in it.

    ``good`` are completed ones whose TTFT and TPOT kept the objectives, where such are set. ``failed`` are those that
    a backend, or the gateway itself, spoilt. ``tokens`` is the output of all of them.
    """

    number: int
    at: float
    completed: int
    good: int
    failed: int
    gone: int
    shed: Counter[str]  # by reason
    tokens: int
    ttft: tuple[Pair, ...]  # by lane, the first ``LANES``
    tpot: Pair
    queued: int
    limits: tuple[float, ...]  # by backend, the first ``BACKENDS``; 0 while it is out or drained
    running: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over the last ``RECENT`` seconds."""

    completed: float
    good: float
    shed: float
    failed: float
    gone: float
    tokens: float


class History:
    """An observer that a sample closes once a second. One event loop; ``state`` is admission's."""

    def __init__(self, state: Callable[[], GatewayState], clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives seconds since the epoch."""
        self._state_now = state
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._number = 0
        self._speeds: deque[tuple[int, str | None, float, float | None]] = deque(maxlen=_MOST)  # lane, TTFT, TPOT
        self._waits: dict[str, deque[tuple[int, float]]] = {}
        self._sent: deque[dict[str, tuple[int, int, int]]] = deque(maxlen=SHED_SPAN + 1)  # by backend, since the start
        self._timer: asyncio.TimerHandle | None = None
        self.started = clock()
        self._latest: GatewayState | None = None
        self._clear()

    def _clear(self) -> None:
        self._ends: dict[Outcome, int] = dict.fromkeys(Outcome, 0)  # a Counter takes three times as long
        self._shed: Counter[str] = Counter()
        self._good = 0
        self._tokens = 0

    # ----------------------------------------------------------------------------------------------------------
    # What comes in
    # ----------------------------------------------------------------------------------------------------------

    def observe(self, record: Record) -> None:
        """Take one finished request; of those that were not work for an engine only refusals count."""
        if record.reason is not None:
            self._shed[record.reason.value] += 1
        if record.ticket is None:
            return
        self._ends[record.outcome] += 1
        self._tokens += _output_tokens(record)
        self._note_wait(record)
        if record.outcome is Outcome.COMPLETED:
            ttft, tpot = _speed(record)
            if ttft is not None:
                self._speeds.append((self._number, record.lane, ttft, tpot))
            self._good += self._keeps(record.lane, ttft, tpot)

    def _note_wait(self, record: Record) -> None:
        line = record.timeline
        if record.lane is not None and line.offered is not None and line.admitted is not None:
            waits = self._waits.get(record.lane)
            if waits is None:
                waits = self._waits[record.lane] = deque(maxlen=_MOST)
            waits.append((self._number, line.admitted - line.offered))

    def _keeps(self, lane: str | None, ttft: float | None, tpot: float | None) -> bool:
        if ttft is None and tpot is None:
            return True
        objective = next((each.ttft_objective for each in self.state.lanes if each.name == lane), None)
        wanted = self.state.tpot_objective
        return (objective is None or ttft is None or ttft <= objective) and (
            wanted is None or tpot is None or tpot <= wanted
        )

    def start(self) -> None:
        """Take a sample every second from now on, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(_PERIOD, self._tick)

    def stop(self) -> None:
        """End. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.sample()
        self.start()

    def sample(self) -> None:
        """Close the present second."""
        state = self._latest = self._state_now()
        self._number += 1
        shown = state.backends[:BACKENDS]
        self._sent.append({each.name: _sent(each) for each in state.backends})
        speeds = [entry for entry in self._speeds if entry[0] >= self._number - RECENT]
        self._samples.append(
            Sample(
                number=self._number,
                at=round(self._clock(), 1),
                completed=self._ends[Outcome.COMPLETED],
                good=self._good,
                failed=sum(count for outcome, count in self._ends.items() if outcome in _FAILED),
                gone=self._ends[Outcome.CLIENT_GONE],
                shed=self._shed,
                tokens=self._tokens,
                ttft=tuple(
                    percentiles([ttft for _, name, ttft, _ in speeds if name == lane.name])
                    for lane in state.lanes[:LANES]
                ),
                tpot=percentiles([tpot for _, _, _, tpot in speeds if tpot is not None]),
                queued=sum(lane.depth for lane in state.lanes),
                limits=tuple(round(backend.limit, 1) if backend.health in _SERVING else 0.0 for backend in shown),
                running=tuple(backend.running for backend in shown),
            )
        )
        self._clear()

    # ----------------------------------------------------------------------------------------------------------
    # What is told
    # ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GatewayState:
        """As it was at the last sample."""
        return self._latest or self._state_now()

    @property
    def last(self) -> int:
        """Number of the youngest sample; 0 before the first."""
        return self._number

    @property
    def newest(self) -> Sample | None:
        """The youngest sample; None before the first."""
        return self._samples[-1] if self._samples else None

    def since(self, number: int) -> Sequence[Sample]:
        """Samples after ``number``, oldest first; all of them where it is unknown, as after a restart."""
        missing = self._number - number
        if missing < 0 or missing >= len(self._samples):
            return tuple(self._samples)
        return tuple(self._samples[index] for index in range(-missing, 0))

    @property
    def rates(self) -> Rates:
        """What ended lately."""
        recent = self.since(max(0, self._number - RECENT))
        length = max(1, len(recent))
        return Rates(
            completed=sum(each.completed for each in recent) / length,
            good=sum(each.good for each in recent) / length,
            shed=sum(each.shed.total() for each in recent) / length,
            failed=sum(each.failed for each in recent) / length,
            gone=sum(each.gone for each in recent) / length,
            tokens=sum(each.tokens for each in recent) / length,
        )

    @property
    def shed(self) -> Counter[str]:
        """Refusals of the last minute by reason."""
        found: Counter[str] = Counter()
        for each in self.since(max(0, self._number - SHED_SPAN)):
            found += each.shed
        return found

    def share(self, backend: str) -> tuple[float | None, float | None]:
        """Its part of all requests that were sent in the last minute, and the part of their prompts that it had cached.

        None where nothing was sent, or where its engine does not say it.
        """
        moved = {name: self._moved(name) for name in self._sent[-1]} if self._sent else {}
        requests, prompts, cached = moved.get(backend, (0, 0, 0))
        everything = sum(each for each, _, _ in moved.values())
        return (
            _short(requests / everything) if everything else None,
            _short(min(1.0, cached / prompts)) if prompts else None,
        )

    def _moved(self, backend: str) -> tuple[int, int, int]:
        after, before = self._sent[-1][backend], self._sent[0].get(backend, (0, 0, 0))
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    def waits(self, lane: str) -> Pair:
        """Of requests that left the lane's queue for a backend and ended lately."""
        entries = self._waits.get(lane, ())
        return percentiles([wait for number, wait in entries if number >= self._number - RECENT])


def _sent(backend: BackendState) -> tuple[int, int, int]:
    """Requests sent to it, tokens of prompts of which it said how much was cached, and of those the cached ones."""
    return sum(backend.choices.values()), backend.prompt_tokens, backend.cached_tokens


def percentiles(values: Iterable[float]) -> Pair:
    """P50 and P99 by nearest rank, to four digits."""
    ordered = sorted(values)
    if not ordered:
        return None, None
    most = len(ordered) - 1
    return _short(ordered[round(0.5 * most)]), _short(ordered[round(0.99 * most)])


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _speed(record: Record) -> Pair:
    """TTFT and TPOT of a streamed answer; None where there is none."""
    line = record.timeline
    if record.ticket is None or not record.ticket.shape.stream or line.first_output is None:
        return None, None
    tokens = _output_tokens(record)
    spread = None if line.last_output is None else line.last_output - line.first_output
    return line.first_output - line.received, None if spread is None or tokens <= 1 else spread / (tokens - 1)


def _output_tokens(record: Record) -> int:
    """As the backend counted them, else the chunks."""
    reported = record.usage.completion_tokens if record.usage is not None else None
    return record.timeline.output_events if reported is None or reported < 0 else reported
