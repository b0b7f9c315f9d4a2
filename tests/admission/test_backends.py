"""Backends that come, change and leave while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.model import Access, Backend, Outcome, Permit, Reason, Rejection, Route, Shape, Ticket, WorkEstimate

ROUTE = Route("chat", Access.ADMIT)


class World:
    def __init__(self, *backends: Backend) -> None:
        self.controller = AdmissionController(AdmissionConfig(), backends, lambda low, _high: low)
        self.now = 0.0
        self._ids = 0

    def offer(self, model: str | None = None) -> Permit | Rejection | None:
        self._ids += 1
        self.now += 0.01
        ticket = Ticket(self._ids, Shape(ROUTE, model), WorkEstimate(10, 10, 12.5))
        verdicts = self.controller.offer(ticket, self.now)
        return verdicts[0] if verdicts else None

    def backend_of(self, model: str | None = None) -> str | None:
        """Where a request goes that is over at once."""
        verdict = self.offer(model)
        if not isinstance(verdict, Permit):
            return None
        self.controller.settle(verdict, Outcome.COMPLETED, None, self.now)
        return verdict.backend

    def drain(self, name: str) -> None:
        tuning = self.controller.tuning
        drained = replace(tuning.backends[name], drained=True)
        self.controller.retune(replace(tuning, backends={**tuning.backends, name: drained}), self.now)


def test_a_backend_that_comes_takes_its_share() -> None:
    world = World(Backend("a", "http://a"))
    world.controller.add_backend(Backend("b", "http://b"), 0.0)
    assert {world.backend_of() for _ in range(8)} == {"a", "b"}
    assert set(world.controller.tuning.backends) == {"a", "b"}
    assert [state.name for state in world.controller.state(1.0).backends] == ["a", "b"]


def test_a_backend_with_models_of_its_own_gets_those_only() -> None:
    world = World(Backend("a", "http://a", models=("m",)))
    world.controller.add_backend(Backend("b", "http://b", models=("n",)), 0.0)
    assert {world.backend_of("m") for _ in range(4)} == {"a"}
    assert {world.backend_of("n") for _ in range(4)} == {"b"}


def test_what_a_backend_serves_can_be_changed() -> None:
    world = World(Backend("a", "http://a", models=("m",)), Backend("b", "http://b", models=("n",)))
    world.controller.change_backend(Backend("b", "http://b", models=("m", "n")), 0.0)
    assert {world.backend_of("m") for _ in range(8)} == {"a", "b"}
    assert world.controller.serving("m") == ("a", "b")


def test_one_that_leaves_is_forgotten_once_it_is_idle() -> None:
    world = World(Backend("a", "http://a"), Backend("b", "http://b"))
    running = [permit for permit in (world.offer() for _ in range(4)) if isinstance(permit, Permit)]
    (first, *_) = [permit for permit in running if permit.backend == "a"]
    world.drain("a")
    with pytest.raises(ValueError, match="requests run on a"):
        world.controller.remove_backend("a", world.now)
    assert world.controller.inflight("a") == len([permit for permit in running if permit.backend == "a"])
    for permit in running:
        world.controller.settle(permit, Outcome.COMPLETED, None, world.now)
    assert first.backend == "a"
    world.controller.remove_backend("a", world.now)
    assert {world.backend_of() for _ in range(8)} == {"b"}
    assert set(world.controller.tuning.backends) == {"b"}
    assert [state.name for state in world.controller.state(world.now).backends] == ["b"]


def test_where_the_last_for_a_model_leaves_the_others_are_asked() -> None:
    world = World(Backend("a", "http://a", models=("m",)), Backend("b", "http://b"))
    world.controller.note_models("b", ["n"], 0.0)
    world.drain("a")
    world.controller.remove_backend("a", world.now)
    assert world.backend_of("m") == "b", "its own 404 is the right answer"


def test_who_waits_for_one_that_has_left_goes_to_the_others() -> None:
    world = World(Backend("a", "http://a", models=("m",), limit=1), Backend("b", "http://b", models=("n",)))
    held = world.offer("m")
    assert isinstance(held, Permit)
    assert world.offer("m") is None
    world.drain("a")
    assert world.controller.settle(held, Outcome.COMPLETED, None, world.now) == []
    (permit,) = world.controller.remove_backend("a", world.now)
    assert isinstance(permit, Permit)
    assert permit.backend == "b"
    world.controller.settle(permit, Outcome.COMPLETED, None, world.now)


def test_who_waits_where_nobody_is_left_is_told_at_once() -> None:
    world = World(Backend("a", "http://a", models=("m",), limit=1), Backend("b", "http://b", models=("n",)))
    held = world.offer("m")
    assert isinstance(held, Permit)
    assert world.offer("m") is None
    world.drain("a")
    world.drain("b")
    world.controller.settle(held, Outcome.COMPLETED, None, world.now)
    (verdict,) = world.controller.remove_backend("a", world.now)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.NO_BACKEND


def test_who_waits_for_others_is_not_touched() -> None:
    world = World(Backend("a", "http://a", models=("m",), limit=1), Backend("b", "http://b", models=("n",), limit=1))
    held = world.offer("m")
    assert isinstance(held, Permit)
    assert world.offer("m") is None
    assert world.controller.change_backend(Backend("b", "http://b", models=("n", "o")), world.now) == []
    (permit,) = world.controller.settle(held, Outcome.COMPLETED, None, world.now)
    assert isinstance(permit, Permit)
    assert permit.backend == "a"


def test_who_waits_is_served_by_one_that_comes() -> None:
    world = World(Backend("a", "http://a", limit=1))
    held = [verdict for verdict in (world.offer() for _ in range(3)) if isinstance(verdict, Permit)]
    assert len(held) == 1
    verdicts = world.controller.add_backend(Backend("b", "http://b"), world.now)
    assert {verdict.backend for verdict in verdicts if isinstance(verdict, Permit)} == {"b"}
    assert len(verdicts) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda controller: controller.change_backend(Backend("x", "http://x"), 0.0),
        lambda controller: controller.remove_backend("x", 0.0),
    ],
)
def test_one_that_is_not_there_is_a_programmers_error(change: Callable[[AdmissionController], object]) -> None:
    controller = World(Backend("a", "http://a")).controller
    with pytest.raises(KeyError):
        change(controller)
