"""Engines that are found are served, and leave when they are found no more; others are not touched."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.app.discovery import Discovery, sources
from gateway.console.reload import Reloaded
from gateway.discovery.base import Found
from gateway.discovery.dns import Dns
from gateway.settings import Settings
from gateway.settings.load import load


class Backends:
    """Backends by name, as the reloader keeps them."""

    def __init__(self, *names: str) -> None:
        self.there: dict[str, dict[str, str]] = {name: {} for name in names}
        self.keeps: set[str] = set()  # that do not leave yet

    async def add(self, text: str) -> Reloaded:
        (described,) = json.loads(text)
        self.there[described["name"]] = described
        return Reloaded((f"{described['name']} added",))

    async def remove(self, name: str) -> Reloaded:
        if name in self.keeps:
            return Reloaded(faults=("it is the only backend, and one must stay",))
        del self.there[name]
        return Reloaded((f"{name} leaves",))


class Told:
    """A source that says what the test says."""

    def __init__(self) -> None:
        self.found: Found | None = None

    async def run(self, found: Found) -> None:
        self.found = found
        await asyncio.Event().wait()

    async def say(self, *urls: str) -> None:
        assert self.found is not None
        await self.found(frozenset(urls))


async def discovery(backends: Backends, *told: Told, api_key: str | None = None) -> Discovery:
    made = Discovery({str(n): each for n, each in enumerate(told)}, backends, lambda: set(backends.there), api_key)
    made.start()
    await asyncio.sleep(0)
    return made


async def test_what_is_found_comes_and_goes() -> None:
    backends, dns = Backends("fixed"), Told()
    await discovery(backends, dns, api_key="secret")
    await dns.say("http://a:1", "http://b:1")
    assert set(backends.there) == {"fixed", "a:1", "b:1"}
    assert backends.there["a:1"] == {"name": "a:1", "url": "http://a:1", "api_key": "secret"}
    await dns.say("http://b:1", "http://c:1")
    assert set(backends.there) == {"fixed", "b:1", "c:1"}


async def test_two_sources_each_have_their_own() -> None:
    backends, one, other = Backends(), Told(), Told()
    await discovery(backends, one, other)
    await one.say("http://a:1", "http://b:1")
    await other.say("http://b:1")
    await one.say("http://a:1")
    assert set(backends.there) == {"a:1", "b:1"}  # the other still finds it


async def test_what_was_there_before_is_not_sent_away() -> None:
    backends, dns = Backends("a:1"), Told()
    await discovery(backends, dns)
    await dns.say("http://a:1")
    await dns.say("http://b:1")
    assert set(backends.there) == {"a:1", "b:1"}


async def test_who_cannot_leave_yet_leaves_later() -> None:
    backends, dns = Backends(), Told()
    await discovery(backends, dns)
    await dns.say("http://a:1")
    backends.keeps = {"a:1"}
    await dns.say("http://b:1")
    assert set(backends.there) == {"a:1", "b:1"}
    backends.keeps = set()
    await dns.say("http://b:1")
    assert set(backends.there) == {"b:1"}


def settings(monkeypatch: pytest.MonkeyPatch, discover: str) -> Settings:
    monkeypatch.setenv("GATEWAY_DISCOVER", discover)
    loaded = load(None)
    assert not [str(fault) for fault in loaded.faults if "DISCOVER" in str(fault)]
    return loaded.settings


def test_the_setting_names_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sources(settings(monkeypatch, "dns+http://engines:8000, dns+https://other.svc:1025"))
    assert list(found) == ["dns+http://engines:8000", "dns+https://other.svc:1025"]
    assert all(isinstance(each, Dns) for each in found.values())


def test_kubernetes_is_asked_from_inside_of_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    wanted = settings(monkeypatch, "k8s+http://engines.prod:8000")
    with pytest.raises(ValueError, match=r"GATEWAY_DISCOVER: k8s\+http://engines\.prod:8000 .* no Pod"):
        sources(wanted)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert list(sources(wanted)) == ["k8s+http://engines.prod:8000"]


@pytest.mark.parametrize(
    "wrong",
    ["http://engines:8000", "dns+http://engines", "dns+ftp://a:1", "k8s+http://engines:8000", "dns+http://a:1/x"],
)
def test_another_form_is_refused_with_what_was_given(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("GATEWAY_DISCOVER", wrong)
    (fault,) = [str(fault) for fault in load(None).faults]
    assert "GATEWAY_DISCOVER" in fault
    assert wrong in fault
    assert "dns+http://engines:8000" in fault
