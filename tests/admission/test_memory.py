"""What is kept over a restart: a controller that is told of it goes on where the one before was."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from gateway.admission.config import EstimatorConfig, LimitConfig
from gateway.admission.estimator import Estimator
from gateway.admission.memory import BackendMemory, Memory, OutputMemory, PromptMemory
from gateway.admission.pace import LowBase
from gateway.model import Backend, Hints, Usage
from tests.admission.helpers import Driver, Plant, adaptive, config, fixed, ticket

KNOWN = BackendMemory("a", "http://a", 80.0, 50_000.0, 0.02, 0.03, 0.3, (100.0, 2_000.0), (0.25, 0.03), 12.0)


def told(memory: BackendMemory, *backends: Backend, **changes: LimitConfig) -> Driver:
    driver = Driver(*(backends or (adaptive(),)), admission=config(**changes))  # type: ignore[arg-type]
    driver.admission.recall(Memory((memory,)))
    return driver


def base(*samples: float, doubtful: bool = False) -> LowBase:
    low = LowBase()
    for sample in samples:
        low.add(sample, doubtful=doubtful)
    return low


def test_what_was_learned_comes_back() -> None:
    driver = told(KNOWN)
    (known,) = driver.admission.remember().backends
    assert known.line == pytest.approx(KNOWN.line)
    assert replace(known, line=KNOWN.line) == KNOWN
    state = driver.backend()
    assert (state.limit, state.token_limit, state.pace_base) == (80.0, 50_000.0, 0.02)
    assert driver.admission._pool.books[0].capacity == pytest.approx(80.0 / 0.05), "the door knows what can be served"


def test_a_gateway_that_is_started_again_lets_in_what_the_engine_starts_in_a_moment() -> None:
    """Unknown, four may be without a first token; known, as many as start in the three unloaded TTFTs of it."""
    anew, again = Driver(adaptive()), told(KNOWN)
    for driver in (anew, again):
        for _ in range(60):
            driver.offer(ticket())
    assert (len(anew.permits), len(again.permits)) == (4, 10)


def test_the_line_through_whole_answers_is_known_again_and_learned_on() -> None:
    line = told(KNOWN).admission._pool.books[0].window.line_low
    for _ in range(200):
        for tokens in (50, 100, 200):
            line.fade()
            line.add(tokens, 1.0 + 0.06 * tokens)
    assert line.value is not None
    assert (line.value.start, line.value.pace) == pytest.approx((1.0, 0.06), rel=0.05)


def test_nothing_was_learned_of_a_new_gateway() -> None:
    assert Driver(adaptive()).admission.remember() == Memory((BackendMemory("a", "http://a", 4.0),))


def test_it_is_for_the_same_engine_only() -> None:
    driver = Driver(adaptive("a"), adaptive("b"))
    moved = replace(KNOWN, url="http://elsewhere")
    assert driver.admission.recall(Memory((moved, replace(KNOWN, name="b", url="http://b")))) == ("b",)
    assert (driver.backend("a").limit, driver.backend("b").limit) == (4.0, 80.0)


def test_credentials_are_not_remembered() -> None:
    backend = Backend("a", "http://user:secret@a/v1")
    driver = told(KNOWN, backend)
    (remembered,) = driver.admission.remember().backends
    assert remembered.url == "http://a/v1"
    assert Driver(backend).admission.recall(Memory((remembered,))) == ("a",)


def test_a_limit_that_had_not_grown_grows_from_the_start() -> None:
    driver = told(replace(KNOWN, limit=1.0, token_limit=None), limit=LimitConfig(tpot_objective=0.5))
    assert driver.backend().limit == 4.0
    Plant(driver, lambda n: 0.02 + 0.0001 * n).run(10.0)
    assert driver.backend().limit > 30.0


def test_a_limit_set_by_hand_stays_and_the_learned_one_is_kept_for_later() -> None:
    driver = told(KNOWN, fixed(7))
    assert driver.backend().limit == 7.0
    assert driver.admission.remember().backends[0].limit == 80.0


def test_bounds_of_the_settings_hold_for_what_is_remembered() -> None:
    assert told(KNOWN, limit=LimitConfig(maximum=50)).backend().limit == 50.0
    assert told(KNOWN, limit=LimitConfig(token_limit=9_000)).backend().token_limit == 9_000.0


def test_an_engine_that_became_much_slower_is_learned_anew() -> None:
    """The remembered pace would hold its limit at the floor for ever."""
    driver = told(replace(KNOWN, token_limit=None))
    Plant(driver, lambda n: 0.2 + 0.01 * n).run(240.0)
    state = driver.backend()
    assert state.pace_base is not None
    assert state.pace_base > 2 * 0.02
    assert state.limit > 4.0


# ------------------------------------------------------------------------------------- what cannot be trusted


def test_what_is_learned_while_others_load_the_engine_is_doubted_and_not_remembered() -> None:
    driver = Driver(adaptive())
    plant = Plant(driver, lambda n: 0.02 + 0.001 * (n + 60))
    for _ in range(6):
        driver.admission.note_hints("a", Hints(running=60.0 + len(driver.permits)), driver.now)
        plant.run(0.5)
    assert driver.backend().pace_base == pytest.approx(0.084, rel=0.1), "better than none"
    assert driver.admission.remember().backends[0].base_stream is None


def test_the_gateway_s_own_requests_in_gauges_that_are_seconds_old_are_nobody_else_s() -> None:
    driver = Driver(fixed(40))
    permits = [driver.permit(ticket()) for _ in range(40)]
    driver.run(1.0)
    for permit in permits:
        driver.settle(permit)
    driver.admission.note_hints("a", Hints(running=40.0), driver.now)
    assert not driver.admission._pool.books[0].window.crowded
    driver.run(1.0)
    driver.admission.note_hints("a", Hints(running=40.0), driver.now)
    assert not driver.admission._pool.books[0].window.crowded
    driver.admission.note_hints("a", Hints(running=40.0), driver.now)
    assert driver.admission._pool.books[0].window.crowded


def test_doubt_ends_when_the_gauges_are_heard_no_more() -> None:
    driver = Driver(adaptive())
    driver.admission.note_hints("a", Hints(running=60.0), 0.0)
    window = driver.admission._pool.books[0].window
    driver.permit(ticket())
    driver.run(9.0)
    assert window.crowded
    driver.run(2.0)
    assert not window.crowded


def test_doubtful_samples_do_not_touch_a_sound_value_and_sound_ones_replace_them() -> None:
    low = base(*[0.02] * 30)
    for _ in range(100):
        low.add(0.08, doubtful=True)
    assert (low.value, low.doubtful) == (0.02, False)
    low = base(*[0.08] * 30, doubtful=True)
    assert (low.value, low.doubtful) == (0.08, True)
    for _ in range(4):
        low.add(0.02)
    assert low.value == 0.08, "until there are enough"
    low.add(0.02)
    assert (low.value, low.doubtful) == (0.02, False)


def test_a_remembered_base_is_raised_slowly_and_lowered_at_once() -> None:
    low = LowBase()
    low.recall(0.02)
    for _ in range(30):
        low.add(0.06)
    assert low.value == pytest.approx(0.022)
    for _ in range(30):
        low.add(0.01)
    assert low.value == 0.01


# --------------------------------------------------------------------------------------------------- of models


def test_the_estimator_goes_on_where_it_was() -> None:
    first, second = Estimator(EstimatorConfig()), Estimator(EstimatorConfig())
    shapes = [ticket(prompt, model=model).shape for prompt in (200, 900) for model in ("m", "n")]
    for number in range(40):
        for shape in shapes:
            first.learn(shape, Usage(shape.prompt_bytes // 3, 30 + number % 5), "client")
    second.recall(*first.remember())
    assert second.remember() == first.remember()
    assert [second.estimate(shape) for shape in shapes] == [first.estimate(shape) for shape in shapes]
    assert second.estimate(shapes[0]) != Estimator(EstimatorConfig()).estimate(shapes[0])
    assert "client" not in repr(first.remember())


def test_rates_of_another_kind_are_left_out() -> None:
    estimator = Estimator(EstimatorConfig())
    estimator.recall((PromptMemory("m", True, (0.25,), 0.0, 9), PromptMemory("n", True, (9e8,) * 4, 0.0, 9)), ())
    (known,), _ = estimator.remember()
    assert (known.model, set(known.rates)) == ("n", {2.0}), "and bounds hold for the others"


@pytest.mark.parametrize("bad", [nan, inf, -1.0, 1e300])
def test_figures_that_cannot_be_are_refused(bad: float) -> None:
    for name in ("limit", "token_limit", "base_stream", "base_whole", "base_ttft"):
        with pytest.raises(ValueError, match=f"a: {name} is"):
            replace(KNOWN, **{name: bad})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cost is"):
        replace(KNOWN, served=(1.0, bad))
    with pytest.raises(ValueError, match="template"):
        PromptMemory("m", True, (0.25,) * 4, bad, 1)
    with pytest.raises(ValueError, match="rate"):
        PromptMemory("m", True, (0.25, bad), 0.0, 1)
    with pytest.raises(ValueError, match="tokens"):
        OutputMemory("m", 1, 1, 1, bad)


@pytest.mark.parametrize("change", [{"limit": 0.5}, {"base_stream": 0.0}, {"token_limit": 0.0}])
def test_nothing_of_a_backend_is_0(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="nothing is 0"):
        replace(KNOWN, **change)  # type: ignore[arg-type]
