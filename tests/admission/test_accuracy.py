"""How near the estimate comes to what real vocabularies count, after fifty requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from statistics import median

import orjson
import pytest

from gateway.admission.config import EstimatorConfig
from gateway.admission.estimator import Estimator
from gateway.dialects.request import read_json
from gateway.model import Access, Route, Shape, Usage
from tests.admission.chats import KINDS, VOCABULARIES, chat, counter, prompt_tokens

CHAT = Route("chat", Access.ADMIT)
LEARNED = 50
JUDGED = 100  # requests of each kind
THRESHOLD = 1000  # tokens; where the first lane ends by default

Told = tuple[Shape, int]  # what the gateway sees of a request, and the prompt tokens that it has


@cache
def requests(vocabulary: str, kind: str, seed: int = 1) -> list[Told]:
    """Chats of one kind; the first of them are learned from."""
    chance, count = random.Random(f"{kind} {seed}"), counter(vocabulary)
    made = []
    for _ in range(LEARNED + JUDGED):
        messages = chat(kind, chance)
        body = orjson.dumps({"model": "m", "messages": messages, "max_tokens": 1})
        made.append((read_json(CHAT, body, generates=True), prompt_tokens(count, messages)))
    return made


def taught(learned: list[Told]) -> Estimator:
    own = Estimator(EstimatorConfig())
    for shape, tokens in learned:
        own.learn(shape, Usage(tokens, 1))
    return own


def error(own: Estimator, told: Told) -> float:
    """Of the prompt's tokens, as a share of them."""
    return abs(own.estimate(told[0]).prompt_tokens - told[1]) / told[1]


def misjudged(own: Estimator, judged: list[Told]) -> float:
    """The share of requests that land in the wrong lane, of those that are not within 20 % of the threshold."""
    clear = [(shape, tokens + 1) for shape, tokens in judged if abs((tokens + 1) / THRESHOLD - 1) > 0.2]
    assert len(clear) > 0.8 * len(judged)
    assert 0.2 < sum(tokens > THRESHOLD for _, tokens in clear) / len(clear) < 0.8
    wrong = [(own.estimate(shape).tokens > THRESHOLD) != (tokens > THRESHOLD) for shape, tokens in clear]
    return sum(wrong) / len(wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_model_that_is_asked_one_kind_of_thing(vocabulary: str, kind: str) -> None:
    told = requests(vocabulary, kind)
    own = taught(told[:LEARNED])
    assert median(error(own, each) for each in told[LEARNED:]) <= 0.1
    assert misjudged(own, told[LEARNED:]) <= 0.02


def in_turn(vocabulary: str, kinds: Sequence[str], seed: int = 1) -> list[Told]:
    """Chats of several kinds, one of each after the other."""
    return [each for turn in zip(*(requests(vocabulary, kind, seed) for kind in kinds), strict=True) for each in turn]


MIXES = [mix for size in range(2, len(KINDS) + 1) for mix in combinations(KINDS, size)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_model_that_is_asked_several_things_in_turn(vocabulary: str) -> None:
    for mix in MIXES:
        told = in_turn(vocabulary, mix)
        own = taught(told[:LEARNED])
        assert median(error(own, each) for each in told[LEARNED:]) <= 0.1, mix
        assert misjudged(own, told[LEARNED:]) <= 0.02, mix


def test_few_chats_of_the_two_kinds_that_differ_most_suffice() -> None:
    told = in_turn("qwen", ("code", "json"), seed=4)
    own = taught(told[:LEARNED])
    assert median(error(own, each) for each in told[LEARNED:]) <= 0.1
