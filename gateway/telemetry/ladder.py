"""Levels of requests in flight, gathered so that they stay few: each number by itself, then ranges that grow with it.

``steps`` is how many rungs an octave has: a range spans at most 1/``steps`` of its level.
"""

from __future__ import annotations


def rung(level: int, steps: int) -> int:
    """Index of the rung of ``level`` (>= 1)."""
    octave = max(0, level.bit_length() - steps.bit_length())
    return steps * octave + (level >> octave) - 1


def bounds(index: int, steps: int) -> tuple[int, int]:
    """Lowest and highest level of a rung."""
    octave = max(0, (index + 1) // steps - 1)
    low = (index + 1 - steps * octave) << octave
    return low, low + (1 << octave) - 1


def gaps(held: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of levels below the highest that lie in none of ``held``, which rise."""
    found, expected = [], 1
    for low, high in held:
        if low > expected:
            found.append((expected, low - 1))
        expected = high + 1
    return found
