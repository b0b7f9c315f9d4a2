"""Models that backends name themselves: their queues come and go, and nobody who waits is lost."""

from __future__ import annotations

from dataclasses import replace

from gateway.admission.session import Session
from gateway.model import Permit
from tests.admission.helpers import Driver, fixed, ticket


def test_a_request_goes_to_the_backend_that_names_its_model() -> None:
    driver = Driver(fixed(9, "a"), fixed(9, "b"))
    driver.take(driver.admission.note_models("a", ["m"], 0.0))
    driver.take(driver.admission.note_models("b", ["n"], 0.0))
    assert [driver.permit(ticket(model="n")).backend for _ in range(3)] == ["b", "b", "b"]
    assert {driver.permit(ticket(model="unknown")).backend for _ in range(4)} == {"a", "b"}
    assert driver.admission.serving("n") == ("b",)


def test_who_waits_when_the_models_change_is_still_served() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    running = [driver.permit(ticket(model="m")) for _ in range(2)]
    waiting = driver.queue(ticket(model="m"))
    driver.take(driver.admission.note_models("a", ["m"], driver.now))
    driver.take(driver.admission.note_models("b", ["n"], driver.now))
    later = driver.queue(ticket(model="m"))
    driver.settle(next(permit for permit in running if permit.backend == "b"))
    assert driver.permits[waiting.id].backend == "b", "it came when b might have served it"
    driver.settle(next(permit for permit in running if permit.backend == "a"))
    assert driver.permits[later.id].backend == "a"
    assert driver.depth() == 0


def test_queues_of_models_that_are_gone_do_not_pile_up() -> None:
    driver = Driver(fixed(9, "a"), fixed(9, "b"))
    driver.take(driver.admission.note_models("b", ["n"], 0.0))
    for number in range(50):
        driver.take(driver.admission.note_models("a", [f"lora-{number}"], 0.0))
    assert len(driver.admission._backlog.groups) == 3  # anything, b's, a's


def test_one_full_backend_does_not_hold_up_the_model_of_another() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    driver.take(driver.admission.note_models("a", ["m"], 0.0))
    driver.take(driver.admission.note_models("b", ["n"], 0.0))
    driver.permit(ticket(model="m"))
    driver.queue(ticket(model="m"))
    assert driver.permit(ticket(model="n")).backend == "b"


def test_a_session_holds_a_place_until_it_ends() -> None:
    driver = Driver(fixed(1))
    request = ticket(stream=False)
    held = driver.permit(replace(request, shape=replace(request.shape, session=True)))
    assert isinstance(held.progress, Session)
    waiting = driver.queue(ticket())
    driver.settle(held)
    assert isinstance(driver.permits[waiting.id], Permit)


def test_models_that_are_named_again_change_nothing() -> None:
    driver = Driver(fixed(1, "a"), fixed(1, "b"))
    for _ in range(2):
        driver.take(driver.admission.note_models("a", ["m"], 0.0))
    assert driver.admission.serving("m") == ("a", "b")
    assert len(driver.admission._backlog.groups) == 1
