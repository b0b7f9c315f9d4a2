"""Whether engines still answer fixed questions as they did at first: silent faults of quality are seen no other way.

An engine whose KV cache is polluted, or whose device computes wrongly, is as fast as ever and answers 200. The answers
of an engine at temperature 0 are nearly the same from day to day. Nearly: what else is in the batch changes the last
bits of its sums, and now and then a word. So answers are compared by how much of them is alike.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import Final

from gateway.telemetry.events import Event, EventLog

PROMPTS: Final = (
    "Repeat this sentence and say nothing else: the quick brown fox jumps over the lazy dog.",
    "Count from one to twelve in digits, separated by commas, and say nothing else.",
    "Name the capital of France in one word.",
)
ALIKE: Final = 0.6  # of the characters, in order
TIMES: Final = 2  # in a row, so that one odd answer alarms nobody
_SHOWN: Final = 60  # characters of an answer


class CanaryLog:
    """Compares answers with the first ones, and tells ``log`` when a backend fails and when it is well again."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._first: dict[tuple[str, int], str] = {}
        self._misses: Counter[tuple[str, int]] = Counter()
        self._failing: dict[str, dict[int, str]] = {}  # by backend and prompt: how
        self.failures: Counter[str] = Counter()
        """Answers that differed, by backend."""

    def compare(self, backend: str, number: int, answer: str) -> bool:
        """Take an answer to prompt ``number``; whether it is as before."""
        answer = answer.strip()
        first = self._first.setdefault((backend, number), answer)
        alike = SequenceMatcher(None, first, answer, autojunk=False).ratio()
        if alike >= ALIKE:
            self._pass(backend, number)
            return True
        self.failures[backend] += 1
        self._misses[backend, number] += 1
        if self._misses[backend, number] >= TIMES:
            self._fail(backend, number, _how(number, first, answer, alike))
        return False

    def _pass(self, backend: str, number: int) -> None:
        self._misses.pop((backend, number), None)
        failing = self._failing.get(backend, {})
        if failing.pop(number, None) is not None and not failing:
            del self._failing[backend]
            self._log.add(Event("canary_passed", "answers fixed prompts as it did at first again", backend))

    def _fail(self, backend: str, number: int, how: str) -> None:
        if backend not in self._failing:
            self._log.add(Event("canary_failed", how, backend, "critical", {"prompt": PROMPTS[number]}))
        self._failing.setdefault(backend, {})[number] = how

    def failing(self) -> list[tuple[str, str]]:
        """Backends that fail now, and how each does."""
        return [(backend, next(iter(how.values()))) for backend, how in self._failing.items()]


def _how(number: int, first: str, answer: str, alike: float) -> str:
    was, is_now = (repr(text[:_SHOWN]) for text in (first, answer))
    return f"Prompt {number + 1} was answered {was} at first and {is_now} now: {alike:.0%} alike."
