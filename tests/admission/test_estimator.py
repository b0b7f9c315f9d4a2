from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.config import EstimatorConfig
from gateway.admission.estimator import Estimator
from gateway.model import Access, Route, Shape, Usage, WorkEstimate

CHAT = Route("chat", Access.ADMIT)


def shape(**fields: Any) -> Shape:
    return Shape(CHAT, **{"model": "m", **fields})


def estimator(**config: Any) -> Estimator:
    return Estimator(EstimatorConfig(**config))


# ------------------------------------------------------------------------------------------------------ priors


@pytest.mark.parametrize(
    ("fields", "work"),
    [
        ({"prompt_bytes": 4000}, WorkEstimate(1000, 256, 506.0)),
        ({"prompt_bytes": 4000, "messages": 10}, WorkEstimate(1040, 256, 516.0)),
        ({"prompt_bytes": 4000, "max_output": 16}, WorkEstimate(1000, 16, 266.0)),
        ({"prompt_bytes": 4000, "max_output": 9999}, WorkEstimate(1000, 256, 506.0)),
        ({"prompt_bytes": 4000, "max_output": 0}, WorkEstimate(1000, 0, 250.0)),
        ({"prompt_bytes": 4000, "choices": 3, "max_output": 10}, WorkEstimate(1000, 30, 280.0)),
        ({"prompt_bytes": 4000, "generates": False}, WorkEstimate(1000, 0, 250.0)),
        ({"prompt_bytes": 4, "generates": False}, WorkEstimate(1, 0, 1.0)),
        ({"prompt_tokens": 700}, WorkEstimate(700, 256, 431.0)),
        ({"prompt_tokens": 700, "prompt_bytes": 99_999}, WorkEstimate(700, 256, 431.0)),
        ({"media_tokens": 1000, "prompt_bytes": 40}, WorkEstimate(1010, 256, 508.5)),
        ({"prompt_tokens": 0}, WorkEstimate(0, 256, 256.0)),
        ({}, WorkEstimate(1, 256, 256.25)),
    ],
)
def test_before_anything_is_learned_the_priors_hold(fields: dict[str, Any], work: WorkEstimate) -> None:
    assert estimator().estimate(shape(**fields)) == work


def test_the_priors_are_settings() -> None:
    own = estimator(bytes_per_token=2.0, tokens_per_message=10.0, default_output=50, prompt_weight=0.5)
    assert own.estimate(shape(prompt_bytes=100, messages=2)) == WorkEstimate(70, 50, 85.0)


# Bytes a token in Qwen2.5's vocabulary: English 4.6, Chinese 4.1, JSON 3.25; hex 1.14, base64 1.35, digits 1.0.
@pytest.mark.parametrize(
    ("per_token", "dense", "off"),
    [(4.61, 0.0, 0.25), (4.11, 0.0, 0.25), (3.25, 0.0, 0.25), (1.14, 1.0, 0.3), (1.35, 1.0, 0.3), (1.0, 1.0, 0.3)],
)
def test_the_prior_is_near_what_vocabularies_need(per_token: float, dense: float, off: float) -> None:
    size = 10_000
    work = estimator().estimate(shape(prompt_bytes=size, dense_bytes=int(size * dense)))
    assert work.prompt_tokens == pytest.approx(size / per_token, rel=off)


# ----------------------------------------------------------------------------------------- learning the prompt


@pytest.mark.parametrize("per_token", [2.5, 4.0, 7.2])
def test_bytes_per_token_are_learned_from_usage(per_token: float) -> None:
    own = estimator()
    for n in range(100):
        size = 1000 + 137 * (n % 17)
        own.learn(shape(prompt_bytes=size, messages=2), Usage(round(size / per_token) + 8, 10))
    for size in (2_000, 50_000):
        predicted = own.estimate(shape(prompt_bytes=size, messages=2)).prompt_tokens
        assert predicted == pytest.approx(size / per_token + 8, rel=0.03)


def test_each_model_has_its_own_ratio() -> None:
    own = estimator()
    for _ in range(50):
        own.learn(shape(model="a", prompt_bytes=10_000), Usage(5_000, 1))
    assert own.estimate(shape(model="a", prompt_bytes=1000)).prompt_tokens > 480
    assert own.estimate(shape(model="b", prompt_bytes=1000)).prompt_tokens == 250
    assert own.estimate(shape(model=None, prompt_bytes=1000)).prompt_tokens == 250
    assert own.estimate(shape(model="a", prompt_bytes=1000, generates=False)).prompt_tokens == 250


def test_a_template_s_own_prompt_is_learned_from_short_prompts_and_does_not_scale() -> None:
    own = estimator()
    for _ in range(100):  # "hi" in a template that adds 60 tokens
        own.learn(shape(prompt_bytes=2, messages=1), Usage(65, 5))
    assert own.estimate(shape(prompt_bytes=2, messages=1)).prompt_tokens == pytest.approx(65, abs=1)
    assert own.estimate(shape(prompt_bytes=40_000, messages=1)).prompt_tokens == pytest.approx(10_064, abs=5)
    assert own.estimate(shape(prompt_bytes=40_000)).prompt_tokens == 10_000


def test_what_the_template_adds_is_not_taken_for_text() -> None:
    own = estimator()
    for _ in range(100):
        own.learn(shape(prompt_bytes=2, messages=1), Usage(65, 5))
    for _ in range(200):
        own.learn(shape(prompt_bytes=600, messages=1), Usage(150 + 64, 5))
    assert own.estimate(shape(prompt_bytes=60_000, messages=1)).prompt_tokens == pytest.approx(15_064, rel=0.01)


def test_a_change_of_text_is_followed() -> None:
    own = estimator()
    for _ in range(200):
        own.learn(shape(prompt_bytes=4_000), Usage(1_000, 1))
    for _ in range(200):
        own.learn(shape(prompt_bytes=4_000), Usage(2_000, 1))
    assert own.estimate(shape(prompt_bytes=4_000)).prompt_tokens == pytest.approx(2_000, rel=0.03)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_bytes": 4000, "media_tokens": 5},
        {"prompt_bytes": 4000, "prompt_tokens": 1000},
        {"prompt_bytes": 0},
    ],
)
def test_prompts_that_say_nothing_of_text_teach_nothing(fields: dict[str, Any]) -> None:
    own = estimator()
    for _ in range(50):
        own.learn(shape(**fields), Usage(90_000, None))
    assert own.estimate(shape(prompt_bytes=4000)).prompt_tokens == 1000


def test_a_short_completion_says_nothing_of_a_template() -> None:
    own = estimator()
    for _ in range(50):
        own.learn(shape(prompt_bytes=8), Usage(500, None))
    assert own.estimate(shape(prompt_bytes=8, messages=1)).prompt_tokens == 6


def test_M10_counts_of_the_engine_win_over_the_estimate() -> None:
    own = estimator()
    own.learn(shape(prompt_bytes=13_000, messages=1), Usage(3263, 15))
    first = own.estimate(shape(prompt_bytes=13_000, messages=1))
    assert first.output_tokens == 15
    for _ in range(30):
        own.learn(shape(prompt_bytes=13_000, messages=1), Usage(3263, 15))
    assert own.estimate(shape(prompt_bytes=13_000, messages=1)).prompt_tokens == pytest.approx(3263, rel=0.01)


def test_cached_tokens_count_as_prompt_for_they_hold_memory() -> None:
    cold, warm = estimator(), estimator()
    for _ in range(20):
        cold.learn(shape(prompt_bytes=4000), Usage(1500, 10, 0))
        warm.learn(shape(prompt_bytes=4000), Usage(1500, 10, 1499))
    assert cold.estimate(shape(prompt_bytes=4000)) == warm.estimate(shape(prompt_bytes=4000))


# ----------------------------------------------------------------------------------------- learning the output


def outputs(own: Estimator, count: int, tokens: int, client: str = "", **fields: Any) -> None:
    for _ in range(count):
        own.learn(shape(**fields), Usage(None, tokens), client)


def test_outputs_are_learned_and_never_predicted_beyond_the_cap() -> None:
    own = estimator()
    outputs(own, 20, 40, prompt_bytes=4000, max_output=500)
    assert own.estimate(shape(prompt_bytes=4000, max_output=500)).output_tokens == 40
    assert own.estimate(shape(prompt_bytes=4000, max_output=30)).output_tokens == 30


def test_a_cap_that_the_engine_does_not_heed_bounds_nothing() -> None:
    own = estimator()
    for _ in range(3):
        assert own.estimate(shape(prompt_bytes=400, max_output=20)).output_tokens == 20
        own.learn(shape(prompt_bytes=400, max_output=20), Usage(100, 512))
    assert own.estimate(shape(prompt_bytes=400, max_output=20)).output_tokens == 512
    assert own.estimate(shape(prompt_bytes=400, max_output=300)).output_tokens == 300, "of other caps nothing is known"
    assert own.estimate(shape(prompt_bytes=400)).output_tokens == 512


def test_a_cap_that_is_reached_is_a_bound_for_lower_ones_too() -> None:
    own = estimator()
    for _ in range(9):
        own.learn(shape(prompt_bytes=400, max_output=31), Usage(100, 31))
    assert own.estimate(shape(prompt_bytes=400, max_output=16)).output_tokens == 16


def test_outputs_differ_by_the_size_of_prompt_and_cap() -> None:
    own = estimator()
    outputs(own, 20, 20, prompt_bytes=400, max_output=500)
    outputs(own, 20, 400, prompt_bytes=400_000, max_output=500)
    outputs(own, 20, 3000, prompt_bytes=400, max_output=4000)
    assert own.estimate(shape(prompt_bytes=400, max_output=500)).output_tokens == 20
    assert own.estimate(shape(prompt_bytes=400_000, max_output=500)).output_tokens == 400
    assert own.estimate(shape(prompt_bytes=400, max_output=4000)).output_tokens == 3000


def test_where_little_was_seen_the_coarser_mean_holds() -> None:
    own = estimator()
    outputs(own, 1, 100, prompt_bytes=400, max_output=500)
    assert own.estimate(shape(prompt_bytes=400, max_output=500)).output_tokens == 100  # the model's
    assert own.estimate(shape(prompt_bytes=400)).output_tokens == 100
    assert own.estimate(shape(model="other", prompt_bytes=400)).output_tokens == 256  # nothing
    outputs(own, 9, 10, prompt_bytes=40_000, max_output=500)
    assert own.estimate(shape(prompt_bytes=4_000_000, max_output=500)).output_tokens == 19  # the cap's
    outputs(own, 2, 100, prompt_bytes=400, max_output=500)
    assert own.estimate(shape(prompt_bytes=400, max_output=500)).output_tokens == 100  # its own


def test_a_client_s_own_mean_holds_once_it_was_seen_often_enough() -> None:
    own = estimator()
    outputs(own, 50, 300, "talker", prompt_bytes=400)
    outputs(own, 4, 10, "classifier", prompt_bytes=400)
    assert own.estimate(shape(prompt_bytes=400), "classifier").output_tokens > 100
    outputs(own, 1, 10, "classifier", prompt_bytes=400)
    assert own.estimate(shape(prompt_bytes=400), "classifier").output_tokens == 10
    assert own.estimate(shape(prompt_bytes=400), "talker").output_tokens == 300


def test_what_was_forgotten_of_a_client_is_learned_anew() -> None:
    known = estimator()
    asked = shape(prompt_bytes=4000)
    for client in ("a", *(f"c{number}" for number in range(9000)), *("a",) * 5):
        known.learn(asked, Usage(1000, 30 if client == "a" else 70), client)
    assert known.estimate(asked, "a").output_tokens == 30


def test_outputs_are_per_choice() -> None:
    own = estimator()
    outputs(own, 10, 80, prompt_bytes=400, choices=4)
    assert own.estimate(shape(prompt_bytes=400, choices=2)).output_tokens == 40


def test_a_change_of_outputs_is_followed() -> None:
    own = estimator()
    outputs(own, 500, 100, prompt_bytes=400)
    outputs(own, 60, 400, prompt_bytes=400)
    assert own.estimate(shape(prompt_bytes=400)).output_tokens == pytest.approx(400, rel=0.01)


def test_routes_without_output_teach_nothing_of_it() -> None:
    own = estimator()
    own.learn(shape(prompt_bytes=400, generates=False), Usage(100, 0))
    assert own.estimate(shape(prompt_bytes=400)).output_tokens == 256


def test_what_the_engine_does_not_report_is_not_learned() -> None:
    own = estimator()
    own.learn(shape(prompt_bytes=4000), Usage())
    assert own.estimate(shape(prompt_bytes=4000)) == WorkEstimate(1000, 256, 506.0)


# ----------------------------------------------------------------------------------------------------- bounds


def test_memory_is_bounded_and_the_models_in_use_are_kept() -> None:
    own = estimator()
    for n in range(3_000):
        for model in ("busy", f"m{n}"):
            own.learn(shape(model=model, prompt_bytes=4000, max_output=2 ** (n % 30)), Usage(2000, 10), f"c{n}")
    assert len(own._prompts._entries) <= 512
    assert len(own._outputs._entries) <= 8192
    assert own.estimate(shape(model="busy", prompt_bytes=4000)).prompt_tokens == pytest.approx(2000, rel=0.05)


COUNTS = st.integers(0, 20) | st.integers(0, 10**18)
SHAPES = st.builds(
    Shape,
    st.just(CHAT),
    model=st.none() | st.sampled_from(["", "a"]),
    prompt_bytes=COUNTS,
    dense_bytes=COUNTS,
    prompt_tokens=st.none() | COUNTS,
    media_tokens=COUNTS,
    messages=COUNTS,
    max_output=st.none() | COUNTS,
    choices=COUNTS,
    generates=st.booleans(),
)
USAGES = st.builds(Usage, st.none() | COUNTS, st.none() | COUNTS, st.none() | COUNTS)


@given(st.lists(st.tuples(SHAPES, USAGES, st.sampled_from(["", "c"]))), SHAPES)
def test_no_request_and_no_reply_makes_an_estimate_absurd(
    history: list[tuple[Shape, Usage, str]], asked: Shape
) -> None:
    own = estimator()
    for past, usage, client in history:
        own.learn(past, usage, client)
    work = own.estimate(asked, "c")
    assert math.isfinite(work.cost)
    assert 1 <= work.cost <= 1.25e8
    assert 0 <= work.prompt_tokens <= 10**8
    assert 0 <= work.output_tokens <= 10**8
    longest = max(((usage.completion_tokens or 0) / max(past.choices, 1) for past, usage, _ in history), default=0)
    if not asked.generates:
        assert work.output_tokens == 0
    elif asked.max_output is not None and longest < 1 << asked.max_output.bit_length():  # else engines heed no cap
        assert work.output_tokens <= asked.max_output * max(asked.choices, 1)


def test_F34_an_absurd_cap_is_harmless() -> None:
    plain = estimator().estimate(shape(prompt_bytes=400))
    assert estimator().estimate(shape(prompt_bytes=400, max_output=10**18)) == plain


# ------------------------------------------------------------------------------------------------------ what is shown


def test_what_was_learned_is_told_of_the_models_asked_for_last() -> None:
    own = estimator()
    for _ in range(4):
        own.learn(shape(prompt_bytes=4000, messages=1), Usage(1404, 100))
    own.learn(shape(model="bge", prompt_bytes=4000, generates=False), Usage(1000))
    own.learn(shape(model="mute", prompt_bytes=4000, messages=1), Usage(1000))
    own.estimate(shape(prompt_bytes=10))
    first, second, third = own.learned(9)
    assert (first.name, first.generates, first.prompts, first.answers, first.output) == ("m", True, 4, 4, 100.0)
    assert first.rates["letters"] == pytest.approx(0.35, rel=0.05)
    assert first.rates["wide"] == 0.25, "none was seen"
    assert (second.name, second.answers, second.output) == ("mute", 0, None)
    assert (third.name, third.generates, third.prompts, third.output) == ("bge", False, 1, None)
    assert own.learned(1) == (first,)
