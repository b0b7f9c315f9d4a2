"""/limits over real sockets, before a real controller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.tuning import Tuning
from gateway.console.limits import LimitsRoutes
from gateway.model import Backend
from tests.console.helpers import TOKEN, build, from_afar, served


class World:
    """Two backends; what was told is noted."""

    def __init__(self) -> None:
        backends = (Backend("a", "http://a"), Backend("b", "http://b", limit=8))
        self.admission = AdmissionController(AdmissionConfig(), backends, lambda low, _high: low)
        self.told: list[tuple[str | None, str]] = []
        self.routes = LimitsRoutes(
            lambda: self.admission.tuning,
            self.retune,
            lambda backend, text: self.told.append((backend, text)),
        ).routes()

    def retune(self, tuning: Tuning) -> None:
        assert not self.admission.retune(tuning, 0.0)

    @asynccontextmanager
    async def port(self) -> AsyncIterator[str]:
        async with served(build(routes=self.routes)) as url:
            yield url


async def patch(url: str, change: object, **headers: str) -> tuple[int, dict[str, Any]]:
    data = change if isinstance(change, bytes) else json.dumps(change).encode()
    async with ClientSession() as session, session.patch(f"{url}/limits", data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_what_is_in_effect_is_shown_and_can_be_sent_back() -> None:
    world = World()
    async with world.port() as url, ClientSession() as session, session.get(f"{url}/limits") as answer:
        shown = await answer.json()
        assert shown == {
            "tpot_objective_seconds": None,
            "lanes": {
                "short": {"threshold": 1000, "weight": 2.0, "ttft_objective_seconds": None, "max_wait_seconds": 1.0},
                "long": {"threshold": None, "weight": 1.0, "ttft_objective_seconds": None, "max_wait_seconds": 4.0},
            },
            "backends": {"a": {"limit": None, "drained": False}, "b": {"limit": 8, "drained": False}},
        }
        assert await patch(url, shown) == (200, {"changed": [], **shown})
    assert not world.told


async def test_a_change_is_in_effect_at_once_and_each_part_of_it_is_told() -> None:
    world = World()
    change = {"tpot_objective_seconds": 0.05, "backends": {"a": {"limit": 32}, "b": {"drained": True}}}
    async with world.port() as url:
        status, found = await patch(url, change)
    assert (status, found["backends"]["a"]["limit"]) == (200, 32)
    assert found["changed"] == [
        "TPOT objective none -> 0.05 s",
        "a: limit pinned at 32",
        "b: drained: no new request goes to it",
    ]
    assert world.told == [
        (None, "TPOT objective none -> 0.05 s"),
        ("a", "limit pinned at 32"),
        ("b", "drained: no new request goes to it"),
    ]
    state = world.admission.state(0.0)
    assert (state.tpot_objective, state.backends[0].limit, state.backends[1].health) == (0.05, 32.0, "drained")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (b"{", "the change is no JSON: "),
        (b"", "the change is no JSON: "),
        (b"[" + b"1," * 40_000, "the change is longer than 65536 bytes"),
        ({"backends": {"a": {"limit": -1}}}, "backends.a.limit: got -1, expected a whole number"),
        ({"backends": {"a": {"limit": 5}, "c": {}}}, "backends.c: unknown, expected one of a, b"),
    ],
)
async def test_of_a_wrong_change_nothing_is_made(change: object, told: str) -> None:
    world = World()
    before = world.admission.tuning
    async with world.port() as url:
        status, found = await patch(url, change)
    assert (status, found["error"][: len(told)]) == (400, told)
    assert (world.admission.tuning, world.told) == (before, [])


async def test_it_is_guarded() -> None:
    world = World()
    assert (await from_afar(build(routes=world.routes), "/limits"))[0] == 403
    assert (await from_afar(build(routes=World().routes), "/limits", Authorization=f"Bearer {TOKEN}"))[0] == 200
    async with world.port() as url:
        assert (await patch(url, {}, Host="evil.example"))[0] == 403
        assert (await patch(url, {}, Authorization="Bearer wrong"))[0] == 401


async def test_a_web_page_of_another_origin_is_not_allowed_to_ask() -> None:
    """A browser asks with OPTIONS first, and without a permission in the answer sends no PATCH."""
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PATCH"}
    async with World().port() as url, ClientSession() as session:
        async with session.options(f"{url}/limits", headers=asked) as answer:
            assert answer.status == 405
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        for method in ("POST", "PUT"):
            async with session.request(method, f"{url}/limits", json={}) as answer:
                assert answer.status == 405
