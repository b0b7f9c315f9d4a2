"""How near the estimate comes to what real vocabularies count, after fifty requests."""

from __future__ import annotations

import random
from functools import cache
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
def requests(vocabulary: str, kind: str) -> list[Told]:
    """Chats of one kind; the first of them are learned from."""
    chance, count = random.Random(f"{kind} 1"), counter(vocabulary)
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


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_model_that_is_asked_everything_in_turn(vocabulary: str) -> None:
    told = [each for turn in zip(*(requests(vocabulary, kind) for kind in KINDS), strict=True) for each in turn]
    own = taught(told[:LEARNED])
    assert median(error(own, each) for each in told[LEARNED:]) <= 0.1
    assert misjudged(own, told[LEARNED:]) <= 0.02
