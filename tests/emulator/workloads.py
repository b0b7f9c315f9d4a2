"""Loads for the engine model alone: all at once, or so many at a time."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.emulator.engine import Engine, Profile

Request = tuple[int, int]  # prompt and output tokens


@dataclass(frozen=True)
class Figures:
    """What a benchmark client would print. Seconds, tokens a second, requests a second."""

    tokens_per_second: float
    requests_per_second: float
    ttft: float
    ttft_p99: float
    tpot: float
    tpot_p50: float
    tpot_p99: float
    latency: float
    latency_p99: float


def sharegpt(short_answers: float = 0.0) -> list[Request]:
    """1000 requests with the means of `vllm bench serve` on ShareGPT (215 and 204 tokens), seeded.

    ``short_answers`` is the share of answers of 2 to 6 tokens among them.
    """
    chance = random.Random(7)
    drawn: list[Request] = []
    while len(drawn) < 1000:
        prompt = int(chance.lognormvariate(math.log(112), 1.6))
        output = int(chance.lognormvariate(math.log(145), 1.15))
        if 4 <= prompt <= 1024 and 4 <= output <= 1024 and prompt + output <= 2048:
            drawn.append((prompt, output))
    prompts = 215 / (sum(prompt for prompt, _ in drawn) / len(drawn))
    outputs = 204 / (sum(output for _, output in drawn) / len(drawn))
    chance = random.Random(4)
    return [
        (
            max(4, round(prompt * prompts)),
            chance.randint(2, 6) if chance.random() < short_answers else max(2, round(output * outputs)),
        )
        for prompt, output in drawn
    ]


def play(profile: Profile, requests: Sequence[Request], concurrency: int | None = None) -> Figures:
    """All of ``requests``, at most ``concurrency`` at a time."""
    engine = Engine(profile)
    started: dict[int, float] = {}
    first: dict[int, float] = {}
    ended: dict[int, float] = {}

    def submit(now: float) -> None:
        key = len(started)
        if key < len(requests):
            started[key] = now
            engine.submit(key, *requests[key], now)

    for _ in range(concurrency or len(requests)):
        submit(0.0)
    while (due := engine.next_event()) is not None:
        for emission in engine.advance(due):
            first.setdefault(emission.key, emission.at)
            if emission.finished:
                ended[emission.key] = emission.at
                submit(emission.at)
    return _figures(requests, started, first, ended)


def _figures(
    requests: Sequence[Request], started: dict[int, float], first: dict[int, float], ended: dict[int, float]
) -> Figures:
    duration = max(ended.values())
    ttfts = sorted(first[key] - started[key] for key in ended)
    tpots = sorted((ended[key] - first[key]) / (requests[key][1] - 1) for key in ended if requests[key][1] > 1)
    latencies = sorted(ended[key] - started[key] for key in ended)
    return Figures(
        sum(map(sum, requests)) / duration,
        len(requests) / duration,
        sum(ttfts) / len(ttfts),
        rank(ttfts, 0.99),
        sum(tpots) / len(tpots),
        rank(tpots, 0.5),
        rank(tpots, 0.99),
        sum(latencies) / len(latencies),
        rank(latencies, 0.99),
    )


def rank(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
