"""What an operator changes while the gateway runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.admission.config import LimitConfig
from gateway.admission.tuning import BackendTuning, Tuning, changed, differences
from gateway.model import Outcome, Reason, Usage
from tests.admission.helpers import LONG, SHORT, Driver, adaptive, config, fixed, ticket

MIDDLE = type(SHORT)("middle", 5000, 1.0)
NOW = Tuning(None, (SHORT, MIDDLE, LONG), {"a": BackendTuning(), "gpu-b": BackendTuning(8)})


def tune(driver: Driver, change: object) -> None:
    tuning = changed(driver.admission.tuning, change)
    driver.take(driver.admission.retune(tuning, driver.now))


# --------------------------------------------------------------------------------------------------------------
# The change
# --------------------------------------------------------------------------------------------------------------


def test_an_empty_change_changes_nothing() -> None:
    assert changed(NOW, {}) == NOW
    assert changed(NOW, {"lanes": {"short": {}}, "backends": {"a": {}}}) == NOW


def test_only_what_is_named_changes() -> None:
    after = changed(NOW, {"lanes": {"short": {"weight": 3}}, "backends": {"a": {"drained": True}}})
    assert after.lanes == (type(SHORT)("short", 1000, 3.0, None, 1.0), MIDDLE, LONG)
    assert after.backends == {"a": BackendTuning(None, drained=True), "gpu-b": BackendTuning(8)}
    assert after.tpot_objective is None


def test_null_takes_an_objective_or_a_pinned_limit_away() -> None:
    with_objectives = changed(
        NOW, {"tpot_objective_seconds": 0.05, "lanes": {"short": {"ttft_objective_seconds": 1, "max_wait_seconds": 2}}}
    )
    assert (with_objectives.tpot_objective, with_objectives.lanes[0].ttft_objective) == (0.05, 1.0)
    without = changed(
        with_objectives,
        {
            "tpot_objective_seconds": None,
            "lanes": {"short": {"ttft_objective_seconds": None}},
            "backends": {"gpu-b": {"limit": None}},
        },
    )
    assert (without.tpot_objective, without.lanes[0].ttft_objective) == (None, None)
    assert without.lanes[0].max_wait == 2.0
    assert without.backends["gpu-b"] == BackendTuning()


def test_the_longest_wait_follows_the_objective_unless_it_is_given() -> None:
    assert changed(NOW, {"lanes": {"long": {"ttft_objective_seconds": 9}}}).lanes[2].max_wait == 4.5
    both = {"lanes": {"long": {"ttft_objective_seconds": 9, "max_wait_seconds": 1}}}
    assert changed(NOW, both).lanes[2].max_wait == 1.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ([], "change: got [], expected an object"),
        ({"tpot_objective": 1}, "tpot_objective: no such field, expected one of tpot_objective_seconds, lanes"),
        ({"tpot_objective": 1}, "did you mean tpot_objective_seconds?"),
        ({"tpot_objective_seconds": 0}, "tpot_objective_seconds: got 0, expected seconds above 0, or null for none"),
        ({"tpot_objective_seconds": True}, "tpot_objective_seconds: got true, expected seconds"),
        ({"tpot_objective_seconds": "50ms"}, "tpot_objective_seconds: got '50ms', expected seconds"),
        ({"tpot_objective_seconds": float("inf")}, "tpot_objective_seconds: got inf, expected seconds"),
        ({"lanes": {"shrot": {}}}, "lanes.shrot: unknown, expected one of short, middle, long (did you mean short?)"),
        ({"lanes": []}, "lanes: got [], expected an object by name"),
        ({"lanes": {"short": 3}}, "lanes.short: got 3, expected an object"),
        ({"lanes": {"short": {"wieght": 1}}}, "lanes.short.wieght: no such field"),
        ({"lanes": {"short": {"weight": -1}}}, "lanes.short.weight: got -1, expected a number above 0"),
        ({"lanes": {"short": {"weight": None}}}, "lanes.short.weight: got null, expected a number above 0"),
        ({"lanes": {"short": {"max_wait_seconds": "1"}}}, "lanes.short.max_wait_seconds: got '1', expected a number"),
        ({"lanes": {"short": {"threshold": 1.5}}}, "lanes.short.threshold: got 1.5, expected a whole number of tokens"),
        ({"lanes": {"short": {"threshold": None}}}, "lanes.short.threshold: got null, expected a whole number"),
        ({"lanes": {"long": {"threshold": 9000}}}, "lanes.long.threshold: got 9000, expected null"),
        ({"lanes": {"short": {"threshold": 5000}}}, "lanes.short.threshold: got 5000, expected less than 5000, that"),
        ({"backends": {"b": {}}}, "backends.b: unknown, expected one of a, gpu-b"),
        ({"backends": {"a": {"limit": 0}}}, "backends.a.limit: got 0, expected a whole number, 1 to 1000000, or null"),
        ({"backends": {"a": {"limit": 3.0}}}, "backends.a.limit: got 3.0, expected a whole number"),
        ({"backends": {"a": {"drained": 1}}}, "backends.a.drained: got 1, expected true or false"),
        ({"backends": {"a": {"limit": "x" * 200}}}, "x..., expected a whole number"),
    ],
)
def test_a_wrong_change_names_the_field_what_was_given_and_what_is_expected(change: object, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        changed(NOW, change)
    assert len(str(caught.value)) < 220


def test_null_is_the_last_lanes_threshold() -> None:
    assert changed(NOW, {"lanes": {"long": {"threshold": None}}}) == NOW


def test_what_changed_is_told_in_sentences() -> None:
    change: dict[str, Any] = {
        "tpot_objective_seconds": 0.05,
        "lanes": {"short": {"threshold": 800, "ttft_objective_seconds": 1.5}},
        "backends": {"a": {"limit": 32}, "gpu-b": {"limit": None, "drained": True}},
    }
    after = changed(NOW, change)
    assert list(differences(NOW, after)) == [
        (None, "TPOT objective none -> 0.05 s"),
        (None, "lane short: threshold 1000 tokens -> 800 tokens"),
        (None, "lane short: TTFT objective none -> 1.5 s"),
        (None, "lane short: longest wait 1 s -> 0.75 s"),
        ("a", "limit pinned at 32"),
        ("gpu-b", "limit unpinned: it is found by itself again"),
        ("gpu-b", "drained: no new request goes to it"),
    ]
    assert ("gpu-b", "drained no longer") in list(differences(after, NOW))
    assert not list(differences(NOW, NOW))


# --------------------------------------------------------------------------------------------------------------
# A drained backend
# --------------------------------------------------------------------------------------------------------------


def test_a_drained_backend_gets_nothing_new_and_ends_what_it_has() -> None:
    driver = Driver(fixed(4, "a"), fixed(4, "b"))
    first = driver.permit(ticket())
    tune(driver, {"backends": {first.backend: {"drained": True}}})
    others = [driver.permit(ticket()).backend for _ in range(3)]
    assert set(others) == {"a", "b"} - {first.backend}
    drained = driver.backend(first.backend)
    assert (drained.health, drained.running) == ("drained", 1)
    driver.settle(first)
    assert driver.backend(first.backend).running == 0


def test_what_waits_goes_elsewhere_and_comes_back_when_the_drain_ends() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    running = {permit.backend: permit for permit in (driver.permit(ticket()), driver.permit(ticket()))}
    waiting = driver.queue(ticket())
    tune(driver, {"backends": {"a": {"drained": True}}})
    driver.settle(running["a"])
    assert waiting.id not in driver.permits
    tune(driver, {"backends": {"a": {"drained": False}}})
    assert driver.permits[waiting.id].backend == "a"
    assert driver.backend("a").health == "unknown"


def test_with_every_backend_drained_nobody_can_serve() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    tune(driver, {"backends": {"a": {"drained": True}, "b": {"drained": True}}})
    assert driver.refused(ticket()).reason is Reason.NO_BACKEND


def test_a_drained_backend_is_no_way_out_for_who_avoids_the_others() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    tune(driver, {"backends": {"b": {"drained": True}}})
    assert driver.refused(ticket(avoid=frozenset({"a"}))).reason is Reason.NO_BACKEND


def test_a_drain_of_the_last_backend_lets_what_waits_time_out() -> None:
    driver = Driver(fixed(1, "a"))
    driver.permit(ticket())
    waiting = driver.queue(ticket())
    tune(driver, {"backends": {"a": {"drained": True}}})
    driver.run(2.0)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT


# --------------------------------------------------------------------------------------------------------------
# A pinned limit
# --------------------------------------------------------------------------------------------------------------


def test_a_pinned_limit_holds_at_once_and_does_not_move() -> None:
    driver = Driver(adaptive("a"), admission=config(limit=LimitConfig(initial=1)))
    driver.permit(ticket())
    waiting = [driver.queue(ticket()) for _ in range(3)]
    assert driver.backend().limit_min == 1
    tune(driver, {"backends": {"a": {"limit": 3}}})
    assert [request.id in driver.permits for request in waiting] == [True, True, False]
    driver.run(30.0)
    assert (driver.backend().limit, driver.backend().limit_min) == (3.0, None)


def test_a_pin_below_what_runs_cuts_nobody_off() -> None:
    driver = Driver(fixed(3))
    permits = [driver.permit(ticket()) for _ in range(3)]
    tune(driver, {"backends": {"a": {"limit": 1}}})
    waiting = driver.queue(ticket())
    assert driver.backend().running == 3
    for permit in permits[:2]:
        driver.settle(permit)
        assert waiting.id not in driver.permits
    driver.settle(permits[2])
    assert waiting.id in driver.permits


def test_an_unpinned_limit_goes_on_where_the_law_left_it_and_its_moves_stay_counted() -> None:
    driver = Driver(adaptive("a"), admission=config(limit=LimitConfig(initial=8)))
    permits = [driver.permit(ticket(stream=False)) for _ in range(4)]
    driver.settle(permits.pop(), Outcome.BACKEND_BUSY)
    before = driver.backend()
    assert (before.limit, before.limit_changes) == (3.0, {("down", "refused"): 1})
    tune(driver, {"backends": {"a": {"limit": 20}}})
    assert driver.backend().limit_changes == before.limit_changes
    tune(driver, {"backends": {"a": {"limit": None}}})
    assert (driver.backend().limit, driver.backend().limit_changes) == (before.limit, before.limit_changes)


def test_a_limit_fixed_by_the_settings_can_be_unpinned() -> None:
    driver = Driver(fixed(2), admission=config(limit=LimitConfig(initial=5)))
    assert driver.admission.tuning.backends == {"a": BackendTuning(2)}
    tune(driver, {"backends": {"a": {"limit": None}}})
    assert (driver.backend().limit, driver.backend().limit_min) == (5.0, 1)


# --------------------------------------------------------------------------------------------------------------
# Lanes and objectives
# --------------------------------------------------------------------------------------------------------------


def test_a_threshold_moves_new_requests_and_leaves_those_that_wait() -> None:
    driver = Driver(fixed(1))
    driver.permit(ticket())
    driver.queue(ticket(400, 400))
    tune(driver, {"lanes": {"short": {"threshold": 500}}})
    assert driver.admission.lane(ticket(400, 400)) == "long"
    assert driver.admission.lane(ticket(100, 100)) == "short"
    short, long = driver.admission.state(driver.now).lanes
    assert (short.depth, long.depth, short.threshold, long.threshold) == (1, 0, 500, None)


def test_weights_move_the_shares_of_what_waits() -> None:
    driver = Driver(fixed(1), admission=config(lanes=(SHORT, LONG), lane_quantum=100.0))
    permit = driver.permit(ticket())
    for _ in range(6):
        driver.queue(ticket(0, 400))
        driver.queue(ticket(4000, 400))
    tune(driver, {"lanes": {"short": {"weight": 1}, "long": {"weight": 20}}})
    lanes = []
    for _ in range(6):
        driver.settle(permit)
        permit = next(iter(driver.permits.values()))
        lanes.append(driver.admission.lane(permit.ticket))
    assert lanes.count("long") > lanes.count("short")


def test_a_longer_wait_lets_wait_who_would_have_been_thrown_out() -> None:
    driver = Driver(fixed(1))
    driver.permit(ticket())
    tune(driver, {"lanes": {"short": {"max_wait_seconds": 30}}})
    waiting = driver.queue(ticket())
    driver.run(20.0)
    assert waiting.id not in driver.rejections
    driver.run(11.0)
    assert driver.rejections[waiting.id].reason is Reason.QUEUE_TIMEOUT


def test_a_tpot_objective_is_what_the_pace_is_steered_to() -> None:
    driver = Driver(adaptive("a"), admission=config(limit=LimitConfig(initial=1)))
    assert driver.admission.state(0.0).tpot_objective is None

    def answer() -> None:
        permit = driver.permit(ticket(output=60))
        for _ in range(60):
            driver.run(0.05)
            permit.progress.output(1, driver.now)
        driver.settle(permit, usage=Usage(100, 60))

    for _ in range(3):
        answer()
    unset = driver.backend().pace_target
    tune(driver, {"tpot_objective_seconds": 0.08})
    for _ in range(3):
        answer()
    assert unset == pytest.approx(0.2125, rel=0.05)
    assert driver.backend().pace_target == pytest.approx(0.85 * 0.08)
    assert driver.admission.state(driver.now).tpot_objective == 0.08


def test_a_ttft_objective_is_shown_with_its_lane() -> None:
    driver = Driver(fixed(1))
    tune(driver, {"lanes": {"short": {"ttft_objective_seconds": 2}}})
    short = driver.admission.state(driver.now).lanes[0]
    assert (short.ttft_objective, short.max_wait, short.weight) == (2.0, 1.0, 2.0)


# --------------------------------------------------------------------------------------------------------------
# What the state tells beside it
# --------------------------------------------------------------------------------------------------------------


def test_silence_counts_from_the_last_byte_while_something_runs() -> None:
    driver = Driver(fixed(2))
    driver.run(5.0)
    assert driver.backend().silence == 0.0
    permit = driver.permit(ticket())
    driver.run(7.0)
    assert driver.backend().silence == 7.0
    permit.progress.output(1, driver.now)
    driver.run(2.0)
    assert driver.backend().silence == 2.0
    driver.settle(permit)
    assert driver.backend().silence == 0.0
