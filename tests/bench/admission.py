"""What a decision costs: ``python -m tests.bench.admission``. Prints a table; no part of the test run.

One offer and one settle, each with the dispatch that it brings and the next wake-up, while others wait: the engines are
full, so each request that comes waits and each that ends lets another one go. CPU time, the least of several rounds, in
microseconds and in turns of a bare loop of the interpreter timed between them: that ratio is what machines compare by.
Exits with 1 where a thousand waiting on sixteen backends cost more than 25 us without learning from usage.
"""

# ruff: noqa: T201 - a table on the terminal

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.admission.config import (
    AdmissionConfig,
    Affinity,
    BalanceConfig,
    EstimatorConfig,
    LaneConfig,
    QueueConfig,
)
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.model import (
    Access,
    Backend,
    Outcome,
    Permit,
    Priority,
    Route,
    Shape,
    Ticket,
    Usage,
    Verdict,
    WorkEstimate,
)

MOST = 25.0  # microseconds
PLACES = 16  # of each backend
CHAT = Route("chat", Access.ADMIT)
LANES = (LaneConfig("short", 1000, 2.0, None, 1e6), LaneConfig("long", None, 1.0, None, 1e6))  # nobody's time runs out


@dataclass(frozen=True)
class Case:
    """What waits and where. ``learns``: from the usage of each answer."""

    name: str
    queued: int
    backends: int = 16
    clients: int = 50
    priorities: Sequence[Priority] = (Priority.STANDARD,)
    learns: bool = False
    affinity: Affinity = Affinity.NONE  # of 200 conversations, each with prompts of its own

    def ticket(self, number: int) -> Ticket:
        """Two short requests and a long one, of all clients in turn."""
        prompt = 100 if number % 3 else 2_000
        priority = self.priorities[number % len(self.priorities)]
        talk = number % 200
        blocks = tuple(hash((talk, place)) for place in range(16)) if self.affinity is Affinity.PREFIX else ()
        shape = Shape(CHAT, "model", stream=True, prompt_bytes=4 * prompt, messages=1, blocks=blocks)
        work = WorkEstimate(prompt, 100, prompt / 4 + 100)
        client = f"client-{number % self.clients}"
        return Ticket(number, shape, work, client, fingerprint=number, priority=priority, session=str(talk))


CASES = (
    Case("nobody waits before it", 0),
    Case("1,000 wait", 1_000),
    Case("1,000 wait, of all priorities", 1_000, priorities=tuple(Priority)),
    Case("1,000 wait, one backend", 1_000, backends=1),
    Case("10,000 wait, 2,000 clients", 10_000, clients=2_000),
    Case("1,000 wait, usage is learned from", 1_000, learns=True),
    Case("nobody waits, 64 backends", 0, backends=64),
    Case("nobody waits, 64 backends, sessions", 0, backends=64, affinity=Affinity.SESSION),
    Case("nobody waits, 64 backends, prefixes", 0, backends=64, affinity=Affinity.PREFIX),
    Case("1,000 wait, 64 backends", 1_000, backends=64),
    Case("1,000 wait, 64 backends, prefixes", 1_000, backends=64, affinity=Affinity.PREFIX),
)
JUDGED = CASES[1]


def cost(case: Case, pairs: int) -> float:
    """CPU seconds of an offer and a settle."""
    estimator = Estimator(EstimatorConfig()) if case.learns else None
    backends = [Backend(f"b{number}", f"http://b{number}", limit=PLACES) for number in range(case.backends)]
    balance = BalanceConfig(case.affinity)
    config = AdmissionConfig(queue=QueueConfig(lanes=LANES, max_requests=10**6), balance=balance)
    controller = AdmissionController(config, backends, lambda low, _high: low, estimator)
    running: deque[Permit] = deque()

    def take(verdicts: Sequence[Verdict]) -> None:
        running.extend(verdict for verdict in verdicts if isinstance(verdict, Permit))

    tickets = [case.ticket(number) for number in range(1, PLACES * case.backends + case.queued + pairs + 1)]
    coming = iter(tickets)
    for _ in range(PLACES * case.backends + case.queued):
        take(controller.offer(next(coming), 0.0))
    usage, now = Usage(100, 100), 0.0

    def serve() -> None:
        nonlocal now
        for _ in range(pairs):
            now += 0.001
            take(controller.offer(next(coming), now))
            take(controller.settle(running.popleft(), Outcome.COMPLETED, usage, now))
            controller.next_wakeup()

    return timed(serve) / pairs


def turn(turns: int = 300_000) -> float:
    """CPU seconds of a turn of a bare loop."""

    def loop() -> None:
        total = 0
        for number in range(turns):
            total += number & 3

    return timed(loop) / turns


def timed(work: Callable[[], None]) -> float:
    """CPU seconds of ``work``, without the garbage collector's turn at it."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        gc.enable()


def main() -> int:
    """Measure and print; 1 where it is too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.admission")
    parser.add_argument("--rounds", type=int, default=10, help="rounds, the least counts (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=4_000, help="offers and settles a round (default: %(default)s)")
    arguments = parser.parse_args()
    judged = 0.0
    print(f"{'one offer and one settle':<36}{'us':>8}{'turns of a loop':>18}")
    for case in CASES:
        rounds = [(cost(case, arguments.pairs), turn()) for _ in range(arguments.rounds)]
        seconds, bare = (min(each) for each in zip(*rounds, strict=True))
        print(f"{case.name:<36}{seconds * 1e6:>8.1f}{seconds / bare:>18.0f}")
        judged = seconds * 1e6 if case is JUDGED else judged
    return int(judged > MOST)


if __name__ == "__main__":
    sys.exit(main())
