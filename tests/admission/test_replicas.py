"""Several gateways before the same engines: each holds its share of every bound, and shares move as gateways do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.config import AdmissionConfig, LimitConfig
from gateway.model import Hints
from tests.admission.helpers import Driver, Plant, adaptive, config, fixed, ticket


def shared(replicas: int, **limit: float | None) -> AdmissionConfig:
    return config(limit=replace(LimitConfig(replicas=replicas), **limit))  # type: ignore[arg-type]


def share(driver: Driver, replicas: int) -> None:
    driver.take(driver.admission.retune(replace(driver.admission.tuning, replicas=replicas), driver.now))


def test_a_fixed_limit_is_for_all_of_them() -> None:
    driver = Driver(fixed(64), admission=shared(3))
    assert (driver.backend().limit, driver.admission.tuning.backends["a"].limit) == (21.0, 64)
    share(driver, 2)
    assert (driver.backend().limit, driver.admission.tuning.backends["a"].limit) == (32.0, 64)


def test_nobody_is_left_with_nothing() -> None:
    assert Driver(fixed(2), admission=shared(3)).backend().limit == 1.0
    assert Driver(adaptive(), admission=shared(3, maximum=2, minimum=2, initial=9)).backend().limit == 2.0


def test_who_waits_is_let_in_when_another_gateway_dies() -> None:
    driver = Driver(fixed(4), admission=shared(2))
    for _ in range(2):
        driver.permit(ticket())
    waiting = [driver.queue(ticket()) for _ in range(3)]
    share(driver, 1)
    assert [each.id in driver.permits for each in waiting] == [True, True, False]


def test_a_fixed_bound_on_tokens_is_for_all_of_them() -> None:
    driver = Driver(fixed(64), adaptive("b"), admission=shared(2, token_limit=10_000))
    assert (driver.backend("a").token_limit, driver.backend("b").token_limit) == (5000.0, 5000.0)
    share(driver, 4)
    assert (driver.backend("a").token_limit, driver.backend("b").token_limit) == (2500.0, 2500.0)


def test_an_engines_cache_is_for_all_of_them() -> None:
    driver = Driver(adaptive(), admission=shared(2))
    driver.take(driver.admission.note_hints("a", Hints(kv_capacity_tokens=100_000), driver.now))
    assert driver.backend().token_limit == pytest.approx(45_000)
    share(driver, 1)
    assert driver.backend().token_limit == pytest.approx(90_000)


def test_a_limit_that_was_found_moves_with_the_share_at_once() -> None:
    driver = Driver(adaptive())
    plant = Plant(driver, lambda n: 0.01 + 0.001 * n)
    plant.run(120)
    found = driver.backend().limit
    assert 20 < found < 80
    share(driver, 2)
    assert driver.backend().limit == pytest.approx(found / 2)
    assert driver.backend().limit_changes["down", "replicas"] == 1
    share(driver, 1)
    assert driver.backend().limit == pytest.approx(found)


def test_half_of_an_engine_that_another_gateway_loads_the_same_is_kept() -> None:
    """What was learned of the pace holds for all that is in flight, not for a share of it: no new climb, no fall."""
    driver = Driver(adaptive())
    others = 1
    plant = Plant(driver, lambda n: 0.01 + 0.001 * n * others)
    plant.run(120)
    alone = driver.backend().limit
    share(driver, 2)
    others = 2
    seen = []
    for _ in range(20):
        plant.run(2)
        seen.append(driver.backend().limit)
    assert min(seen) > 0.4 * alone
    assert max(seen) < 0.6 * alone


def test_the_ceiling_is_for_all_of_them() -> None:
    driver = Driver(adaptive(), admission=shared(3, maximum=30))
    Plant(driver, lambda _n: 0.01).run(60)
    assert driver.backend().limit == 10.0
    share(driver, 2)
    assert driver.backend().limit == 15.0


def test_what_is_remembered_is_the_whole() -> None:
    """Over a restart gateways may be more or fewer."""
    driver = Driver(adaptive(), admission=shared(2, maximum=64))
    Plant(driver, lambda _n: 0.01).run(60)
    memory = driver.admission.remember()
    assert memory.backends[0].limit == 64.0
    other = Driver(adaptive(), admission=shared(4))
    other.admission.recall(memory)
    assert other.backend().limit == 16.0


def test_an_operators_change_leaves_the_share_alone() -> None:
    driver = Driver(fixed(64), admission=shared(4))
    driver.take(driver.admission.retune(replace(driver.admission.tuning, tpot_objective=0.05), driver.now))
    assert (driver.backend().limit, driver.admission.tuning.replicas) == (16.0, 4)
